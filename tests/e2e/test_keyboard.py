"""Reading a review by single keys: what they reach, where they are silent, that none of them signs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from promotion.models import Approval, PanelOpening
from tests.e2e.conftest import Tab
from tests.web.world import World

pytestmark = [pytest.mark.chromium, pytest.mark.django_db(transaction=True)]
AT = "document.activeElement.closest('[data-triage]')?.textContent.trim() ?? ''"
NUMBER = (
    "[...document.querySelectorAll('[data-triage]')].indexOf(document.activeElement.closest('[data-triage]'))"
)


def opened(road: World, tab: Callable[..., Tab], **how: Any) -> Tab:
    view = tab(road.house.approver, **how)
    view.go(f"/candidates/{road.r3.pk}/")
    view.page.locator("#keys").wait_for(state="attached")
    return view


def to_cases(view: Tab) -> None:
    """Focus on the first case, as somebody who clicked it."""
    view.page.locator("#cases details.row > summary").first.focus()


def test_j_and_k_walk_rows_and_cases_and_move_the_focus(road: World, tab: Callable[..., Tab]) -> None:
    view = opened(road, tab)
    page = view.page
    page.keyboard.press("j")
    first = page.evaluate(AT)
    assert first.startswith("human_approval_record")
    page.keyboard.press("j")
    second = page.evaluate(AT)
    assert second != first
    page.keyboard.press("k")
    assert page.evaluate(AT) == first
    assert page.evaluate("document.activeElement.matches('tr:focus-visible')"), "the focus is to be seen"
    to_cases(view)
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.matches('#cases details.row:nth-of-type(2) > summary')")
    view.check()


def test_closed_rows_are_no_stop_until_they_are_opened(road: World, tab: Callable[..., Tab]) -> None:
    page = opened(road, tab).page
    stops = page.evaluate(
        "[...document.querySelectorAll('[data-triage]')].filter(e => e.checkVisibility()).length"
    )
    page.locator("details.more > summary", has_text="identity and integrity").click()
    more = page.evaluate(
        "[...document.querySelectorAll('[data-triage]')].filter(e => e.checkVisibility()).length"
    )
    assert more > stops
    for _ in range(more + 3):
        page.keyboard.press("j")
        assert page.evaluate(NUMBER) >= 0


def test_capital_j_and_k_go_from_group_to_group(road: World, tab: Callable[..., Tab]) -> None:
    view = opened(road, tab)
    page = view.page
    to_cases(view)
    families = []
    for _ in range(3):
        families.append(
            page.evaluate("document.activeElement.closest('[data-triage-group]').dataset.triageGroup")
        )
        page.keyboard.press("J")
    assert families == ["cases files", "cases mail", "cases travel"]
    page.keyboard.press("K")
    page.keyboard.press("K")
    assert "files" in page.evaluate(
        "document.activeElement.closest('[data-triage-group]').dataset.triageGroup"
    )


def test_enter_opens_and_closes_a_case(road: World, tab: Callable[..., Tab]) -> None:
    view = opened(road, tab)
    page = view.page
    to_cases(view)
    page.keyboard.press("j")
    row = page.locator("#cases details.row").nth(1)
    assert row.get_attribute("open") is None
    page.keyboard.press("Enter")
    assert row.get_attribute("open") is not None
    page.keyboard.press("Enter")
    assert row.get_attribute("open") is None


def test_s_c_and_d_press_what_the_case_offers(road: World, tab: Callable[..., Tab]) -> None:
    for key, part in (("s", "/cases/"), ("c", "comment=case%3A"), ("d", "/dispute")):
        view = opened(road, tab)
        to_cases(view)
        view.page.keyboard.press("j")
        view.page.keyboard.press(key)
        view.page.wait_for_url(lambda url, part=part: part in url)


@pytest.mark.parametrize("row", ["gate", "family", "suite"])
def test_c_names_a_row_of_a_table_in_the_form_of_the_threads(
    row: str, road: World, tab: Callable[..., Tab]
) -> None:
    view = opened(road, tab)
    page = view.page
    item = page.locator(f"tr:has(a[href*='comment={row}'])").first
    link = item.locator("a[data-key=c]")
    anchor = parse_qs(urlsplit(link.get_attribute("href")).query)["comment"][0]
    item.evaluate("row => { row.tabIndex = -1; row.focus() }")
    assert link.evaluate("link => getComputedStyle(link).opacity") == "1"
    page.keyboard.press("c")
    page.wait_for_url(f"**/?comment={row}*#threads")
    assert page.get_by_label("About").input_value() == anchor
    view.check()


def test_v_marks_a_must_open_case_as_read_and_opens_any_other(road: World, tab: Callable[..., Tab]) -> None:
    view = opened(road, tab)
    page = view.page
    to_cases(view)
    page.keyboard.press("j")
    case = page.evaluate("document.activeElement.closest('[data-triage]').id").removeprefix("case-")
    page.keyboard.press("v")
    page.get_by_text("1 of 7 must-open parts opened").wait_for()
    assert page.evaluate("document.activeElement.matches('#cases details.row[open] > summary')"), (
        "the place is kept"
    )
    opening = PanelOpening.objects.get(person=road.house.approver)
    assert opening.panel.endswith(f":{case}")
    view.go(f"/candidates/{road.r3.pk}/?cases=won")
    to_cases(view)
    page.keyboard.press("j")
    page.keyboard.press("v")
    assert page.locator("#cases details.row").nth(1).get_attribute("open") is not None
    view.check()


def test_g_v_and_g_s_move_the_focus_to_a_heading_and_no_further(road: World, tab: Callable[..., Tab]) -> None:
    page = opened(road, tab).page
    for second, heading in (("s", "sign-h"), ("v", "verdict-h")):
        page.keyboard.press("g")
        page.keyboard.press(second)
        assert page.evaluate("document.activeElement.id") == heading
    page.keyboard.press("g")
    page.wait_for_timeout(1700)
    page.keyboard.press("s")
    assert page.evaluate("document.activeElement.id") == "verdict-h", "g is forgotten after 1.5 s"


def test_no_key_presses_a_decision(road: World, tab: Callable[..., Tab]) -> None:
    view = opened(road, tab)
    page = view.page
    address = page.url
    page.evaluate("document.addEventListener('submit', () => { window.submitted = true })")
    for key in "abefghilmnopqrtuwxyzABCDEFGHILMNOPQRSTUVWXYZ0123456789!./":
        page.keyboard.press(key)
    for heading in ("g", "s", "Enter", " "):
        page.keyboard.press(heading)
    assert page.url == address
    assert page.evaluate("window.submitted") is None
    assert page.locator("form[action$='/sign/'] [data-key]").count() == 0
    assert page.locator("form[action$='/sign/'] [aria-keyshortcuts]").count() == 0
    assert page.locator("form[action$='/sign/'] [accesskey]").count() == 0
    assert not Approval.objects.filter(candidate=road.r3).exists()
    view.check()


def test_keys_are_silent_where_somebody_types_and_with_a_modifier(
    road: World, tab: Callable[..., Tab]
) -> None:
    page = opened(road, tab).page
    comment = page.locator("#id_comment")
    comment.click()
    page.keyboard.type("jk? sdcv")
    assert comment.input_value() == "jk? sdcv"
    assert page.evaluate("document.activeElement.name") == "comment"
    page.locator("input[name=meaning]").first.focus()
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.name") == "meaning"
    page.evaluate("document.activeElement.blur()")
    for pressed in ("Control+j", "Alt+j", "Meta+j"):
        page.keyboard.press(pressed)
        assert page.evaluate(NUMBER) == -1


def test_help_lists_the_keys_and_turns_them_off_for_good(road: World, tab: Callable[..., Tab]) -> None:
    view = opened(road, tab)
    page = view.page
    page.keyboard.press("?")
    assert page.get_by_role("dialog", name="Keys").is_visible()
    assert view.axe() == []
    page.keyboard.press("j")
    assert page.evaluate(NUMBER) == -1, "keys are silent in the dialog"
    page.get_by_label("Single keys are on").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("?")
    assert page.evaluate(NUMBER) == -1
    assert not page.get_by_role("dialog", name="Keys").is_visible()
    assert page.locator("[aria-keyshortcuts]").count() == 0
    page.reload()
    page.keyboard.press("j")
    assert page.evaluate(NUMBER) == -1
    page.get_by_role("button", name="? for keys").click()
    page.get_by_label("Single keys are on").check()
    page.get_by_role("button", name="Close").click()
    page.keyboard.press("j")
    assert page.evaluate(NUMBER) >= 0
    view.check()


def test_what_has_a_key_says_so_to_assistive_technology(road: World, tab: Callable[..., Tab]) -> None:
    page = opened(road, tab).page
    found = page.locator("#cases [data-key]").evaluate_all(
        "all => all.map(e => [e.dataset.key, e.ariaKeyShortcuts ?? e.getAttribute('aria-keyshortcuts')])"
    )
    assert found
    assert all(key == said for key, said in found)


def test_without_script_the_hint_is_hidden_and_the_links_stay(road: World, tab: Callable[..., Tab]) -> None:
    page = opened(road, tab, script=False).page
    assert not page.get_by_role("button", name="? for keys").is_visible()
    assert page.locator("#cases a", has_text="comment").first.is_visible()


def test_on_a_case_j_and_k_go_to_the_next_and_the_previous_case(road: World, tab: Callable[..., Tab]) -> None:
    view = opened(road, tab)
    page = view.page
    to_cases(view)
    page.keyboard.press("s")
    page.wait_for_url("**/cases/*/")
    first = page.url
    page.keyboard.press("j")
    page.wait_for_url(lambda url: "/cases/" in url and url != first)
    page.keyboard.press("k")
    page.wait_for_url(first)
    page.keyboard.press("d")
    page.wait_for_url("**/disputes/new/*/")
    view.check()
