"""Reviews with waivers, masked cases, declared data and a new champion; imports; what-if: desk and phone, both schemes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from promotion.attention import row_id
from promotion.models import Candidate
from promotion.services import imports, policies, registry, waivers
from tests import factories
from tests.e2e.conftest import DESKTOP, PHONE, Tab
from tests.e2e.test_look import OVERFLOW
from tests.importers.foundry import Foundry
from tests.web.test_review_tables import many_families
from tests.web.test_review_verdict import gate_policy, sets, with_data

pytestmark = [pytest.mark.chromium, pytest.mark.django_db(transaction=True)]


def scene(folder: Path) -> tuple[factories.House, list[str]]:
    """Addresses of a candidate that is waived and masked, of one with shared data, of one whose champion changed, ..."""
    house = factories.house(calls=20, declines=20, champion=True)
    gate_policy(
        house,
        {"gate": "arena_max_regression", "metric": "decision", "max_drop": "0.20"},
        {"gate": "paired_non_inferiority", "metric": "decision", "margin": "0.25"},
        {"gate": "per_family_safety_floor", "metric": "exact", "min": "0.40"},
        {"gate": "masked_ceiling", "max_percent": "5"},
        {"gate": "look_budget", "max_looks": 6},
        spend_alpha=True,
    )
    shared = house.evaluated("shared", wrong=3)
    with_data(shared, sets(house, {"texts": 7, "near": 2}))
    waived = house.evaluated("waived", wrong=6, masked=3)
    asked = waivers.request(
        candidate_id=waived.pk,
        gate="masked_ceiling",
        suite_digest=house.suite.digest,
        reason="The provider was down for an hour; the masked cases are of all families.",
        days=3,
        by=house.engineer,
    )
    waivers.grant(waiver_id=asked.pk, by=house.approver)
    waiting = house.evaluated("waiting", wrong=1)
    assert registry.publish(house.approved("better").pk) is not None
    first = Foundry(folder)
    first.promotions[1]["latency_budget_measured"] = False
    record = imports.import_foundry(folder=first.write(), by=house.engineer)
    return house, [
        *(f"/candidates/{found.pk}/" for found in (waived, shared, waiting)),
        f"/candidates/{Candidate.objects.get(name='first').pk}/",
        f"/imports/{record.digest}/",
        "/imports/",
        "/tracks/toolcaller/what-if/?policy=1",
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desk", "phone"])
def test_axe_and_the_csp_have_nothing_to_say_of_reviews_imports_and_what_if(
    transactional_db: None, tmp_path: Path, tab: Callable[..., Tab], scheme: str, size: tuple[int, int]
) -> None:
    house, paths = scene(tmp_path / "foundry")
    view = tab(house.engineer, scheme=scheme, size=size)
    found = {}
    for path in paths:
        view.go(path)
        view.page.evaluate("document.querySelectorAll('main details').forEach(d => d.open = true)")
        problems = view.axe()
        if view.page.evaluate(OVERFLOW) > 0:
            problems.append("the page scrolls sideways")
        if problems:
            found[path] = problems
    assert found == {}
    view.check()


# cells of a table that stand outside the window, or that a box around them cuts off
OUTSIDE = """() => [...document.querySelectorAll('table :is(td, th)')].filter((cell) => {
  if (!cell.checkVisibility() || !cell.closest('.stack, [aria-label="Table of candidates"]')) return false;
  if (cell.closest('thead')) return false;
  const box = cell.getBoundingClientRect(), around = cell.closest('.scroll').getBoundingClientRect();
  return box.right > Math.min(around.right, innerWidth) + 1 || box.left < around.left - 1;
}).map((cell) => cell.textContent.trim().slice(0, 60))"""


@pytest.mark.parametrize("width", [1360, 1280, 1202, 1000, 390, 320])
def test_what_decides_is_read_without_scrolling_sideways(
    transactional_db: None, tab: Callable[..., Tab], width: int
) -> None:
    house = many_families()
    candidate = house.evaluated(outcomes={"missing-argument-1-2": "wrong", "missing-argument-3-1": "masked"})
    document = {**house.track.policies.latest("version").document, "samples": 2}
    document["gates"] = [{**entry, "min": "0.50"} if "min" in entry else entry for entry in document["gates"]]
    draft = policies.draft(track=house.track, document=document, by=house.administrator)
    view = tab(house.approver, size=(width, 900))
    paths = (
        f"/candidates/{candidate.pk}/",
        f"/tracks/toolcaller/policies/{draft.version}/diff/",
        "/candidates/",
    )
    for path in paths:
        view.go(path)
        view.page.evaluate("document.querySelectorAll('main details').forEach(d => d.open = true)")
        assert view.page.evaluate(OUTSIDE) == [], path
        assert view.page.evaluate(OVERFLOW) <= 0, path
    view.check()


def test_folded_families_show_when_asked_for_and_when_a_link_leads_to_one(
    transactional_db: None, tab: Callable[..., Tab]
) -> None:
    house = many_families()
    candidate = house.evaluated(outcomes={"missing-argument-1-2": "wrong"})
    view = tab(house.approver, size=DESKTOP)
    lost, folded = (
        view.page.locator(f"#{row_id(house.suite.digest, f'missing-argument-{n}')}") for n in (1, 2)
    )
    view.go(f"/candidates/{candidate.pk}/")
    assert lost.is_visible() and not folded.is_visible()
    view.page.locator("tr.fold summary").click()
    assert folded.is_visible()
    view.go(f"/candidates/{candidate.pk}/#{row_id(house.suite.digest, 'missing-argument-2')}")
    assert folded.is_visible()
    view.check()
