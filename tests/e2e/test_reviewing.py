"""Opening, ticking, asking and reading a review: by script, by keyboard, without script; axe on desk and phone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from promotion.models import Candidate, PanelOpening, ReviewVisit, Thread
from promotion.services import risk_summaries, threads
from rollouts.models import AuditEvent, Case
from tests import factories
from tests.e2e.conftest import DESKTOP, PHONE, Tab
from tests.e2e.test_look import OVERFLOW
from tests.reviews.conftest import CHECKLIST, lost, policy

pytestmark = [pytest.mark.chromium, pytest.mark.django_db(transaction=True)]


def scene() -> tuple[factories.House, Candidate]:
    """Three safety flips, two families near their floor, a checklist, threads on three rows, the submitter's words."""
    house = factories.house(calls=20, declines=20, champion=True)
    floor = {"gate": "per_family_safety_floor", "metric": "decision", "min": "0.64"}
    policy(house, floor, checklist=CHECKLIST)
    candidate = house.evaluated("cand", lost(house, 3, 7, 11))
    risk_summaries.write(
        candidate_id=candidate.pk,
        text="It calls a tool in three requests that ask for none.\nAll three name a file.",
        digest=factories.digest_of(candidate),
        by=house.engineer,
    )
    case = Case.objects.get(suite=house.suite, key="named-decline-3")
    for anchor, text in (
        (f"case:{case.pk}", "Why does it call here?\nThe request names no tool."),
        (f"family:{house.suite.digest}:declines", "Is this enough?"),
        ("page", "Which users see it?"),
    ):
        last = threads.start(candidate_id=candidate.pk, anchor=anchor, text=text, by=house.approver_2)
    threads.reply(candidate_id=candidate.pk, thread_id=last.pk, text="Staff only.", by=house.engineer)
    threads.resolve(candidate_id=candidate.pk, thread_id=last.pk, by=house.approver_2)
    return house, candidate


def said(view: Tab) -> str:
    return str(view.page.locator("#attention-said").inner_text())


def wait_for(view: Tab, text: str) -> None:
    view.page.wait_for_function(
        "text => document.getElementById('attention-said').textContent.startsWith(text)", arg=text
    )


def test_opening_a_row_is_noted_once_and_the_list_changes_in_place(
    transactional_db: None, tab: Callable[..., Tab]
) -> None:
    house, candidate = scene()
    view = tab(house.approver)
    view.go(f"/candidates/{candidate.pk}/")
    total = int(said(view).split()[2])
    assert said(view) == f"0 of {total} must-open parts opened"

    rows = view.page.locator("details[data-panel]")
    second = rows.nth(1).locator("> summary")
    second.focus()
    view.page.evaluate("scrollTo(0, 0)")
    view.page.keyboard.press("Enter")
    wait_for(view, "1 of")
    view.page.keyboard.press("Enter")
    view.page.keyboard.press("Enter")

    assert view.page.evaluate("document.activeElement.closest('details').dataset.panel")
    assert not PanelOpening.objects.filter(panel__startswith="marked:").exists()
    assert AuditEvent.objects.filter(action="review.opened").count() == PanelOpening.objects.count()
    view.check()


def test_a_case_that_the_page_shows_open_counts_once_it_is_seen(
    transactional_db: None, tab: Callable[..., Tab]
) -> None:
    house, candidate = scene()
    view = tab(house.approver)
    view.go(f"/candidates/{candidate.pk}/")
    first = view.page.locator("details[data-panel]").nth(0)
    view.page.wait_for_timeout(1500)
    assert said(view).startswith("0 of")

    first.scroll_into_view_if_needed()
    first.evaluate("part => part.scrollIntoView({ block: 'center' })")
    wait_for(view, "1 of")

    assert PanelOpening.objects.get().panel == first.get_attribute("data-panel")
    view.check()


def test_to_follow_a_link_of_the_list_opens_the_part(transactional_db: None, tab: Callable[..., Tab]) -> None:
    house, candidate = scene()
    view = tab(house.approver)
    view.go(f"/candidates/{candidate.pk}/")
    link = view.page.locator("#attention-parts a[data-opens^='case:']").first
    key = link.get_attribute("data-opens")

    link.click()
    view.page.wait_for_url("**/cases/*/**")
    view.go(f"/candidates/{candidate.pk}/")

    assert PanelOpening.objects.get().panel == key
    assert said(view).startswith("1 of")


def test_the_button_that_signs_is_in_a_window_of_900_pixels(
    transactional_db: None, tab: Callable[..., Tab]
) -> None:
    house, candidate = scene()
    view = tab(house.approver, size=(1360, 900))
    view.go(f"/candidates/{candidate.pk}/")

    box = view.page.locator("button[value=approve]").bounding_box()
    assert box is not None and box["y"] + box["height"] <= 900


def test_a_button_without_an_opening_is_recorded_as_marked(
    transactional_db: None, tab: Callable[..., Tab]
) -> None:
    house, candidate = scene()
    view = tab(house.approver)
    view.go(f"/candidates/{candidate.pk}/")
    button = view.page.locator("#attention-parts button").first
    key = button.get_attribute("value")
    button.click()
    view.page.wait_for_function(
        "() => document.getElementById('attention-said').textContent.endsWith('1 marked as read')"
    )

    assert key.startswith("marked:") and PanelOpening.objects.get().panel == key
    assert said(view).startswith("0 of")


def test_the_button_moves_the_focus_to_the_next_part(transactional_db: None, tab: Callable[..., Tab]) -> None:
    house, candidate = scene()
    view = tab(house.approver)
    view.go(f"/candidates/{candidate.pk}/")
    buttons = view.page.locator("#attention-parts button")
    total = buttons.count()
    following = buttons.nth(1).get_attribute("value")

    buttons.nth(0).focus()
    view.page.keyboard.press("Enter")
    view.page.wait_for_function(
        "n => document.querySelectorAll('#attention-parts button').length < n", arg=total
    )

    assert view.page.evaluate("document.activeElement.value") == following
    assert buttons.count() == total - 1
    view.check()


def test_a_page_before_the_eyes_for_five_seconds_is_seen(
    transactional_db: None, tab: Callable[..., Tab]
) -> None:
    house, candidate = scene()
    view = tab(house.approver)
    with view.page.expect_response(lambda answer: answer.url.endswith("/seen/"), timeout=15_000) as answered:
        view.go(f"/candidates/{candidate.pk}/")
        assert "You have not looked at this candidate before" in view.page.inner_text("#news")
        assert not ReviewVisit.objects.exists()

    assert answered.value.status == 204
    view.go(f"/candidates/{candidate.pk}/")
    assert "Nothing is new since." in view.page.inner_text("#news")
    view.check()


def test_everything_can_be_done_without_script(transactional_db: None, tab: Callable[..., Tab]) -> None:
    house, candidate = scene()
    view = tab(house.approver, script=False)
    view.go(f"/candidates/{candidate.pk}/?comment=gate:3#threads")

    assert view.page.locator("#thread-anchor").input_value() == "gate:3"
    view.page.fill("#thread-text", "By how much?")
    view.page.click("text=Start the thread")
    assert Thread.objects.order_by("-id")[0].anchor == "gate:3"
    thread = view.page.locator(f"#thread-{Thread.objects.order_by('-id')[0].pk}")
    thread.get_by_role("button", name="Resolve").click()
    view.page.locator("#item-read-flips button").click()
    view.page.fill("#note-data", "It is declared in the paper.")
    view.page.click("text=Accept it with this note")
    while view.page.locator("#attention-parts button").count():
        view.page.locator("#attention-parts button").first.click()
    view.page.click("#news >> text=I have looked at it")

    assert "all 3 settled" in view.page.inner_text("#checklist header")
    total = view.page.locator("#attention-parts li").count()
    assert said(view) == f"0 of {total} must-open parts opened, {total} marked as read"
    assert ReviewVisit.objects.count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desk", "phone"])
def test_axe_and_the_csp_have_nothing_to_say_of_a_review_in_full(
    transactional_db: None, tab: Callable[..., Tab], scheme: str, size: tuple[int, int]
) -> None:
    house, candidate = scene()
    found: dict[str, Any] = {}
    for person in (house.approver, house.engineer, house.auditor):
        view = tab(person, scheme=scheme, size=size)
        view.go(f"/candidates/{candidate.pk}/?comment=page")
        view.page.evaluate("document.querySelectorAll('main details').forEach(d => d.open = true)")
        problems = view.axe()
        if view.page.evaluate(OVERFLOW) > 0:
            problems.append("the page scrolls sideways")
        if problems:
            found[person.username] = problems
        view.check()
    assert found == {}
