"""Hostile content where reviewers read it: review page, side by side, rollout and run. It is text, and nothing of it acts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from promotion.models import Candidate
from rollouts.models import Case, EvalRun, Rollout
from rollouts.services import overviews
from tests import factories
from tests.e2e.conftest import DESKTOP, PHONE, Tab
from tests.e2e.test_look import OVERFLOW
from tests.evidence_pages.conftest import asked, captured, said
from tests.evidence_pages.test_masked import failed_call
from tests.web.world import HOSTILE

pytestmark = [pytest.mark.chromium, pytest.mark.django_db(transaction=True)]
CALL = '{"city": "Oslo", "nights": 2, "note": "%s"}'


@pytest.fixture
def house(transactional_db: None) -> factories.House:
    return factories.house(calls=20, declines=20, champion=True)


def scene(house: factories.House) -> dict[str, str]:
    """Addresses by what they are. A case is lost in a dialogue whose every text is hostile; others failed."""
    candidate = house.evaluated("cand", {"named-decline-0": "wrong"}, wrong=2, masked=2)
    run = EvalRun.objects.get(label="cand")
    lost = Case.objects.get(key="named-call-0")
    for rollout in Rollout.objects.filter(case=lost).select_related("run"):
        ours = rollout.run_id == run.pk
        _dialogue(rollout, ours)
        if ours:
            Rollout.objects.filter(pk=rollout.pk).update(
                answer=HOSTILE, details={"reason": HOSTILE, HOSTILE: [HOSTILE]}
            )
    for rollout in Rollout.objects.filter(run=run, state="masked"):
        Rollout.objects.filter(pk=rollout.pk).update(failure_reason=HOSTILE)
        failed_call(rollout, body=HOSTILE.encode() + b"\x00\xff", text=HOSTILE)
    EvalRun.objects.filter(pk=run.pk).update(label=HOSTILE[:200])
    overviews.write(EvalRun.objects.select_related("suite").get(pk=run.pk))
    mine = Rollout.objects.get(run=run, case=lost)
    return {
        "review": f"/candidates/{candidate.pk}/?cases=lost",
        "case": f"/candidates/{candidate.pk}/cases/{lost.pk}/",
        "rollout": f"/rollouts/{mine.pk}/",
        "run": f"/runs/{run.pk}/",
        **_safety(candidate),
    }


def _safety(candidate: Candidate) -> dict[str, str]:
    flip = Case.objects.get(key="named-decline-0")
    return {"flip": f"/candidates/{candidate.pk}/cases/{flip.pk}/"}


def _dialogue(rollout: Rollout, ours: bool) -> None:
    opening = [{"role": "system", "content": "Decide."}, {"role": "user", "content": HOSTILE}]
    call = {"id": "c0", "function": {"name": "find", "arguments": "{}"}}
    turn = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c0", "content": HOSTILE}
    arguments = CALL % (
        "none" if not ours else HOSTILE.replace('"', "'").replace("\x1b", "").replace("\x07", "")
    )
    captured(
        rollout,
        [
            (
                asked(*opening),
                said(None, ("find", "{}"), finish="tool_calls", reasoning_content="I look first."),
            ),
            (
                asked(*opening, turn, result),
                said(None, ("book", arguments), finish=HOSTILE if ours else "stop"),
            ),
            (asked(*opening, turn, result, turn), said(HOSTILE if ours else "It is booked.")),
        ],
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desk", "phone"])
def test_hostile_content_is_visible_text_and_nothing_of_it_acts(
    house: factories.House, tab: Callable[..., Tab], scheme: str, size: tuple[int, int]
) -> None:
    found: dict[str, Any] = {}
    view, dialogs = tab(house.approver, scheme=scheme, size=size), []
    view.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    for name, path in scene(house).items():
        view.go(path)
        view.page.evaluate("document.querySelectorAll('main details').forEach(d => d.open = true)")
        problems = [*view.axe(), *view.page.evaluate("window.__violations")]
        if view.page.evaluate(OVERFLOW) > 0:
            problems.append("the page scrolls sideways")
        if view.page.locator('main script:not([src^="/static/"]), main img, main iframe').count():
            problems.append("foreign text became an element")
        if (
            name not in ("flip", "run")
            and not view.page.get_by_text('<script>alert("signed")</script>').count()
        ):
            problems.append("the hostile text is not shown")
        if problems:
            found[name] = problems
    assert found == {}
    assert dialogs == []
    view.check()


def test_the_divergence_is_one_link_away_and_a_flip_is_read_without_script(
    house: factories.House, tab: Callable[..., Tab]
) -> None:
    paths = scene(house)
    view = tab(house.approver, script=False)
    view.go(paths["case"])
    view.page.get_by_role("link", name="to where they part").click()
    assert view.page.url.endswith("#divergence")
    assert view.page.locator("#divergence").get_by_role("heading", name="Here they part").is_visible()
    view.go(paths["flip"])
    view.page.get_by_role("button", name="Mark as read").click()
    assert view.page.get_by_role("heading", name="You have read this case").is_visible()
    assert view.page.url.endswith(paths["flip"])


def test_scores_so_far_are_counted_on_demand_and_replace_the_question(
    house: factories.House, tab: Callable[..., Tab]
) -> None:
    from tests.web.measured import OPEN, WRONG, give, planned

    run = give(planned(house), lambda case, _: WRONG if case < 8 else OPEN)
    view = tab(house.engineer)
    view.go(f"/runs/{run.pk}/")
    assert view.page.get_by_role("heading", name="Scores so far").is_visible()
    view.page.get_by_role("button", name="Count what is measured so far").click()
    view.page.get_by_role("heading", name="What went wrong").wait_for(timeout=8000)
    assert view.page.url.endswith(f"/runs/{run.pk}/")
    assert view.page.get_by_role("button", name="Count again").is_visible()
    view.check()
