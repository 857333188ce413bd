"""What a person opened counts for the candidate on which they opened it, and what a signature says of it is so."""

from __future__ import annotations

from typing import Any

import pytest

from promotion.comparing import comparisons_of
from promotion.evidence import document_of
from promotion.models import Candidate, Evidence
from promotion.panels import must_open
from promotion.services import reviews
from rollouts.errors import Conflict
from tests import factories
from tests.reviews.conftest import FLOOR, policy

pytestmark = pytest.mark.django_db


@pytest.fixture
def near(db: None) -> factories.House:
    """Ten of ten right have the bound 0.7411: one family is near the floor of 0.74 whoever answers."""
    house = factories.house(calls=10, gates=[])
    policy(house, {**FLOOR, "min": "0.74"})
    return house


def keys(candidate: Candidate) -> list[str]:
    document = document_of(Evidence.objects.get(digest=factories.digest_of(candidate)))
    return [panel.key for panel in must_open(document, comparisons_of(document)).panels]


def open_all(candidate: Candidate, person: Any) -> None:
    for key in keys(candidate):
        reviews.open_panel(candidate_id=candidate.pk, panel=key, by=person)


def test_equal_counts_of_another_candidate_were_not_read(near: factories.House) -> None:
    first, second = near.evaluated("first"), near.evaluated("second")
    assert len(keys(first)) == 1 and keys(first) == keys(second), (
        "the key names the counts, not the candidate"
    )
    open_all(first, near.approver)

    with pytest.raises(Conflict, match="family calls of named is not opened"):
        factories.sign(second, near.approver, unopened_reason="")
    signed = factories.sign(second, near.approver, unopened_reason="Known from the first one.")

    assert (signed.panels_opened, signed.panels_unopened) == ([], keys(second))
    assert factories.sign(first, near.approver, unopened_reason="").panels_opened == keys(first)


def test_a_reason_for_leaving_parts_unopened_is_not_kept_where_none_was_left(near: factories.House) -> None:
    candidate = near.evaluated()
    open_all(candidate, near.approver)

    signed = factories.sign(candidate, near.approver, unopened_reason="I had no time for the families.")

    assert (signed.panels_opened, signed.panels_unopened) == (keys(candidate), [])
    assert signed.unopened_reason == ""
