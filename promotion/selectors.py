"""What pages, the API and services read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Count, F, Max, OuterRef, Prefetch, Q, QuerySet, Subquery

from promotion.gates.approval import Glass, Signature
from promotion.models import (
    OPEN_STATES,
    Alias,
    AliasMove,
    Approval,
    BrokenGlass,
    Candidate,
    CandidateDataset,
    CandidateState,
    DatasetRole,
    Decision,
    Evidence,
    Export,
    GateResult,
    GlassVerdict,
    Policy,
    RegistryEntry,
    Track,
)
from rollouts.errors import NotFound
from rollouts.models import AuditEvent, Dataset, Overlap
from rollouts.permissions import ADMINISTRATOR
from rollouts.roles import Person
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


def standing_approvals(candidate: Candidate) -> QuerySet[Approval]:
    """Approvals that were not withdrawn, by people who still are in the group they signed in, oldest first."""
    return _standing().filter(candidate=candidate)


def _standing() -> QuerySet[Approval]:
    standing = Approval.objects.filter(
        decision=Decision.APPROVE,
        withdrawn_at__isnull=True,
        approver__is_active=True,
        approver__groups__name=F("role"),  # who was taken out of the group no longer stands for it
    )
    return standing.select_related("approver").order_by("id")


def signatures_of(candidate: Candidate) -> list[Signature]:
    """The approvals that still stand, as the approval gate reads them."""
    return [
        Signature(
            person=approval.approver.get_username(),
            role=approval.role,
            evidence_digest=approval.evidence_digest,
            signed_at=approval.signed_at,
        )
        for approval in standing_approvals(candidate)
    ]


def glass_of(candidate: Candidate, digest: str) -> Glass | None:
    """The glass that was broken for this evidence, as the approval gate reads it.

    It no longer stands once it was condemned, or whoever broke it is no administrator any more.
    """
    standing = BrokenGlass.objects.filter(
        candidate=candidate,
        evidence_digest=digest,
        broken_by__is_active=True,
        broken_by__groups__name=ADMINISTRATOR,
    ).exclude(verdict=GlassVerdict.CONDEMNED)
    found = standing.select_related("broken_by").first()
    return found and Glass(found.broken_by.get_username(), found.evidence_digest, found.broken_at)


# tracks and policies


def tracks(person: Person, *, name: str = "") -> QuerySet[Track]:
    """Tracks that the person may see, by a part of the name.

    Each with `open_count`, `review_count`, the `policy_version` in force and the `champions` alias.
    """
    champion = Alias.objects.filter(name="champion").select_related("entry__candidate")
    visible = Track.objects.visible_to(person)
    return (
        (visible.filter(name__icontains=name) if name else visible)
        .annotate(
            open_count=Count("candidates", filter=Q(candidates__state__in=OPEN_STATES)),
            review_count=Count("candidates", filter=Q(candidates__state=CandidateState.IN_REVIEW)),
            policy_version=Subquery(
                Policy.objects.filter(track=OuterRef("pk"), locked_at__isnull=False)
                .order_by("-version")
                .values("version")[:1]
            ),
        )
        .prefetch_related(Prefetch("aliases", queryset=champion, to_attr="champions"))
    )


def track_by_name(name: str, person: Person) -> Track:
    track = Track.objects.visible_to(person).select_related("created_by").filter(name=name).first()
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


def policies_where(person: Person, *, track: str = "", state: str = "") -> QuerySet[Policy]:
    """Versions that the person may see, by track, and whether they are `locked` or a `draft`."""
    policies = Policy.objects.visible_to(person).select_related("track", "created_by", "locked_by")
    if track:
        policies = policies.filter(track__name=track)
    return policies.filter(locked_at__isnull=state == "draft") if state else policies


def policy_by_version(track: Track, version: int) -> Policy:
    policy = policies_of(track).filter(version=version).first()
    if policy is None:
        raise NotFound("There is no such policy.")
    return policy


# candidates and their evidence


def candidates_where(
    person: Person,
    *,
    track: str = "",
    state: str = "",
    name: str = "",
    submitter: str = "",
    mine: bool = False,
) -> QuerySet[Candidate]:
    """Candidates that the person may see, by track, state, part of the name, and who submitted them."""
    candidates = Candidate.objects.visible_to(person).select_related("track", "base", "submitted_by")
    if track:
        candidates = candidates.filter(track__name=track)
    if state:
        candidates = candidates.filter(state=state)
    if submitter:
        candidates = candidates.filter(submitted_by__username=submitter)
    if mine:
        candidates = candidates.filter(submitted_by=person.pk)
    return candidates.filter(name__icontains=name) if name else candidates


def candidate_by_id(candidate_id: int, person: Person) -> Candidate:
    related = (
        "track",
        "base__artifact",
        "gguf",
        "backend",
        "submitted_by",
        "adapter_config",
        "adapter_weights",
    )
    visible = Candidate.objects.visible_to(person)
    candidate = visible.select_related(*related).filter(pk=candidate_id).first()
    if candidate is None:
        raise NotFound("There is no such candidate.")
    return candidate


def verdicts_of(candidates: Sequence[Candidate], *, without: str) -> dict[int, dict[str, int]]:
    """candidate -> outcome -> gates that had it when the candidate was judged last, one gate left out. One query."""
    newest = Evidence.objects.filter(candidate__in=candidates).order_by().values("candidate")
    results = GateResult.objects.filter(evidence__in=newest.annotate(last=Max("id")).values("last"))
    counted = results.exclude(gate=without).order_by().values("evidence__candidate", "outcome")
    found: dict[int, dict[str, int]] = {}
    for row in counted.annotate(n=Count("id")):
        found.setdefault(row["evidence__candidate"], {})[row["outcome"]] = row["n"]
    return found


def latest_evidence(candidate: Candidate) -> Evidence | None:
    """The evidence that was judged last, with its gate results."""
    newest = Evidence.objects.filter(candidate=candidate).select_related("policy").order_by("-id")
    return newest.prefetch_related("gate_results").first()


def evidence_of(candidate: Candidate, digest: str) -> Evidence | None:
    return Evidence.objects.filter(candidate=candidate, digest=digest).first()


def approvals_of(candidate: Candidate) -> QuerySet[Approval]:
    """Every signature and refusal, newest first."""
    return Approval.objects.filter(candidate=candidate).select_related("approver").order_by("-id")


def in_review(person: Person, limit: int) -> list[Candidate]:
    """Candidates that wait for signatures, longest in review first, each with its `latest` evidence and standing approvals."""
    newest = Evidence.objects.filter(candidate=OuterRef("pk")).order_by("-id").values("pk")[:1]
    waiting = (
        Candidate.objects.visible_to(person)
        .filter(state=CandidateState.IN_REVIEW)
        .select_related("track", "submitted_by")
        .annotate(evidence_id=Subquery(newest))
        .prefetch_related(Prefetch("approvals", queryset=_standing()))
    )
    found = list(waiting.order_by("evidence_id", "id")[:limit])
    evidence = Evidence.objects.in_bulk(
        [candidate.evidence_id for candidate in found if candidate.evidence_id]
    )
    for candidate in found:
        candidate.latest = evidence.get(candidate.evidence_id)
    return found


def engineers_turn(person: User, limit: int) -> QuerySet[Candidate]:
    """The person's own candidates that do not wait for an approver."""
    visible = Candidate.objects.visible_to(person)
    mine = visible.filter(submitted_by=person, state__in=ENGINEERS_TURN)
    return mine.select_related("track").order_by("-id")[:limit]


def drafts(person: Person, limit: int) -> QuerySet[Policy]:
    """Policies that wait to be locked."""
    return (
        Policy.objects.visible_to(person)
        .filter(locked_at__isnull=True)
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


def entries_where(person: Person, *, track: str = "") -> QuerySet[RegistryEntry]:
    champion = Alias.objects.filter(name="champion")
    entries = (
        RegistryEntry.objects.visible_to(person)
        .select_related("track", "candidate", "gguf")
        .prefetch_related(Prefetch("aliases", queryset=champion, to_attr="champion_of"), "exports")
    )
    return entries.filter(track__name=track) if track else entries


def entry_by_number(track: str, number: int, person: Person) -> RegistryEntry:
    related = ("track", "candidate__base", "gguf", "evidence")
    entry = (
        RegistryEntry.objects.visible_to(person)
        .select_related(*related)
        .prefetch_related("aliases", "exports__artifact")
        .filter(track__name=track, number=number)
        .first()
    )
    if entry is None:
        raise NotFound("There is no such registry entry.")
    return entry


def published_export(export_id: int, person: Person) -> Export:
    """A published export. Raises `NotFound`: without a row there is no file to give out."""
    visible = Export.objects.visible_to(person)
    export = visible.select_related("entry__candidate__track", "artifact").filter(pk=export_id).first()
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
