"""What a reviewer has to have done before they sign: parts opened, the checklist, no question left open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from promotion import comparing, permissions, selectors
from promotion import evidence as evidence_module
from promotion.checklist import REVIEWER, answer, basis
from promotion.models import (
    Candidate,
    CandidateState,
    ChecklistAnswer,
    Evidence,
    PanelOpening,
    ReviewVisit,
    Thread,
)
from promotion.panels import must_open
from promotion.services import gating
from promotion.services.disputes import open_disputes
from rollouts import audit
from rollouts.errors import Conflict, InvalidInput, StaleEvidence

MIN_REASON = 10
MOST_NAMED = 5
MAX_NOTE = 2000
# before the key of a part that was marked as read without being opened: in the form, the row and the signature
MARKED = "marked:"
REVIEWED_STATES = (CandidateState.BLOCKED, CandidateState.IN_REVIEW)
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Item:
    """A question of the policy's checklist, as a person answered it for an evidence digest, or as the evidence does."""

    key: str
    text: str
    answered_by: str
    answer: bool
    note: str = ""

    @property
    def basis(self) -> str:
        return basis(self.answered_by)

    @property
    def by_machine(self) -> bool:
        return self.answered_by != REVIEWER

    @property
    def settled(self) -> bool:
        """Nothing of it stands in the way: answered yes, or a machine's no with the person's reason to accept it."""
        return self.answer or (self.by_machine and bool(self.note))


@dataclass(frozen=True, slots=True)
class Reviewed:
    """What stands in a signature about the review before it."""

    panels_opened: list[str] = field(default_factory=list)
    panels_unopened: list[str] = field(default_factory=list)
    unopened_reason: str = ""
    checklist: list[dict[str, Any]] = field(default_factory=list)


# parts that must be opened


def opened_by(candidate: Candidate, person: User) -> set[str]:
    """Keys of the parts that the person ever opened on this candidate. One query."""
    return opened_and_marked(candidate, person)[0]


def opened_and_marked(candidate: Candidate, person: User) -> tuple[set[str], set[str]]:
    """Keys of the parts that the person opened, and of those that they only marked as read. One query."""
    rows = PanelOpening.objects.filter(candidate=candidate, person=person)
    noted = set(rows.values_list("panel", flat=True))
    marked = {panel.removeprefix(MARKED) for panel in noted if panel.startswith(MARKED)}
    opened = {panel for panel in noted if not panel.startswith(MARKED)}
    return opened, marked - opened


def open_panel(*, candidate_id: int, panel: str, by: User) -> PanelOpening:
    """Records that the person opened a part that must be opened. Once: again it changes nothing.

    `panel` is its key, with `MARKED` before it where they did not open it, but say that they have read it.
    """
    with transaction.atomic():
        candidate = selectors.candidate_by_id(candidate_id, by)
        _, document = _reviewable(candidate, by)
        asked = {part.key for part in must_open(document, comparing.comparisons_of(document)).panels}
        if panel.removeprefix(MARKED) not in asked:
            raise InvalidInput(
                "panel",
                "must name a part of the present evidence that has to be opened. Load the page again.",
            )
        opening, created = PanelOpening.objects.get_or_create(
            candidate=candidate, person=by, panel=panel, defaults={"opened_at": timezone.now()}
        )
        if created:
            audit.record("review.opened", subject=candidate, actor=by, panel=panel)
    return opening


def _reviewable(candidate: Candidate, by: User) -> tuple[Evidence, Document]:
    """The newest evidence, for somebody who could sign it. Raises `Conflict` or `NotAllowed`."""
    evidence = selectors.latest_evidence(candidate)
    if evidence is None or candidate.state not in REVIEWED_STATES:
        raise Conflict(
            f"{candidate} is {candidate.state.replace('_', ' ')}; only what is judged and not signed is reviewed."
        )
    document = evidence_module.document_of(evidence)
    permissions.require_can_review(by, groups=groups_that_sign(document))
    return evidence, document


def groups_that_sign(document: Document) -> list[str]:
    return [part["group"] for part in gating.approval_rule(document)["approvers"]]


# the checklist


def checklist_of(document: Document, answers: Mapping[str, ChecklistAnswer]) -> list[Item]:
    """The policy's items in order, with what one person answered (by item) for this document's digest."""
    entries = gating.approval_rule(document).get("checklist", ())
    items = []
    for entry in entries:
        by, given = entry["answered_by"], answers.get(entry["key"])
        said = given is not None if by == REVIEWER else answer(by, document)
        items.append(Item(entry["key"], entry["text"], by, said, given.note if given else ""))
    return items


def answers_of(candidate: Candidate, digest: str, person: User) -> dict[str, ChecklistAnswer]:
    """The person's ticks and notes for one evidence digest, by item. One query."""
    rows = ChecklistAnswer.objects.filter(candidate=candidate, evidence_digest=digest, person=person)
    return {row.item: row for row in rows}


def tick(*, candidate_id: int, item: str, digest: str, by: User, note: str = "") -> None:
    """Tick an item for the evidence that was shown, or say why what the evidence answers with no is accepted.

    It holds for that digest alone. The same again changes nothing. Raises `StaleEvidence` where it is another by now.
    """
    note = note.strip()
    if len(note) > MAX_NOTE:
        raise InvalidInput("note", f"must be at most {MAX_NOTE} characters.")
    with transaction.atomic():
        candidate, found = _item(candidate_id, item, digest, by)
        if found.by_machine and found.answer:
            raise Conflict("The evidence itself answers this with yes: there is nothing to tick.")
        if found.by_machine and not note:
            raise InvalidInput("note", "must say why it is accepted: the evidence answers this with no.")
        row, created = ChecklistAnswer.objects.get_or_create(
            person=by,
            evidence_digest=digest,
            item=item,
            defaults={"candidate": candidate, "note": note, "answered_at": timezone.now()},
        )
        if not created and row.note == note:
            return
        if not created:
            row.note, row.answered_at = note, timezone.now()
            row.save(update_fields=["note", "answered_at"])
        audit.record("review.ticked", subject=candidate, actor=by, item=item, evidence=digest, note=note)


def untick(*, candidate_id: int, item: str, digest: str, by: User) -> None:
    """Take a tick or a note back. A signature that was given keeps what was ticked then."""
    with transaction.atomic():
        candidate, _ = _item(candidate_id, item, digest, by)
        deleted, _ = ChecklistAnswer.objects.filter(person=by, evidence_digest=digest, item=item).delete()
        if deleted:
            audit.record("review.unticked", subject=candidate, actor=by, item=item, evidence=digest)


def _item(candidate_id: int, item: str, digest: str, by: User) -> tuple[Candidate, Item]:
    candidate = selectors.candidate_by_id(candidate_id, by)
    evidence, document = _reviewable(candidate, by)
    if evidence.digest != digest:
        raise StaleEvidence(
            "The evidence changed since it was shown. Read it again before you tick.",
            shown=digest,
            current=evidence.digest,
        )
    found = [entry for entry in checklist_of(document, {}) if entry.key == item]
    if not found:
        raise InvalidInput("item", "must be one of the policy's checklist.")
    return candidate, found[0]


# what was seen


def mark_seen(*, candidate_id: int, digest: str, by: User, shown_at: datetime | None = None) -> None:
    """From now on the page says what is new since this evidence and this moment; `shown_at`: since the page was made.

    The time alone decides nothing that anybody relies on, so that only another evidence is kept in the history.
    """
    permissions.require_can_mark_seen(by)
    with transaction.atomic():
        candidate = selectors.candidate_by_id(candidate_id, by)
        evidence = selectors.evidence_of(candidate, digest)
        if evidence is None:
            raise InvalidInput("digest", "must be the digest of evidence of this candidate.")
        now = timezone.now()
        seen_at = min(shown_at, now) if shown_at else now
        visit, created = ReviewVisit.objects.select_for_update().get_or_create(
            candidate=candidate, person=by, defaults={"evidence": evidence, "seen_at": seen_at}
        )
        if not created and (visit.evidence_id, visit.seen_at) >= (evidence.pk, seen_at):
            return  # another tab has shown what is newer
        another = created or visit.evidence_id != evidence.pk
        if not created:
            visit.evidence, visit.seen_at = evidence, seen_at
            visit.save(update_fields=["evidence", "seen_at"])
        if another:
            audit.record("review.seen", subject=candidate, actor=by, evidence=digest)


# before a signature


def require_reviewed(
    candidate: Candidate, evidence: Evidence, person: User, *, unopened_reason: str = ""
) -> Reviewed:
    """What the person saw to before approving, under the candidate's lock. Raises `Conflict` with what is missing."""
    document = evidence_module.document_of(evidence)
    parts, reason = must_open(document, comparing.comparisons_of(document)), unopened_reason.strip()
    if not parts.compared:
        raise Conflict("The cases are being compared with the champion's; try again in a moment.")
    opened, marked = opened_and_marked(candidate, person)
    unopened = [panel for panel in parts.panels if panel.key not in opened | marked]
    items = checklist_of(document, answers_of(candidate, evidence.digest, person))
    missing = [] if len(reason) >= MIN_REASON else [f"{panel.label} is not opened" for panel in unopened]
    missing += _unsettled(items) + _open_questions(candidate, document)
    if missing:
        raise _not_done(missing, unopened=bool(unopened) and len(reason) < MIN_REASON)
    return Reviewed(
        panels_opened=[
            panel.key if panel.key in opened else f"{MARKED}{panel.key}"
            for panel in parts.panels
            if panel.key in opened | marked
        ],
        panels_unopened=[panel.key for panel in unopened],
        unopened_reason=reason if unopened else "",
        checklist=[
            {
                "key": item.key,
                "text": item.text,
                "answered_by": item.answered_by,
                "answer": item.answer,
                "note": item.note,
            }
            for item in items
        ],
    )


def _unsettled(items: Sequence[Item]) -> list[str]:
    return [
        f'"{item.text}" is answered with no by the evidence, and you wrote no note'
        if item.by_machine
        else f'"{item.text}" is not ticked'
        for item in items
        if not item.settled
    ]


def _open_questions(candidate: Candidate, document: Document) -> list[str]:
    threads = Thread.objects.filter(candidate=candidate, resolved_at__isnull=True)
    labels = threads.order_by("id").values_list("anchor_label", flat=True)
    disputes = open_disputes(candidate, document)
    return [
        *(f"the thread on {label} is not resolved" for label in labels),
        *(f"the score of case {dispute.case.key} is disputed" for dispute in disputes),
    ]


def _not_done(missing: list[str], *, unopened: bool) -> Conflict:
    more = len(missing) - MOST_NAMED
    named = "; ".join(missing[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
    remedy = (
        f" Open what must be opened, or say in at least {MIN_REASON} characters why not." if unopened else ""
    )
    return Conflict(f"The review is not done: {named}.{remedy}", blocked_by=missing)
