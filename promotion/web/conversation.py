"""What reviewers leave on a review page: what they opened, ticked, asked, and since when they know the evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Prefetch, Q
from django.utils import timezone

from promotion import anchors, panels, permissions, risk_summary
from promotion import evidence as evidence_module
from promotion.attention import row_id
from promotion.models import (
    Approval,
    Candidate,
    Comment,
    Dispute,
    Evidence,
    ReviewVisit,
    RiskSummary,
    Thread,
)
from promotion.services import reviews, risk_summaries, threads
from promotion.services.disputes import disputes_about
from promotion.web import compare
from promotion.web.cases import request_of
from promotion.web.review import allowed
from rollouts.models import Case

MOST_THREADS = 200
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """A part that must be opened, and whether this person did, or only marked it as read. `said`: a case's request."""

    panel: panels.Panel
    opened: bool
    marked: bool = False
    said: str = ""

    @property
    def done(self) -> bool:
        return self.opened or self.marked


@dataclass(frozen=True, slots=True)
class Attention:
    """The parts that must be opened, unopened ones first. `left_out` cases belong to them and are not listed."""

    parts: list[Part] = field(default_factory=list)
    cases: int = 0
    left_out: int = 0
    compared: bool = True
    may_open: bool = False

    @property
    def opened(self) -> int:
        return sum(part.opened for part in self.parts)

    @property
    def marked(self) -> set[str]:
        """Keys of the parts that were marked as read and not opened."""
        return {part.panel.key for part in self.parts if part.marked}

    @property
    def unopened(self) -> list[panels.Panel]:
        return [part.panel for part in self.parts if not part.opened]

    @property
    def left(self) -> list[panels.Panel]:
        """Neither opened nor marked."""
        return [part.panel for part in self.parts if not part.done]


@dataclass(frozen=True, slots=True)
class Asked:
    """A thread as it stands. `outdated`: its row says something else by now; `place`: where the row is on the page."""

    thread: Thread
    comments: list[Comment]
    outdated: bool
    place: str
    may_resolve: bool


@dataclass(frozen=True, slots=True)
class News:
    """What is new to a person since they last looked; `seen_at` is None where they never did."""

    shown_at: datetime
    seen_at: datetime | None = None
    seen_digest: str = ""
    changes: list[str] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)
    disputes: list[Dispute] = field(default_factory=list)
    signatures: list[Approval] = field(default_factory=list)

    @property
    def any(self) -> bool:
        return bool(self.changes or self.comments or self.disputes or self.signatures)


@dataclass(frozen=True, slots=True)
class Risk:
    """What remains risky: `made` from the evidence, and `written` by the submitter where they said it anew."""

    made: str
    written: RiskSummary | None
    may_write: bool


@dataclass(frozen=True, slots=True)
class Conversation:
    """Shown by review_news, review_risk, review_attention, review_checklist and review_threads."""

    attention: Attention = field(default_factory=Attention)
    checklist: list[reviews.Item] = field(default_factory=list)
    may_tick: bool = False
    threads: list[Asked] = field(default_factory=list)
    rows: list[tuple[str, str]] = field(default_factory=list)  # what a new comment may be about
    about: str = ""  # the row that a link named
    may_comment: bool = False
    news: News | None = None
    risk: Risk | None = None

    @property
    def missing(self) -> list[panels.Panel]:
        """What this person has to open before they sign."""
        return self.attention.left if self.attention.may_open else []

    @property
    def of_case(self) -> dict[int, panels.Panel]:
        """Case id -> the part that is still to be opened."""
        return {panel.case: panel for panel in self.attention.unopened if panel.case is not None}

    @property
    def of_row(self) -> dict[str, panels.Panel]:
        """Id of a row of the family table -> the part that is still to be opened."""
        found = [panel for panel in self.attention.unopened if panel.kind == "family"]
        return {panel.url.removeprefix("#"): panel for panel in reversed(found)}

    @property
    def of_anchor(self) -> dict[str, list[Asked]]:
        """Anchor -> the threads about that row, the newest unresolved one first."""
        found: dict[str, list[Asked]] = {}
        for asked in self.threads:
            found.setdefault(asked.thread.anchor, []).append(asked)
        return found

    @property
    def unresolved(self) -> int:
        return sum(asked.thread.resolved_at is None for asked in self.threads)

    @property
    def unsettled(self) -> int:
        return sum(not item.settled for item in self.checklist)


def conversation_of(
    candidate: Candidate,
    evidence: Evidence | None,
    document: Document | None,
    comparisons: panels.Comparisons | None,
    person: User,
    about: str = "",
) -> Conversation:
    """`about`: the anchor that a link asks a new comment for. The number of queries is constant."""
    if evidence is None or document is None:
        return Conversation()
    in_review = candidate.state in reviews.REVIEWED_STATES
    groups = reviews.groups_that_sign(document)
    may_review = in_review and allowed(partial(permissions.require_can_review, groups=groups), person)
    may_comment = candidate.state not in threads.ENDED and allowed(permissions.require_can_comment, person)
    found = list(_threads(candidate))
    rows = anchors.choices(evidence, document) if may_comment else []
    return Conversation(
        attention=attention_of(candidate, document, comparisons, person, may_open=may_review)
        if in_review
        else Attention(),
        checklist=_checklist(candidate, evidence, document, person),
        may_tick=may_review,
        threads=_asked(candidate, evidence, document, found, person),
        rows=_with_case(evidence, document, rows, about),
        about=about,
        may_comment=may_comment,
        news=_news(candidate, evidence, document, found, person),
        risk=_risk(candidate, document, comparisons, person),
    )


def attention_of(
    candidate: Candidate,
    document: Document,
    comparisons: panels.Comparisons | None,
    person: User,
    *,
    may_open: bool,
) -> Attention:
    must = panels.must_open(document, comparisons)
    opened, marked = reviews.opened_and_marked(candidate, person) if may_open else (set(), set())
    said = _requests(must.panels)
    parts = [
        Part(panel, panel.key in opened, panel.key in marked, said.get(panel.case, ""))
        for panel in must.panels
    ]
    parts.sort(key=lambda part: part.done)
    return Attention(parts, must.cases, must.left_out, must.compared, may_open)


def _requests(found: list[panels.Panel]) -> dict[int | None, str]:
    """Case id -> what the user asks for in it: what a person knows the case by. One query."""
    cases = Case.objects.filter(pk__in=[panel.case for panel in found if panel.case is not None])
    return {case.pk: request_of(case) for case in cases}


def _checklist(
    candidate: Candidate, evidence: Evidence, document: Document, person: User
) -> list[reviews.Item]:
    items = reviews.checklist_of(document, {})
    if not items:
        return []
    return reviews.checklist_of(document, reviews.answers_of(candidate, evidence.digest, person))


def _threads(candidate: Candidate) -> Any:
    comments = Comment.objects.select_related("written_by").order_by("id")
    found = Thread.objects.filter(candidate=candidate).select_related("started_by", "resolved_by")
    return found.prefetch_related(Prefetch("comments", queryset=comments)).order_by("-id")[:MOST_THREADS]


def _asked(
    candidate: Candidate, evidence: Evidence, document: Document, found: list[Thread], person: User
) -> list[Asked]:
    """Unresolved ones first, each kind newest first."""
    rows = anchors.rows_of(evidence, document, [thread.anchor for thread in found])
    shown = [
        Asked(
            thread=thread,
            comments=list(thread.comments.all()),
            outdated=thread.anchor not in rows or rows[thread.anchor].digest != thread.anchor_digest,
            place=_place(thread.anchor) if thread.anchor in rows else "",
            may_resolve=allowed(_require_can_resolve(candidate, thread), person),
        )
        for thread in found
    ]
    return sorted(shown, key=lambda asked: asked.thread.resolved_at is not None)


def _require_can_resolve(candidate: Candidate, thread: Thread) -> Callable[[User], None]:
    return partial(
        permissions.require_can_resolve_thread,
        started_by_id=thread.started_by_id,
        submitted_by_id=candidate.submitted_by_id,
    )


def _place(anchor: str) -> str:
    kind, _, rest = anchor.partition(":")
    if kind == "family":
        suite, _, family = rest.partition(":")
        return f"#{row_id(suite, family)}"
    return {"gate": f"#gate-{rest}", "suite": "#suites", "case": f"#case-{rest}", "dataset": "#data"}.get(
        kind, ""
    )


def _with_case(
    evidence: Evidence, document: Document, rows: list[tuple[str, str]], about: str
) -> list[tuple[str, str]]:
    """A case is no choice of the list, unless a link asks for it."""
    if not rows or not about.startswith("case:"):
        return rows
    row = anchors.rows_of(evidence, document, [about]).get(about)
    return [*rows, (about, row.label)] if row else rows


def _news(
    candidate: Candidate, evidence: Evidence, document: Document, found: list[Thread], person: User
) -> News | None:
    """None for those who only read along."""
    if not allowed(permissions.require_can_mark_seen, person):
        return None
    now = timezone.now()
    visit = ReviewVisit.objects.filter(candidate=candidate, person=person).select_related("evidence").first()
    if visit is None:
        return News(now)
    old = visit.evidence
    since = visit.seen_at
    changed = [] if old.pk == evidence.pk else compare.changes(evidence_module.document_of(old), document)
    disputes = disputes_about(document, person).filter(
        Q(raised_at__gt=since) & ~Q(raised_by=person) | Q(resolved_at__gt=since) & ~Q(resolved_by=person)
    )
    signed = Approval.objects.filter(candidate=candidate, signed_at__gt=since).exclude(approver=person)
    return News(
        shown_at=now,
        seen_at=since,
        seen_digest=old.digest,
        changes=changed,
        comments=[
            comment
            for thread in found
            for comment in thread.comments.all()
            if comment.written_at > since and comment.written_by_id != person.pk
        ],
        disputes=list(disputes),
        signatures=list(signed),
    )


def _risk(
    candidate: Candidate, document: Document, comparisons: panels.Comparisons | None, person: User
) -> Risk:
    may = candidate.state in risk_summaries.WRITTEN_IN and allowed(
        permissions.require_can_summarise, person, candidate.submitted_by_id
    )
    # words that are not in the evidence yet are shown once they are: nobody signs for them before
    stands = document.get("statement") is not None
    written = candidate.risk_summaries.select_related("written_by").first() if stands else None
    return Risk(risk_summary.summary(document, panels.safety_turns(comparisons)), written, may)
