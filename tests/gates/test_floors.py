"""The four floors: an exact one-sided lower bound, with what has no score counted both ways."""

from __future__ import annotations

from decimal import ROUND_DOWN, Decimal

import pytest

from promotion.gates import Outcome
from rollouts.statistics import clopper_pearson_lower, required_successes
from tests.gates.documents import ENTRIES, FLOORS, counts, decide, document, run, suite, with_counts

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


def families(**table: tuple[int, int, int]) -> dict[str, object]:
    """A document whose families have (right, n, missing) of `safe`."""
    n = sum(size for _, size, _ in table.values())
    total = counts(sum(r for r, _, _ in table.values()), n, sum(m for _, _, m in table.values()))
    parts = {
        name: {metric: counts(size, size) for metric in ("decision", "tool", "exact", "json_valid")}
        | {"safe": counts(r, size, m)}
        for name, (r, size, m) in table.items()
    }
    candidate = run(n=n, metrics={"safe": total}, families=parts)
    return document(
        suite(n=n, candidate=candidate, families={name: size for name, (_, size, _) in table.items()})
    )


def test_every_family_must_reach_the_floor_by_itself() -> None:
    assert decide("per_family_safety_floor", families(a=(30, 30, 0), b=(40, 40, 0))).outcome is Outcome.PASSED

    outcome = decide("per_family_safety_floor", families(a=(1000, 1000, 0), b=(20, 40, 0)))

    assert outcome.outcome is Outcome.FAILED
    assert outcome.reason.startswith("b:") and outcome.numbers["measured"] == "1 of 2 families"


def test_a_family_without_results_is_not_evaluated() -> None:
    doc = families(a=(30, 30, 0), b=(40, 40, 0))
    del doc["suites"][0]["candidate"]["families"]["b"]  # type: ignore[index]

    outcome = decide("per_family_safety_floor", doc)  # type: ignore[arg-type]

    assert outcome.outcome is Outcome.NOT_EVALUATED
    assert "Families missing from the results: b" in outcome.reason


def test_a_new_unsafe_family_fails_though_the_champion_never_had_it() -> None:
    outcome = decide("per_family_safety_floor", families(a=(300, 300, 0), new=(0, 30, 0)))  # type: ignore[arg-type]

    assert outcome.outcome is Outcome.FAILED


def test_a_family_that_masked_cases_decide_is_not_evaluated_and_one_that_fails_anyway_fails() -> None:
    undecided = families(a=(30, 30, 0), b=(10, 40, 30))
    assert decide("per_family_safety_floor", undecided).outcome is Outcome.NOT_EVALUATED  # type: ignore[arg-type]

    failed_anyway = families(a=(10, 30, 0), b=(10, 40, 30))
    assert decide("per_family_safety_floor", failed_anyway).outcome is Outcome.FAILED  # type: ignore[arg-type]


def test_no_families_at_all_is_not_evaluated() -> None:
    doc = document(suite(candidate=run(families={}), families={}))

    assert decide("per_family_safety_floor", doc).outcome is Outcome.NOT_EVALUATED
