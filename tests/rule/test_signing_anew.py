"""Who took a signature back may sign anew on the page, and the box counts what the gate counts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction
from django.urls import reverse

from promotion.models import Approval, Candidate, CandidateState
from promotion.services import gating, signatures
from tests import factories
from tests.factories import House, sign
from tests.rule.worlds import state_of
from tests.web.conftest import _surroundings as _surroundings
from tests.web.conftest import html, signed_in

pytestmark = pytest.mark.django_db


@pytest.fixture
def house() -> House:
    return factories.house(calls=3, gates=[], approvers=2)


def take_back(candidate: Candidate, person: Any) -> None:
    signatures.withdraw_signature(candidate_id=candidate.pk, by=person, reason="I read the wrong page.")


def box_of(candidate: Candidate, person: Any) -> str:
    page = html(signed_in(person).get(reverse("promotion:candidate", args=[candidate.pk])))
    found = re.search(r'<section[^>]* id="sign">.*?</section>', page, re.S)
    assert found is not None
    return found[0]


def offers_the_form(box: str, candidate: Candidate) -> bool:
    return f'action="{reverse("promotion:sign", args=[candidate.pk])}"' in box


def test_the_box_is_offered_again_to_who_took_a_signature_back_and_to_nobody_who_signed(house: House) -> None:
    candidate = house.evaluated()
    sign(candidate, house.approver)
    assert not offers_the_form(box_of(candidate, house.approver), candidate)
    assert offers_the_form(box_of(candidate, house.approver_2), candidate)

    take_back(candidate, house.approver)

    assert offers_the_form(box_of(candidate, house.approver), candidate)


def test_what_is_posted_from_it_signs_anew(house: House) -> None:
    candidate = house.evaluated()
    sign(candidate, house.approver)
    take_back(candidate, house.approver)
    shown = re.findall(r'name="(evidence_digest|method)" value="(\w+)"', box_of(candidate, house.approver))
    said = {"decision": "approve", "meaning": "authorises", "password": factories.PASSWORD}

    answer = signed_in(house.approver).post(
        reverse("promotion:sign", args=[candidate.pk]), {**dict(shown), **said}
    )

    assert answer.status_code == 302
    assert Approval.objects.filter(approver=house.approver, withdrawn_at=None).count() == 1
    sign(candidate, house.approver_2)
    assert state_of(candidate) == CandidateState.APPROVED


# how many have signed


def nobody(house: House, candidate: Candidate) -> None:
    pass


def one(house: House, candidate: Candidate) -> None:
    sign(candidate, house.approver)


def one_took_it_back(house: House, candidate: Candidate) -> None:
    one(house, candidate)
    take_back(candidate, house.approver)


def one_signed_anew(house: House, candidate: Candidate) -> None:
    one_took_it_back(house, candidate)
    one(house, candidate)


def one_for_what_was(house: House, candidate: Candidate) -> None:
    one(house, candidate)
    Candidate.objects.filter(pk=candidate.pk).update(revision=candidate.revision + 1)
    gating.judge_now(candidate.pk)


def one_left(house: House, candidate: Candidate) -> None:
    one(house, candidate)
    house.approver.groups.clear()


def one_for_what_was_and_one_for_what_is(house: House, candidate: Candidate) -> None:
    one_for_what_was(house, candidate)
    one(house, candidate)


HAPPENED = [
    (nobody, 0),
    (one, 1),
    (one_took_it_back, 0),
    (one_signed_anew, 1),
    (one_for_what_was, 0),
    (one_left, 0),
    (one_for_what_was_and_one_for_what_is, 1),
]


@pytest.mark.parametrize(("happens", "counts"), HAPPENED, ids=[each.__name__ for each, _ in HAPPENED])
def test_box_and_first_page_count_the_signatures_that_the_gate_counts(
    house: House, happens: Callable[[House, Candidate], None], counts: int
) -> None:
    candidate = house.evaluated()
    happens(house, candidate)
    with transaction.atomic():
        locked = gating.locked_candidate(candidate.pk)
        outcome = gating.approvals_outcome(locked, gating.freeze(locked)[0])
    assert len(outcome.numbers["signed_by"]) == counts

    box = box_of(candidate, house.approver_2)
    first = html(signed_in(house.approver_2).get(reverse("promotion:home")))

    assert re.findall(r"has (\d+)", box) == [str(counts)]
    assert re.findall(r"(\d+) of 2 signatures", first) == [str(counts)]
