"""Rights that were lost a moment ago are lost, whatever an open session remembers; and who has none left ends nothing either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User

from promotion import permissions
from promotion.models import Candidate, Dispute
from promotion.services import disputes, glass
from rollouts.errors import NotAllowed
from rollouts.models import AuditEvent
from tests import factories
from tests.factories import House
from tests.rule.worlds import break_glass, breakable, breaker

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sent")]
SAID = "I read it again, and it holds."


@pytest.fixture
def house() -> House:
    return breakable(calls=3, gates=[])


@pytest.fixture
def candidate(house: House) -> Candidate:
    return house.evaluated("cand", wrong=1)


def leaves(person: User) -> None:
    person.groups.clear()


def is_deactivated(person: User) -> None:
    User.objects.filter(pk=person.pk).update(is_active=False)


def session_of(person: User) -> User:
    """The person as a request loads them: their groups are read once, and remembered."""
    remembered = User.objects.get(pk=person.pk)
    assert permissions.groups_of(remembered) and remembered.is_active
    return remembered


LOSSES = pytest.mark.parametrize("loses", [leaves, is_deactivated], ids=lambda loses: loses.__name__)


def dispute_of(house: House, candidate: Candidate) -> Dispute:
    return disputes.raise_dispute(
        candidate_id=candidate.pk,
        case_id=house.suite.cases.order_by("id")[0].pk,
        evidence_digest=factories.digest_of(candidate),
        expected={"decision": "no_tool"},
        reason="The request names no file.",
        by=house.engineer,
    )


@LOSSES
@pytest.mark.parametrize("decide", [disputes.accept, disputes.decline], ids=["accept", "decline"])
def test_who_lost_the_right_a_moment_ago_decides_no_dispute(
    house: House, candidate: Candidate, decide: Callable[..., Any], loses: Callable[[User], None]
) -> None:
    dispute, remembered = dispute_of(house, candidate), session_of(house.approver)
    loses(house.approver)

    with pytest.raises(NotAllowed, match="approver may not decide a dispute"):
        decide(dispute_id=dispute.pk, by=remembered, resolution=SAID)

    dispute.refresh_from_db()
    assert dispute.state == "open"
    assert AuditEvent.objects.order_by("-sequence")[0].action == disputes.REFUSED


@LOSSES
def test_who_lost_the_right_a_moment_ago_reviews_no_glass(
    house: House, candidate: Candidate, loses: Callable[[User], None]
) -> None:
    broken, remembered = break_glass(candidate, breaker()), session_of(house.approver)
    loses(house.approver)

    with pytest.raises(NotAllowed, match="approver may not review this"):
        glass.review_glass(glass_id=broken.pk, by=remembered, verdict="upheld", comment=SAID)

    broken.refresh_from_db()
    assert (broken.verdict, broken.reviewed_by) == ("", None)


# whoever is no longer there


def test_who_is_deactivated_opens_and_ticks_nothing(house: House) -> None:
    person = session_of(house.approver)
    permissions.require_can_review(person, groups=["approver"])
    person.is_active = False

    with pytest.raises(NotAllowed):
        permissions.require_can_review(person, groups=["approver"])


@pytest.mark.parametrize("loses", [leaves, is_deactivated], ids=lambda loses: loses.__name__)
def test_who_has_no_role_left_withdraws_no_dispute(
    house: House, candidate: Candidate, loses: Callable[[User], None]
) -> None:
    dispute = dispute_of(house, candidate)
    loses(house.engineer)
    left = User.objects.get(pk=house.engineer.pk)

    with pytest.raises(NotAllowed):
        disputes.withdraw(dispute_id=dispute.pk, by=left)

    dispute.refresh_from_db()
    assert dispute.state == "open"
