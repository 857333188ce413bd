"""Candidates: submit, build, withdraw. The GGUF is built before evaluation, because it is what is evaluated."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from promotion import permissions
from promotion.export.base_header import BaseHeader, read_base_header
from promotion.export.peft_adapter import check_adapter
from promotion.export.peft_to_gguf import convert, read_back
from promotion.export.verify import verify
from promotion.models import CANDIDATE_MOVES, Candidate, CandidateState, Track
from promotion.services import candidate_datasets
from rollouts import audit, store
from rollouts.errors import AssayError, Conflict, InvalidInput, NotFound
from rollouts.hashing import sha256_json
from rollouts.messages import send_after_commit
from rollouts.models import Artifact, BaseModel
from rollouts.services.names import require_slug
from rollouts.states import require_move

OUTTYPES = ("f32", "f16", "q8_0")
VERIFY_TIMEOUT_S = 600


def submit(
    *,
    track: Track,
    name: str,
    base: BaseModel,
    adapter_config: Path,
    adapter_weights: Path,
    by: User,
    outtype: str = "f16",
    baseline: bool = False,
    datasets: Sequence[Mapping[str, str]] = (),
    tool_schema_sha256: str = "",
) -> Candidate:
    """Check the adapter against the base, store its two files, and send it to be built.

    `datasets` are {digest, role} of what it was made from; `tool_schema_sha256` is of the tools that it was made for
    and that its runtime shows (`candidate_datasets.tool_schema_digest` gives it for a file). Raises `InvalidInput`
    naming the adapter's key or tensor; then nothing is stored as a candidate.
    """
    permissions.require_can_submit(by)
    require_slug("name", name)
    if outtype not in OUTTYPES:
        raise InvalidInput("outtype", f"must be one of {', '.join(OUTTYPES)}.")
    if baseline and track.entries.exists():
        raise Conflict(f"{track.name} has a champion already. Submit a candidate that competes with it.")
    uses = candidate_datasets.named_uses(datasets)
    candidate_datasets.require_digest(tool_schema_sha256)
    header = read_base_header(store.path_of(base.artifact_id))
    report = check_adapter(adapter_config, adapter_weights, header)
    config, weights = store.put_file(adapter_config), store.put_file(adapter_weights)
    source = sha256_json({"adapter_config": config.sha256, "adapter_weights": weights.sha256})
    try:
        with transaction.atomic():
            candidate = Candidate.objects.create(
                track=track,
                name=name,
                base=base,
                adapter_config=config,
                adapter_weights=weights,
                adapter_source_sha256=source,
                outtype=outtype,
                baseline=baseline,
                tool_schema_sha256=tool_schema_sha256,
                warnings=list(report.warnings),
                submitted_by=by,
                created_at=timezone.now(),
            )
            candidate_datasets.write(candidate, uses)
            audit.record(
                "candidate.submitted",
                subject=candidate,
                actor=by,
                source=source,
                base=base.name,
                datasets=candidate_datasets.audited(uses),
                tool_schema=tool_schema_sha256 or None,
            )
            send_build(candidate)
    except IntegrityError as error:
        raise Conflict(
            f"{track.name} has a candidate with this name or with these very bytes already. Use that one."
        ) from error
    return candidate


def send_build(candidate: Candidate) -> None:
    from promotion import tasks

    Candidate.objects.filter(pk=candidate.pk).update(last_sent_at=timezone.now())
    send_after_commit(tasks.build, candidate.pk)


def build(candidate_id: int) -> None:
    """Convert, read back, verify with llama.cpp, store. Called twice it does no harm: the bytes are the same."""
    candidate = Candidate.objects.select_related("base").filter(pk=candidate_id).first()
    if candidate is None or candidate.state != CandidateState.SUBMITTED:
        return
    try:
        gguf, verification = _build_files(candidate)
    except AssayError as error:
        _built(candidate_id, CandidateState.BUILD_FAILED, error_detail=error.message)
        return
    _built(candidate_id, CandidateState.BUILT, gguf=gguf, verification=verification, error_detail="")


def _build_files(candidate: Candidate) -> tuple[Artifact, dict[str, Any]]:
    base_path = store.path_of(candidate.base.artifact_id)
    config, weights = (
        store.path_of(candidate.adapter_config_id),
        store.path_of(candidate.adapter_weights_id),
    )
    header: BaseHeader = read_base_header(base_path)
    root = Path(settings.ARTIFACTS_DIR)
    with (
        store.storage_errors("the artifact store"),
        tempfile.TemporaryDirectory(prefix=store.PART, dir=root) as folder,
    ):
        out = Path(folder) / "adapter.gguf"
        convert(config, weights, header, out, candidate.outtype)
        read_back(out, config, weights, header, candidate.outtype)
        report = verify(base_path, out, config, weights, timeout_s=VERIFY_TIMEOUT_S)
        return store.put_file(out), report.to_json()


def _built(candidate_id: int, to: CandidateState, **values: Any) -> None:
    with transaction.atomic():
        candidate = (
            Candidate.objects.select_for_update(no_key=True, of=("self",))
            .select_related("track")
            .get(pk=candidate_id)
        )
        if candidate.state != CandidateState.SUBMITTED:
            return  # another worker was faster; its bytes are the same
        twin = _twin(candidate, values.get("gguf"))
        if twin is not None:
            # the same model under another configuration text would get a second first run
            to, values = CandidateState.BUILD_FAILED, {"error_detail": f"These are the very bytes of {twin}."}
        candidate.state = to
        for field, value in values.items():
            setattr(candidate, field, value)
        candidate.save(update_fields=["state", *values])
        facts = {"gguf": candidate.gguf_id, "verification": (candidate.verification or {}).get("status")}
        failed = {"reason": candidate.error_detail[:1000]} if to == CandidateState.BUILD_FAILED else facts
        audit.record(f"candidate.{to}", subject=candidate, actor="system:build", **failed)


def _locked(candidate_id: int) -> Candidate:
    candidate = (
        Candidate.objects.select_for_update(no_key=True, of=("self",))
        .select_related("track")
        .filter(pk=candidate_id)
        .first()
    )
    if candidate is None:
        raise NotFound("There is no such candidate.")
    return candidate


def _twin(candidate: Candidate, gguf: Artifact | None) -> Candidate | None:
    """Another candidate of the track with the same built bytes on the same base."""
    if gguf is None:
        return None
    others = Candidate.objects.filter(track=candidate.track, base=candidate.base, gguf=gguf).exclude(
        pk=candidate.pk
    )
    return others.exclude(state=CandidateState.WITHDRAWN).first()


def retry_build(*, candidate_id: int, by: User) -> Candidate:
    permissions.require_can_retry(by)
    with transaction.atomic():
        candidate = _locked(candidate_id)
        require_move(str(candidate), CANDIDATE_MOVES, candidate.state, CandidateState.SUBMITTED)
        candidate.state, candidate.error_detail = CandidateState.SUBMITTED, ""
        candidate.save(update_fields=["state", "error_detail"])
        audit.record("candidate.build_retried", subject=candidate, actor=by)
        send_build(candidate)
    return candidate


def withdraw(*, candidate_id: int, by: User, reason: str) -> Candidate:
    """Take an unfinished candidate back. Its history stays."""
    with transaction.atomic():
        candidate = _locked(candidate_id)
        permissions.require_can_withdraw(by, candidate.submitted_by_id)
        if not reason.strip():
            raise InvalidInput("reason", "must say why the candidate is withdrawn.")
        require_move(str(candidate), CANDIDATE_MOVES, candidate.state, CandidateState.WITHDRAWN)
        candidate.state = CandidateState.WITHDRAWN
        Candidate.objects.filter(pk=candidate.pk).update(state=candidate.state, revision=F("revision") + 1)
        audit.record("candidate.withdrawn", subject=candidate, actor=by, reason=reason.strip())
    return candidate
