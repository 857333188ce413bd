"""The pages of the rule in a browser: axe finds nothing, the CSP blocks nothing, nothing scrolls sideways."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from promotion.models import BrokenGlass
from promotion.services import glass, registry
from tests.e2e.conftest import DESKTOP, PHONE, Tab
from tests.e2e.conftest import _database_beside_a_loop as _database_beside_a_loop
from tests.e2e.conftest import _nothing_is_sent as _nothing_is_sent
from tests.e2e.conftest import _static_folder as _static_folder
from tests.e2e.conftest import chromium as chromium
from tests.e2e.conftest import tab as tab
from tests.e2e.test_look import OVERFLOW
from tests.factories import sign
from tests.rule.worlds import break_glass, breakable, breaker

pytestmark = [pytest.mark.chromium, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize(("scheme", "size"), [("light", DESKTOP), ("dark", PHONE)], ids=["desk", "phone"])
def test_axe_and_the_csp_have_nothing_to_say(
    tab: Callable[..., Tab], scheme: str, size: tuple[int, int]
) -> None:
    house, admin = breakable(champion=True), breaker()
    waiting = house.evaluated("waiting")
    sign(waiting, house.approver)
    shipped = house.evaluated("shipped")
    condemned = break_glass(shipped, admin)
    entry = registry.publish(shipped.pk)
    glass.review_glass(
        glass_id=condemned.pk, by=house.approver, verdict="condemned", comment="It could wait."
    )
    house.measure(house.candidate("alarm"))
    open_glass: BrokenGlass = break_glass(house.track.candidates.get(name="alarm"), admin)
    house.measure(waiting)
    sign(waiting, house.approver)
    assert entry is not None
    pages = {
        admin: [f"/candidates/{waiting.pk}/", f"/candidates/{waiting.pk}/break-glass/", "/"],
        house.approver: [
            f"/candidates/{waiting.pk}/withdraw-signature/",
            f"/glass/{open_glass.pk}/",
            f"/candidates/{open_glass.candidate_id}/",
        ],
        house.auditor: [
            "/",
            f"/glass/{condemned.pk}/",
            f"/registry/{house.track.name}/{entry.number}/",
            f"/tracks/{house.track.name}/",
        ],
    }
    found = {}
    for person, paths in pages.items():
        view = tab(person, scheme=scheme, size=size)
        for path in paths:
            assert view.go(path).status == 200, path
            problems = [*view.axe(), *view.page.evaluate("window.__violations")]
            if view.page.evaluate(OVERFLOW) > 0:
                problems.append("the page scrolls sideways")
            if problems:
                found[path] = problems
        assert view.complaints == []
    assert found == {}
