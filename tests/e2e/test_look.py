"""Every page, both schemes, desk and phone: axe finds nothing, the CSP blocks nothing, nothing overflows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.conftest import DESKTOP, NARROW, PHONE, Tab
from tests.web.world import World

pytestmark = [pytest.mark.chromium, pytest.mark.django_db(transaction=True)]
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def addresses(world: World) -> dict[str, list[str]]:
    """Role -> pages, each with something on it."""
    rollout, run = world.hostile_rollout, world.active_run
    wide = [f"/candidates/{world.full_r3.pk}/?cases=wrong"] if world.full_r3 else []
    return {
        "approver": ["/", f"/candidates/{world.r3.pk}/", *wide],
        "engineer": [
            "/",
            f"/candidates/{world.r2.pk}/",
            f"/candidates/{world.r3.pk}/withdraw/",
            "/tracks/",
            "/tracks/toolcaller-demo/",
            "/tracks/toolcaller-demo/submit/",
            "/tracks/toolcaller-demo/policies/1/",
            "/candidates/",
            "/policies/",
            "/runs/",
            f"/runs/{run.pk}/",
            f"/runs/{run.pk}/rollouts/",
            f"/rollouts/{rollout.pk}/",
            "/suites/",
            "/suites/gauntlet/1/",
            f"/cases/{rollout.case_id}/",
            "/backends/",
            "/backends/local/",
            "/bases/",
            "/datasets/",
            "/preflight/",
            "/accounts/password/change/",
            "/accounts/2fa/webauthn/",
            "/accounts/2fa/webauthn/add/",
            "/accounts/sso/confirm/",
            "/accounts/logout/",
        ],
        "auditor": [
            "/",
            f"/candidates/{world.champion.pk}/",
            "/registry/",
            "/registry/toolcaller-demo/1/",
            "/audit/",
        ],
        "": ["/accounts/login/", "/accounts/inactive/", "/nothing-here/"],
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desk", "phone"])
def test_axe_and_the_csp_have_nothing_to_say(
    scene: World, tab: Callable[..., Tab], scheme: str, size: tuple[int, int]
) -> None:
    found = {}
    for role, paths in addresses(scene).items():
        view = tab(getattr(scene.house, role) if role else None, scheme=scheme, size=size)
        for path in paths:
            view.go(path)
            problems = [*view.axe(), *view.page.evaluate("window.__violations")]
            if view.page.evaluate(OVERFLOW) > 0:
                problems.append("the page scrolls sideways")
            if problems:
                found[f"{role} {path}"] = problems
        assert view.complaints == []
    assert found == {}


def test_nothing_but_tables_scrolls_sideways_at_400_percent(scene: World, tab: Callable[..., Tab]) -> None:
    for role, paths in addresses(scene).items():
        view = tab(getattr(scene.house, role) if role else None, size=NARROW)
        for path in paths:
            view.go(path)
            assert view.page.evaluate(OVERFLOW) <= 0, path


def test_the_sign_off_follows_the_evidence_on_a_phone(road: World, tab: Callable[..., Tab]) -> None:
    view = tab(road.house.approver, size=PHONE)
    view.go(f"/candidates/{road.r3.pk}/")
    tops = [view.page.locator(selector).bounding_box()["y"] for selector in ("#gates-h", "#lin-h", "#sign")]
    assert tops == sorted(tops)


def test_the_rail_stays_beside_the_evidence_on_a_desk(road: World, tab: Callable[..., Tab]) -> None:
    view = tab(road.house.approver)
    view.go(f"/candidates/{road.r3.pk}/")
    before = view.page.locator("#sign").bounding_box()
    view.page.mouse.wheel(0, 2000)
    while view.page.evaluate("window.scrollY") <= 1500:
        view.page.wait_for_timeout(50)
    after = view.page.locator("#sign").bounding_box()
    assert before["x"] == after["x"]
    assert 0 <= after["y"] <= before["y"]


def test_a_printed_review_is_a_record(road: World, tab: Callable[..., Tab]) -> None:
    view = tab(road.house.approver, scheme="dark")
    view.go(f"/candidates/{road.r3.pk}/")
    page = view.page
    assert not page.locator("#cases details.row pre").nth(4).is_visible(), "closed on the screen"
    page.emulate_media(media="print")
    assert page.locator("#cases details.row pre").nth(4).is_visible()
    for gone in ("header.bar", "footer.foot", "#sign form", "#cases nav.tabs", "button"):
        assert page.locator(f"{gone} >> visible=true").count() == 0, gone
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    digest = page.locator(".head .digest").get_attribute("title")
    printed = page.evaluate("getComputedStyle(document.querySelector('.head .digest'), '::after').content")
    assert digest in printed
    dated = page.evaluate("getComputedStyle(document.querySelector('.head time'), '::after').content")
    assert "UTC" in dated
    assert page.evaluate(OVERFLOW) <= 0
