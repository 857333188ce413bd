"""Home: what waits for a person, what changed since they looked, what they have to answer."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from promotion.models import Candidate, Comment, Dispute, Evidence, ReviewVisit, Thread
from promotion.services import gating
from tests import factories
from tests.web.conftest import html, signed_in

pytestmark = pytest.mark.django_db


@pytest.fixture
def house() -> factories.House:
    return factories.house(champion=True)


def visited(candidate: Candidate, person: User, evidence: Evidence | None = None) -> None:
    seen = evidence or Evidence.objects.filter(candidate=candidate).latest("id")
    ReviewVisit.objects.create(
        candidate=candidate, person=person, evidence=seen, seen_at=timezone.now() - timedelta(hours=3)
    )


def thread(candidate: Candidate, by: User, *said: User) -> Thread:
    now = timezone.now()
    made = Thread.objects.create(
        candidate=candidate,
        anchor="page",
        anchor_label="Family calls",
        anchor_digest="0" * 64,
        evidence_digest=factories.digest_of(candidate),
        started_by=by,
        started_at=now,
    )
    for person in (by, *said):
        Comment.objects.create(thread=made, text="Why?", written_by=person, written_at=now)
    return made


def test_a_candidate_that_was_never_opened_says_so(house: factories.House) -> None:
    house.evaluated("waits")
    assert "You have not looked at it yet." in html(signed_in(house.approver).get("/"))


def test_a_candidate_that_did_not_change_since_the_visit_says_so(house: factories.House) -> None:
    visited(house.evaluated("waits"), house.approver)
    page = html(signed_in(house.approver).get("/"))
    assert "Nothing changed since you looked" in page
    assert "3 h ago" in page
    assert "You have not looked" in html(signed_in(house.approver_2).get("/"))


def test_what_changed_since_the_visit_stands_in_sentences(house: factories.House) -> None:
    candidate = house.evaluated("waits")
    visited(candidate, house.approver)
    Candidate.objects.filter(pk=candidate.pk).update(revision=7)
    assert gating.judge_now(candidate.pk)
    page = html(signed_in(house.approver).get("/"))
    assert "The candidate&#x27;s revision went from" in page


def test_signatures_count_only_on_the_present_evidence() -> None:
    house = factories.house(champion=True, approvers=2)
    candidate = house.evaluated("waits")
    factories.sign(candidate, house.approver)
    assert "1 of 2 signatures" in html(signed_in(house.approver_2).get("/"))
    Candidate.objects.filter(pk=candidate.pk).update(revision=7)
    assert gating.judge_now(candidate.pk)
    assert "0 of 2 signatures" in html(signed_in(house.approver_2).get("/"))


def test_the_longest_in_review_comes_first(house: factories.House) -> None:
    first, second = house.evaluated("one"), house.evaluated("two")
    Candidate.objects.filter(pk=first.pk).update(revision=7)
    assert gating.judge_now(first.pk)
    page = html(signed_in(house.approver).get("/"))
    assert page.index(f"/candidates/{second.pk}/") < page.index(f"/candidates/{first.pk}/")


def test_a_thread_waits_for_whoever_did_not_speak_last(house: factories.House) -> None:
    candidate = house.evaluated("waits")
    asked = thread(candidate, house.approver)
    assert f"#thread-{asked.pk}" in html(signed_in(house.engineer).get("/"))
    assert f"#thread-{asked.pk}" not in html(signed_in(house.approver).get("/"))
    Comment.objects.create(
        thread=asked, text="Because.", written_by=house.engineer, written_at=timezone.now()
    )
    assert f"#thread-{asked.pk}" not in html(signed_in(house.engineer).get("/"))
    assert f"#thread-{asked.pk}" in html(signed_in(house.approver).get("/"))
    Thread.objects.update(resolved_by=house.approver, resolved_at=timezone.now())
    assert f"#thread-{asked.pk}" not in html(signed_in(house.approver).get("/"))


def test_a_dispute_waits_for_approvers_who_neither_raised_it_nor_submitted(house: factories.House) -> None:
    candidate = house.evaluated("waits")
    Dispute.objects.create(
        candidate=candidate,
        case=house.suite.cases.first(),
        evidence_digest=factories.digest_of(candidate),
        expected_before={},
        expected_after={"decision": "no_tool"},
        reason="The tool was renamed.",
        raised_by=house.approver_2,
        raised_at=timezone.now(),
    )
    assert "Disputes to decide" in html(signed_in(house.approver).get("/"))
    for person in (house.approver_2, house.engineer, house.auditor):
        assert "Disputes to decide" not in html(signed_in(person).get("/"))
