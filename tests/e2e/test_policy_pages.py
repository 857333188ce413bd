"""The policy editor, the lock and a waiver's pages in a real browser: usable without script, nothing for axe to say."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from promotion.models import Candidate, Policy, Waiver
from promotion.services import policies, waivers
from tests import factories
from tests.e2e.conftest import DESKTOP, NARROW, PHONE, Tab
from tests.web.world import HOSTILE, World

pytestmark = [pytest.mark.chromium, pytest.mark.django_db(transaction=True)]
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
GATE = "generalization_accuracy_floor"


@pytest.fixture
def draft(road: World) -> Policy:
    """Looser than what is in force, with a hostile note."""
    policy = policies.previous(Policy(track=road.track, version=99))
    assert policy is not None
    document = copy.deepcopy(policy.document) | {"note": HOSTILE.replace("\x07", "")}
    for entry in document["gates"]:
        if "min" in entry:
            entry["min"] = "0.5"
    writer = factories.person("writer", "administrator")
    return policies.draft(track=road.track, document=document, by=writer)


@pytest.fixture
def asked(road: World) -> Waiver:
    (suite,) = {e["suite"] for e in road.track.policies.all()[0].document["gates"] if e["gate"] == GATE}
    return waivers.request(
        candidate_id=road.r2.pk, gate=GATE, suite_digest=suite, reason=HOSTILE, days=7, by=road.house.engineer
    )


def pages(road: World, draft: Policy, asked: Waiver) -> dict[str, list[str]]:
    track, candidate = f"/tracks/{road.track.name}", f"/candidates/{road.r2.pk}"
    return {
        "administrator": [f"{track}/policies/draft/", f"{track}/policies/{draft.version}/", f"{track}/"],
        "approver": [f"{track}/policies/{draft.version}/diff/", f"{candidate}/waivers/{asked.pk}/", "/"],
        "engineer": [f"{candidate}/waivers/ask/", f"{candidate}/"],
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_and_the_csp_have_nothing_to_say(
    road: World, draft: Policy, asked: Waiver, tab: Callable[..., Tab], scheme: str
) -> None:
    found = {}
    for size in (DESKTOP, PHONE, NARROW):
        for role, paths in pages(road, draft, asked).items():
            view = tab(getattr(road.house, role), scheme=scheme, size=size)
            for path in paths:
                view.go(path)
                problems = [*view.axe(), *view.page.evaluate("window.__violations")]
                if view.page.evaluate(OVERFLOW) > 0:
                    problems.append("the page scrolls sideways")
                if problems:
                    found[f"{role} {path} {size}"] = problems
            assert view.complaints == []
    assert found == {}


def test_a_version_is_written_found_wrong_mended_and_locked_without_script(
    road: World, tab: Callable[..., Tab]
) -> None:
    author = tab(road.house.administrator, script=False)
    author.go(f"/tracks/{road.track.name}/")
    author.page.click("text=write a version")
    author.page.locator('input[name$="-min"]').first.fill("0.999")
    author.page.click("text=Apply the form")
    assert "needs at least 2995 of 2995" in author.page.inner_text("[role=alert]")
    author.page.locator('[role=alert] a[href^="#id_gate"]').first.click()
    field = author.page.locator('input[aria-invalid="true"]')
    assert field.input_value() == "0.999"
    field.fill("0.70")
    # Enter in a field applies the form; nothing is saved by it
    field.press("Enter")
    assert "It fits" in author.page.inner_text("main")
    assert not Policy.objects.filter(track=road.track, locked_at=None).exists()
    author.page.click("text=Save the form as draft")
    assert "could let more pass" in author.page.inner_text("main")

    locker = tab(road.house.approver, script=False)
    locker.go(f"/tracks/{road.track.name}/policies/2/")
    locker.page.click("text=Lock it")
    assert "loosened" in locker.page.inner_text("main")
    locker.page.click("button:has-text('Lock version 2')")
    assert "Version 2 is locked" in locker.page.inner_text("main")
    assert Policy.objects.get(track=road.track, version=2).locked_by == road.house.approver


def test_a_waiver_is_asked_for_and_granted_without_script(road: World, tab: Callable[..., Tab]) -> None:
    engineer = tab(road.house.engineer, script=False)
    engineer.go(f"/candidates/{road.r2.pk}/")
    engineer.page.click("text=Ask for a waiver")
    engineer.page.locator("select[name=gate]").select_option(index=1)
    engineer.page.fill("textarea[name=reason]", "Known, and harmless here.")
    engineer.page.click("text=Ask for it")
    assert "requested" in engineer.page.inner_text("main")

    approver = tab(road.house.approver, script=False)
    approver.go("/")
    approver.page.click("section[aria-labelledby=waivers-h] a")
    approver.page.click("text=Grant the waiver")
    assert "judged again" in approver.page.inner_text("[role=status]")
    assert Waiver.objects.get().granted_by == road.house.approver
    assert Candidate.objects.get(pk=road.r2.pk).revision > road.r2.revision
