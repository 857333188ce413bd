"""Where the line lies between what must be opened and what need not be: spent alpha, margins, and the most cases listed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from decimal import ROUND_FLOOR, Decimal
from typing import Any

import pytest

from promotion import panels
from promotion.attention import margin_on, near_threshold
from promotion.comparing import comparisons_of
from promotion.evidence import document_of
from promotion.models import Candidate, Evidence
from promotion.panels import must_open
from promotion.services import policies, tracks
from rollouts.models import Comparison
from tests import factories
from tests.gates.documents import SUITE, Prompts, document, suite_of, with_policy, with_run

OTHER = "b" * 64
RIGHT = 40
FLOOR = {"gate": "confidence_lower_bound", "suite": SUITE, "metric": "decision", "alpha": "0.05"}
FAMILIES = {**FLOOR, "gate": "per_family_safety_floor"}
PAIRED = {"gate": "paired_non_inferiority", "suite": SUITE, "metric": "json_valid"}
DROP = {"gate": "arena_max_regression", "suite": SUITE, "metric": "decision"}
MARGIN = Decimal("0.02")


def judged(*gates: dict[str, Any], lost: int = 0, look: int = 1, spend: bool = False) -> dict[str, Any]:
    """Evidence of 40 prompts, of which the candidate lost some to the champion, at a look."""
    prompts = [
        Prompts("calls", True, "right", "right", RIGHT - lost),
        Prompts("calls", True, "wrong", "right", lost),
    ]
    made = with_run(document(suite_of([part for part in prompts if part.times])), look=look)
    entries = [*gates, {"gate": "human_approval_record"}]
    return with_policy(made, gates=entries, spend_alpha=spend)


def gates_near(*gates: dict[str, Any], **how: Any) -> list[str]:
    return [near.gate for near in near_threshold(judged(*gates, **how))]


# the alpha that is spent


def bound(alpha: Decimal) -> Decimal:
    """Of as many right as there are: the one case in which the bound is a plain root."""
    return alpha ** (1 / Decimal(RIGHT))


def spent(look: int) -> Decimal:
    return Decimal("0.05") / (look * (look + 1))


@pytest.mark.parametrize("gate", [FLOOR, FAMILIES], ids=["suite", "family"])
@pytest.mark.parametrize("look", [1, 2, 5])
def test_the_alpha_that_the_look_may_spend_decides_what_is_near(gate: dict[str, Any], look: int) -> None:
    """The floor leaves a margin and a little more by the whole alpha, and less than a margin by the spent one."""
    least = (bound(Decimal("0.05")) - MARGIN).quantize(Decimal("0.0001"), rounding=ROUND_FLOOR)
    assert bound(spent(look)) - least < MARGIN <= bound(Decimal("0.05")) - least
    floor = {**gate, "min": str(least)}

    assert near_threshold(judged(floor, look=look)) == []
    (near,) = near_threshold(judged(floor, look=look, spend=True))

    assert near.room == (bound(spent(look)) - least).quantize(Decimal("0.0001"), rounding=ROUND_FLOOR)


def test_each_further_look_brings_the_same_counts_nearer() -> None:
    floor = {
        **FLOOR,
        "min": str((bound(spent(2)) - MARGIN).quantize(Decimal("0.0001"), rounding=ROUND_FLOOR)),
    }

    assert [bool(near_threshold(judged(floor, look=look, spend=True))) for look in (1, 2, 3, 4)] == [
        False,
        False,
        True,
        True,
    ]


# the margin


def entries(name: str, *values: str, suite: str = SUITE) -> list[dict[str, Any]]:
    return [{"gate": "g", "suite": suite, "metric": "decision", name: value} for value in values]


def given(*gates: dict[str, Any]) -> str:
    return str(margin_on({"gates": list(gates)}, SUITE))


@pytest.mark.parametrize("name", ["margin", "max_drop"])
@pytest.mark.parametrize("order", [1, -1], ids=["small first", "large first"])
def test_of_several_margins_on_a_suite_the_largest_says_what_is_near(name: str, order: int) -> None:
    values = ["0.01", "0.03", "0.10"][::order]

    assert given(*entries(name, *values)) == "0.10"


def test_a_margin_comes_before_an_allowed_drop_and_another_suites_are_no_measure() -> None:
    elsewhere = entries("margin", "0.50", suite=OTHER)

    assert given(*entries("max_drop", "0.10"), *entries("margin", "0.03")) == "0.03"
    assert given(*entries("max_drop", "0.10"), *elsewhere) == "0.10"
    assert given(*elsewhere) == "0.02"


@pytest.mark.parametrize("order", [1, -1], ids=["small first", "large first"])
def test_a_floor_is_near_by_the_largest_margin_of_its_suite(order: int) -> None:
    """40 of 40 have the bound 0.9278: 0.0778 to spare."""
    floor = {**FAMILIES, "min": "0.85"}
    small, large = {**PAIRED, "margin": "0.03"}, {**PAIRED, "metric": "tool", "margin": "0.10"}

    assert floor["gate"] not in gates_near(floor, small)
    assert floor["gate"] in gates_near(floor, *[small, large][::order])


@pytest.mark.parametrize(("allowed", "near"), [("0.124999", True), ("0.125000", False), ("0.125001", False)])
def test_what_has_exactly_a_margin_to_spare_is_not_near(allowed: str, near: bool) -> None:
    """One of 40 lost is a drop of 0.025; the margin is 0.10."""
    gates = ({**DROP, "max_drop": allowed}, {**PAIRED, "margin": "0.10"})

    assert (DROP["gate"] in gates_near(*gates, lost=1)) is near


# the most cases


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits as they are, and small, so that a test needs few cases."""
    assert (panels.MOST_CASES, panels.MOST_WITHOUT_CHAMPION) == (200, 25)
    monkeypatch.setattr(panels, "MOST_CASES", 5)
    monkeypatch.setattr(panels, "MOST_WITHOUT_CHAMPION", 3)


def comparison_of(candidate: Candidate) -> Comparison:
    (found,) = (comparisons_of(_document(candidate)) or {}).values()
    return found


def _document(candidate: Candidate) -> dict[str, Any]:
    return document_of(Evidence.objects.get(digest=factories.digest_of(candidate)))


def listed(*found: Comparison) -> panels.MustOpen:
    """The cases alone: a document without a policy has no bounds."""
    by_suite = {str(number): each for number, each in enumerate(found)}
    return must_open({"policy": None, "suites": []}, by_suite)


def wrong(house: factories.House, numbers: Iterable[int]) -> dict[str, str]:
    return {f"{house.suite.name}-decline-{number}": "wrong" for number in numbers}


@pytest.fixture
def house(db: None, sent: Any) -> factories.House:
    return factories.house(calls=1, declines=8, gates=[], champion=True)


@pytest.fixture
def alone(house: factories.House) -> factories.House:
    """Another track on the same suite, without a champion."""
    track = tracks.create(name="alone", purpose="p", by=house.administrator)
    draft = policies.draft(
        track=track, document=factories.policy_document([house.suite]), by=house.administrator
    )
    locked = policies.lock(policy_id=draft.pk, by=house.administrator)
    return replace(house, track=track, policy=locked, champion=None)


@pytest.mark.parametrize(
    ("lost", "without", "shown", "left_out"),
    [(2, 3, 5, 0), (4, 3, 5, 2), (5, 3, 5, 3), (8, 3, 5, 6), (8, 0, 5, 3), (0, 3, 3, 0)],
)
def test_lost_and_wrong_cases_together_are_at_most_so_many_and_the_rest_is_counted(
    few: None,
    house: factories.House,
    alone: factories.House,
    lost: int,
    without: int,
    shown: int,
    left_out: int,
) -> None:
    beside = house.evaluated("beside", wrong(house, range(lost)))
    by_itself = alone.evaluated("by-itself", wrong(alone, range(without)))

    found = listed(comparison_of(beside), comparison_of(by_itself))

    assert (len(found.panels), found.cases, found.left_out) == (shown, lost + without, left_out)
    kinds = [panel.reason.startswith("right for the champion") for panel in found.panels]
    assert kinds == [True] * min(lost, 5) + [False] * (shown - min(lost, 5)), "lost cases come first"


def test_without_a_champion_only_the_first_so_many_are_asked_for(few: None, alone: factories.House) -> None:
    candidate = alone.evaluated("many", wrong(alone, range(7)))

    found = listed(comparison_of(candidate))

    assert (len(found.panels), found.left_out) == (3, 0)
