"""Whose password it is: wrong ones are counted by person, and the one that holds is the one that the database has now."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine
from django.contrib.auth.models import User
from django.utils import timezone

from promotion.models import Candidate
from promotion.services import glass, proofs
from promotion.services.proofs import MAX_TRIES, TRY_WINDOW, Password, TooManyTries, WrongPassword
from rollouts.errors import NotAllowed
from rollouts.models import AuditEvent
from tests import factories
from tests.factories import House, sign
from tests.rule.worlds import break_glass

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sent")]


@pytest.fixture
def house() -> House:
    return factories.house(calls=3, gates=[], approvers=2)


@pytest.fixture
def candidate(house: House) -> Candidate:
    return house.evaluated()


def guess(candidate: Candidate, by: User, times: int = MAX_TRIES) -> None:
    for _ in range(times):
        with pytest.raises(WrongPassword):
            sign(candidate, by, password="guess")


def test_the_wrong_passwords_of_one_keep_nobody_else_from_signing(house: House, candidate: Candidate) -> None:
    guess(candidate, house.approver)
    with pytest.raises(TooManyTries):
        sign(candidate, house.approver)

    assert sign(candidate, house.approver_2).approver == house.approver_2


def test_the_wrong_passwords_of_several_are_not_added_up(house: House, candidate: Candidate) -> None:
    for person in (house.approver, house.approver_2):
        guess(candidate, person, MAX_TRIES - 1)

    assert sign(candidate, house.approver).approver == house.approver


def test_a_name_that_begins_like_anothers_is_another_person(house: House, candidate: Candidate) -> None:
    assert house.approver_2.username.startswith(house.approver.username)
    guess(candidate, house.approver_2)

    assert sign(candidate, house.approver).approver == house.approver


def test_they_are_counted_over_all_acts_and_candidates_of_the_person(
    house: House, candidate: Candidate
) -> None:
    both = factories.person("both", "approver", "administrator")
    other = house.evaluated("other")
    for number in range(MAX_TRIES):
        with pytest.raises(WrongPassword):
            if number % 2:
                break_glass(other, both, password="guess")
            else:
                sign(candidate, both, password="guess")

    with pytest.raises(TooManyTries):
        sign(other, both)


def test_other_refusals_are_no_wrong_passwords(house: House, candidate: Candidate) -> None:
    for _ in range(MAX_TRIES):
        with pytest.raises(NotAllowed, match="may not break the glass"):
            break_glass(candidate, house.approver)
    refused = AuditEvent.objects.filter(action=glass.REFUSED, actor="user:approver")
    assert refused.count() == MAX_TRIES

    assert sign(candidate, house.approver).approver == house.approver


def test_they_are_forgotten_after_the_window(house: House, candidate: Candidate) -> None:
    guess(candidate, house.approver)

    soon, later = (timezone.now() + TRY_WINDOW + timedelta(seconds=seconds) for seconds in (-5, 5))
    with time_machine.travel(soon), pytest.raises(TooManyTries):
        sign(candidate, house.approver)
    with time_machine.travel(later):
        assert sign(candidate, house.approver).approver == house.approver


# the password as it is now


def test_a_session_from_before_a_change_proves_nothing_with_the_old_password(house: House) -> None:
    remembered = User.objects.get(pk=house.approver.pk)
    house.approver.set_password("a new and better one")
    house.approver.save(update_fields=["password"])

    with pytest.raises(WrongPassword):
        Password(factories.PASSWORD).check(remembered)
    assert Password("a new and better one").check(remembered).method == "password"


def test_a_password_that_was_taken_away_proves_nothing(house: House) -> None:
    remembered = User.objects.get(pk=house.approver.pk)
    house.approver.set_unusable_password()
    house.approver.save(update_fields=["password"])

    with pytest.raises(WrongPassword):
        Password(factories.PASSWORD).check(remembered)


def test_the_window_is_what_the_answer_promises(house: House, candidate: Candidate) -> None:
    guess(candidate, house.approver)

    with pytest.raises(TooManyTries, match="5 minutes") as refused:
        sign(candidate, house.approver)

    assert (refused.value.status, proofs.TRY_WINDOW) == (429, timedelta(minutes=5))
