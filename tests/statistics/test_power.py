"""Power and sample sizes, against enumeration of every outcome and against statsmodels."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.proportion import binom_test_reject_interval, proportion_confint

from rollouts.statistics import (
    NotEnoughData,
    clopper_pearson_lower,
    minimum_n_for_bound,
    minimum_n_for_margin,
    power_for_bound,
    power_non_inferiority,
    required_successes,
    sample_size_for_bound,
    sample_size_non_inferiority,
    tango_lower,
)

rates = st.floats(0, 1)


@settings(deadline=None)
@given(st.integers(1, 80), st.floats(0.01, 0.99), rates, st.floats(0.001, 0.3))
def test_power_is_the_probability_of_the_counts_that_pass(n, minimum, rate, alpha):
    passing = [k for k in range(n + 1) if clopper_pearson_lower(k, n, alpha) >= minimum]
    expected = math.fsum(math.comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in passing)
    assert power_for_bound(n, minimum, rate, alpha) == pytest.approx(expected, abs=1e-9)


@settings(deadline=None)
@given(st.integers(1, 400), st.floats(0.02, 0.98))
def test_the_counts_that_pass_are_those_of_statsmodels_binomial_test_and_interval(n, minimum):
    needed = required_successes(n, minimum, 0.05)
    _, first_rejected = binom_test_reject_interval(minimum, n, alpha=0.05, alternative="larger")
    assert first_rejected == (n + 1 if needed is None else needed)
    successes = n if needed is None else needed
    lower, _ = proportion_confint(successes, n, alpha=0.1, method="beta")
    assert clopper_pearson_lower(successes, n) == pytest.approx(lower, abs=1e-9)


@given(st.integers(1, 60), st.integers(0, 60), st.floats(0.001, 0.5))
def test_half_of_everything_never_makes_the_exact_bound_easier(n, successes, alpha):
    k = min(n, successes)
    assert clopper_pearson_lower(k, n, alpha) <= clopper_pearson_lower(2 * k, 2 * n, alpha) + 1e-12


@given(st.integers(1, 200), st.floats(0.1, 0.95), rates, rates)
def test_a_better_model_never_has_less_power(n, minimum, one, other):
    worse, better = sorted((one, other))
    assert power_for_bound(n, minimum, worse) <= power_for_bound(n, minimum, better) + 1e-12
    assert power_for_bound(n, minimum, min(worse, minimum)) <= 0.05 + 1e-9


def test_a_perfect_model_needs_the_minimum_n():
    assert sample_size_for_bound(0.95, 1.0) == minimum_n_for_bound(0.95) == 59
    assert sample_size_for_bound(Fraction("0.99"), 1.0, power=0.999) == 299


@settings(max_examples=40, deadline=None)
@given(st.floats(0.3, 0.95), st.floats(0.2, 0.9), st.floats(0.3, 0.95))
def test_the_sample_size_has_the_power_and_one_less_has_not(minimum, gain, power):
    rate = minimum + gain * (1 - minimum)
    n = sample_size_for_bound(minimum, rate, power)
    assert power_for_bound(n, minimum, rate) >= power
    assert n == 1 or power_for_bound(n - 1, minimum, rate) < power


def enumerated(n, margin, lost_rate, won_rate, alpha):
    total = 0.0
    for lost in range(n + 1):
        for won in range(n - lost + 1):
            if tango_lower(lost, won, n, alpha) >= -margin:
                total += stats.multinomial.pmf(
                    (lost, won, n - lost - won), n, (lost_rate, won_rate, 1 - lost_rate - won_rate)
                )
    return total


@pytest.mark.parametrize(
    ("n", "margin", "lost_rate", "won_rate", "alpha"),
    [
        (2, 0.5, 0.3, 0.3, 0.2),
        (25, 0.1, 0.05, 0.05, 0.05),
        (25, 0.3, 0.2, 0.1, 0.05),
        (30, 0.2, 0.2, 0.0, 0.1),
        (30, 0.05, 0.0, 0.2, 0.05),
        (20, 0.9, 1.0, 0.0, 0.05),
        (20, 0.5, 0.0, 1.0, 0.05),
        (20, 0.5, 0.5, 0.5, 0.05),
    ],
)
def test_non_inferiority_power_is_the_sum_over_every_table_that_passes(n, margin, lost_rate, won_rate, alpha):
    expected = enumerated(n, margin, lost_rate, won_rate, alpha)
    assert power_non_inferiority(n, margin, lost_rate, won_rate, alpha) == pytest.approx(expected, abs=1e-9)


def test_two_models_that_never_differ_need_133_pairs_at_two_points():
    assert sample_size_non_inferiority(0.02, 0, 0) == minimum_n_for_margin(0.02) == 133
    assert power_non_inferiority(132, 0.02, 0, 0) == 0.0
    assert power_non_inferiority(133, 0.02, 0, 0) == 1.0


def test_non_inferiority_needs_about_the_pairs_of_the_normal_approximation():
    """n = (z_alpha + z_beta)^2 * (lost + won) / margin^2 for equal models: 1,546 here."""
    z = stats.norm.isf(0.05) + stats.norm.isf(0.2)
    n = sample_size_non_inferiority(0.02, 0.05, 0.05)
    assert n == pytest.approx(z * z * 0.1 / 0.02**2, rel=0.03)
    assert power_non_inferiority(n, 0.02, 0.05, 0.05) >= 0.8 > power_non_inferiority(n - 1, 0.02, 0.05, 0.05)


@settings(deadline=None)
@given(st.integers(2, 300), st.floats(0.01, 0.5), st.floats(0, 0.4), st.floats(0, 0.4), st.floats(0.001, 0.3))
def test_more_lost_or_less_won_or_less_margin_never_adds_power(n, margin, lost_rate, won_rate, alpha):
    power = power_non_inferiority(n, margin, lost_rate, won_rate, alpha)
    assert 0 <= power <= 1
    assert power_non_inferiority(n, margin, lost_rate + 0.1, won_rate, alpha) <= power + 1e-9
    assert power_non_inferiority(n, margin, lost_rate, won_rate / 2, alpha) <= power + 1e-9
    assert power_non_inferiority(n, margin / 2, lost_rate, won_rate, alpha) <= power + 1e-9
    assert power_non_inferiority(n, margin, lost_rate, won_rate, alpha / 2) <= power + 1e-9


@pytest.mark.parametrize("won_rate", [0.05, 0.1])
@pytest.mark.parametrize("n", [150, 600])
def test_a_loss_of_the_whole_margin_passes_about_alpha_of_the_time(n, won_rate):
    assert power_non_inferiority(n, 0.02, won_rate + 0.02, won_rate) == pytest.approx(0.05, abs=0.006)


def test_the_error_of_the_score_bound_may_pass_alpha_but_stays_near_it():
    """Losses only are its worst case: 0.068 at 133 pairs and a margin of 0.02."""
    worst = max(power_non_inferiority(n, 0.02, 0.02, 0) for n in range(100, 700))
    assert worst == pytest.approx(0.98**133)
    assert worst < 0.07


def test_a_size_beyond_the_limit_is_none():
    assert sample_size_for_bound(0.95, 0.951, limit=1000) is None
    assert sample_size_for_bound(0.95, 1.0, limit=58) is None
    assert sample_size_for_bound(0.95, 1.0, limit=59) == 59
    assert sample_size_non_inferiority(0.02, 0.05, 0.05, limit=500) is None
    assert sample_size_non_inferiority(0.02, 0, 0, limit=1) is None
    assert sample_size_non_inferiority(0.02, 0.001, 0, limit=100_000) < 1000


def test_a_truth_that_can_never_pass_is_refused():
    with pytest.raises(ValueError, match="not above the minimum"):
        sample_size_for_bound(0.95, 0.95)
    with pytest.raises(ValueError, match="not inside the margin"):
        sample_size_non_inferiority(0.02, 0.5, 0.25)


def test_no_cases_and_single_pairs_are_not_enough():
    with pytest.raises(NotEnoughData):
        power_for_bound(0, 0.9, 0.95)
    for n in (0, 1):
        with pytest.raises(NotEnoughData):
            power_non_inferiority(n, 0.02, 0, 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: power_for_bound(10, 0.9, 1.1),
        lambda: power_for_bound(10, 0.9, math.nan),
        lambda: power_for_bound(10, 0.0, 0.9),
        lambda: power_for_bound(10.0, 0.9, 0.9),
        lambda: sample_size_for_bound(0.9, 0.95, power=1),
        lambda: sample_size_for_bound(0.9, 0.95, power=math.nan),
        lambda: sample_size_for_bound(0.9, 0.95, limit=-1),
        lambda: power_non_inferiority(10, 0, 0.1, 0.1),
        lambda: power_non_inferiority(10, 0.1, 0.6, 0.6),
        lambda: power_non_inferiority(10, 0.1, -0.1, 0.1),
        lambda: power_non_inferiority(10, 0.1, 0.1, True),
        lambda: power_non_inferiority(10, 0.1, 0.1, 0.1, alpha=0.6),
        lambda: sample_size_non_inferiority(0.1, 0.1, 0.1, power=0),
        lambda: sample_size_non_inferiority(1, 0.1, 0.1),
    ],
)
def test_inputs_out_of_range_are_refused(call):
    with pytest.raises(ValueError):
        call()
