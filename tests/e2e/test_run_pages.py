"""The page of a run at work and the form of a new one, as a person with a browser meets them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rollouts.models import EvalRun, Rollout
from tests import factories
from tests.e2e.conftest import DESKTOP, PHONE, Tab
from tests.web.measured import MASKED, OPEN, POISONED, RIGHT, WRONG, claim, give, planned

pytestmark = [pytest.mark.chromium, pytest.mark.django_db(transaction=True)]
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# every change that assistive technology would read aloud
LISTEN = """window.__said = []; const region = document.querySelector('#progress [role=status]');
new MutationObserver(() => window.__said.push(region.textContent))
  .observe(region, {childList: true, characterData: true, subtree: true, attributes: true}); region.textContent"""


@pytest.fixture
def house(transactional_db: None) -> factories.House:
    return factories.house()


@pytest.fixture
def run(house: factories.House) -> EvalRun:
    """Two samples of 20 cases: 12 rollouts ended, 28 queued."""
    outcomes = [RIGHT, WRONG, MASKED, POISONED, RIGHT, RIGHT]
    run = give(planned(house, samples=2), lambda case, _: outcomes[case] if case < 6 else OPEN)
    claim(run, age_s=10, done=12, cost_microusd=40)
    details = {"checks": [{"op": "contains", "arg": "rain", "passed": True}], "mismatches": ["one", "two"]}
    Rollout.objects.filter(run=run, state="scored").update(details=details, tool_evidence="none", score=1.0)
    return run


def test_live_progress_keeps_the_focus_and_is_read_aloud_at_tenths_only(
    house: factories.House, run: EvalRun, tab: Callable[..., Tab]
) -> None:
    view, page = (opened := tab(house.auditor)), opened.page
    view.go(f"/runs/{run.pk}/")
    assert page.evaluate(LISTEN) == "30 percent of 40 rollouts have ended."
    page.locator("#progress dd a").first.focus()
    queued = list(run.rollouts.filter(state="queued").order_by("id").values_list("pk", flat=True))
    Rollout.objects.filter(pk__in=queued[:3]).update(**RIGHT)
    page.get_by_text("15 of 40 rollouts have ended.").wait_for(timeout=8000)
    assert page.evaluate("window.__said") == []
    assert page.evaluate("document.activeElement.closest('#progress dd') !== null")
    Rollout.objects.filter(pk__in=queued[:5]).update(**RIGHT)
    page.get_by_text("17 of 40 rollouts have ended.").wait_for(timeout=8000)
    page.wait_for_function("window.__said.length > 0")
    assert page.evaluate("window.__said") == ["40 percent of 40 rollouts have ended."]
    view.check()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desk", "phone"])
def test_axe_and_the_csp_have_nothing_to_say(
    house: factories.House, run: EvalRun, tab: Callable[..., Tab], scheme: str, size: tuple[int, int]
) -> None:
    view, found = tab(house.engineer, scheme=scheme, size=size), {}
    rollout = run.rollouts.filter(state="scored")[0]
    for path in (f"/runs/{run.pk}/", f"/rollouts/{rollout.pk}/", "/runs/new/", "/runs/"):
        view.go(path)
        if problems := view.axe():
            found[path] = problems
        assert view.page.evaluate(OVERFLOW) <= 0, path
    assert found == {}
    view.check()


def test_a_run_is_started_without_script(house: factories.House, tab: Callable[..., Tab]) -> None:
    factories.remote_backend(house.engineer, "http://127.0.0.1:9/v1")
    view, page = (opened := tab(house.engineer, script=False)), opened.page
    view.go("/runs/")
    page.get_by_role("link", name="New run").click()
    page.get_by_label("Suite").select_option(label="named v1 (20 cases, scored by decision)")
    page.get_by_label("Backend", exact=True).select_option("scripted")
    page.get_by_label("Label").fill("by hand")
    page.get_by_label("Most calls").fill("7")
    page.get_by_role("button", name="Start the run").click()
    # neither a base model nor a remote one was named
    assert page.get_by_text("Give exactly one").is_visible()
    assert page.get_by_label("Label").input_value() == "by hand"
    assert page.get_by_label("Most calls").input_value() == "7"
    page.get_by_label("Remote model").fill("gpt-large")
    page.get_by_role("button", name="Start the run").click()
    assert page.get_by_role("heading", name="by hand on named").is_visible()
    assert EvalRun.objects.get().budget == {"calls": 7}
