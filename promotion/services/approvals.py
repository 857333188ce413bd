"""Signatures: bound to one evidence digest, with fresh authentication at the act."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from promotion import evidence as evidence_module
from promotion import permissions, selectors
from promotion.gates import Outcome
from promotion.models import (
    CANDIDATE_MOVES,
    Approval,
    Candidate,
    CandidateState,
    Decision,
    Evidence,
    Meaning,
)
from promotion.services import gating
from promotion.services.proofs import Authenticated, Proof
from promotion.services.reviews import Reviewed, require_reviewed
from rollouts import audit
from rollouts.errors import Conflict, InvalidInput, StaleEvidence
from rollouts.messages import send_after_commit
from rollouts.states import require_move

MAX_COMMENT = 4000


REFUSED = "candidate.signature_refused"


@dataclass(frozen=True, slots=True)
class Words:
    """What the person said with the act."""

    decision: str
    meaning: str
    comment: str
    unopened_reason: str
    template_version: str


def sign(
    *,
    candidate_id: int,
    evidence_digest: str,
    by: User,
    proof: Proof,
    decision: str = Decision.APPROVE,
    meaning: str = "",
    comment: str = "",
    unopened_reason: str = "",
    template_version: str = "",
) -> Approval:
    """Sign, refuse or send back exactly the evidence that was shown. There is no way to sign with a token.

    `unopened_reason` says why parts that must be opened were not. Raises `StaleEvidence` where the evidence is another
    by now, `NotAllowed` for the wrong person or proof, `Conflict` where the state forbids it or the review is not done.
    A refused attempt is in the audit history.
    """
    with audit.refusals(REFUSED, subject=selectors.candidate_by_id(candidate_id, by), actor=by):
        authenticated = proof.check(by)
        words = Words(decision, meaning, comment.strip(), unopened_reason.strip(), template_version)
        return _sign(candidate_id, by, evidence_digest, authenticated, words)


def check(
    *,
    candidate_id: int,
    evidence_digest: str,
    by: User,
    decision: str = Decision.APPROVE,
    meaning: str = "",
    comment: str = "",
    unopened_reason: str = "",
    template_version: str = "",
) -> None:
    """Refuses what `sign` would refuse whatever the proof: asked before somebody is sent elsewhere to give it."""
    words = Words(decision, meaning, comment.strip(), unopened_reason.strip(), template_version)
    with (
        audit.refusals(REFUSED, subject=selectors.candidate_by_id(candidate_id, by), actor=by),
        transaction.atomic(),
    ):
        _ready(candidate_id, by, evidence_digest, words)


def _ready(
    candidate_id: int, by: User, evidence_digest: str, words: Words
) -> tuple[Candidate, Evidence, User, str, Reviewed]:
    """The locked candidate, its evidence, the person with their role, and what they reviewed."""
    # a person whose rights changed a moment ago must not act on what the session remembers
    person = User.objects.get(pk=by.pk)
    locked = gating.locked_candidate(candidate_id)
    evidence, _ = gating.freeze(locked)
    role = _check(locked, evidence, person, evidence_digest)
    _check_words(locked, words)
    reviewed = Reviewed()
    if words.decision == Decision.APPROVE:
        reviewed = require_reviewed(locked, evidence, person, unopened_reason=words.unopened_reason)
    return locked, evidence, person, role, reviewed


def _sign(
    candidate_id: int, by: User, evidence_digest: str, authenticated: Authenticated, words: Words
) -> Approval:
    with transaction.atomic():
        locked, evidence, person, role, reviewed = _ready(candidate_id, by, evidence_digest, words)
        approval = _write(locked, evidence, person, role, authenticated, words, reviewed)
        _move(locked, evidence, words.decision)
        audit.record(
            "candidate.signed" if words.decision == Decision.APPROVE else f"candidate.{words.decision}",
            subject=locked,
            actor=person,
            evidence=evidence.digest,
            meaning=approval.meaning,
            role=role,
            method=approval.method,
            comment=approval.comment,
            panels_opened=len(approval.panels_opened),
            panels_unopened=len(approval.panels_unopened),
        )
    return approval


def _check(candidate: Candidate, evidence: Evidence, person: User, shown_digest: str) -> str:
    document = evidence_module.document_of(evidence)
    rule = gating.approval_rule(document)
    role = permissions.require_can_sign(
        person,
        involved=gating.involved_people(document),
        separated=rule["separation_of_duties"],
        groups=[part["group"] for part in rule["approvers"]],
    )
    if evidence.digest != shown_digest:
        raise StaleEvidence(
            "The evidence changed since it was shown. Read it again before you sign.",
            shown=shown_digest,
            current=evidence.digest,
        )
    if candidate.state != CandidateState.IN_REVIEW:
        raise Conflict(
            f"{candidate} is {candidate.state.replace('_', ' ')}; only a candidate in review is signed."
        )
    return role


def _check_words(candidate: Candidate, words: Words) -> None:
    decision, meaning, comment = words.decision, words.meaning, words.comment
    if len(words.unopened_reason) > MAX_COMMENT:
        raise InvalidInput("unopened_reason", f"must be at most {MAX_COMMENT} characters.")
    if decision not in Decision.values:
        raise InvalidInput("decision", f"must be one of {', '.join(Decision.values)}.")
    if len(comment) > MAX_COMMENT:
        raise InvalidInput("comment", f"must be at most {MAX_COMMENT} characters.")
    if decision != Decision.APPROVE:
        if not comment:
            raise InvalidInput("comment", "must say why. The submitter reads it.")
        return
    allowed = (
        [Meaning.ADOPTS_BASELINE]
        if candidate.baseline
        else [m for m in Meaning if m != Meaning.ADOPTS_BASELINE]
    )
    if meaning not in allowed:
        raise InvalidInput("meaning", f"must be one of {', '.join(allowed)}: say what your signature means.")


def _write(
    candidate: Candidate,
    evidence: Evidence,
    person: User,
    role: str,
    authenticated: Authenticated,
    words: Words,
    reviewed: Reviewed,
) -> Approval:
    now = timezone.now()
    rule = gating.approval_rule(evidence_module.document_of(evidence))
    # an expired signature stands for nothing any more, and must not keep its person from signing anew
    person.approvals.filter(
        evidence_digest=evidence.digest,
        withdrawn_at__isnull=True,
        signed_at__lt=now - timedelta(days=rule["expires_after_days"]),
    ).update(withdrawn_at=now)
    try:
        with transaction.atomic():
            return Approval.objects.create(
                candidate=candidate,
                evidence=evidence,
                evidence_digest=evidence.digest,
                policy_digest=evidence.policy.digest if evidence.policy else "",
                approver=person,
                printed_name=(person.get_full_name() or person.get_username())[:200],
                role=role,
                decision=words.decision,
                meaning=words.meaning if words.decision == Decision.APPROVE else "",
                comment=words.comment,
                method=authenticated.method,
                authenticated_at=authenticated.at,
                signed_at=now,
                template_version=words.template_version,
                panels_opened=reviewed.panels_opened,
                panels_unopened=reviewed.panels_unopened,
                unopened_reason=reviewed.unopened_reason,
                checklist=reviewed.checklist,
            )
    except IntegrityError as error:
        raise Conflict(f"{person.get_username()} has signed this evidence already.") from error


def _move(candidate: Candidate, evidence: Evidence, decision: str) -> None:
    if decision == Decision.APPROVE:
        if gating.approvals_outcome(candidate, evidence).outcome is Outcome.PASSED:
            require_move(str(candidate), CANDIDATE_MOVES, candidate.state, CandidateState.APPROVED)
            Candidate.objects.filter(pk=candidate.pk).update(state=CandidateState.APPROVED)
            send_publish(candidate.pk)
        return
    to = CandidateState.REJECTED if decision == Decision.REJECT else CandidateState.BLOCKED
    require_move(str(candidate), CANDIDATE_MOVES, candidate.state, to)
    # another revision is another digest: signatures given before are for what was, not for what comes
    Candidate.objects.filter(pk=candidate.pk).update(state=to, revision=F("revision") + 1)


def send_publish(candidate_id: int) -> None:
    from promotion import tasks

    Candidate.objects.filter(pk=candidate_id).update(last_sent_at=timezone.now())
    send_after_commit(tasks.publish, candidate_id)
