"""Whoever signed may take it back, until something is published on it."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from promotion.models import Approval, Candidate, CandidateState, Decision, RegistryEntry
from promotion.services import registry, signatures
from rollouts.errors import Conflict, InvalidInput, NotAllowed
from rollouts.models import AuditEvent, EvalRun
from rollouts.services import runs
from tests import factories
from tests.factories import House, sign
from tests.rule.worlds import state_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sent")]


@pytest.fixture
def two() -> House:
    """A policy that asks for two approvers."""
    return factories.house(approvers=2)


def withdraw(candidate: Candidate, by: User, reason: str = "I read the wrong page.") -> Approval:
    return signatures.withdraw_signature(candidate_id=candidate.pk, by=by, reason=reason)


def test_a_signature_taken_back_says_when_and_why_and_is_in_the_history(two: House) -> None:
    candidate = two.evaluated()
    signed = sign(candidate, two.approver)

    taken = withdraw(candidate, two.approver, "  I read the wrong page. ")

    taken.refresh_from_db()
    assert taken == signed and taken.withdrawn_reason == "I read the wrong page."
    assert taken.withdrawn_at is not None and taken.withdrawn_at <= timezone.now()
    event = AuditEvent.objects.order_by("-sequence")[0]
    assert (event.action, event.actor) == ("candidate.signature_withdrawn", "user:approver")


def test_it_no_longer_counts_and_its_signer_may_sign_anew(two: House) -> None:
    candidate = two.evaluated()
    sign(candidate, two.approver)
    withdraw(candidate, two.approver)

    sign(candidate, two.approver_2)
    assert state_of(candidate) == CandidateState.IN_REVIEW

    sign(candidate, two.approver)
    assert state_of(candidate) == CandidateState.APPROVED


def test_an_approved_candidate_with_too_few_left_goes_back_to_review(two: House) -> None:
    candidate = two.approved()

    withdraw(candidate, two.approver_2)

    assert state_of(candidate) == CandidateState.IN_REVIEW
    assert registry.publish(candidate.pk) is None
    assert not RegistryEntry.objects.exists()


def test_an_approved_candidate_with_enough_left_stays_approved() -> None:
    house = factories.house()
    candidate = house.evaluated()
    sign(candidate, house.approver_2)
    sign_late(candidate, house)

    withdraw(candidate, house.approver)

    assert state_of(candidate) == CandidateState.APPROVED


def sign_late(candidate: Candidate, house: House) -> None:
    """A second signature where one is enough already: both were given before the state was."""
    Candidate.objects.filter(pk=candidate.pk).update(state=CandidateState.IN_REVIEW)
    sign(candidate, house.approver)


def test_what_could_not_be_published_goes_back_too(two: House) -> None:
    candidate = two.approved()
    Candidate.objects.filter(pk=candidate.pk).update(state=CandidateState.PUBLISH_FAILED)

    withdraw(candidate, two.approver)

    assert state_of(candidate) == CandidateState.IN_REVIEW


def test_where_the_evidence_changed_too_it_goes_where_the_evidence_says(two: House) -> None:
    candidate = two.evaluated("cand", {}, masked=1)
    for approver in (two.approver, two.approver_2):
        sign(candidate, approver)
    runs.run_again(run_id=EvalRun.objects.get(label="cand").pk, by=two.engineer)

    withdraw(candidate, two.approver)

    assert state_of(candidate) == CandidateState.BLOCKED


def test_only_the_signer_takes_a_signature_back(two: House) -> None:
    candidate = two.evaluated()
    sign(candidate, two.approver)

    for other in (two.approver_2, two.administrator, two.engineer):
        with pytest.raises(Conflict, match="has no signature on"):
            withdraw(candidate, other)

    assert Approval.objects.get().withdrawn_at is None


def test_who_is_no_approver_any_more_has_nothing_left_to_take_back(two: House) -> None:
    signer = factories.person("both", "approver", "auditor")
    candidate = two.evaluated()
    sign(candidate, signer)
    signer.groups.remove(signer.groups.get(name="approver"))

    with pytest.raises(Conflict, match="has no signature on"):
        withdraw(candidate, User.objects.get(pk=signer.pk))
    assert Approval.objects.get().withdrawn_reason == "Its signer left the group."


def test_an_inactive_person_takes_nothing_back(two: House) -> None:
    candidate = two.evaluated()
    sign(candidate, two.approver)
    two.approver.is_active = False

    with pytest.raises(NotAllowed):
        withdraw(candidate, two.approver)


def test_a_refusal_is_no_signature_to_take_back(two: House) -> None:
    candidate = two.evaluated()
    sign(candidate, two.approver, decision=Decision.REQUEST_CHANGES, comment="Explain the drop.")
    Candidate.objects.filter(pk=candidate.pk).update(state=CandidateState.IN_REVIEW)

    with pytest.raises(Conflict, match="has no signature"):
        withdraw(candidate, two.approver)


def test_what_is_taken_back_is_taken_back_once(two: House) -> None:
    candidate = two.evaluated()
    sign(candidate, two.approver)
    withdraw(candidate, two.approver)

    with pytest.raises(Conflict, match="has no signature"):
        withdraw(candidate, two.approver)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("publishing", "is being published on this signature"),
        ("promoted", "its entry keeps the signatures"),
        ("blocked", "no signature of it counts"),
        ("evaluating", "no signature of it counts"),
        ("rejected", "no signature of it counts"),
        ("withdrawn", "no signature of it counts"),
    ],
)
def test_it_is_too_late_or_for_nothing_in_other_states(two: House, state: str, says: str) -> None:
    candidate = two.approved()
    Candidate.objects.filter(pk=candidate.pk).update(state=state)

    with pytest.raises(Conflict, match=says):
        withdraw(candidate, two.approver)

    assert not Approval.objects.exclude(withdrawn_at=None).exists()


@pytest.mark.parametrize("reason", ["", "  \n", "x" * 2001])
def test_it_says_why(two: House, reason: str) -> None:
    candidate = two.evaluated()
    sign(candidate, two.approver)

    with pytest.raises(InvalidInput, match="reason"):
        withdraw(candidate, two.approver, reason)


def test_a_promoted_entry_keeps_the_signatures_that_stood(two: House) -> None:
    candidate = two.approved()
    entry = registry.publish(candidate.pk)
    assert entry is not None
    kept: list[Any] = entry.record["signatures"]

    with pytest.raises(Conflict):
        withdraw(candidate, two.approver)

    entry.refresh_from_db()
    assert entry.record["signatures"] == kept and len(kept) == 2
