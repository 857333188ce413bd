"""Repeats of a case: one value per case, and pass@k with its skipping rule."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.statistics import NotEnoughData, pass_at_k, reduce_repeats


@st.composite
def counts(draw: st.DrawFn, least: int = 0) -> tuple[int, int]:
    n = draw(st.integers(least, 30))
    return draw(st.integers(0, n)), n


def test_ten_samples_of_a_case_are_one_case():
    reduced = reduce_repeats({"a": [1, 0, 1, 0, 1, 0, 1, 0, 1, 0], "b": [1]})
    assert reduced.values == {"a": 0.5, "b": 1.0}
    assert reduced.missing == ()


def test_a_sample_without_a_score_keeps_its_siblings_and_a_case_without_any_is_missing():
    reduced = reduce_repeats({"a": [1, None, 0, None], "b": [None, None], "c": [], "d": [0]})
    assert reduced.values == {"a": 0.5, "d": 0.0}
    assert reduced.missing == ("b", "c")


@pytest.mark.parametrize(
    ("samples", "value"),
    [
        ([1, 1], 1.0),
        ([1, 0], 0.0),
        ([True, False], 0.0),
        ([None, 0], 0.0),
        ([None, 1], None),
        ([None], None),
        ([], None),
    ],
)
def test_all_is_right_if_all_are_wrong_if_any_is_and_else_missing(samples, value):
    reduced = reduce_repeats({7: samples}, "all")
    assert reduced.values.get(7) == value
    assert reduced.missing == (() if 7 in reduced.values else (7,))


@given(st.dictionaries(st.text(), st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=6)))
def test_every_case_has_a_value_within_its_scores_or_is_missing(samples):
    reduced = reduce_repeats(samples)
    assert sorted([*reduced.values, *reduced.missing]) == sorted(samples)
    for case, value in reduced.values.items():
        known = [score for score in samples[case] if score is not None]
        assert min(known) - 1e-15 <= value <= max(known) + 1e-15
        assert value == pytest.approx(np.mean(known), abs=1e-12)


def test_scores_and_rules_that_cannot_be_are_refused():
    for bad in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match="'a'"):
            reduce_repeats({"a": [bad]})
    with pytest.raises(ValueError, match="'a'"):
        reduce_repeats({"a": [0.5]}, "all")
    with pytest.raises(ValueError, match="rule"):
        reduce_repeats({"a": [1]}, "majority")


def test_pass_at_2_of_five_samples_with_three_right_is_nine_tenths_and_a_single_sample_is_skipped():
    """spec/gym.md 8, rows 44 and 45: (n=5, c=3), a task of one sample, and a repeat masked away."""
    assert pass_at_k([(3, 5), (1, 1)], 2) == (2, pytest.approx(0.9), 1, 1)
    assert pass_at_k([(3, 4)], 2).value == 1.0


@given(counts(least=1), st.data())
def test_pass_at_k_is_the_share_of_draws_of_k_samples_with_a_right_one(case, data):
    successes, n = case
    n = min(n, 9)
    successes = min(successes, n)
    k = data.draw(st.integers(1, n))
    draws = list(itertools.combinations([True] * successes + [False] * (n - successes), k))
    share = sum(any(drawn) for drawn in draws) / len(draws)
    assert pass_at_k([(successes, n)], k).value == pytest.approx(share, rel=1e-12)


@given(counts(least=1), st.data())
def test_pass_at_k_is_the_product_form_of_the_paper(case, data):
    successes, n = case
    k = data.draw(st.integers(1, n))
    expected = 1.0
    if n - successes >= k:
        expected = 1.0 - np.prod(1.0 - k / np.arange(n - successes + 1, n + 1))
    assert pass_at_k([case], k).value == pytest.approx(expected, abs=1e-12)


@given(st.lists(counts(least=1), min_size=1, max_size=20))
def test_pass_at_1_is_the_mean_success_rate_of_the_cases(cases):
    mean = sum(Fraction(successes, n) for successes, n in cases) / len(cases)
    assert pass_at_k(cases, 1).value == pytest.approx(float(mean), rel=1e-12)


@given(st.lists(counts(), max_size=20), st.integers(1, 12))
def test_cases_with_too_few_samples_are_skipped_and_counted(cases, k):
    enough = [case for case in cases if case[1] >= k]
    if not enough:
        with pytest.raises(NotEnoughData) as caught:
            pass_at_k(cases, k)
        assert caught.value.facts == {"n": 0, "skipped": len(cases)}
        return
    result = pass_at_k(cases, k)
    assert (result.n, result.skipped) == (len(enough), len(cases) - len(enough))
    assert result.value == pass_at_k(enough, k).value


@given(counts(least=2), st.data())
def test_more_tries_and_more_right_samples_never_lower_it(case, data):
    successes, n = case
    k = data.draw(st.integers(1, n - 1))
    value = pass_at_k([case], k).value
    assert pass_at_k([case], k + 1).value >= value
    if successes < n:
        assert pass_at_k([(successes + 1, n)], k).value >= value


def test_large_counts_neither_overflow_nor_lose_small_chances():
    assert pass_at_k([(1, 100_000)], 1).value == 1e-5
    assert pass_at_k([(1, 20_000)], 5_000).value == 0.25


@pytest.mark.parametrize(("cases", "k"), [([(1, 2)], 0), ([(1, 2)], -1), ([(1, 2)], True), ([(1, 2)], 1.0)])
def test_a_k_that_cannot_be_is_refused(cases, k):
    with pytest.raises(ValueError):
        pass_at_k(cases, k)


@pytest.mark.parametrize("case", [(3, 2), (-1, 2), (1, 2.0), (True, 2)])
def test_counts_that_cannot_be_are_refused(case):
    with pytest.raises(ValueError):
        pass_at_k([case], 1)
