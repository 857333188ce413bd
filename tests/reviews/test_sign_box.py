"""The sign-off box says what will refuse a signature before somebody proves who they are, not after."""

from __future__ import annotations

import pytest
from django.urls import reverse

from promotion.models import Candidate
from promotion.services import disputes, threads
from rollouts.models import Case
from tests import factories
from tests.reviews.conftest import CHECKLIST, FLOOR, lost, policy
from tests.web.conftest import html, signed_in
from tests.web.test_review_verdict import between

pytestmark = pytest.mark.django_db


def box(candidate: Candidate, house: factories.House) -> str:
    page = html(signed_in(house.approver).get(reverse("promotion:candidate", args=[candidate.pk])))
    return between(page, 'id="sign"', "</section>")


def test_nothing_is_said_where_nothing_is_left_open(house: factories.House) -> None:
    assert "Settle first" not in box(house.evaluated(), house)


def test_threads_checklist_and_disputes_are_named_with_their_place(house: factories.House) -> None:
    policy(house, FLOOR, checklist=CHECKLIST[:1])
    candidate = house.evaluated("cand", lost(house, 3))
    threads.start(candidate_id=candidate.pk, anchor="page", text="Why?", by=house.engineer)
    disputes.raise_dispute(
        candidate_id=candidate.pk,
        case_id=Case.objects.get(key="named-decline-3").pk,
        evidence_digest=factories.digest_of(candidate),
        expected={"decision": "no_tool"},
        reason="The request names no file at all.",
        by=house.engineer,
    )

    said = box(candidate, house)

    assert '<a href="#checklist">1 checklist item</a>' in said
    assert '<a href="#threads">1 unresolved thread</a>' in said
    assert '<a href="#disputes">1 open dispute</a>' in said
    assert said.index("Settle first") < said.index('type="password"')
