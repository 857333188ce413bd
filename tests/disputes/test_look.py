"""The dispute pages in a browser: axe finds nothing, the CSP blocks nothing, nothing overflows, and all works without script."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.urls import reverse

from promotion.models import Candidate, Dispute
from tests.disputes.conftest import REASON, RESOLUTION, accepted, case_of, raised, rollout_of
from tests.e2e.conftest import (
    DESKTOP,
    PHONE,
    Tab,
    _database_beside_a_loop,
    _nothing_is_sent,
    _static_folder,
    chromium,
    tab,
)
from tests.e2e.test_look import OVERFLOW
from tests.factories import House
from tests.web.world import HOSTILE

__all__ = ["_database_beside_a_loop", "_nothing_is_sent", "_static_folder", "chromium", "tab"]
pytestmark = [pytest.mark.chromium, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desk", "phone"])
def test_axe_and_the_csp_have_nothing_to_say(
    house: House,
    candidate: Candidate,
    tab: Callable[..., Tab],
    scheme: str,
    size: tuple[int, int],
) -> None:
    done = accepted(house, candidate)
    standing = raised(house, candidate, "named-call-1", reason=HOSTILE[:2000])
    pages = [
        reverse("promotion:dispute-new", args=[candidate.pk, case_of(house, "named-call-2").pk]),
        reverse("promotion:dispute", args=[candidate.pk, standing.pk]),
        reverse("promotion:dispute", args=[candidate.pk, done.pk]),
        reverse("promotion:candidate", args=[candidate.pk]),
        reverse("rollouts:rollout", args=[rollout_of("first").pk]),
        reverse("rollouts:case", args=[case_of(house).pk]),
    ]
    view, found = tab(house.approver, scheme=scheme, size=size), {}
    for path in pages:
        view.go(path)
        problems = [*view.axe(), *view.page.evaluate("window.__violations")]
        if view.page.evaluate(OVERFLOW) > 0:
            problems.append("the page scrolls sideways")
        if problems:
            found[path] = problems
    assert view.complaints == []
    assert found == {}


def test_a_dispute_goes_from_one_person_to_another_without_script(
    house: House,
    candidate: Candidate,
    tab: Callable[..., Tab],
) -> None:
    engineer = tab(house.engineer, script=False)
    engineer.go(reverse("promotion:dispute-new", args=[candidate.pk, case_of(house).pk]))
    engineer.page.fill("#id_expected", '{"decision": "no_tool"}')
    engineer.page.fill("#id_reason", REASON)
    engineer.page.click("text=Raise the dispute")
    dispute = Dispute.objects.get()

    approver = tab(house.approver, script=False)
    approver.go(reverse("promotion:dispute", args=[candidate.pk, dispute.pk]))
    approver.page.fill("#id_resolution", RESOLUTION)
    approver.page.click("text=Accept: amend the case for every run")

    dispute.refresh_from_db()
    assert dispute.state == "accepted"
    assert case_of(house).amended_expected == {"decision": "no_tool"}
