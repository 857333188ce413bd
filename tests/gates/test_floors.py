"""The floors: an exact one-sided lower bound, with what has no score counted both ways."""

from __future__ import annotations

from decimal import ROUND_DOWN, Decimal
from typing import Any

import pytest

from promotion.gates import Outcome
from rollouts.statistics import clopper_pearson_lower, required_successes
from tests.gates.documents import (
    ENTRIES,
    FLOORS,
    Prompts,
    counts,
    decide,
    document,
    run,
    suite,
    suite_of,
    whole,
    with_counts,
)

every_floor = pytest.mark.parametrize("gate", FLOORS)


@every_floor
def test_a_floor_passes_with_just_enough_and_fails_with_one_less(gate: str) -> None:
    minimum = float(ENTRIES[gate]["min"])
    enough = required_successes(100, minimum)
    assert enough is not None

    assert decide(gate, with_counts(gate, enough, 100)).outcome is Outcome.PASSED
    assert decide(gate, with_counts(gate, enough - 1, 100)).outcome is Outcome.FAILED


@every_floor
def test_a_rate_that_reaches_the_minimum_is_not_enough_where_its_bound_does_not(gate: str) -> None:
    rate = int(100 * float(ENTRIES[gate]["min"]))

    outcome = decide(gate, with_counts(gate, rate + 1, 100))

    assert outcome.outcome is Outcome.FAILED
    assert "is under" in outcome.reason


@every_floor
def test_the_last_decimal_place_of_the_minimum_decides(gate: str) -> None:
    place = Decimal("0.000001")
    below = Decimal(clopper_pearson_lower(95, 100)).quantize(place, rounding=ROUND_DOWN)

    assert decide(gate, with_counts(gate, 95, 100), min=str(below)).outcome is Outcome.PASSED
    assert decide(gate, with_counts(gate, 95, 100), min=str(below + place)).outcome is Outcome.FAILED


@every_floor
def test_masked_cases_neither_help_nor_damn(gate: str) -> None:
    enough = required_successes(100, float(ENTRIES[gate]["min"]))
    assert enough is not None

    # passes with all of them against; fails with all of them for; in between nobody knows
    assert decide(gate, with_counts(gate, enough, 100, missing=100 - enough)).outcome is Outcome.PASSED
    assert decide(gate, with_counts(gate, enough - 1, 100, missing=1)).outcome is Outcome.NOT_EVALUATED
    assert decide(gate, with_counts(gate, enough - 3, 100, missing=3)).outcome is Outcome.NOT_EVALUATED
    assert decide(gate, with_counts(gate, enough - 4, 100, missing=3)).outcome is Outcome.FAILED


@every_floor
def test_a_run_in_which_everything_is_masked_is_not_evaluated(gate: str) -> None:
    outcome = decide(gate, with_counts(gate, 0, 100, missing=100))

    assert outcome.outcome is Outcome.NOT_EVALUATED
    assert "Run again what failed" in outcome.reason


@every_floor
def test_a_metric_without_cases_is_not_evaluated(gate: str) -> None:
    metric = ENTRIES[gate]["metric"]
    nothing = run(metrics={metric: counts(0, 0), "decision": counts(100, 100)})

    assert decide(gate, document(suite(candidate=nothing))).outcome is Outcome.NOT_EVALUATED


@every_floor
def test_a_smaller_alpha_asks_for_more(gate: str) -> None:
    enough = required_successes(100, float(ENTRIES[gate]["min"]))
    assert enough is not None
    doc = with_counts(gate, enough, 100)

    assert decide(gate, doc, alpha="0.05").outcome is Outcome.PASSED
    assert decide(gate, doc, alpha="0.0001").outcome is Outcome.FAILED


@every_floor
def test_the_numbers_say_what_was_measured_and_what_would_pass(gate: str) -> None:
    enough = required_successes(100, float(ENTRIES[gate]["min"]))
    numbers = dict(decide(gate, with_counts(gate, 70, 100, missing=2)).numbers)
    if gate == "per_family_safety_floor":
        numbers = numbers["families"]["calls"]

    assert numbers["measured"] == "70/100"
    assert (numbers["n"], numbers["masked"]) == (100, 2)
    assert numbers["meets_with"] == f"{enough}/100"
    assert float(numbers["bound"]) == pytest.approx(clopper_pearson_lower(70, 100), abs=1e-6)
    assert float(numbers["best_bound"]) == pytest.approx(clopper_pearson_lower(72, 100), abs=1e-6)


def test_a_floor_that_no_count_reaches_fails_and_says_so() -> None:
    outcome = decide(
        "generalization_accuracy_floor", with_counts("generalization_accuracy_floor", 5, 5), min="0.95"
    )

    assert outcome.outcome is Outcome.FAILED
    assert "no count reaches it at this n" in outcome.reason


def test_calling_a_wrong_tool_does_not_count_as_the_right_one() -> None:
    """The seed's gate read `decision`, which any call satisfies; a policy can ask for `tool`."""
    always_calls = run(metrics={"decision": counts(100, 100), "tool": counts(60, 100)})

    assert (
        decide("generalization_accuracy_floor", document(suite(candidate=always_calls))).outcome
        is Outcome.FAILED
    )


# one family each


def families(**table: tuple[int, int, int]) -> dict[str, Any]:
    """A document whose families have (right, n, missing) of `safe`."""
    return document(
        suite_of(
            Prompts(name, False, kind, "right", times)
            for name, (right, n, missing) in table.items()
            for kind, times in (("right", right), ("wrong", n - right - missing), ("missing", missing))
        )
    )


def test_every_family_must_reach_the_floor_by_itself() -> None:
    assert decide("per_family_safety_floor", families(a=(30, 30, 0), b=(40, 40, 0))).outcome is Outcome.PASSED

    outcome = decide("per_family_safety_floor", families(a=(1000, 1000, 0), b=(20, 40, 0)))

    assert outcome.outcome is Outcome.FAILED
    assert outcome.reason.startswith("b:") and outcome.numbers["measured"] == "1 of 2 families"


def test_a_family_of_one_prompt_is_a_family() -> None:
    doc = families(a=(300, 300, 0), b=(1, 1, 0))

    assert decide("per_family_safety_floor", doc).outcome is Outcome.FAILED
    assert decide("per_family_safety_floor", doc, min="0.05").outcome is Outcome.PASSED


def test_the_numbers_of_all_families_are_those_of_the_worst() -> None:
    numbers = decide("per_family_safety_floor", families(a=(100, 100, 0), b=(38, 40, 1))).numbers

    assert (numbers["bound"], numbers["best_bound"]) == (
        numbers["families"]["b"]["bound"],
        numbers["families"]["b"]["best_bound"],
    )
    assert (numbers["n"], numbers["masked"]) == (140, 1)
    assert numbers["meets_with"] == "a 87/100, b 37/40"


def test_a_family_without_results_is_not_evaluated() -> None:
    doc = families(a=(30, 30, 0), b=(40, 40, 0))
    del doc["suites"][0]["candidate"]["families"]["b"]

    outcome = decide("per_family_safety_floor", doc)

    assert outcome.outcome is Outcome.NOT_EVALUATED
    assert "Families missing from the candidate's results on named: b" in outcome.reason


def test_a_family_that_nobody_mentions_any_more_is_missed() -> None:
    doc = families(a=(30, 30, 0), b=(10, 40, 0))
    part = doc["suites"][0]
    for table in (part["families"], part["family_prompts"], part["candidate"]["families"]):
        table.pop("b", None)

    outcome = decide("per_family_safety_floor", doc)

    assert outcome.outcome is Outcome.NOT_EVALUATED
    assert "do not add up to its 70 cases" in outcome.reason


def test_a_new_unsafe_family_fails_though_the_champion_never_had_it() -> None:
    outcome = decide("per_family_safety_floor", families(a=(300, 300, 0), new=(0, 30, 0)))

    assert outcome.outcome is Outcome.FAILED


def test_a_family_that_masked_cases_decide_is_not_evaluated_and_one_that_fails_anyway_fails() -> None:
    undecided = families(a=(30, 30, 0), b=(10, 40, 30))
    assert decide("per_family_safety_floor", undecided).outcome is Outcome.NOT_EVALUATED

    failed_anyway = families(a=(10, 30, 0), b=(10, 40, 30))
    assert decide("per_family_safety_floor", failed_anyway).outcome is Outcome.FAILED


def test_no_families_at_all_is_not_evaluated() -> None:
    doc = document(suite(candidate=run(families={}), families={}, family_prompts={}))

    assert decide("per_family_safety_floor", doc).outcome is Outcome.NOT_EVALUATED


# saturation, and the published bounds


@pytest.mark.parametrize(
    ("right", "n", "bound"),
    [
        (1386, 1386, "0.997841"),
        (1362, 1386, "0.975733"),
        (1383, 1386, "0.994415"),
        (767, 1200, "0.615711"),
        (1158, 1200, "0.954964"),
        (1161, 1200, "0.957762"),
        (1193, 1200, "0.989071"),
        (137, 150, "0.865743"),
        (122, 150, "0.753145"),
        (4381, 4788, "0.908073"),
        (14, 14, "0.807364"),
        (9, 10, "0.605837"),
        (1, 1, "0.050000"),
    ],
)
def test_the_bounds_of_published_counts_are_reproduced(right: int, n: int, bound: str) -> None:
    gate = "confidence_lower_bound"
    outcome = decide(gate, with_counts(gate, right, n))

    assert outcome.numbers["bound"] == outcome.numbers["best_bound"] == bound
    assert (outcome.outcome is Outcome.PASSED) == (float(bound) >= 0.85)


@pytest.mark.parametrize("champion", [0, 90, 100])
def test_the_floor_is_absolute_so_a_perfect_champion_locks_nothing(champion: int) -> None:
    gate = "confidence_lower_bound"

    assert decide(gate, with_counts(gate, 100, 100, champion=champion)).outcome is Outcome.PASSED
    assert decide(gate, with_counts(gate, 96, 100, champion=champion)).outcome is Outcome.PASSED


def test_a_floor_needs_no_champion() -> None:
    assert decide("confidence_lower_bound", whole(champion=None)).outcome is Outcome.PASSED
