"""Breaking the glass: a promotion without the signatures that the rule asks for. The act, the alarm, the review afterwards.

It stands in for signatures only. Every other gate must open the door as always, and the same people are kept out as
from signing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.core.mail import EmailMessage, get_connection
from django.db import transaction
from django.utils import timezone

from promotion import evidence as evidence_module
from promotion import permissions, selectors
from promotion.gates import GateOutcome
from promotion.models import (
    CANDIDATE_MOVES,
    BrokenGlass,
    Candidate,
    CandidateState,
    Evidence,
    GlassVerdict,
)
from promotion.services import gating
from promotion.services.approvals import send_publish
from promotion.services.proofs import Authenticated, Proof
from rollouts import audit
from rollouts.errors import Conflict, InvalidInput, NotFound, StaleEvidence
from rollouts.states import require_move
from rollouts.text import plain

log = logging.getLogger(__name__)

REFUSED = "candidate.glass_refused"
REVIEW_WITHIN = timedelta(hours=72)
MIN_REASON, MAX_REASON = 20, 4000
# who is told, and sees the alarm until somebody else has looked
ALARMED = (permissions.APPROVER, permissions.ADMINISTRATOR, permissions.AUDITOR)
# states in which a condemned glass still holds back what it let through
UNPUBLISHED = (CandidateState.APPROVED, CandidateState.PUBLISH_FAILED)


def break_glass(
    *, candidate_id: int, evidence_digest: str, by: User, proof: Proof, reason: str
) -> BrokenGlass:
    """Approve exactly the evidence that was shown, without the signatures that are missing. There is no way with a token.

    Raises `StaleEvidence` where the evidence is another by now, `NotAllowed` for the wrong person or proof, `Conflict`
    where the policy or the state forbids it. A refused attempt is in the audit history.
    """
    with audit.refusals(REFUSED, subject=selectors.candidate_by_id(candidate_id, by), actor=by):
        authenticated = proof.check(by)
        return _break(candidate_id, evidence_digest, by, authenticated, reason.strip())


def check(*, candidate_id: int, evidence_digest: str, by: User, reason: str) -> None:
    """Refuses what `break_glass` would refuse whatever the proof: asked before somebody is sent elsewhere to give it."""
    with (
        audit.refusals(REFUSED, subject=selectors.candidate_by_id(candidate_id, by), actor=by),
        transaction.atomic(),
    ):
        _ready(candidate_id, evidence_digest, by, reason.strip())


def _break(
    candidate_id: int, evidence_digest: str, by: User, authenticated: Authenticated, reason: str
) -> BrokenGlass:
    with transaction.atomic():
        candidate, evidence, person, missing = _ready(candidate_id, evidence_digest, by, reason)
        glass = _write(candidate, evidence, person, authenticated, reason)
        require_move(str(candidate), CANDIDATE_MOVES, candidate.state, CandidateState.APPROVED)
        Candidate.objects.filter(pk=candidate.pk).update(state=CandidateState.APPROVED)
        send_publish(candidate.pk)
        transaction.on_commit(lambda: _alarm(glass), robust=True)
        audit.record(
            "candidate.glass_broken",
            subject=candidate,
            actor=person,
            glass=glass.pk,
            evidence=evidence.digest,
            method=glass.method,
            missing=missing,
            reason=reason,
            review_due_at=glass.review_due_at.isoformat(),
        )
    return glass


def _ready(
    candidate_id: int, evidence_digest: str, by: User, reason: str
) -> tuple[Candidate, Evidence, User, str]:
    """The locked candidate, its evidence, the person, and which signatures are missing."""
    # a person whose rights changed a moment ago must not act on what the session remembers
    person = User.objects.get(pk=by.pk)
    candidate = gating.locked_candidate(candidate_id)
    evidence, outcomes = gating.freeze(candidate)
    missing = require_can_break(candidate, evidence, person)
    _check_words("reason", reason, MIN_REASON)
    _check_evidence(candidate, evidence, outcomes, evidence_digest)
    return candidate, evidence, person, missing


def require_can_break(candidate: Candidate, evidence: Evidence, person: User) -> str:
    """Gives which signatures are missing. Raises `NotAllowed` or `Conflict`; gates and digest are looked at in the act."""
    document = evidence_module.document_of(evidence)
    rule = gating.approval_rule(document)
    permissions.require_can_break_glass(
        person, involved=gating.involved_people(document), separated=rule["separation_of_duties"]
    )
    if not rule.get("break_glass"):
        raise Conflict(
            f"The rule that {candidate} is approved by lets nobody break the glass. Get the signatures."
        )
    if candidate.state != CandidateState.IN_REVIEW:
        raise Conflict(
            f"{candidate} is {candidate.state.replace('_', ' ')}; the glass is broken only for a candidate in review."
        )
    if BrokenGlass.objects.filter(evidence_digest=evidence.digest).exists():
        raise Conflict("The glass was broken for this evidence once already. Get the signatures.")
    return gating.approvals_outcome(candidate, evidence).reason


def _check_evidence(
    candidate: Candidate, evidence: Evidence, outcomes: list[tuple[str, GateOutcome]], shown_digest: str
) -> None:
    if evidence.digest != shown_digest:
        raise StaleEvidence(
            "The evidence changed since it was shown. Read it again before you break the glass.",
            shown=shown_digest,
            current=evidence.digest,
        )
    # a waiver may have run out since it was judged
    blocked = gating.blocked_by(candidate, evidence, outcomes)
    if blocked:
        raise Conflict(
            f"{candidate} has unmet gates, and breaking the glass passes over none: {blocked[0]}",
            blocked_by=blocked,
        )


def _check_words(field: str, text: str, least: int) -> None:
    if len(text) < least:
        raise InvalidInput(
            field, f"must say why, in at least {least} characters. Whoever looks at it reads it."
        )
    if len(text) > MAX_REASON:
        raise InvalidInput(field, f"must be at most {MAX_REASON} characters.")


def _write(
    candidate: Candidate, evidence: Evidence, person: User, authenticated: Authenticated, reason: str
) -> BrokenGlass:
    now = timezone.now()
    glass: BrokenGlass = BrokenGlass.objects.create(
        candidate=candidate,
        evidence=evidence,
        evidence_digest=evidence.digest,
        broken_by=person,
        printed_name=(person.get_full_name() or person.get_username())[:200],
        reason=reason,
        method=authenticated.method,
        authenticated_at=authenticated.at,
        broken_at=now,
        review_due_at=now + REVIEW_WITHIN,
    )
    return glass


# the alarm


def _alarm(glass: BrokenGlass) -> None:
    """After the commit: whatever fails here undoes nothing. The notices stand in the database."""
    ids = {"action": "candidate.glass_broken", "candidate": glass.candidate_id, "glass": glass.pk}
    log.error(
        "%s broke the glass for %s: candidate %s, glass %s",
        *(glass.broken_by.get_username(), glass.candidate, glass.candidate_id, glass.pk),
        extra=ids,
    )
    not_told: dict[User, str] = dict.fromkeys(_to_tell(glass), "")
    try:
        if not_told:
            _mail(glass, not_told)
    except OSError as error:  # the server is away, for all who are left
        not_told = {person: why or str(error) for person, why in not_told.items()}
    for person, why in not_told.items():
        to = (glass.pk, person.get_username(), why)
        log.error("The alarm of glass %s was not sent by e-mail to %r: %s", *to, extra=ids)


def _to_tell(glass: BrokenGlass) -> list[User]:
    people = User.objects.filter(is_active=True, groups__name__in=ALARMED).exclude(email="").distinct()
    candidate = Candidate.objects.filter(pk=glass.candidate_id)
    return [person for person in people.order_by("pk") if candidate.visible_to(person).exists()]


def _mail(glass: BrokenGlass, not_told: dict[User, str]) -> None:
    """An e-mail to each, so that nobody sees another's address and a wrong one keeps none from the others.

    Takes out who was told, and says of the others why not. Raises `OSError` where the server cannot be reached.
    """
    subject, body = f"Assay: the glass was broken for {glass.candidate}", _letter(glass)
    with get_connection() as connection:
        for person in list(not_told):
            try:
                EmailMessage(subject, body, to=[person.email], connection=connection).send()
                del not_told[person]
            except (OSError, ValueError) as error:  # what the server refuses; an address that is none
                not_told[person] = str(error)
                connection.close()  # it may be half way through a letter
                connection.open()


def _letter(glass: BrokenGlass) -> str:
    """What others wrote cannot pass for a line of ours: a name stays in its line, the reason is set in."""
    name, account = _in_line(glass.printed_name), _in_line(glass.broken_by.get_username())
    reason = "\n".join(f"  > {line}" for line in plain(glass.reason.replace("\r\n", "\n")).split("\n"))
    return (
        f"{name} ({account}) promoted {glass.candidate} without the signatures that its policy asks for.\n\n"
        f"Evidence: {glass.evidence_digest}\nReason, as it was written:\n{reason}\n\n"
        f"An approver without a part in it must look at this by {glass.review_due_at:%Y-%m-%d %H:%M} UTC: "
        "sign in to Assay and follow the notice on the first page.\n"
    )


def _in_line(text: str) -> str:
    return " ".join(plain(text).split())


# the review afterwards


@dataclass(frozen=True, slots=True)
class Due:
    """A broken glass that nobody else has looked at yet."""

    glass: BrokenGlass
    overdue: bool


def due(glass: BrokenGlass, now: datetime | None = None) -> Due | None:
    """None once it was reviewed."""
    return None if glass.verdict else Due(glass, (now or timezone.now()) > glass.review_due_at)


def review_glass(*, glass_id: int, by: User, verdict: str, comment: str) -> BrokenGlass:
    """Uphold or condemn what was promoted without signatures. Once, by an approver without a part in it.

    Condemned before it was published, it goes back to review. What is published stays: nothing rolls back by itself.
    A refused attempt is in the audit history.
    """
    glass = BrokenGlass.objects.select_related("candidate__track").filter(pk=glass_id).first()
    if glass is None:
        raise NotFound("There is no such broken glass.")
    with audit.refusals(REFUSED, subject=glass.candidate, actor=by):
        if verdict not in GlassVerdict.values:
            raise InvalidInput("verdict", f"must be one of {', '.join(GlassVerdict.values)}.")
        _check_words("comment", comment.strip(), 1)
        return _review(glass.candidate_id, glass_id, by, verdict, comment.strip())


def _review(candidate_id: int, glass_id: int, by: User, verdict: str, comment: str) -> BrokenGlass:
    with transaction.atomic():
        person = User.objects.get(pk=by.pk)
        candidate = gating.locked_candidate(candidate_id)
        glass: BrokenGlass = BrokenGlass.objects.select_related("broken_by", "evidence").get(pk=glass_id)
        require_can_review(glass, person)
        glass.verdict, glass.review_comment = verdict, comment
        glass.reviewed_by, glass.reviewed_at = person, timezone.now()
        glass.save(update_fields=["verdict", "review_comment", "reviewed_by", "reviewed_at"])
        if candidate.state in UNPUBLISHED:
            _, blocked = gating.unmet(candidate)
            if blocked:
                Candidate.objects.filter(pk=candidate.pk).update(state=gating.place_of(blocked))
        audit.record(
            "candidate.glass_reviewed",
            subject=candidate,
            actor=person,
            glass=glass.pk,
            evidence=glass.evidence_digest,
            verdict=verdict,
            comment=comment,
        )
    return glass


def require_can_review(glass: BrokenGlass, person: User) -> None:
    """Raises `NotAllowed` for the wrong person, `Conflict` where it was reviewed already."""
    document = evidence_module.document_of(glass.evidence)
    permissions.require_can_review_glass(
        person, broken_by=glass.broken_by.get_username(), involved=gating.involved_people(document)
    )
    if glass.verdict:
        raise Conflict(f"It was reviewed already and is {glass.verdict}.")
