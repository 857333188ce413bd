"""Ending a signature before anything is published on it: by taking one's own back, or with the role it was given in."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from promotion import permissions, selectors
from promotion.models import OPEN_STATES, Approval, Candidate, CandidateState, Decision
from promotion.services import gating
from rollouts import audit
from rollouts.errors import Conflict, InvalidInput

MAX_REASON = 2000
WITHDRAWN_FROM = (CandidateState.IN_REVIEW, CandidateState.APPROVED, CandidateState.PUBLISH_FAILED)


def standing_of(candidate: Candidate, person: User) -> QuerySet[Approval]:
    """The person's signatures on the candidate that are not withdrawn, newest first. Refusals are none of them."""
    return candidate.approvals.filter(
        approver=person, decision=Decision.APPROVE, withdrawn_at__isnull=True
    ).order_by("-id")


def withdraw_signature(*, candidate_id: int, by: User, reason: str) -> Approval:
    """Take back what one signed, before it is published. The candidate goes back to review where too few are left.

    Gives the newest of what was taken back. Raises `Conflict` where there is nothing to take back, or it is too late.
    The person may sign anew.
    """
    reason = reason.strip()
    if not reason:
        raise InvalidInput("reason", "must say why the signature is withdrawn. The others read it.")
    if len(reason) > MAX_REASON:
        raise InvalidInput("reason", f"must be at most {MAX_REASON} characters.")
    with transaction.atomic():
        selectors.candidate_by_id(candidate_id, by)
        candidate = gating.locked_candidate(candidate_id)
        require_can_withdraw(candidate, by)
        taken: list[Approval] = list(standing_of(candidate, by))
        for approval in taken:
            permissions.require_can_withdraw_signature(by, approval.approver_id)
            approval.withdrawn_at, approval.withdrawn_reason = timezone.now(), reason
            approval.save(update_fields=["withdrawn_at", "withdrawn_reason"])
        _settle(candidate)
        audit.record(
            "candidate.signature_withdrawn",
            subject=candidate,
            actor=by,
            evidence=taken[0].evidence_digest,
            signatures=len(taken),
            reason=reason,
        )
    return taken[0]


def require_can_withdraw(candidate: Candidate, person: User) -> None:
    """Raises `Conflict` with what can be done instead."""
    state = CandidateState(candidate.state)
    if state == CandidateState.PUBLISHING:
        raise Conflict(
            f"{candidate} is being published on this signature. If that fails, withdraw it then; if not, the entry "
            "stands as it was signed: have a better candidate promoted."
        )
    if state == CandidateState.PROMOTED:
        raise Conflict(
            f"{candidate} is promoted: its entry keeps the signatures that stood then. Have a better candidate promoted."
        )
    if state not in WITHDRAWN_FROM:
        raise Conflict(f"{candidate} is {state.replace('_', ' ')}: no signature of it counts in that state.")
    if not standing_of(candidate, person).exists():
        raise Conflict(f"{person.get_username()} has no signature on {candidate} that could be withdrawn.")


def end_with_role(
    sender: Any, instance: Any, action: str, reverse: bool, pk_set: set[int] | None, **_: Any
) -> None:
    """Whoever leaves a group ends what they signed as one of it: coming back later does not revive it."""
    if action not in ("pre_remove", "pre_clear"):
        return
    people, groups = ([instance.pk], pk_set) if not reverse else (pk_set, [instance.pk])
    left = Q() if people is None else Q(approver__in=people)
    if groups is not None:
        left &= Q(role__in=Group.objects.filter(pk__in=groups).values("name"))
    _end(Approval.objects.filter(left), "Its signer left the group.")


def end_with_account(sender: Any, instance: User, **_: Any) -> None:
    """The same for whoever is deactivated."""
    if instance.pk and not instance.is_active:
        _end(Approval.objects.filter(approver=instance), "Its signer's account was deactivated.")


def end_with_group(sender: Any, instance: Group, **_: Any) -> None:
    _end(Approval.objects.filter(role=instance.name), "Its signer's group was deleted.")


@transaction.atomic
def _end(signatures: QuerySet[Approval], reason: str) -> None:
    standing = signatures.filter(
        candidate__state__in=OPEN_STATES, decision=Decision.APPROVE, withdrawn_at__isnull=True
    )
    for candidate_id in sorted(set(standing.values_list("candidate_id", flat=True))):
        candidate = gating.locked_candidate(candidate_id)
        if candidate.state not in OPEN_STATES:
            continue
        ended = list(standing.filter(candidate=candidate).select_related("approver"))
        for approval in ended:
            approval.withdrawn_at, approval.withdrawn_reason = timezone.now(), reason
            approval.save(update_fields=["withdrawn_at", "withdrawn_reason"])
        if candidate.state in WITHDRAWN_FROM:
            _settle(candidate)
        audit.record(
            "candidate.signature_ended",
            subject=candidate,
            actor="system:roles",
            people=sorted({approval.approver.get_username() for approval in ended}),
            reason=reason,
        )


def _settle(candidate: Candidate) -> None:
    if candidate.state == CandidateState.IN_REVIEW:
        return
    _, blocked = gating.unmet(candidate)
    if blocked:
        Candidate.objects.filter(pk=candidate.pk).update(state=gating.place_of(blocked))
