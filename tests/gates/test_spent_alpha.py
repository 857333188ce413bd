"""Each look at a sealed suite may spend its share of alpha, and all shares together are alpha."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from promotion.gates import OPENS, Outcome
from promotion.gates.base import spent_alpha
from rollouts.statistics import clopper_pearson_lower
from tests.gates.documents import FLOORS, decide, whole, with_counts, with_policy, with_run

GATE = "generalization_accuracy_floor"


def test_the_shares_of_all_looks_add_up_to_alpha_and_never_beyond() -> None:
    alpha = Decimal("0.05")
    total = Decimal(0)
    for look in range(1, 200):
        total += spent_alpha(alpha, look)
        assert float(total) == pytest.approx(0.05 * look / (look + 1))
        assert total < alpha


@pytest.mark.parametrize("gate", FLOORS)
@pytest.mark.parametrize("look", [1, 2, 7])
def test_a_bound_is_taken_at_the_share_of_its_look(gate: str, look: int) -> None:
    doc = with_policy(with_run(with_counts(gate, 97, 100), look=look), spend_alpha=True)

    numbers = dict(decide(gate, doc).numbers)

    assert (numbers["look"], float(numbers["alpha"])) == (
        look,
        pytest.approx(0.05 / (look * (look + 1)), rel=1e-5),
    )
    assert float(numbers["bound"]) == pytest.approx(
        clopper_pearson_lower(97, 100, 0.05 / (look * (look + 1))), abs=1e-6
    )


@pytest.mark.parametrize("gate", FLOORS)
def test_a_later_look_asks_for_more(gate: str) -> None:
    def right(look: int) -> int:
        doc = with_policy(with_run(with_counts(gate, 50, 100), look=look), spend_alpha=True)
        numbers = decide(gate, doc).numbers
        meets = str(numbers["meets_with"]).removeprefix("calls ")
        return int(meets.split("/")[0])

    assert right(1) < right(4) <= right(5)


def test_without_spending_the_look_changes_nothing() -> None:
    first, last = (decide(GATE, with_run(with_counts(GATE, 93, 100), look=look)) for look in (1, 50))

    assert (first.outcome, first.numbers["alpha"]) == (last.outcome, "0.05")
    assert first.numbers["bound"] == last.numbers["bound"]
    assert decide(GATE, with_run(with_counts(GATE, 100, 100), look=None)).outcome is Outcome.PASSED


@pytest.mark.parametrize("gate", [*FLOORS, "paired_non_inferiority"])
def test_a_look_that_was_not_counted_cannot_be_spent(gate: str) -> None:
    doc = with_policy(with_run(whole(), look=None), spend_alpha=True)

    found = decide(gate, doc)

    assert found.outcome is Outcome.NOT_EVALUATED
    assert "look was not counted" in found.reason


@pytest.mark.parametrize("spend", [None, "true", 1, 0, "", float("nan")])
@pytest.mark.parametrize("gate", [*FLOORS, "paired_non_inferiority", "look_budget"])
def test_a_policy_that_does_not_say_whether_alpha_is_spent_blocks(gate: str, spend: Any) -> None:
    assert decide(gate, with_policy(whole(), spend_alpha=spend)).outcome is Outcome.ERROR
    doc = with_policy(whole())
    del doc["policy"]["document"]["spend_alpha"]
    assert decide(gate, doc).outcome not in OPENS
