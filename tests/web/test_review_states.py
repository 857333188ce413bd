"""The review in every state: broken glass, evidence that went stale, refused publications, what ended and why."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse
from django.utils.html import escape

from promotion.models import Candidate, CandidateState, Evidence, PanelOpening, ReviewVisit
from promotion.services import candidates, gating, registry, reviews
from tests import factories
from tests.factories import House
from tests.reviews.conftest import FLOOR, lost, policy
from tests.reviews.test_must_open import panels
from tests.rule.worlds import break_glass, breakable, breaker
from tests.web.conftest import html, signed_in
from tests.web.test_review_verdict import between, gate_policy, page_of

pytestmark = pytest.mark.django_db
ARENA = {"gate": "arena_max_regression", "metric": "decision", "max_drop": "0.20"}
PAIRED = {"gate": "paired_non_inferiority", "metric": "decision", "margin": "0.25"}


def verdict(page: str) -> str:
    return between(page, '<section class="card verdict', "</section>")


def page(candidate: Candidate, person: Any) -> str:
    candidate.refresh_from_db()
    return page_of(candidate, signed_in(person))


# broken glass


def test_broken_glass_never_reads_as_signed(sent: Any) -> None:
    house = breakable(champion=True)
    candidate = house.evaluated()
    factories.sign(candidate, house.approver)
    break_glass(candidate, breaker())

    shown = page(candidate, house.approver_2)

    assert "Glass broken: being published without 1 of 2 signatures" in verdict(shown)
    assert 'class="card verdict unsure"' in shown
    assert "Signed, being published" not in shown
    assert "Glass broken, approved" in between(shown, '<p class="meta">', "</p>")
    row = between(shown, '<th scope="row" class="gate">human_<wbr>approval_<wbr>record', "</tr>")
    assert "glass broken" in row and "passed" not in row
    alarm = between(html(signed_in(house.auditor).get("/")), 'id="alarm"', "</section>")
    assert "is being published without the signatures" in alarm


def test_what_was_promoted_by_breaking_the_glass_says_so(sent: Any) -> None:
    house = breakable(champion=True)
    candidate = house.evaluated()
    break_glass(candidate, breaker())
    assert registry.publish(candidate.pk) is not None

    shown = page(candidate, house.auditor)

    assert "Promoted by breaking the glass" in verdict(shown)
    assert "without 2 of 2 signatures" in verdict(shown)
    assert 'class="card verdict pass"' not in shown


def test_who_signed_in_full_is_shown_as_signed(house: House) -> None:
    shown = page(house.approved(), house.auditor)

    assert "Signed, being published" in verdict(shown)
    assert "Glass broken" not in shown


# signed, and no longer current


def test_a_signed_candidate_says_when_its_evidence_is_no_longer_current(house: House) -> None:
    candidate = house.approved()
    gate_policy(house, ARENA)

    shown = page(candidate, house.approver)

    assert "Signed, but the evidence is no longer current" in verdict(shown)
    assert 'class="card verdict unsure"' in shown
    assert "the signatures on the earlier evidence end then." in between(shown, 'id="stale-h"', "</section>")


def test_a_refused_publication_says_why_and_that_the_signatures_ended(house: House) -> None:
    candidate = house.approved()
    signed = factories.digest_of(candidate)
    gate_policy(house, ARENA)
    assert registry.publish(candidate.pk) is None

    shown = page(candidate, house.approver)

    assert "Not published" in verdict(shown)
    assert "The policy went from version 1" in verdict(shown) or "policy" in verdict(shown).lower()
    assert f"1 signature on {html_digest(signed)} ended with it." in verdict(shown)
    assert gating.judge_now(candidate.pk)
    assert "Not published" not in verdict(page(candidate, house.approver))


def html_digest(digest: str) -> str:
    return f'<span class="digest" title="{digest}">{digest[:4]} {digest[4:8]}</span>'


# what blocks


def test_gates_with_one_reason_are_one_line_with_their_number(house: House) -> None:
    candidate = house.evaluated()
    gate_policy(house, ARENA, PAIRED)
    assert gating.judge_now(candidate.pk)

    for person, helps in (
        (house.approver, "What helps: an engineer evaluates what is missing."),
        (house.engineer, 'What helps: <a href="#act-h">evaluate what is missing</a>.'),
    ):
        shown = page(candidate, person)
        blocked = between(shown, 'aria-label="Blocked by"', "</ul>")
        assert blocked.count("candidate&#x27;s run on named was planned before the policy was locked") == 1
        assert blocked.count("champion&#x27;s run on named was planned before the policy was locked") == 1
        assert "gates</strong> on <bdi>named</bdi>" in blocked
        assert "arena_<wbr>max_<wbr>regression" in blocked
        assert helps in verdict(shown)


def test_what_failed_by_its_results_does_not_ask_to_be_judged_again(house: House) -> None:
    shown = verdict(page(house.evaluated(wrong=20), house.approver))

    assert "Judging again changes nothing: what was measured does not meet the policy." in shown


# what ended


def test_a_rejection_stands_with_its_words_and_asks_for_nothing(house: House) -> None:
    candidate = house.evaluated()
    factories.sign(candidate, house.approver, decision="reject", comment="It calls <b>tools</b>.")

    shown = page(candidate, house.auditor)

    assert "It calls &lt;b&gt;tools&lt;/b&gt;." in verdict(shown)
    assert "<bdi>approver</bdi>" in verdict(shown)
    assert "Waits for" not in shown and "needs 1 approver" not in shown
    assert "No signature is asked for any more." in shown


def test_what_was_withdrawn_says_by_whom_and_why_and_is_grey(house: House) -> None:
    candidate = house.evaluated(wrong=20)
    candidates.withdraw(candidate_id=candidate.pk, by=house.engineer, reason="Superseded by r4.")

    shown = page(candidate, house.auditor)

    assert "Superseded by r4." in verdict(shown) and "<bdi>engineer</bdi>" in verdict(shown)
    assert 'class="card verdict off"' in shown
    assert "Waits for" not in shown


def test_a_candidate_sent_back_quotes_who_asked_for_what(house: House) -> None:
    candidate = house.evaluated()
    factories.sign(
        candidate, house.approver, decision="request_changes", comment="Show the mail family first."
    )

    shown = verdict(page(candidate, house.engineer))

    assert "Sent back" in shown
    assert "Show the mail family first." in shown and "<bdi>approver</bdi>" in shown


# what must be opened


def test_a_mark_without_an_opening_is_recorded_and_printed_as_a_mark(sent: Any) -> None:
    house = factories.house(calls=20, declines=20, champion=True)
    policy(house, FLOOR)
    candidate = house.evaluated("cand", lost(house, 3, 7))
    first, second = panels(candidate)
    reviews.open_panel(candidate_id=candidate.pk, panel=first.key, by=house.approver)
    reviews.open_panel(candidate_id=candidate.pk, panel=f"marked:{second.key}", by=house.approver)
    assert "1 of 2 must-open parts opened, 1 marked as read" in page(candidate, house.approver)

    approval = factories.sign(candidate, house.approver, unopened_reason="")

    assert approval.panels_opened == [first.key, f"marked:{second.key}"]
    assert approval.panels_unopened == []
    shown = page(candidate, house.auditor)
    assert "opened 1 of 2 parts that had to be opened, marked 1 as read without opening it" in shown


def test_what_was_marked_counts_as_opened_once_it_is_opened(sent: Any) -> None:
    house = factories.house(calls=20, declines=20, champion=True)
    policy(house, FLOOR)
    candidate = house.evaluated("cand", lost(house, 3))
    (panel,) = panels(candidate)
    for key in (f"marked:{panel.key}", panel.key):
        reviews.open_panel(candidate_id=candidate.pk, panel=key, by=house.approver)

    assert PanelOpening.objects.count() == 2
    assert reviews.opened_and_marked(candidate, house.approver) == ({panel.key}, set())
    assert "1 of 1 must-open parts opened<" in page(candidate, house.approver)


def test_the_list_names_a_case_by_its_request(sent: Any) -> None:
    house = factories.house(calls=20, declines=20, champion=True)
    policy(house, FLOOR)
    candidate = house.evaluated("cand", lost(house, 3))
    case = house.suite.cases.get(key="named-decline-3")
    request = case.content["messages"][-1]["content"]

    parts = between(page(candidate, house.approver), 'id="attention-parts"', "</form>")

    assert f">{escape(request)}</a>" in parts
    assert "case named-decline-3" in parts


# signing


def test_who_signs_is_told_what_was_recorded_and_it_is_no_news_to_them(sent: Any) -> None:
    house = factories.house(champion=True, approvers=2)
    candidate = house.evaluated()
    client, digest = signed_in(house.approver), factories.digest_of(candidate)
    data = {
        "evidence_digest": digest,
        "decision": "approve",
        "meaning": "authorises",
        "comment": "Fit.",
        "unopened_reason": "Not what this test is about.",
        "method": "password",
        "password": factories.PASSWORD,
    }
    answer = client.post(reverse("promotion:sign", args=[candidate.pk]), data, follow=True)

    assert f"Recorded: you signed {candidate.name} at {digest[:4]} {digest[4:8]}." in html(answer)
    assert "Nothing is new since." in html(answer)
    assert ReviewVisit.objects.get().evidence.digest == digest


def test_a_rejection_is_told_as_one(house: House) -> None:
    candidate = house.evaluated()
    data = {
        "evidence_digest": factories.digest_of(candidate),
        "decision": "reject",
        "comment": "Two safety flips.",
        "method": "password",
        "password": factories.PASSWORD,
    }
    answer = signed_in(house.approver).post(reverse("promotion:sign", args=[candidate.pk]), data, follow=True)

    assert f"Recorded: you rejected {candidate.name} at" in html(answer)


def test_the_title_names_the_track(house: House) -> None:
    candidate = house.evaluated("r3")

    assert "<title>r3 · toolcaller, review" in page(candidate, house.auditor)


def test_a_stale_page_has_one_button_to_judge_and_no_empty_card(house: House) -> None:
    candidate = house.evaluated()
    Candidate.objects.filter(pk=candidate.pk).update(revision=9)

    shown = page(candidate, house.approver)

    assert shown.count("Judge again</button>") == 1
    assert 'id="act-h"' not in shown
    assert '<details class="more" open><summary><span class="what">What changed' in shown


def test_a_signature_that_was_withdrawn_is_not_counted(sent: Any) -> None:
    from promotion.services import signatures

    house = factories.house(champion=True, approvers=2)
    candidate = house.evaluated()
    factories.sign(candidate, house.approver)
    assert "needs 2 approvers; has 1" in page(candidate, house.auditor)
    signatures.withdraw_signature(candidate_id=candidate.pk, by=house.approver, reason="I misread.")

    assert "needs 2 approvers; has 0" in page(candidate, house.auditor)


# home


def test_what_waits_for_a_signature_says_its_verdict_and_its_work(sent: Any) -> None:
    house = factories.house(calls=20, declines=20, champion=True)
    policy(house, FLOOR)
    candidate = house.evaluated("cand", lost(house, 3, 7))
    first = panels(candidate)[0]

    row = between(html(signed_in(house.approver).get("/")), f"/candidates/{candidate.pk}/", "</li>")
    assert "gates pass, closest" in row and ", 2 lost, 2 parts to open" in row
    shown = page(candidate, house.approver)
    turns = between(shown, "Closest: ", "</p>")
    assert between(row, "closest ", " prompt").removeprefix("closest ") in turns
    reviews.open_panel(candidate_id=candidate.pk, panel=first.key, by=house.approver)

    row = between(html(signed_in(house.approver).get("/")), f"/candidates/{candidate.pk}/", "</li>")
    assert ", 1 part to open" in row


def test_what_waits_for_others_names_whom_the_rule_needs(sent: Any) -> None:
    house = factories.house(champion=True, approvers=2)
    candidate = house.evaluated("cand")

    assert "waits for 2 approvers<" in html(signed_in(house.engineer).get("/"))
    factories.sign(candidate, house.approver)

    assert "signed by you, waits for 1 approver<" in html(signed_in(house.approver).get("/"))
    assert candidate.state == CandidateState.IN_REVIEW
    assert Evidence.objects.filter(candidate=candidate).count() == 1
