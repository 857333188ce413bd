"""What people do in the browser, step by step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.utils import timezone

from promotion.models import Approval
from promotion.services import registry
from rollouts.models import EvalRun, Rollout
from rollouts.services import runs
from tests import factories
from tests.e2e.conftest import PASSWORD, Tab
from tests.web import world as worlds
from tests.web.world import World

pytestmark = [pytest.mark.chromium, pytest.mark.django_db(transaction=True)]


def test_an_approver_signs_in_signs_and_the_export_is_given_out(road: World, tab: Callable[..., Tab]) -> None:
    view, page = (opened := tab()), opened.page
    view.go(f"/candidates/{road.r3.pk}/")
    page.get_by_label("User name").fill("approver")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    assert page.url.endswith(f"/candidates/{road.r3.pk}/")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_label("Password").press("Enter")
    page.wait_for_timeout(300)
    assert not Approval.objects.filter(candidate=road.r3).exists(), "Enter must not sign"
    page.get_by_role("button", name="Sign ", exact=False).first.click()
    assert page.get_by_text("Say what your signature means.").first.is_visible()
    page.get_by_label("I authorise the release").check()
    page.locator("#id_comment").fill("Fit for the demo.")
    page.locator("#unopened > summary").click()
    page.get_by_label("Why you left these unopened").fill("They are known from the round before.")
    page.get_by_label("Password").fill(PASSWORD)
    page.locator("button[value=approve]").click()
    assert page.get_by_text("Recorded: you signed").is_visible()
    assert registry.publish(road.r3.pk) is not None
    view.go("/registry/toolcaller-demo/2/")
    with page.expect_download() as download:
        page.get_by_role("link", name="r3-f16.gguf").click()
    assert download.value.suggested_filename == "r3-f16.gguf"
    view.check()


def test_the_submitter_finds_no_form_and_a_blocked_candidate_none_either(
    road: World, tab: Callable[..., Tab]
) -> None:
    view = tab(road.house.engineer)
    view.go(f"/candidates/{road.r3.pk}/")
    assert view.page.get_by_text("engineer may not sign").is_visible()
    assert view.page.locator("button[value=approve]").count() == 0
    view = tab(road.house.approver)
    view.go(f"/candidates/{road.r2.pk}/")
    assert view.page.get_by_role("heading", name="Blocked").first.is_visible()
    assert view.page.locator("button[value=approve]").count() == 0
    view.check()


def test_evidence_that_changed_after_opening_is_refused_with_the_difference(
    road: World, tab: Callable[..., Tab]
) -> None:
    view, page = (opened := tab(road.house.approver)), opened.page
    view.go(f"/candidates/{road.r3.pk}/")
    page.get_by_label("I reviewed the evidence").check()
    page.locator("#id_comment").fill("Looks right.")
    page.get_by_label("Password").fill(PASSWORD)
    run = EvalRun.objects.get(label="r3", suite__name="fabrication")
    first = run.rollouts.filter(safe=True).order_by("id").first()
    Rollout.objects.filter(pk=first.pk).update(safe=False, decision=False, exact=False)
    EvalRun.objects.filter(pk=run.pk).update(state="running", finished_at=None)
    assert runs.close_if_done(run.pk)
    page.locator("button[value=approve]").click()
    assert page.get_by_text("the evidence changed since the page you answered").is_visible()
    assert page.get_by_text("fabrication, candidate: safe right 140 of 160 is now 139 of 160.").is_visible()
    assert page.locator("#id_comment").input_value() == "Looks right."
    assert page.get_by_label("Password").input_value() == ""
    assert not Approval.objects.filter(candidate=road.r3).exists()
    view.check()


def test_progress_moves_by_itself_and_stops_when_the_run_ends(road: World, tab: Callable[..., Tab]) -> None:
    view, page, run = (opened := tab(road.house.engineer)), opened.page, road.active_run
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url) if "htmx" not in request.url else None)
    view.go(f"/runs/{run.pk}/")
    assert page.get_by_text("10 of 24 rollouts have ended.").is_visible()
    rollouts = list(run.rollouts.select_related("case").filter(state="queued").order_by("id"))
    for rollout in rollouts:
        worlds.score_with(rollout, worlds.results_of("r1")[rollout.case.key])
        rollout.finished_at = timezone.now()
    factories.write(rollouts[:4])
    page.get_by_text("14 of 24 rollouts have ended.").wait_for(timeout=8000)
    factories.write(rollouts)
    assert runs.close_if_done(run.pk)
    page.get_by_role("button", name="Run again what failed").wait_for(timeout=8000)
    assert page.locator("[hx-get]").count() == 0
    seen = len(requests)
    page.wait_for_timeout(2600)
    assert len(requests) == seen, "a run that has ended is not asked for again"
    view.check()


def test_everything_but_progress_works_without_script(road: World, tab: Callable[..., Tab]) -> None:
    view, page = (opened := tab(script=False)), opened.page
    view.go("/accounts/login/")
    page.get_by_role("button", name="Dark").click()
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.get_by_label("User name").fill("approver")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="r3").first.click()
    page.locator("details.row summary").nth(1).click()
    page.get_by_role("link", name="Wrong to right").click()
    assert "cases=won" in page.url
    page.locator("#id_comment").fill("The mail family went wrong five times.")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Request changes").click()
    assert page.get_by_text("Recorded: you sent r3 back").is_visible()
    assert page.get_by_text("The mail family went wrong five times.").first.is_visible()
    view.go("/audit/")
    page.get_by_label("Action").select_option("candidate.request_changes")
    page.get_by_role("button", name="Filter").click()
    assert page.locator("tbody tr").count() == 1


def test_the_keyboard_reaches_the_content_first(road: World, tab: Callable[..., Tab]) -> None:
    view, page = (opened := tab(road.house.auditor)), opened.page
    view.go("/tracks/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
