"""The promotion saga: publish the evaluated bytes, then write the entry, move the alias and record it at once."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from promotion import permissions
from promotion.export.manifest import export_manifest
from promotion.models import (
    CANDIDATE_MOVES,
    Alias,
    AliasMove,
    Candidate,
    CandidateState,
    Evidence,
    Export,
    RegistryEntry,
    Track,
)
from promotion.selectors import standing_approvals
from promotion.services import approvals, gating
from promotion.signature_record import signature_record
from rollouts import audit, store
from rollouts.errors import AssayError, Conflict
from rollouts.hashing import CHUNK_BYTES, sha256_file
from rollouts.states import require_move

CHAMPION = "champion"
PUBLISHING_FROM = (CandidateState.APPROVED, CandidateState.PUBLISHING)


def publish(candidate_id: int) -> RegistryEntry | None:
    """Carry an approved candidate to `promoted`. Killed anywhere and called again, it finishes; twice at once, once.

    None where there is nothing to do, or where it may no longer be promoted; then the candidate says why.
    """
    candidate = _begin(candidate_id)
    if candidate is None:
        return None
    path = export_path(candidate)
    try:
        _write_export(candidate, path)
    except AssayError as error:
        _publish_failed(candidate_id, error.message)
        return None
    return _promote(candidate_id, path)


def export_path(candidate: Candidate) -> Path:
    """Where the export is published. Both names are slugs, so the path stays in the export folder."""
    return Path(settings.EXPORTS_DIR) / candidate.track.name / export_name(candidate)


def export_name(candidate: Candidate) -> str:
    return f"{candidate.name}-{candidate.outtype}.gguf"


def _begin(candidate_id: int) -> Candidate | None:
    with transaction.atomic():
        candidate = gating.locked_candidate(candidate_id)
        if candidate.state not in PUBLISHING_FROM:
            return None
        if _checked(candidate) is None:
            return None
        if candidate.state != CandidateState.PUBLISHING:
            require_move(str(candidate), CANDIDATE_MOVES, candidate.state, CandidateState.PUBLISHING)
            Candidate.objects.filter(pk=candidate.pk).update(state=CandidateState.PUBLISHING, error_detail="")
            audit.record(
                "candidate.publishing", subject=candidate, actor="system:publish", gguf=candidate.gguf_id
            )
    return candidate


def _checked(candidate: Candidate) -> Evidence | None:
    """The evidence, if it and its signatures hold now. Otherwise None, and the candidate is back where it belongs."""
    evidence, blocked = gating.unmet(candidate)
    if not blocked:
        return evidence
    Candidate.objects.filter(pk=candidate.pk).update(state=gating.place_of(blocked))
    _retract(candidate)
    audit.record(
        "candidate.promotion_refused",
        subject=candidate,
        actor="system:publish",
        evidence=evidence.digest,
        blocked_by=[reason[:500] for reason in blocked],
    )
    return None


def _retract(candidate: Candidate) -> None:
    """No file without an entry: one that an earlier, killed attempt left is removed, under the candidate's lock."""
    with suppress(FileNotFoundError, NotADirectoryError):
        export_path(candidate).unlink()


def _write_export(candidate: Candidate, path: Path) -> None:
    """The stored bytes under the export's name: temporary file, fsync, hash, rename. Never converted again."""
    assert candidate.gguf_id is not None
    with store.storage_errors("the export folder"):
        source = store.path_of(candidate.gguf_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and sha256_file(path) == candidate.gguf_id:
            return
        store.discard_leftovers(path.parent)
        handle, name = tempfile.mkstemp(prefix=store.PART, dir=path.parent)
        part = Path(name)
        try:
            with os.fdopen(handle, "wb") as out, source.open("rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    out.write(chunk)
                out.flush()
                os.fsync(out.fileno())
            if sha256_file(part) != candidate.gguf_id:
                raise Conflict(
                    "The stored GGUF holds other bytes than were evaluated. Restore it from a backup."
                )
            part.chmod(0o644)
            os.replace(part, path)
            store.sync_folder(path.parent)
        finally:
            part.unlink(missing_ok=True)


def _publish_failed(candidate_id: int, reason: str) -> None:
    with transaction.atomic():
        candidate = gating.locked_candidate(candidate_id)
        if candidate.state != CandidateState.PUBLISHING:
            return
        Candidate.objects.filter(pk=candidate_id).update(
            state=CandidateState.PUBLISH_FAILED, error_detail=reason
        )
        _retract(candidate)
        audit.record(
            "candidate.publish_failed", subject=candidate, actor="system:publish", reason=reason[:1000]
        )


def _promote(candidate_id: int, path: Path) -> RegistryEntry | None:
    with transaction.atomic():
        track_id = Candidate.objects.values_list("track_id", flat=True).get(pk=candidate_id)
        # the track's lock first: two candidates of one track cannot both become the next champion
        Track.objects.select_for_update(no_key=True).get(pk=track_id)
        candidate = gating.locked_candidate(candidate_id)
        if candidate.state != CandidateState.PUBLISHING:
            present = RegistryEntry.objects.filter(candidate=candidate).first()
            if present is None:
                _retract(candidate)  # refused by another worker after this one wrote the file
            return present
        # checked and promoted from one document: built twice, a run reopened in between would slip through
        evidence = _checked(candidate)
        if evidence is None:
            return None
        if not path.is_file():
            return None  # another attempt failed and took it away; the sweep publishes again
        entry = _write_entry(candidate, evidence)
        Export.objects.create(
            entry=entry,
            name=path.name,
            artifact_id=candidate.gguf_id,
            manifest=_manifest(candidate),
            published_at=timezone.now(),
        )
        _move_alias(entry, CHAMPION, "Adopted as baseline." if candidate.baseline else "Promoted.")
        Candidate.objects.filter(pk=candidate.pk).update(state=CandidateState.PROMOTED)
        audit.record(
            "candidate.promoted",
            subject=candidate,
            actor="system:publish",
            entry=entry.number,
            gguf=candidate.gguf_id,
            evidence=evidence.digest,
            export=path.name,
            ungated=entry.ungated,
        )
    return entry


def _write_entry(candidate: Candidate, evidence: Evidence) -> RegistryEntry:
    last = RegistryEntry.objects.filter(track=candidate.track).aggregate(Max("number"))["number__max"]
    return RegistryEntry.objects.create(
        track=candidate.track,
        number=(last or 0) + 1,
        candidate=candidate,
        gguf=candidate.gguf,
        evidence=evidence,
        ungated=candidate.baseline,
        record=_record(candidate, evidence),
        created_at=timezone.now(),
    )


def _record(candidate: Candidate, evidence: Evidence) -> dict[str, Any]:
    approval = gating.approvals_outcome(candidate, evidence)
    counted = [
        signature
        for signature in standing_approvals(candidate).filter(evidence_digest=evidence.digest)
        if signature.approver.get_username() in approval.numbers["signed_by"]
    ]
    return {
        "candidate": str(candidate),
        "gguf_sha256": candidate.gguf_id,
        "base_sha256": candidate.base.artifact_id,
        "adapter_source_sha256": candidate.adapter_source_sha256,
        "evidence_digest": evidence.digest,
        "policy_digest": evidence.policy.digest if evidence.policy else None,
        "gates": [
            {"gate": result.gate, "outcome": result.outcome, "reason": result.reason}
            for result in evidence.gate_results.all()
            if result.gate != gating.APPROVAL_GATE
        ]
        + [
            {
                "gate": gating.APPROVAL_GATE,
                "outcome": str(approval.outcome),
                "reason": approval.reason,
            }
        ],
        "signatures": [signature_record(signature) for signature in counted],
        "broken_glass": _glass_record(candidate, evidence),
    }


def _glass_record(candidate: Candidate, evidence: Evidence) -> dict[str, Any] | None:
    """Who promoted it without the signatures, if anybody did. What a review says afterwards stands in its own row."""
    glass = candidate.broken_glass.filter(evidence_digest=evidence.digest).select_related("broken_by").first()
    return glass and {
        "person": glass.broken_by.get_username(),
        "printed_name": glass.printed_name,
        "reason": glass.reason,
        "method": glass.method,
        "authenticated_at": glass.authenticated_at.isoformat(),
        "broken_at": glass.broken_at.isoformat(),
        "review_due_at": glass.review_due_at.isoformat(),
        "evidence_digest": glass.evidence_digest,
    }


def _manifest(candidate: Candidate) -> dict[str, Any]:
    assert candidate.gguf is not None
    return export_manifest(
        name=export_name(candidate),
        base_name=candidate.base.name,
        base_sha256=candidate.base.artifact_id,
        adapter_config_sha256=candidate.adapter_config_id,
        adapter_weights_sha256=candidate.adapter_weights_id,
        gguf_sha256=candidate.gguf.sha256,
        size_bytes=candidate.gguf.size_bytes,
        outtype=candidate.outtype,
        verification=candidate.verification or {},
    )


def _move_alias(entry: RegistryEntry, name: str, reason: str) -> None:
    now = timezone.now()
    alias = Alias.objects.select_for_update(no_key=True).filter(track=entry.track, name=name).first()
    AliasMove.objects.create(
        track=entry.track,
        name=name,
        old=alias.entry if alias else None,
        new=entry,
        reason=reason,
        moved_at=now,
    )
    Alias.objects.update_or_create(track=entry.track, name=name, defaults={"entry": entry, "moved_at": now})


def retry_publish(*, candidate_id: int, by: User) -> Candidate:
    """After a failed publication (a full disk, say): try again. The signatures are checked again too."""
    permissions.require_can_retry(by)
    with transaction.atomic():
        candidate = gating.locked_candidate(candidate_id)
        require_move(str(candidate), CANDIDATE_MOVES, candidate.state, CandidateState.PUBLISHING)
        if candidate.state != CandidateState.PUBLISH_FAILED:
            raise Conflict(f"{candidate} is {candidate.state}; nothing failed that could be tried again.")
        Candidate.objects.filter(pk=candidate.pk).update(state=CandidateState.PUBLISHING, error_detail="")
        audit.record("candidate.publish_retried", subject=candidate, actor=by)
        approvals.send_publish(candidate.pk)
    return candidate
