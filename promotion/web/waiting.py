"""What a person has to answer or read again: changes since they looked, threads, disputes. Constant queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.contrib.auth.models import User
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery

from promotion import evidence as evidence_module
from promotion.models import (
    OPEN_STATES,
    Candidate,
    Comment,
    Dispute,
    DisputeState,
    Evidence,
    ReviewVisit,
    Thread,
)
from promotion.web import compare

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
