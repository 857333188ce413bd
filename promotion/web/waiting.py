"""What a person has to sign, answer or read again, and whom the rule still needs. Constant queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery, prefetch_related_objects

from promotion import comparing, panels
from promotion import evidence as evidence_module
from promotion.fragility import fragility
from promotion.gates.approval import Signature, approval_outcome
from promotion.models import (
    OPEN_STATES,
    Approval,
    Candidate,
    Comment,
    Decision,
    Dispute,
    DisputeState,
    Evidence,
    PanelOpening,
    ReviewVisit,
    Thread,
)
from promotion.services import gating, reviews
from promotion.web import compare
from rollouts import comparisons
from rollouts.models import ComparedCase, Comparison, EvalRun, Turn

SAID = 2  # sentences of what changed; the page itself says all


@dataclass(frozen=True, slots=True)
class Looked:
    """How a candidate's newest evidence differs from what a person saw last. `seen_at` is None: never looked."""

    seen_at: datetime | None = None
    said: list[str] = field(default_factory=list)
    total: int = 0


def looked_at(person: User, candidates: Sequence[Candidate]) -> dict[int, Looked]:
    """Candidate id -> what changed since this person looked. Candidates have `latest`; two queries for any number."""
    visits = {
        visit.candidate_id: visit
        for visit in ReviewVisit.objects.filter(person=person, candidate__in=candidates)
    }
    latest = {
        candidate.pk: candidate.latest for candidate in candidates if getattr(candidate, "latest", None)
    }
    outdated = {
        visits[pk].evidence_id
        for pk, newest in latest.items()
        if pk in visits
        if visits[pk].evidence_id != newest.pk
    }
    before = Evidence.objects.in_bulk(outdated)
    return {
        candidate.pk: _looked(visits.get(candidate.pk), before, latest.get(candidate.pk))
        for candidate in candidates
    }


def _looked(visit: ReviewVisit | None, before: dict[int, Evidence], newest: Evidence | None) -> Looked:
    if visit is None:
        return Looked()
    seen = before.get(visit.evidence_id)
    if seen is None or newest is None:
        return Looked(visit.seen_at)
    said = compare.changes(evidence_module.document_of(seen), evidence_module.document_of(newest))
    return Looked(visit.seen_at, said[:SAID], len(said))


# whom the rule still needs


class Counted(NamedTuple):
    """Group -> signatures that an evidence lacks, and the names of those whose signatures count."""

    missing: dict[str, int]
    signed_by: list[str]


def counted(
    document: Mapping[str, Any], approvals: Iterable[Approval], digest: str, at: datetime | None = None
) -> Counted:
    """As it stood at that moment (now), by the gate itself. Give approvers loaded."""
    moment = at or evidence_module.now()
    standing = [
        Signature(one.approver.get_username(), one.role, one.evidence_digest, one.signed_at)
        for one in approvals
        if one.decision == Decision.APPROVE and one.signed_at <= moment
        if one.withdrawn_at is None or one.withdrawn_at > moment
    ]
    found = approval_outcome(
        rule=gating.approval_rule(document),
        signatures=standing,
        digest=digest,
        involved=gating.involved_people(document),
        now=moment,
    )
    return Counted(found.numbers["missing"], found.numbers["signed_by"])


def people_of(needed: Mapping[str, int]) -> str:
    """`1 approver and 2 auditors`."""
    return " and ".join(f"{count} {group}{'s' if count > 1 else ''}" for group, count in needed.items())


# what is to be weighed before signing


@dataclass(frozen=True, slots=True)
class Weight:
    """What a review holds, for those who decide which to read first. `closest`: prompts that would end a passing gate.

    `lost` and `to_open` are None while the cases are being compared.
    """

    passed: int
    waived: int
    judged: int
    closest: int | None
    lost: int | None
    to_open: int | None


def weights_of(person: User, newest: Mapping[int, Evidence]) -> dict[int, Weight]:
    """Candidate id -> what its newest evidence holds and this person has not opened yet. Five queries for any number."""
    prefetch_related_objects(list(newest.values()), "gate_results")
    documents = {pk: evidence_module.document_of(evidence) for pk, evidence in newest.items()}
    compared = _compared(documents)
    cases = _must_open_cases(compared)
    seen = _seen(person, newest)
    return {
        pk: _weight(evidence, documents[pk], compared[pk], cases, seen.get(pk, set()))
        for pk, evidence in newest.items()
    }


def _compared(documents: Mapping[int, dict[str, Any]]) -> dict[int, list[Comparison] | None]:
    """Candidate id -> its comparisons; None where one is not written down."""
    uids = {
        part[who]["run"]
        for document in documents.values()
        for part in document["suites"]
        for who in ("candidate", "champion")
        if part[who]
    }
    runs = {str(run.uid): run for run in EvalRun.objects.filter(uid__in=uids).only("uid")}
    keys = {pk: list(comparing.keys_of(document, runs).values()) for pk, document in documents.items()}
    stored = comparisons.stored(key for wanted in keys.values() for key in wanted)
    return {
        pk: [stored[key] for key in wanted] if all(key in stored for key in wanted) else None
        for pk, wanted in keys.items()
    }


def _must_open_cases(compared: Mapping[int, list[Comparison] | None]) -> dict[int, list[int]]:
    """Comparison id -> cases of it that must be opened, in the order of `panels.case_panels`."""
    all_of = {found.pk: found for several in compared.values() for found in several or ()}
    rows = ComparedCase.objects.filter(
        comparison__in=all_of, expects_call=False, turn__in=(Turn.LOST, Turn.WRONG)
    )
    cases: dict[int, list[int]] = {}
    for comparison, case, turn in rows.order_by("family", "case_id").values_list(
        "comparison_id", "case_id", "turn"
    ):
        if turn == (Turn.LOST if all_of[comparison].other_id is not None else Turn.WRONG):
            cases.setdefault(comparison, []).append(case)
    return cases


def _seen(person: User, newest: Mapping[int, Evidence]) -> dict[int, set[str]]:
    rows = PanelOpening.objects.filter(person=person, candidate__in=list(newest))
    seen: dict[int, set[str]] = {}
    for candidate, panel in rows.values_list("candidate_id", "panel"):
        seen.setdefault(candidate, set()).add(panel.removeprefix(reviews.MARKED))
    return seen


def _weight(
    evidence: Evidence,
    document: dict[str, Any],
    compared: list[Comparison] | None,
    cases: Mapping[int, list[int]],
    seen: set[str],
) -> Weight:
    outcomes = [
        result.outcome for result in evidence.gate_results.all() if result.gate != gating.APPROVAL_GATE
    ]
    found = None if compared is None else _keys(document, compared, cases)
    return Weight(
        passed=outcomes.count("passed"),
        waived=outcomes.count("waived"),
        judged=len(outcomes),
        closest=_closest(document),
        lost=None if compared is None else sum(one.summary["turns"].get(Turn.LOST, 0) for one in compared),
        to_open=None if found is None else len(found - seen),
    )


def _keys(document: dict[str, Any], compared: list[Comparison], cases: Mapping[int, list[int]]) -> set[str]:
    keys = {panel.key for panel in panels.must_open(document, {}).panels}
    for most, beside in ((panels.MOST_CASES, True), (panels.MOST_WITHOUT_CHAMPION, False)):
        of_kind = [
            panels.case_key(one, case)
            for one in compared
            if (one.other_id is not None) is beside
            for case in cases.get(one.pk, ())
        ]
        keys |= set(of_kind[:most])
    return keys


def _closest(document: dict[str, Any]) -> int | None:
    entries = document["policy"]["document"]["gates"] if document["policy"] else []
    found = [fragility(document, entry) for entry in entries]
    return min(
        (
            one.flips
            for one in found
            if one and one.passes and one.unit == "prompts" and one.flips is not None
        ),
        default=None,
    )


def threads_to_answer(person: User, limit: int) -> QuerySet[Thread]:
    """Unresolved threads, oldest first, on the person's candidates or begun by them, where another spoke last."""
    last = Comment.objects.filter(thread=OuterRef("pk")).order_by("-id")
    waiting = (
        Thread.objects.visible_to(person)
        .filter(
            Q(candidate__submitted_by=person) | Q(started_by=person),
            resolved_at__isnull=True,
            candidate__state__in=OPEN_STATES,
        )
        .annotate(
            last_by_id=Subquery(last.values("written_by")[:1]),
            last_by=Subquery(last.values("written_by__username")[:1]),
            last_at=Subquery(last.values("written_at")[:1]),
            said=Count("comments"),
        )
    )
    return waiting.exclude(last_by_id=person.pk).select_related("candidate__track").order_by("id")[:limit]


def disputes_to_decide(person: User, limit: int) -> QuerySet[Dispute]:
    """Open disputes, oldest first, that others raised about candidates of others."""
    visible = Dispute.objects.visible_to(person)
    waiting = visible.filter(state=DisputeState.OPEN).exclude(
        Q(raised_by=person) | Q(candidate__submitted_by=person)
    )
    return waiting.select_related("candidate__track", "case", "raised_by").order_by("id")[:limit]
