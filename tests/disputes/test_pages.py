"""A dispute's pages: raised on one, decided on another, and seen by everybody who reviews."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from promotion.models import Candidate, Dispute
from promotion.services import disputes
from promotion.web.disputes import dispute_section
from rollouts.models import Amendment, Rollout
from tests.disputes.conftest import NO_TOOL, REASON, RESOLUTION, accepted, case_of, raised, rollout_of
from tests.factories import House, digest_of
from tests.web.conftest import html, signed_in
from tests.web.world import HOSTILE

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _surroundings(sent: list[Any], settings: Any, tmp_path: Path) -> None:
    settings.STATIC_ROOT = tmp_path / "static"
    settings.STATIC_ROOT.mkdir()


def new_url(house: House, candidate: Candidate, name: str = "dispute-new") -> str:
    return reverse(f"promotion:{name}", args=[candidate.pk, case_of(house).pk])


def to(name: str, dispute: Dispute) -> str:
    return reverse(f"promotion:{name}", args=[dispute.candidate_id, dispute.pk])


def written(candidate: Candidate, **changes: str) -> dict[str, str]:
    values = {"evidence_digest": digest_of(candidate), "expected": json.dumps(NO_TOOL), "reason": REASON}
    return {**values, **changes}


# raising


def test_the_form_holds_what_the_case_expects_and_both_answers(house: House, candidate: Candidate) -> None:
    page = html(signed_in(house.engineer).get(new_url(house, candidate)))

    assert "&quot;tool&quot;: &quot;read_file&quot;" in page
    assert digest_of(candidate) in page
    for label in ("cand", "first"):
        assert reverse("rollouts:rollout", args=[rollout_of(label).pk]) in page
    assert "The champion" in page


def test_a_dispute_is_raised_on_its_page_and_shown_on_the_review(house: House, candidate: Candidate) -> None:
    client = signed_in(house.engineer)

    response = client.post(new_url(house, candidate, "dispute-raise"), written(candidate))

    dispute = Dispute.objects.get()
    assert response.headers["Location"] == to("dispute", dispute)
    page = html(client.get(reverse("promotion:candidate", args=[candidate.pk])))
    section = page[page.index('id="disputes"') :]
    assert to("dispute", dispute) in section
    assert "no_tool" in section
    assert "read_file" in section
    assert "Nobody approves while a case is in dispute" in section


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"expected": "{"}, "not strict JSON"),
        ({"expected": '{"decision": "maybe"}'}, "expected.decision"),
        ({"expected": ""}, "Write what the case should expect"),
        ({"reason": "short"}, "in 10 to 4,000 characters"),
    ],
)
def test_what_cannot_be_raised_is_told_at_its_field_and_kept(
    house: House, candidate: Candidate, changes: dict[str, str], told: str
) -> None:
    response = signed_in(house.engineer).post(
        new_url(house, candidate, "dispute-raise"), written(candidate, **changes)
    )

    assert response.status_code == 422
    page = html(response)
    assert told in page
    assert 'class="error"' in page
    assert not Dispute.objects.exists()


def test_a_page_of_other_evidence_raises_nothing_and_keeps_what_was_written(
    house: House, candidate: Candidate
) -> None:
    response = signed_in(house.engineer).post(
        new_url(house, candidate, "dispute-raise"), written(candidate, evidence_digest="0" * 64)
    )

    assert response.status_code == 412
    page = html(response)
    assert "the evidence changed" in page
    assert REASON in page
    assert f'value="{digest_of(candidate)}"' in page


def test_a_case_that_is_in_dispute_says_where(house: House, candidate: Candidate) -> None:
    dispute = raised(house, candidate)

    response = signed_in(house.approver).post(new_url(house, candidate, "dispute-raise"), written(candidate))

    assert response.status_code == 409
    assert to("dispute", dispute) in html(response)


def test_a_case_outside_the_evidence_and_a_hidden_candidate_are_not_found(
    house: House, candidate: Candidate
) -> None:
    client = signed_in(house.engineer)
    dispute = raised(house, candidate)

    assert client.get(reverse("promotion:dispute-new", args=[candidate.pk, 999_999])).status_code == 404
    assert client.get(reverse("promotion:dispute", args=[candidate.pk, 999_999])).status_code == 404
    house.track.readers.add(Group.objects.create(name="secret"))
    assert client.get(new_url(house, candidate)).status_code == 404
    assert client.get(to("dispute", dispute)).status_code == 404
    assert client.post(to("dispute-withdraw", dispute)).status_code == 404


# one dispute


def test_the_page_shows_what_acceptance_would_change_for_both_and_writes_nothing(
    house: House, candidate: Candidate
) -> None:
    dispute = raised(house, candidate)
    before = list(Rollout.objects.order_by("id").values())

    with CaptureQueriesContext(connection) as asked:
        page = html(signed_in(house.approver).get(to("dispute", dispute)))

    writes = [
        q["sql"]
        for q in asked
        if re.match(r"\s*(INSERT|UPDATE|DELETE)", q["sql"]) and "django_session" not in q["sql"]
    ]
    assert [sql for sql in writes if "auth_user" not in sql] == []
    assert list(Rollout.objects.order_by("id").values()) == before
    for part in re.findall(r'aria-labelledby="side-(\w+)".*?</section>', page, re.S):
        assert part in ("candidate", "champion")
    ours = page[page.index('id="side-candidate"') : page.index('id="side-champion"')]
    theirs = page[page.index('id="side-champion"') :]
    assert re.search(r"decision</th><td class=\"num\">9 of 10</td><td class=\"num\">10 of 10", ours)
    assert re.search(r"decision</th><td class=\"num\">10 of 10</td><td class=\"num\">9 of 10", theirs)
    assert "Accept: amend the case for every run" in page


def test_who_may_not_decide_is_told_why_and_sees_no_button(house: House, candidate: Candidate) -> None:
    dispute = raised(house, candidate)

    mine = html(signed_in(house.engineer).get(to("dispute", dispute)))
    theirs = html(signed_in(house.auditor).get(to("dispute", dispute)))

    assert "that needs approver or administrator" in mine
    assert "Withdraw the dispute" in mine
    assert "that needs approver or administrator" in theirs
    assert "Withdraw the dispute" not in theirs
    assert "Accept: amend" not in mine + theirs


def test_accepting_needs_words_and_then_amends(house: House, candidate: Candidate) -> None:
    dispute, client = raised(house, candidate), signed_in(house.approver)

    assert client.post(to("dispute-accept", dispute), {"resolution": ""}).status_code == 422
    response = client.post(to("dispute-accept", dispute), {"resolution": RESOLUTION})

    assert response.status_code == 302
    assert Amendment.objects.get().accepted_by == house.approver
    page = html(client.get(to("dispute", dispute)))
    assert "Since then" in page
    assert "Accept: amend" not in page


@pytest.mark.parametrize("verb", ["dispute-accept", "dispute-decline"])
def test_the_wrong_person_is_refused(house: House, candidate: Candidate, verb: str) -> None:
    dispute = raised(house, candidate, by=house.approver)

    response = signed_in(house.approver).post(to(verb, dispute), {"resolution": RESOLUTION})

    assert response.status_code == 403
    assert Dispute.objects.get().state == "open"


def test_declining_and_withdrawing_change_no_case(house: House, candidate: Candidate) -> None:
    declined, taken_back = raised(house, candidate), raised(house, candidate, "named-call-1")

    signed_in(house.approver).post(to("dispute-decline", declined), {"resolution": RESOLUTION})
    signed_in(house.engineer).post(to("dispute-withdraw", taken_back))

    assert set(Dispute.objects.values_list("state", flat=True)) == {"declined", "withdrawn"}
    assert not Amendment.objects.exists()


def test_a_decided_dispute_is_answered_with_its_page(house: House, candidate: Candidate) -> None:
    dispute = accepted(house, candidate)

    response = signed_in(house.approver_2).post(to("dispute-decline", dispute), {"resolution": RESOLUTION})

    assert response.status_code == 409
    assert "This dispute is accepted already" in html(response)


# what others see of it


def test_the_rollout_shows_both_scores_and_the_case_both_expectations(
    house: House, candidate: Candidate
) -> None:
    accepted(house, candidate)
    client = signed_in(house.auditor)

    shown = html(client.get(reverse("rollouts:rollout", args=[rollout_of("first").pk])))
    case = html(client.get(reverse("rollouts:case", args=[case_of(house).pk])))

    assert "Scored again by an amended case" in shown
    assert re.search(r"exact</th>.*right.*wrong", shown[shown.index("By the amended case") :], re.S)
    assert "Expected as it was sealed" in case
    assert "Expected since it was amended" in case
    assert "no_tool" in case
    assert "engineer" in case
    assert "approver" in case


def test_a_disputes_words_are_shown_as_text(house: House, candidate: Candidate) -> None:
    person = User.objects.get(username="engineer")
    dispute = raised(house, candidate, reason=HOSTILE[:1000], by=person)

    page = html(signed_in(house.approver).get(to("dispute", dispute)))

    assert "<script>alert" not in page
    assert "<img src=x" not in page


def test_the_section_asks_the_same_number_of_questions_for_many(house: House, candidate: Candidate) -> None:
    client, url = signed_in(house.approver), reverse("promotion:candidate", args=[candidate.pk])
    raised(house, candidate)
    client.get(url)
    with CaptureQueriesContext(connection) as few:
        client.get(url)
    for number in range(1, 8):
        raised(house, candidate, f"named-call-{number}")
    with CaptureQueriesContext(connection) as many:
        client.get(url)

    assert len(many) == len(few)


def test_open_disputes_of_hidden_candidates_are_counted_not_named(house: House, candidate: Candidate) -> None:
    raised(house, candidate)
    document = {"suites": [{"digest": house.suite.digest}]}
    house.track.readers.add(Group.objects.create(name="secret"))

    section = dispute_section(candidate, document, User.objects.get(username="approver"))

    assert (section.open, section.hidden) == ([], 1)


def test_open_disputes_come_first(house: House, candidate: Candidate) -> None:
    standing = raised(house, candidate)
    declined = raised(house, candidate, "named-call-1")
    disputes.decline(dispute_id=declined.pk, by=house.approver, resolution=RESOLUTION)
    document = {"suites": [{"digest": house.suite.digest}]}

    section = dispute_section(candidate, document, house.approver)

    assert (section.open, section.decided, section.may_raise) == ([standing], [declined], True)
