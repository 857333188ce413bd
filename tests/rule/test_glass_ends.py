"""What a condemned glass holds back wherever the publication stands, and whom the alarm reaches how often."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import mail

from promotion.models import Candidate, CandidateState, RegistryEntry
from promotion.services import glass, registry
from rollouts.errors import Conflict
from tests import factories
from tests.factories import House
from tests.rule.worlds import break_glass, breakable, breaker, state_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sent")]


@pytest.fixture
def house() -> House:
    return breakable(calls=3, gates=[])


@pytest.fixture
def admin(house: House) -> User:
    return breaker()


def review(house: House, broken: Any, verdict: str) -> None:
    glass.review_glass(glass_id=broken.pk, by=house.approver, verdict=verdict, comment="I looked at it.")


@pytest.mark.parametrize(
    ("state", "verdict", "goes_to"),
    [
        (CandidateState.APPROVED, "condemned", CandidateState.IN_REVIEW),
        (CandidateState.PUBLISH_FAILED, "condemned", CandidateState.IN_REVIEW),
        (CandidateState.APPROVED, "upheld", CandidateState.APPROVED),
        (CandidateState.PUBLISH_FAILED, "upheld", CandidateState.PUBLISH_FAILED),
        (CandidateState.REJECTED, "condemned", CandidateState.REJECTED),
        (CandidateState.WITHDRAWN, "condemned", CandidateState.WITHDRAWN),
    ],
)
def test_condemned_before_it_was_published_it_goes_back_to_review(
    house: House, admin: User, state: CandidateState, verdict: str, goes_to: CandidateState
) -> None:
    candidate = house.evaluated()
    broken = break_glass(candidate, admin)
    Candidate.objects.filter(pk=candidate.pk).update(state=state)

    review(house, broken, verdict)

    assert state_of(candidate) == goes_to


def test_a_failed_publication_is_not_tried_again_once_the_glass_is_condemned(
    house: House, admin: User
) -> None:
    candidate = house.evaluated()
    broken = break_glass(candidate, admin)
    Candidate.objects.filter(pk=candidate.pk).update(state=CandidateState.PUBLISH_FAILED)
    review(house, broken, "condemned")

    with pytest.raises(Conflict):
        registry.retry_publish(candidate_id=candidate.pk, by=house.engineer)
    assert registry.publish(candidate.pk) is None

    assert not RegistryEntry.objects.exists()


def test_who_has_several_roles_is_told_once(
    house: House, admin: User, django_capture_on_commit_callbacks: Any
) -> None:
    several = factories.person("several", "approver", "administrator", "auditor", "engineer")
    for person in (several, house.approver):
        User.objects.filter(pk=person.pk).update(email=f"{person.username}@example.org")

    with django_capture_on_commit_callbacks(execute=True):
        break_glass(house.evaluated(), admin)

    told = sorted(address for letter in mail.outbox for address in letter.recipients())
    assert told == ["approver@example.org", "several@example.org"]
