"""What must be opened before a signature, who opens it, and what happens where it was not."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from django.urls import reverse

from promotion import attention
from promotion.comparing import comparisons_of
from promotion.evidence import document_of
from promotion.models import Approval, Candidate, Evidence, PanelOpening
from promotion.panels import MOST_CASES, MOST_WITHOUT_CHAMPION, must_open
from promotion.services import gating, reviews, waivers
from rollouts.errors import Conflict, InvalidInput, NotAllowed, NotFound
from rollouts.models import AuditEvent, ComparedCase, Comparison
from tests import factories
from tests.reviews.conftest import FLOOR, lost, policy
from tests.web.conftest import html, signed_in

pytestmark = pytest.mark.django_db


def document(candidate: Candidate) -> dict[str, Any]:
    return document_of(Evidence.objects.filter(candidate=candidate).order_by("-id")[0])


def panels(candidate: Candidate) -> list[Any]:
    return must_open(document(candidate), comparisons_of(document(candidate))).panels


def open_all(candidate: Candidate, person: Any) -> None:
    for panel in panels(candidate):
        reviews.open_panel(candidate_id=candidate.pk, panel=panel.key, by=person)


# the set


def test_every_case_lost_where_a_call_is_wrong_must_be_opened_and_no_other(house: factories.House) -> None:
    outcomes = {**lost(house, 3, 7), f"{house.suite.name}-call-1": "wrong"}
    candidate = house.evaluated("cand", outcomes)

    found = panels(candidate)

    assert [panel.kind for panel in found] == ["case", "case"]
    assert [panel.label for panel in found] == [f"case named-decline-{n} (declines)" for n in (3, 7)]
    assert all(panel.url == f"#case-{panel.case}" for panel in found)


def test_without_a_champion_the_first_25_wrong_cases_must_be_opened(db: None, sent: Any) -> None:
    house = factories.house(declines=40, gates=[])
    candidate = house.evaluated("cand", lost(house, *range(40)))

    found = panels(candidate)

    assert len(found) == MOST_WITHOUT_CHAMPION
    assert [panel.case for panel in found] == sorted(panel.case for panel in found)


def test_of_very_many_flips_the_first_200_are_listed_and_all_are_counted(db: None, sent: Any) -> None:
    house = factories.house(declines=MOST_CASES + 6, gates=[], champion=True)
    candidate = house.evaluated("cand", lost(house, *range(MOST_CASES + 6)))

    found = must_open(document(candidate), comparisons_of(document(candidate)))

    assert len(found.panels) == MOST_CASES
    assert (found.cases, found.left_out) == (MOST_CASES + 6, 6)


def test_a_family_with_less_than_a_margin_to_spare_must_be_opened(house: factories.House) -> None:
    # 20 of 20 right has the bound 0.8609
    policy(house, {**FLOOR, "min": "0.85"})
    near = house.evaluated("near")
    policy(house, {**FLOOR, "min": "0.84"})
    clear = house.evaluated("clear")

    assert [panel.label for panel in panels(near)] == ["family calls of named", "family declines of named"]
    assert panels(near)[0].key == f"family:{house.suite.digest[:12]}:calls:20-0-0"
    assert (
        panels(near)[0].reason == "per_family_safety_floor, decision: 0.0108 to spare, and a margin is 0.02"
    )
    assert panels(clear) == []


def test_the_policys_own_margin_says_what_is_near(house: factories.House) -> None:
    own = {"gate": "arena_max_regression", "metric": "decision", "max_drop": "0.10"}
    policy(house, {**FLOOR, "min": "0.80"}, own)

    assert len(panels(house.evaluated("cand"))) == 2
    assert attention.margin_on(house.policy.document, house.suite.digest) == Decimal("0.10")


def test_a_paired_bound_that_may_be_a_loss_is_near_its_margin(house: factories.House) -> None:
    policy(house, {"gate": "paired_non_inferiority", "metric": "decision", "margin": "0.25"})

    found = panels(house.evaluated("cand"))

    assert [panel.label for panel in found] == ["all of named"]


def test_a_waiver_must_be_opened(house: factories.House) -> None:
    policy(house, {"gate": "masked_ceiling", "max_percent": "1"})
    candidate = house.evaluated("cand", masked=2)
    asked = waivers.request(
        candidate_id=candidate.pk,
        gate="masked_ceiling",
        suite_digest=house.suite.digest,
        reason="The provider was down.",
        days=3,
        by=house.engineer,
    )
    waivers.grant(waiver_id=asked.pk, by=house.approver_2)

    found = [panel for panel in panels(candidate) if panel.kind == "waiver"]

    assert [panel.label for panel in found] == ["waiver of masked_ceiling on named"]
    assert found[0].key.startswith(f"waiver:masked_ceiling:{house.suite.digest[:12]}:20")


def test_a_baseline_has_nothing_to_open(house: factories.House) -> None:
    assert panels(Candidate.objects.get(name="first")) == []


# opening


def test_an_opening_is_recorded_once_with_one_event(house: factories.House, reviewed: Candidate) -> None:
    key = panels(reviewed)[0].key

    for _ in range(3):
        reviews.open_panel(candidate_id=reviewed.pk, panel=key, by=house.approver)

    assert list(PanelOpening.objects.values_list("person__username", "panel")) == [("approver", key)]
    event = AuditEvent.objects.get(action="review.opened")
    assert event.subject_label == "toolcaller/cand"
    assert json.loads(event.data) == {"panel": key}


def test_only_parts_of_the_present_set_are_taken(house: factories.House, reviewed: Candidate) -> None:
    with pytest.raises(InvalidInput, match="part of the present evidence"):
        reviews.open_panel(candidate_id=reviewed.pk, panel="case:1.1:2.1:decision:9", by=house.approver)


@pytest.mark.parametrize("role", ["engineer", "auditor", "administrator"])
def test_only_who_could_sign_opens(house: factories.House, reviewed: Candidate, role: str) -> None:
    with pytest.raises(NotAllowed, match="needs approver"):
        reviews.open_panel(candidate_id=reviewed.pk, panel=panels(reviewed)[0].key, by=getattr(house, role))


def test_an_auditor_opens_nothing_even_where_an_old_policy_names_auditors(
    house: factories.House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("promotion.services.policy_rules.AUDITOR", "")  # as before they were refused
    policy(house, FLOOR, approvers=[{"group": "auditor", "count": 1}])
    candidate = house.evaluated("cand", lost(house, 3))

    with pytest.raises(NotAllowed):
        reviews.open_panel(candidate_id=candidate.pk, panel=panels(candidate)[0].key, by=house.auditor)


def test_who_may_not_see_the_candidate_opens_nothing(house: factories.House, reviewed: Candidate) -> None:
    from django.contrib.auth.models import Group

    house.track.readers.add(Group.objects.create(name="others"))

    with pytest.raises(NotFound):
        reviews.open_panel(candidate_id=reviewed.pk, panel=panels(reviewed)[0].key, by=house.approver)


def test_what_was_opened_stays_opened_over_new_evidence_of_the_same_runs(
    house: factories.House, reviewed: Candidate
) -> None:
    open_all(reviewed, house.approver)
    Candidate.objects.filter(pk=reviewed.pk).update(revision=9)
    gating.judge_now(reviewed.pk)

    done = reviews.opened_by(reviewed, house.approver)

    assert {panel.key for panel in panels(reviewed)} <= done
    assert reviews.opened_by(reviewed, house.approver_2) == set()


# signing


def test_who_opened_nothing_cannot_approve_without_saying_why(
    house: factories.House, reviewed: Candidate
) -> None:
    with pytest.raises(Conflict, match=r"case named-decline-3 \(declines\) is not opened") as refused:
        factories.sign(reviewed, house.approver, unopened_reason=" too short")

    assert len(refused.value.blocked_by) == 2
    assert not Approval.objects.filter(candidate=reviewed).exists()


def test_at_most_five_things_are_named_and_the_rest_is_counted(house: factories.House) -> None:
    policy(house, {**FLOOR, "min": "0.30"})
    candidate = house.evaluated("cand", lost(house, *range(7)))

    with pytest.raises(Conflict, match=r"; and 2 more\. Open what must be opened") as refused:
        factories.sign(candidate, house.approver, unopened_reason="")

    assert len(refused.value.blocked_by) == 7


def test_the_signature_keeps_what_was_opened(house: factories.House, reviewed: Candidate) -> None:
    open_all(reviewed, house.approver)

    approval = factories.sign(reviewed, house.approver, unopened_reason="")

    assert approval.panels_opened == [panel.key for panel in panels(reviewed)]
    assert (approval.panels_unopened, approval.unopened_reason) == ([], "")


def test_the_signature_keeps_what_was_not_opened_and_why(house: factories.House, reviewed: Candidate) -> None:
    first, second = panels(reviewed)
    reviews.open_panel(candidate_id=reviewed.pk, panel=first.key, by=house.approver)

    approval = factories.sign(reviewed, house.approver, unopened_reason="Read it on paper yesterday.")

    assert (approval.panels_opened, approval.panels_unopened) == ([first.key], [second.key])
    assert approval.unopened_reason == "Read it on paper yesterday."


def test_another_persons_openings_are_not_mine(house: factories.House, reviewed: Candidate) -> None:
    open_all(reviewed, house.approver_2)

    with pytest.raises(Conflict, match="is not opened"):
        factories.sign(reviewed, house.approver, unopened_reason="")


def test_a_refusal_needs_nothing_opened(house: factories.House, reviewed: Candidate) -> None:
    approval = factories.sign(
        reviewed, house.approver, decision="reject", comment="Two safety flips.", unopened_reason=""
    )

    assert (approval.panels_opened, approval.panels_unopened) == ([], [])


def test_nobody_approves_while_the_cases_are_not_compared(
    house: factories.House, reviewed: Candidate
) -> None:
    ComparedCase.objects.all().delete()
    Comparison.objects.all().delete()

    with pytest.raises(Conflict, match="being compared"):
        factories.sign(reviewed, house.approver)


# pages


def test_the_page_counts_what_is_opened_and_offers_the_rest(
    house: factories.House, reviewed: Candidate
) -> None:
    client, address = signed_in(house.approver), reverse("promotion:opened", args=[reviewed.pk])
    first, second = panels(reviewed)

    answer = client.post(address, {"panel": first.key})

    assert (answer.status_code, answer["Location"]) == (302, f"/candidates/{reviewed.pk}/#attention")
    page = html(client.get(reverse("promotion:candidate", args=[reviewed.pk])))
    assert "1 of 2 must-open parts opened" in page
    assert f'value="marked:{second.key}"' in page
    assert f'value="marked:{first.key}"' not in page


def test_the_script_gets_the_list_anew(house: factories.House, reviewed: Candidate) -> None:
    answer = signed_in(house.approver).post(
        reverse("promotion:opened", args=[reviewed.pk]),
        {"panel": panels(reviewed)[0].key},
        headers={"X-Requested-With": "fetch"},
    )

    assert answer.status_code == 200
    assert html(answer).startswith('<section class="card" id="attention"')
    assert "1 of 2 must-open parts opened" in html(answer)


@pytest.mark.parametrize("headers", [{}, {"X-Requested-With": "fetch"}])
def test_an_unknown_part_is_422(house: factories.House, reviewed: Candidate, headers: Any) -> None:
    address = reverse("promotion:opened", args=[reviewed.pk])

    assert signed_in(house.approver).post(address, {"panel": "x"}, headers=headers).status_code == 422


def test_the_page_of_who_does_not_sign_offers_nothing_to_open(
    house: factories.House, reviewed: Candidate
) -> None:
    page = html(signed_in(house.auditor).get(reverse("promotion:candidate", args=[reviewed.pk])))

    assert "2 parts, by each who signs" in page
    assert 'name="panel"' not in page


def test_a_form_goes_back_only_to_our_own_pages(house: factories.House, reviewed: Candidate) -> None:
    client, address = signed_in(house.approver), reverse("promotion:opened", args=[reviewed.pk])
    key = panels(reviewed)[0].key

    assert client.post(address, {"panel": key, "next": "/tracks/"})["Location"] == "/tracks/"
    for elsewhere in ("//evil.example/", "https://evil.example/", "/\\evil.example"):
        back = client.post(address, {"panel": key, "next": elsewhere})["Location"]
        assert back == f"/candidates/{reviewed.pk}/#attention"
