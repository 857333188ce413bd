"""What pages, the API and services read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Count, F, OuterRef, Prefetch, Q, QuerySet, Subquery

from promotion.gates.approval import Signature
from promotion.models import (
    OPEN_STATES,
    Alias,
    AliasMove,
    Approval,
    Candidate,
    CandidateDataset,
    CandidateState,
    DatasetRole,
    Decision,
    Evidence,
    Export,
    Policy,
    RegistryEntry,
    Track,
)
from rollouts.errors import NotFound
from rollouts.models import AuditEvent, Dataset, Overlap
from rollouts.selectors import declared_digest, declared_streams

# states in which the submitter, or any engineer, has the next step
ENGINEERS_TURN = (
    CandidateState.BUILT,
    CandidateState.BUILD_FAILED,
    CandidateState.BLOCKED,
    CandidateState.PUBLISH_FAILED,
    CandidateState.SUBMITTED,
    CandidateState.EVALUATING,
)


def signatures_of(candidate: Candidate) -> list[Signature]:
    """The approvals that still stand, oldest first, as the approval gate reads them."""
    standing = Approval.objects.filter(
        candidate=candidate,
        decision=Decision.APPROVE,
        withdrawn_at__isnull=True,
        approver__is_active=True,
        approver__groups__name=F("role"),  # who was taken out of the group no longer stands for it
    ).select_related("approver")
    return [
        Signature(
            person=approval.approver.get_username(),
            role=approval.role,
            evidence_digest=approval.evidence_digest,
            signed_at=approval.signed_at,
        )
        for approval in standing.order_by("id")
    ]


# tracks and policies


def tracks() -> QuerySet[Track]:
    """Tracks with `open_count`, `review_count`, the `policy_version` in force and the `champions` alias."""
    champion = Alias.objects.filter(name="champion").select_related("entry__candidate")
    return Track.objects.annotate(
        open_count=Count("candidates", filter=Q(candidates__state__in=OPEN_STATES)),
        review_count=Count("candidates", filter=Q(candidates__state=CandidateState.IN_REVIEW)),
        policy_version=Subquery(
            Policy.objects.filter(track=OuterRef("pk"), locked_at__isnull=False)
            .order_by("-version")
            .values("version")[:1]
        ),
    ).prefetch_related(Prefetch("aliases", queryset=champion, to_attr="champions"))


def track_by_name(name: str) -> Track:
    track = Track.objects.select_related("created_by").filter(name=name).first()
    if track is None:
        raise NotFound("There is no such track.")
    return track


def champion_entry(track: Track) -> RegistryEntry | None:
    alias = Alias.objects.filter(track=track, name="champion").select_related("entry__candidate").first()
    return alias.entry if alias else None


def champion_history(track: Track) -> QuerySet[AliasMove]:
    """Who was champion, newest first."""
    moves = AliasMove.objects.filter(track=track, name="champion")
    return moves.select_related("old__candidate", "new__candidate").order_by("-id")


def policies_of(track: Track) -> QuerySet[Policy]:
    return Policy.objects.filter(track=track).select_related("created_by", "locked_by").order_by("-version")


def policy_by_version(track: Track, version: int) -> Policy:
    policy = policies_of(track).filter(version=version).first()
    if policy is None:
        raise NotFound("There is no such policy.")
    return policy


# candidates and their evidence


def candidates_where(*, track: Track | None = None, state: str = "", name: str = "") -> QuerySet[Candidate]:
    candidates = Candidate.objects.select_related("track", "base", "submitted_by")
    if track is not None:
        candidates = candidates.filter(track=track)
    if state:
        candidates = candidates.filter(state=state)
    return candidates.filter(name__icontains=name) if name else candidates


def candidate_by_id(candidate_id: int) -> Candidate:
    related = (
        "track",
        "base__artifact",
        "gguf",
        "backend",
        "submitted_by",
        "adapter_config",
        "adapter_weights",
    )
    candidate = Candidate.objects.select_related(*related).filter(pk=candidate_id).first()
    if candidate is None:
        raise NotFound("There is no such candidate.")
    return candidate


def candidates_by_ids(ids: Iterable[int]) -> dict[int, Candidate]:
    return {found.pk: found for found in Candidate.objects.filter(pk__in=list(ids)).select_related("track")}


def latest_evidence(candidate: Candidate) -> Evidence | None:
    """The evidence that was judged last, with its gate results."""
    newest = Evidence.objects.filter(candidate=candidate).select_related("policy").order_by("-id")
    return newest.prefetch_related("gate_results").first()


def evidence_of(candidate: Candidate, digest: str) -> Evidence | None:
    return Evidence.objects.filter(candidate=candidate, digest=digest).first()


def approvals_of(candidate: Candidate) -> QuerySet[Approval]:
    """Every signature and refusal, newest first."""
    return Approval.objects.filter(candidate=candidate).select_related("approver").order_by("-id")


def in_review(limit: int) -> list[Candidate]:
    """Candidates that wait for signatures, oldest first, each with its `latest` evidence and approvals."""
    newest = Evidence.objects.filter(candidate=OuterRef("pk")).order_by("-id").values("pk")[:1]
    waiting = (
        Candidate.objects.filter(state=CandidateState.IN_REVIEW)
        .select_related("track", "submitted_by")
        .annotate(evidence_id=Subquery(newest))
        .prefetch_related(Prefetch("approvals", queryset=Approval.objects.filter(withdrawn_at__isnull=True)))
    )
    found = list(waiting.order_by("id")[:limit])
    evidence = Evidence.objects.in_bulk(
        [candidate.evidence_id for candidate in found if candidate.evidence_id]
    )
    for candidate in found:
        candidate.latest = evidence.get(candidate.evidence_id)
    return found


def engineers_turn(person: User, limit: int) -> QuerySet[Candidate]:
    """The person's own candidates that do not wait for an approver."""
    mine = Candidate.objects.filter(submitted_by=person, state__in=ENGINEERS_TURN)
    return mine.select_related("track").order_by("-id")[:limit]


def drafts(limit: int) -> QuerySet[Policy]:
    """Policies that wait to be locked."""
    return (
        Policy.objects.filter(locked_at__isnull=True)
        .select_related("track", "created_by")
        .order_by("id")[:limit]
    )


# what candidates were made from


def dataset_uses(candidate_id: int) -> list[CandidateDataset]:
    """The candidate's datasets, training data first, then by name and version. One query."""
    uses = CandidateDataset.objects.filter(candidate_id=candidate_id)
    found = uses.select_related("dataset__registered_by", "dataset__artifact")
    return sorted(
        found, key=lambda use: (use.role != DatasetRole.TRAIN, use.dataset.name, use.dataset.version)
    )


def datasets_part(candidate_id: int, suites: Sequence[str]) -> list[dict[str, Any]]:
    """The `datasets` of an evidence document: what the candidate was made from, training data first.

    Each has its comparisons with `suites` (digests), in that order, then those with the candidate's other datasets.
    What was not compared is not listed. Two queries.
    """
    uses = dataset_uses(candidate_id)
    numbers = {use.dataset_id: number for number, use in enumerate(uses)}
    places = {digest: place for place, digest in enumerate(suites)}
    wanted = Q(suite__digest__in=places) | Q(other__in=numbers)
    found = Overlap.objects.filter(wanted, dataset__in=numbers).select_related("suite", "other")
    overlaps: dict[int, dict[tuple[bool, int], dict[str, Any]]] = {use.dataset_id: {} for use in uses}
    for overlap in found:
        with_dataset = overlap.suite is None
        other = overlap.other if with_dataset else overlap.suite
        place = numbers[other.pk] if with_dataset else places[other.digest]
        overlaps[overlap.dataset_id][with_dataset, place] = {
            "with": "dataset" if with_dataset else "suite",
            "digest": other.digest,
            "name": other.name,
            "report": overlap.report,
        }
    return [
        {
            **_dataset_part(use.dataset, use.role),
            "overlaps": [part for _, part in sorted(overlaps[use.dataset_id].items())],
        }
        for use in uses
    ]


def _dataset_part(dataset: Dataset, role: str) -> dict[str, Any]:
    return {
        "role": str(role),
        "name": dataset.name,
        "version": dataset.version,
        "digest": dataset.digest,
        "file_sha256": dataset.artifact_id,
        "declared_sha256": declared_digest(dataset.sidecar, role),
        "rows": dataset.row_count,
        "distinct_texts": dataset.text_count,
        "without_id": dataset.without_id,
        "repeated_ids": dataset.repeated_ids,
        "schema_sha256": dataset.schema_sha256 or None,
        "streams": declared_streams(dataset.sidecar),
        "registered_by": dataset.registered_by.get_username() if dataset.registered_by else None,
    }


# registry


def entries_where(*, track: str = "") -> QuerySet[RegistryEntry]:
    champion = Alias.objects.filter(name="champion")
    entries = RegistryEntry.objects.select_related("track", "candidate", "gguf").prefetch_related(
        Prefetch("aliases", queryset=champion, to_attr="champion_of"), "exports"
    )
    return entries.filter(track__name=track) if track else entries


def entry_by_number(track: str, number: int) -> RegistryEntry:
    related = ("track", "candidate__base", "gguf", "evidence")
    entry = (
        RegistryEntry.objects.select_related(*related)
        .prefetch_related("aliases", "exports__artifact")
        .filter(track__name=track, number=number)
        .first()
    )
    if entry is None:
        raise NotFound("There is no such registry entry.")
    return entry


def published_export(export_id: int) -> Export:
    """A published export. Raises `NotFound`: without a row there is no file to give out."""
    export = Export.objects.select_related("entry__candidate__track", "artifact").filter(pk=export_id).first()
    if export is None:
        raise NotFound("There is no such export.")
    return export


def who_wrote(policy: Policy) -> set[str]:
    """User names of all who saved this version, not only of the last: a later save does not make it another's."""
    saved = AuditEvent.objects.filter(
        action="policy.drafted", subject_type=Policy._meta.label, subject_id=str(policy.pk)
    ).values_list("actor", flat=True)
    names = {_person(actor) for actor in saved}
    return names | ({policy.created_by.get_username()} if policy.created_by else set())


def _person(actor: str) -> str:
    """`user:<name>`, or `token:<name>:<start of the token>`."""
    kind, _, name = actor.partition(":")
    return name.rpartition(":")[0] if kind == "token" else name
