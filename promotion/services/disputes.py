"""Disputes: somebody says that a case expects the wrong thing, and a second person decides.

What is disputed is the case, never one answer: accepted, it is amended for every run of its suite, the champion's as well
as the candidate's, and evidence that counts those runs is another. Both expectations and both scores are kept.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import Exists, F, OuterRef, Q
from django.utils import timezone

from promotion import evidence as evidence_module
from promotion import permissions
from promotion.models import OPEN_STATES, Candidate, CandidateState, Dispute, DisputeState, Policy
from promotion.services import gating
from rollouts import audit
from rollouts.amendments import expected_now
from rollouts.errors import AssayError, Conflict, InvalidInput, NotFound, StaleEvidence
from rollouts.hashing import sha256_json
from rollouts.models import Case
from rollouts.models.visibility import SeenByReaders
from rollouts.roles import Person
from rollouts.services import amendments

log = logging.getLogger(__name__)
REFUSED = "dispute.refused"
MIN_REASON, MAX_REASON = 10, 4000
DISPUTED = (CandidateState.BLOCKED, CandidateState.IN_REVIEW)
Document = Mapping[str, Any]


def raise_dispute(
    *, candidate_id: int, case_id: int, evidence_digest: str, expected: Any, reason: str, by: User
) -> Dispute:
    """Say that a case of the candidate's present evidence expects the wrong thing, and what it should expect.

    `expected` has the form that the suite's scorer reads in a sealed case. Raises `StaleEvidence` where the evidence is
    another by now, `InvalidInput` for what the case cannot expect or expects already, `Conflict` where the candidate is
    not judged or the case is in dispute. A refused attempt is in the audit history.
    """
    candidate = _candidate(candidate_id, by)
    with audit.refusals(REFUSED, subject=candidate, actor=by):
        permissions.require_can_dispute(by)
        said = _words("reason", reason, "why the case expects the wrong thing")
        return _raise(candidate_id, case_id, evidence_digest, expected, said, by)


def _raise(
    candidate_id: int, case_id: int, evidence_digest: str, expected: Any, reason: str, by: User
) -> Dispute:
    with transaction.atomic():
        person = User.objects.get(pk=by.pk)
        permissions.require_can_dispute(person)
        candidate = gating.locked_candidate(candidate_id)
        if candidate.state not in DISPUTED:
            raise Conflict(
                f"{candidate} is {candidate.state.replace('_', ' ')}; cases are disputed while it is blocked or in review."
            )
        evidence, _ = gating.freeze(candidate)
        if evidence.digest != evidence_digest:
            raise StaleEvidence(
                "The evidence changed since it was shown. Read it again before you dispute a case.",
                shown=evidence_digest,
                current=evidence.digest,
            )
        case = case_of(evidence_module.document_of(evidence), case_id)
        read = amendments.read_amended(case, expected)
        dispute = _create(candidate, case, evidence_digest, read.value, reason, person)
        audit.record("dispute.raised", subject=candidate, actor=person, **_facts(dispute), reason=reason)
    return dispute


def _create(
    candidate: Candidate, case: Case, evidence_digest: str, expected: Any, reason: str, by: User
) -> Dispute:
    try:
        with transaction.atomic():
            return Dispute.objects.create(
                candidate=candidate,
                case=case,
                evidence_digest=evidence_digest,
                expected_before=expected_now(case),
                expected_after=expected,
                reason=reason,
                raised_by=by,
                raised_at=timezone.now(),
            )
    except IntegrityError as error:
        there = disputes().filter(case=case, state=DisputeState.OPEN)
        standing = there.visible_to(by).first()
        if standing is not None:
            raise Conflict(
                f"Case {case.key} is in dispute already: dispute {standing.pk}. Decide that one first.",
                dispute=standing.pk,
            ) from error
        if there.exists():
            raise Conflict(
                f"Case {case.key} is in dispute already, on a candidate that you may not see. That one is decided first."
            ) from error
        raise


def accept(*, dispute_id: int, by: User, resolution: str) -> Dispute:
    """Amend the disputed case for every run, and score every captured answer to it again, without a call.

    The second person: an approver or administrator who neither raised it nor submitted a model that the suite judges.
    Candidates whose evidence counts those runs are judged again after commit, and signatures on the evidence before end.
    Raises `Conflict` where it is decided, or where an answer cannot be scored again: then nothing is changed.
    """
    dispute = _dispute(dispute_id, by)
    with audit.refusals(REFUSED, subject=dispute.candidate, actor=by):
        permissions.require_can_decide_dispute(by, raised_by=dispute.raised_by.get_username())
        said = _words("resolution", resolution, "why you agree")
        with transaction.atomic():
            person, dispute = _to_decide(dispute, by)
            _resolve(dispute, DisputeState.ACCEPTED, person, said)
            amendment = amendments.amend(
                case_id=dispute.case_id,
                expected=dispute.expected_after,
                reason=dispute.reason,
                proposed_by=dispute.raised_by,
                accepted_by=person,
            )
            _record(dispute, amendment=amendment.pk)
            digest = dispute.case.suite.digest
            transaction.on_commit(partial(_judge_again, digest), robust=True)
    return dispute


def decline(*, dispute_id: int, by: User, resolution: str) -> Dispute:
    """Leave the case as it is. The same people may as may accept."""
    dispute = _dispute(dispute_id, by)
    with audit.refusals(REFUSED, subject=dispute.candidate, actor=by):
        permissions.require_can_decide_dispute(by, raised_by=dispute.raised_by.get_username())
        said = _words("resolution", resolution, "why the case stays as it is")
        with transaction.atomic():
            person, dispute = _to_decide(dispute, by)
            _resolve(dispute, DisputeState.DECLINED, person, said)
            _record(dispute)
    return dispute


def withdraw(*, dispute_id: int, by: User) -> Dispute:
    """Take one's own dispute back. Nothing else changes."""
    dispute = _dispute(dispute_id, by)
    with audit.refusals(REFUSED, subject=dispute.candidate, actor=by):
        permissions.require_can_withdraw_dispute(by, dispute.raised_by.get_username())
        with transaction.atomic():
            gating.locked_candidate(dispute.candidate_id)
            dispute = _open(dispute.pk)
            _resolve(dispute, DisputeState.WITHDRAWN, by, "")
            _record(dispute)
    return dispute


def _to_decide(dispute: Dispute, by: User) -> tuple[User, Dispute]:
    """The person as the database knows them, and the dispute while it is open, under its candidate's lock."""
    person = User.objects.get(pk=by.pk)
    gating.locked_candidate(dispute.candidate_id)
    permissions.require_can_decide_dispute(
        person, raised_by=dispute.raised_by.get_username(), submitters=submitters(dispute)
    )
    return person, _open(dispute.pk)


def submitters(dispute: Dispute) -> list[str]:
    """Whose model gains or loses by the amended case: open candidates and champions of every track that the suite judges."""
    tracks = {dispute.candidate.track_id, *_tracks_judged_on(dispute.case.suite.digest)}
    models = Candidate.objects.filter(track__in=tracks).filter(
        Q(pk=dispute.candidate_id) | Q(state__in=OPEN_STATES) | Q(entry__aliases__name="champion")
    )
    return sorted(set(models.values_list("submitted_by__username", flat=True)))


def _tracks_judged_on(suite_digest: str) -> list[int]:
    """Tracks whose policy asks for the suite."""
    locked = Policy.objects.filter(locked_at__isnull=False).order_by("track_id", "version")
    newest = {policy.track_id: policy for policy in locked.only("track_id", "version", "document")}
    return [
        track
        for track, policy in newest.items()
        if suite_digest in [part["digest"] for part in policy.document["suites"]]
    ]


def _open(dispute_id: int) -> Dispute:
    dispute = disputes().get(pk=dispute_id)
    if dispute.state != DisputeState.OPEN:
        raise Conflict(f"This dispute is {dispute.state} already.")
    return dispute


def _resolve(dispute: Dispute, state: DisputeState, by: User, resolution: str) -> None:
    dispute.state, dispute.resolution = state, resolution
    dispute.resolved_by, dispute.resolved_at = by, timezone.now()
    dispute.save(update_fields=["state", "resolution", "resolved_by", "resolved_at"])


def _record(dispute: Dispute, **more: Any) -> None:
    assert dispute.resolved_by is not None
    audit.record(
        f"dispute.{dispute.state}",
        subject=dispute.candidate,
        actor=dispute.resolved_by,
        **_facts(dispute),
        resolution=dispute.resolution,
        raised_by=dispute.raised_by.get_username(),
        **more,
    )


def _judge_again(suite_digest: str) -> None:
    """Candidates of tracks whose policy asks for the suite: their evidence is another now."""
    judged = Candidate.objects.filter(
        state__in=gating.JUDGED_STATES, track__in=_tracks_judged_on(suite_digest)
    )
    for candidate in judged.order_by("pk"):
        try:
            gating.judge_if_changed(candidate)
        except Exception:  # one that cannot be judged must not keep the others waiting
            log.exception("judging candidate %s failed", candidate.pk)


def open_disputes(candidate: Candidate, document: Document) -> list[Dispute]:
    """Open disputes of cases that the evidence counts, whichever candidate they were raised on. One query."""
    return list(disputes().filter(state=DisputeState.OPEN, case__suite__digest__in=_suites(document)))


def disputes_about(document: Document, person: Person) -> SeenByReaders:
    """Disputes of cases that the evidence counts: open ones, then the last decided. `seen`: the person may see it."""
    mine = Dispute.objects.visible_to(person).filter(pk=OuterRef("pk"))
    about = disputes().filter(case__suite__digest__in=_suites(document)).annotate(seen=Exists(mine))
    return about.order_by(F("resolved_at").desc(nulls_first=True), "-id")


def disputes() -> SeenByReaders:
    related = ("case__suite", "candidate__track", "raised_by", "resolved_by")
    return Dispute.objects.select_related(*related).order_by("id")


def case_of(document: Document, case_id: int) -> Case:
    """The case, if it is of a suite that the evidence counts. Raises `NotFound`."""
    found = (
        Case.objects.select_related("suite").filter(pk=case_id, suite__digest__in=_suites(document)).first()
    )
    if found is None:
        raise NotFound("This candidate's evidence has no such case.")
    return found


def record_refusal(candidate: Candidate, by: User, error: AssayError) -> None:
    """For callers in whose own transaction the service's record of a refusal was rolled back."""
    with transaction.atomic():
        audit.record(REFUSED, subject=candidate, actor=by, code=error.code, reason=error.message)


def _suites(document: Document) -> list[str]:
    return [part["digest"] for part in document["suites"]]


def _words(field: str, text: str, what: str) -> str:
    said = text.strip()
    if not MIN_REASON <= len(said) <= MAX_REASON:
        raise InvalidInput(field, f"must say {what}, in {MIN_REASON} to {MAX_REASON:,} characters.")
    return said


def _candidate(candidate_id: int, by: User) -> Candidate:
    seen = Candidate.objects.visible_to(by).select_related("track")
    candidate = seen.filter(pk=candidate_id).first()
    if candidate is None:
        raise NotFound("There is no such candidate.")
    return candidate


def _dispute(dispute_id: int, by: User) -> Dispute:
    dispute = disputes().visible_to(by).filter(pk=dispute_id).first()
    if dispute is None:
        raise NotFound("There is no such dispute.")
    return dispute


def _facts(dispute: Dispute) -> dict[str, Any]:
    return {
        "dispute": dispute.pk,
        "suite": dispute.case.suite.digest,
        "case": dispute.case.key,
        "evidence": dispute.evidence_digest,
        "expected_before": sha256_json(dispute.expected_before),
        "expected_after": sha256_json(dispute.expected_after),
    }
