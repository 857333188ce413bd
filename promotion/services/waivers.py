"""Waivers: one unmet gate of one candidate's measurements may be let be, for a time, by two persons.

A waiver is bound to the digest of what was measured. When that changes the waiver is of something else and simply
does not apply: nothing is reset, so there is no moment at which an old one still counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from promotion import evidence as evidence_module
from promotion import permissions
from promotion.gates import GATES, GateOutcome, Outcome
from promotion.models import OPEN_STATES, Candidate, CandidateState, Waiver
from promotion.services import gating
from rollouts import audit
from rollouts.errors import AssayError, Conflict, InvalidInput, NotFound

REFUSED = "candidate.waiver_refused"
MIN_DAYS, MAX_DAYS = 1, 30
MAX_REASON = 4000
STATES = ("requested", "granted", "expired", "ended")
JUDGED = (CandidateState.BLOCKED, CandidateState.IN_REVIEW)
# a gate that failed itself says nothing that anybody could take responsibility for
UNMET = (Outcome.FAILED, Outcome.NOT_EVALUATED)


def request(
    *, candidate_id: int, gate: str, reason: str, days: int, by: User, suite_digest: str = ""
) -> Waiver:
    """Ask that an unmet gate of the present measurements be waived for 1 to 30 days from now.

    `suite_digest` as the policy's entry has it, "" where the gate names no suite. Raises `InvalidInput` for a gate that
    cannot be waived, `Conflict` where it is not unmet. A refused attempt is in the audit history.
    """
    candidate = _candidate(candidate_id)
    with audit.refusals(REFUSED, subject=candidate, actor=by):
        permissions.require_can_request_waiver(by)
        _check_words(gate, reason, days)
        return _request(candidate_id, gate, suite_digest, reason.strip(), days, by)


def _check_words(gate: str, reason: str, days: int) -> None:
    if gate not in GATES:
        raise InvalidInput("gate", "is not a gate. Use the name in the policy.")
    if not GATES[gate].waivable:
        raise InvalidInput(
            "gate",
            f"{gate} cannot be waived: it says whether what was judged and signed is what it is said to be.",
        )
    if not reason.strip():
        raise InvalidInput("reason", "must say why the gate may be let be. Whoever signs reads it.")
    if len(reason) > MAX_REASON:
        raise InvalidInput("reason", f"must be at most {MAX_REASON} characters.")
    if not MIN_DAYS <= days <= MAX_DAYS:
        raise InvalidInput("days", f"must be from {MIN_DAYS} to {MAX_DAYS}.")


def _request(candidate_id: int, gate: str, suite: str, reason: str, days: int, by: User) -> Waiver:
    with transaction.atomic():
        candidate = gating.locked_candidate(candidate_id)
        document = _judged(candidate, gate, suite)
        now = timezone.now()
        standing = {
            "candidate": candidate,
            "gate": gate,
            "suite_digest": suite,
            "measurement_digest": evidence_module.measurement_digest(document),
        }
        # one that ran out waives nothing any more, and must not keep the gate from being waived anew
        Waiver.objects.filter(**standing, ended_at__isnull=True, expires_at__lte=now).update(ended_at=now)
        try:
            with transaction.atomic():
                waiver = Waiver.objects.create(
                    **standing,
                    reason=reason,
                    requested_by=by,
                    requested_at=now,
                    expires_at=now + timedelta(days=days),
                )
        except IntegrityError as error:
            raise Conflict(f"A waiver of {gate} is requested or granted already.") from error
        audit.record("candidate.waiver_requested", subject=candidate, actor=by, **_facts(waiver))
    return waiver


def grant(*, waiver_id: int, by: User) -> Waiver:
    """Grant a requested waiver, and judge the candidate again. The second person, and none with a part in it.

    Raises `NotAllowed` for the wrong person, `Conflict` where it is granted, ended, run out, or of what was measured
    before. A refused attempt is in the audit history.
    """
    waiver = _waiver(waiver_id)
    with audit.refusals(REFUSED, subject=waiver.candidate, actor=by):
        permissions.require_can_grant_waiver(by, requested_by=waiver.requested_by.get_username())
        return _grant(waiver.candidate_id, waiver_id, by)


def _grant(candidate_id: int, waiver_id: int, by: User) -> Waiver:
    with transaction.atomic():
        # a person whose rights changed a moment ago must not act on what the session remembers
        person = User.objects.get(pk=by.pk)
        candidate = gating.locked_candidate(candidate_id)
        waiver = _waiver(waiver_id)
        now = timezone.now()
        state = state_of(waiver, now)
        if state != "requested":
            raise Conflict(f"This waiver is {state}; only a requested one can be granted.")
        document = _judged(candidate, waiver.gate, waiver.suite_digest)
        if evidence_module.measurement_digest(document) != waiver.measurement_digest:
            raise Conflict(
                "Something was measured since this waiver was requested. Request one for what stands now."
            )
        permissions.require_can_grant_waiver(
            person,
            requested_by=waiver.requested_by.get_username(),
            involved=involved_in(document, waivers_of(candidate)),
        )
        waiver.granted_by, waiver.granted_at = person, now
        waiver.save(update_fields=["granted_by", "granted_at"])
        _changed(candidate)
        # the runs that evidence counts are locked before the audit chain: a closing run takes them in that order
        evidence = gating.judge_now(candidate.pk, by=person)
        audit.record(
            "candidate.waiver_granted",
            subject=candidate,
            actor=person,
            evidence=evidence.digest,
            requested_by=waiver.requested_by.get_username(),
            **_facts(waiver),
        )
    return waiver


def end(*, waiver_id: int, by: User, reason: str) -> Waiver:
    """Refuse or take back a request, or end a granted waiver: signatures given on it no longer count."""
    waiver = _waiver(waiver_id)
    with audit.refusals(REFUSED, subject=waiver.candidate, actor=by):
        permissions.require_can_end_waiver(by, waiver.requested_by_id)
        if not reason.strip():
            raise InvalidInput("reason", "must say why the waiver is ended.")
        if len(reason) > MAX_REASON:
            raise InvalidInput("reason", f"must be at most {MAX_REASON} characters.")
        return _end(waiver.candidate_id, waiver_id, by, reason.strip())


def _end(candidate_id: int, waiver_id: int, by: User, reason: str) -> Waiver:
    with transaction.atomic():
        candidate = gating.locked_candidate(candidate_id)
        waiver = _waiver(waiver_id)
        if waiver.ended_at is not None:
            raise Conflict("This waiver has ended already.")
        if candidate.state not in OPEN_STATES:
            raise Conflict(f"{candidate} is {candidate.state}; its waivers stand as they did then.")
        waiver.ended_at, waiver.ended_by = timezone.now(), by
        waiver.save(update_fields=["ended_at", "ended_by"])
        if waiver.granted_at is not None:
            _changed(candidate)
            # a publication that is under way asks for the evidence again; one being measured is judged when it closes
            if candidate.state in JUDGED:
                gating.judge_now(candidate.pk, by=by)
        audit.record("candidate.waiver_ended", subject=candidate, actor=by, why=reason, **_facts(waiver))
    return waiver


def record_refusal(candidate: Candidate, by: User, error: AssayError) -> None:
    """For callers in whose own transaction the service's record of a refusal was rolled back."""
    with transaction.atomic():
        audit.record(REFUSED, subject=candidate, actor=by, code=error.code, reason=error.message)


def waivers_of(candidate: Candidate) -> QuerySet[Waiver]:
    """All that were ever asked for, newest first."""
    people = ("requested_by", "granted_by", "ended_by")
    return Waiver.objects.filter(candidate=candidate).select_related(*people).order_by("-id")


def involved_in(document: dict[str, Any], waivers: Iterable[Waiver]) -> list[str]:
    """Who may not grant a waiver: as for signing, and whoever asked for another. Having granted one is no part."""
    people = {**document["people"], "waivers_by": []}
    asked = {waiver.requested_by.get_username() for waiver in waivers if waiver.ended_at is None}
    return sorted(asked.union(gating.involved_people({**document, "people": people})))


def state_of(waiver: Waiver, now: datetime | None = None) -> str:
    """One of `STATES`. Whether it applies is for its measurement digest to say."""
    if waiver.ended_at is not None:
        return "ended"
    if waiver.expires_at <= (now or timezone.now()):
        return "expired"
    return "granted" if waiver.granted_at is not None else "requested"


def in_state(rows: QuerySet[Waiver], state: str, now: datetime) -> QuerySet[Waiver]:
    """Those that `state_of` calls so at that time."""
    if state == "ended":
        return rows.filter(ended_at__isnull=False)
    rows = rows.filter(ended_at__isnull=True)
    if state == "expired":
        return rows.filter(expires_at__lte=now)
    return rows.filter(expires_at__gt=now, granted_at__isnull=state == "requested")


def _candidate(candidate_id: int) -> Candidate:
    candidate = Candidate.objects.select_related("track").filter(pk=candidate_id).first()
    if candidate is None:
        raise NotFound("There is no such candidate.")
    return candidate


def _waiver(waiver_id: int) -> Waiver:
    related = ("candidate__track", "requested_by", "granted_by")
    waiver = Waiver.objects.select_related(*related).filter(pk=waiver_id).first()
    if waiver is None:
        raise NotFound("There is no such waiver.")
    return waiver


def _judged(candidate: Candidate, gate: str, suite: str) -> dict[str, Any]:
    """The evidence document as it stands, if its policy has this gate and it is unmet there."""
    if candidate.state not in JUDGED:
        raise Conflict(
            f"{candidate} is {candidate.state.replace('_', ' ')}; only what is blocked or in review has gates to waive."
        )
    evidence, outcomes = gating.freeze(candidate)
    document = evidence_module.document_of(evidence)
    entries = document["policy"]["document"]["gates"] if document["policy"] else []
    found = [
        outcome
        for entry, (_, outcome) in zip(entries, outcomes, strict=True)
        if entry["gate"] == gate and (entry.get("suite") or "") == suite
    ]
    if not found:
        where = f" on suite {suite[:12]}" if suite else " without a suite"
        raise InvalidInput("gate", f"the policy that judges {candidate} has no {gate[:60]}{where}.")
    _require_unmet(gate, found)
    return document


def _require_unmet(gate: str, found: list[GateOutcome]) -> None:
    broken = [outcome.reason for outcome in found if outcome.outcome is Outcome.ERROR]
    if broken:
        raise Conflict(f"{gate} itself failed, which cannot be waived: {broken[0]}")
    if not any(outcome.outcome in UNMET for outcome in found):
        raise Conflict(f"{gate} opens the door as things stand: there is nothing to waive.")


def _changed(candidate: Candidate) -> None:
    """Another revision is another digest: signatures given before are for what was."""
    Candidate.objects.filter(pk=candidate.pk).update(revision=F("revision") + 1)


def _facts(waiver: Waiver) -> dict[str, Any]:
    return {
        "waiver": waiver.pk,
        "gate": waiver.gate,
        "suite": waiver.suite_digest or None,
        "measured": waiver.measurement_digest,
        "reason": waiver.reason,
        "expires_at": waiver.expires_at.isoformat(),
    }
