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
            "/accounts/password/change/",
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


def test_nothing_scrolls_sideways_at_360_pixels(scene: World, tab: Callable[..., Tab]) -> None:
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
