"""Enough was measured, each sample is one of its own, looks are counted, and the prompts do not give the answer away."""

from __future__ import annotations

from typing import Any

import pytest

from promotion.gates import Outcome
from tests.gates.documents import decide, leak, whole, with_policy, with_run, with_suite
from tests.gates.refused import twice, with_missing

# masked rollouts


@pytest.mark.parametrize(
    ("missing", "percent", "expected"),
    [
        (0, "0", Outcome.PASSED),
        (1, "0", Outcome.FAILED),
        (4, "2", Outcome.PASSED),  # exactly two of a hundred
        (5, "2", Outcome.FAILED),
        (5, "2.5", Outcome.PASSED),
        (5, "2.499999", Outcome.FAILED),
    ],
)
def test_at_most_so_many_percent_are_without_a_score(missing: int, percent: str, expected: Outcome) -> None:
    found = decide("masked_ceiling", with_missing(missing), max_percent=percent)

    assert found.outcome is expected
    assert (found.numbers["masked"], found.numbers["n"]) == (missing, 200)


@pytest.mark.parametrize("kind", ["masked", "unscored", "cancelled"])
def test_all_that_has_no_score_counts(kind: str) -> None:
    doc = with_run(with_missing(5), **{"masked": 0, kind: 5})

    assert decide("masked_ceiling", doc).outcome is Outcome.FAILED


# samples


@pytest.mark.parametrize(
    ("independence", "one", "two"),
    [
        ("independent", Outcome.PASSED, Outcome.PASSED),
        ("ignored", Outcome.PASSED, Outcome.FAILED),
        ("unknown", Outcome.NOT_EVALUATED, Outcome.NOT_EVALUATED),
        (None, Outcome.NOT_EVALUATED, Outcome.NOT_EVALUATED),
        ("", Outcome.NOT_EVALUATED, Outcome.NOT_EVALUATED),
        ("Independent", Outcome.NOT_EVALUATED, Outcome.NOT_EVALUATED),
    ],
)
def test_repeated_samples_must_be_draws_and_what_is_not_stated_is_not_known(
    independence: Any, one: Outcome, two: Outcome
) -> None:
    assert decide("sample_independence", with_run(whole(), independence=independence)).outcome is one
    assert decide("sample_independence", twice(independence=independence)).outcome is two


# looks


@pytest.mark.parametrize(
    ("look", "expected"),
    [(1, Outcome.PASSED), (5, Outcome.PASSED), (6, Outcome.FAILED), (None, Outcome.NOT_EVALUATED)],
)
def test_so_many_looks_and_no_more(look: int | None, expected: Outcome) -> None:
    assert decide("look_budget", with_run(whole(), look=look)).outcome is expected


@pytest.mark.parametrize("look", [0, -1, 1.0, "1", float("nan"), True])
def test_a_look_that_is_none_is_an_error(look: Any) -> None:
    assert decide("look_budget", with_run(whole(), look=look)).outcome is Outcome.ERROR


def test_the_alpha_that_is_left_is_shown_where_it_is_spent() -> None:
    spending = with_policy(whole(), spend_alpha=True)

    assert "alpha_left" not in decide("look_budget", whole()).numbers
    assert decide("look_budget", spending).numbers["alpha_left"] == "1/2"
    found = decide("look_budget", with_run(spending, look=3))
    assert found.numbers["alpha_left"] == "1/4" and "1/4 of alpha is left" in found.reason


# leaks


@pytest.mark.parametrize(
    ("accuracy", "expected"),
    [
        ("0.899999", Outcome.PASSED),
        ("0.900000", Outcome.FAILED),
        ("1.000000", Outcome.FAILED),
        ("0.533333", Outcome.PASSED),
    ],
)
def test_the_best_single_feature_must_tell_less(accuracy: str, expected: Outcome) -> None:
    found = decide("prompt_leak", with_suite(whole(), leak=leak(accuracy, n=200)))

    assert found.outcome is expected
    assert found.numbers["feature"] == 'the word "please": a call'


def test_a_suite_with_one_common_label_cannot_meet_it_and_is_told_so() -> None:
    found = decide("prompt_leak", with_suite(whole(), leak=leak("0.950000", "0.920000", n=200)))

    assert found.outcome is Outcome.FAILED
    assert "have one label" in found.reason


def test_a_suite_that_nobody_searched_is_not_evaluated() -> None:
    assert decide("prompt_leak", with_suite(whole(), leak=None)).outcome is Outcome.NOT_EVALUATED


def test_a_search_of_other_cases_is_not_evaluated() -> None:
    assert decide("prompt_leak", with_suite(whole(), leak=leak(n=199))).outcome is Outcome.NOT_EVALUATED


@pytest.mark.parametrize(
    "changes",
    [
        {"accuracy": "0.4"},  # under the majority
        {"accuracy": "NaN"},
        {"accuracy": 0.6},
        {"accuracy": None},
        {"majority": "-1"},
        {"format": 2},
        {"n": float("nan")},
        {"features_tried": -1},
    ],
)
def test_a_search_that_cannot_be_is_an_error(changes: dict[str, Any]) -> None:
    found = decide("prompt_leak", with_suite(whole(), leak={**leak(n=200), **changes}))

    assert found.outcome is Outcome.ERROR
