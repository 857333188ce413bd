"""Pages on which people act on a review: glass, disputes, threads, cases, signatures, passkeys. Both schemes, desk and phone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from promotion.services import disputes, threads
from rollouts.models import Case
from tests import factories
from tests.e2e.conftest import DESKTOP, PHONE, Tab
from tests.e2e.test_look import OVERFLOW
from tests.rule.worlds import break_glass, breakable, breaker

pytestmark = [pytest.mark.chromium, pytest.mark.django_db(transaction=True)]
NO_TOOL = {"decision": "no_tool"}


def scene() -> tuple[factories.House, dict[str, list[str]]]:
    """Person -> addresses: something broken, disputed, discussed, signed and lost stands on them."""
    house = breakable(calls=20, declines=20, champion=True)
    house.administrator = breaker()
    broken = break_glass(house.evaluated("broken"), house.administrator)
    signed = house.evaluated("signed")
    factories.sign(signed, house.approver)
    talked = house.evaluated("talked", {"named-call-1": "wrong", "named-decline-1": "wrong"})
    lost, disputed = (
        Case.objects.get(suite=house.suite, key=key) for key in ("named-decline-1", "named-call-1")
    )
    dispute = disputes.raise_dispute(
        candidate_id=talked.pk,
        case_id=disputed.pk,
        evidence_digest=factories.digest_of(talked),
        expected=NO_TOOL,
        reason="The request names no file, so no call can be right.",
        by=house.engineer,
    )
    threads.start(candidate_id=talked.pk, anchor="page", text="Why did mail get worse?", by=house.approver)
    review = f"/candidates/{talked.pk}/"
    return house, {
        "approver": [
            "/",
            review,
            f"{review}?comment=case:{lost.pk}",
            f"{review}cases/{lost.pk}/",
            f"{review}cases/{disputed.pk}/",
            f"{review}disputes/{dispute.pk}/",
            f"/candidates/{signed.pk}/",
            f"/candidates/{signed.pk}/withdraw-signature/",
            f"/glass/{broken.pk}/",
            "/accounts/2fa/webauthn/",
        ],
        "engineer": [
            "/",
            review,
            f"{review}disputes/new/{lost.pk}/",
            f"{review}waivers/ask/",
            f"{review}datasets/",
        ],
        "administrator": [
            "/",
            f"{review}break-glass/",
            f"/candidates/{broken.candidate_id}/",
            "/tracks/toolcaller/",
        ],
        "auditor": [review, "/registry/", "/candidates/", "/policies/"],
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desk", "phone"])
def test_axe_and_the_csp_have_nothing_to_say_of_pages_to_act_on(
    transactional_db: None, tab: Callable[..., Tab], scheme: str, size: tuple[int, int]
) -> None:
    house, pages = scene()
    found = {}
    for role, paths in pages.items():
        view = tab(getattr(house, role), scheme=scheme, size=size)
        for path in paths:
            status = view.go(path).status
            view.page.evaluate("document.querySelectorAll('main details').forEach(d => d.open = true)")
            problems = [*view.axe(), *view.page.evaluate("window.__violations")]
            if status != 200:
                problems.append(f"status {status}")
            if view.page.evaluate(OVERFLOW) > 0:
                problems.append("the page scrolls sideways")
            if problems:
                found[f"{role} {path}"] = problems
        assert view.complaints == []
    assert found == {}
