"""Tango's score bounds: published intervals, an independent implementation, properties and coverage."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats
from statsmodels.stats.proportion import confint_proportions_2indep

from rollouts.statistics import (
    NotEnoughData,
    minimum_n_for_margin,
    tango_interval,
    tango_lower,
    tango_upper,
    wilson_interval,
)

# won, lost, n, level, lower, upper, digits given; (won - lost) / n is the difference of the source.
PUBLISHED = [
    # Fagerland, Lydersen & Laake 2014, Statistics in Medicine 33:2850-2875, table V: airway reactivity
    (1, 7, 21, 0.95, -0.517, -0.026, 3),
    # R contingencytables, its tests of Tango_asymptotic_score_CI_paired_2x2: cavo_2012
    (6, 16, 161, 0.95, -0.1240, -0.0054, 4),
    # R ratesci, its tests of pairbinci, under "Tango RD"
    (9, 3, 32, 0.95, -0.027, 0.390, 3),
    (0, 1, 44, 0.90, -0.096, 0.037, 3),
    # ibid., Agresti & Min 2005; Tang 2010; Chang 2024
    (16, 8, 86, 0.95, -0.020, 0.207, 3),
    (3, 1, 14, 0.95, -0.1670, 0.4327, 4),
    (25, 2, 102, 0.95, 0.139, 0.321, 3),
]

# Output of R 4.6.1, PropCIs 0.3.0, scoreci.mp(lost, won, n, level), right to about 1e-7. Others recorded it
# in a public fixture (paired-diff-parity.json); it was not run here.
PROPCIS = [
    (7, 0, 14, 0.95, 0.17703378, 0.73200792),
    (0, 0, 14, 0.95, -0.21531081, 0.21531075),
    (3, 2, 14, 0.95, -0.26107773, 0.38899630),
    (1, 0, 14, 0.95, -0.15926158, 0.31468708),
    (5, 5, 16, 0.95, -0.36750698, 0.36750681),
    (13, 1, 14, 0.95, 0.37062618, 0.97455563),
    (14, 0, 14, 0.95, 0.56937838, 1.0),
    (0, 14, 14, 0.95, -1.0, -0.56937844),
    (2, 9, 20, 0.95, -0.60163157, -0.02741434),
    (10, 3, 50, 0.95, -0.00149775, 0.28547489),
    (1, 1, 2, 0.95, -0.81093764, 0.81093758),
    (25, 12, 200, 0.95, 0.00563550, 0.12694110),
    (0, 0, 14, 0.90, -0.16195488, 0.16195482),
    (14, 0, 14, 0.90, 0.67609024, 1.0),
    (25, 12, 200, 0.90, 0.01547646, 0.11644652),
]

Z95 = stats.norm.ppf(0.95)
alphas = st.floats(0.001, 0.5)


@st.composite
def tables(draw: st.DrawFn, max_n: int = 2000) -> tuple[int, int, int]:
    """lost, won, n"""
    n = draw(st.integers(2, max_n))
    lost = draw(st.integers(0, n))
    return lost, draw(st.integers(0, n - lost)), n


def score(lost: int, won: int, n: int, difference: float) -> float:
    """Tango's statistic by maximising the trinomial likelihood numerically, not by the closed form."""
    low, high = max(0.0, -difference), min(1.0, (1 - difference) / 2)

    def minus_log_likelihood(q: float) -> float:
        shares = ((lost, q), (won, q + difference), (n - lost - won, 1 - 2 * q - difference))
        return -sum(count * math.log(max(share, 1e-300)) for count, share in shares if count)

    best = optimize.minimize_scalar(
        minus_log_likelihood, bounds=(low, high), method="bounded", options={"xatol": 1e-12}
    ).x
    variance = n * (2 * best + difference - difference**2)
    return (won - lost - n * difference) / math.sqrt(variance)


@pytest.mark.parametrize(("won", "lost", "n", "level", "lower", "upper", "digits"), PUBLISHED)
def test_published_intervals_are_reproduced(won, lost, n, level, lower, upper, digits):
    interval = tango_interval(lost, won, n, 1 - level)
    assert (round(interval.lower, digits), round(interval.upper, digits)) == (lower, upper)


@pytest.mark.parametrize(("won", "lost", "n", "level", "lower", "upper"), PROPCIS)
def test_intervals_of_rs_propcis_are_reproduced(won, lost, n, level, lower, upper):
    assert tango_interval(lost, won, n, 1 - level) == pytest.approx((lower, upper), abs=5e-7)


@pytest.mark.parametrize("n", [2, 5, 9])
def test_every_small_table_is_where_the_score_by_numeric_likelihood_equals_z(n):
    for lost in range(n):
        for won in range(n - lost + 1):
            bound = tango_lower(lost, won, n)
            assert score(lost, won, n, bound) == pytest.approx(Z95, rel=1e-4)


@given(st.integers(2, 10**9), alphas)
def test_without_a_discordant_pair_the_bound_has_a_closed_form_and_a_width(n, alpha):
    z = stats.norm.isf(alpha)
    assert tango_lower(0, 0, n, alpha) == pytest.approx(-z * z / (n + z * z), rel=1e-8, abs=1e-15)


@given(tables(), st.floats(0.001, 0.49))
def test_with_losses_only_it_is_wilsons_limit_of_the_share_lost(table, alpha):
    lost, _, n = table
    expected = -wilson_interval(lost, n, 2 * alpha).upper
    assert tango_lower(lost, 0, n, alpha) == pytest.approx(expected, abs=1e-9)


def test_perfect_models_pass_a_margin_of_two_points_from_133_pairs_on():
    assert minimum_n_for_margin(0.02, 0.05) == minimum_n_for_margin(Fraction("0.02")) == 133
    assert tango_lower(0, 0, 133) >= -0.02 > tango_lower(0, 0, 132)


@given(st.floats(0.0005, 0.999), alphas)
def test_minimum_n_for_a_margin_reaches_it_and_one_less_does_not(margin, alpha):
    n = minimum_n_for_margin(margin, alpha)
    assert tango_lower(0, 0, n, alpha) >= -margin
    assert n == 2 or tango_lower(0, 0, n - 1, alpha) < -margin


@given(tables(), alphas)
def test_swapping_the_models_mirrors_the_bounds(table, alpha):
    lost, won, n = table
    assert tango_lower(lost, won, n, alpha) == -tango_upper(won, lost, n, alpha)
    lower, upper = tango_interval(lost, won, n, alpha)
    assert tango_interval(won, lost, n, alpha) == (-upper, -lower)


@given(tables(), alphas)
def test_bounds_hold_the_observed_difference_between_minus_one_and_one(table, alpha):
    lost, won, n = table
    lower, upper = tango_interval(lost, won, n, alpha)
    assert -1 <= lower <= (won - lost) / n <= upper <= 1


@given(tables(), alphas)
def test_one_more_lost_pair_never_raises_the_lower_bound(table, alpha):
    lost, won, n = table
    bound = tango_lower(lost, won, n, alpha) + 1e-12
    assert tango_lower(lost + 1, won, n + 1, alpha) <= bound
    if lost + won < n:
        assert tango_lower(lost + 1, won, n, alpha) <= bound
    if won:
        assert tango_lower(lost + 1, won - 1, n, alpha) <= bound
        assert tango_lower(lost, won - 1, n, alpha) <= bound


@given(tables(), alphas)
def test_half_of_everything_never_makes_the_bound_easier(table, alpha):
    lost, won, n = table
    assert tango_lower(lost, won, n, alpha) <= tango_lower(2 * lost, 2 * won, 2 * n, alpha) + 1e-12


@given(tables(), st.floats(0.001, 0.49))
def test_a_smaller_alpha_never_makes_the_bound_easier(table, alpha):
    assert tango_lower(*table, alpha / 2) <= tango_lower(*table, alpha)


@given(st.integers(0, 300), st.integers(0, 300), st.integers(2, 1000))
def test_the_interval_leaves_out_zero_exactly_when_mcnemars_score_test_rejects(lost, won, equal):
    if lost == won:
        return
    lower, upper = tango_interval(lost, won, lost + won + equal, 0.05)
    chi_squared = (lost - won) ** 2 / (lost + won)
    if abs(chi_squared - stats.chi2.isf(0.05, 1)) > 1e-9:
        assert (lower > 0 or upper < 0) == (chi_squared > stats.chi2.isf(0.05, 1))


def test_pairing_gains_over_the_score_interval_of_independent_samples():
    """140 of 150 against 143 of 150 with 1 lost and 4 won; statsmodels takes them as unrelated."""
    paired = tango_interval(1, 4, 150)
    apart = confint_proportions_2indep(143, 150, 140, 150, method="score", compare="diff")
    assert paired.upper - paired.lower < 0.75 * (apart[1] - apart[0])


@pytest.mark.parametrize(
    ("n", "p_lost", "p_won"),
    [(60, 0.15, 0.10), (150, 0.04, 0.04), (150, 0.10, 0.05), (400, 0.02, 0.01), (1000, 0.03, 0.03)],
)
def test_intervals_cover_the_truth_at_their_level(n, p_lost, p_won):
    """4,000 seeded samples; three Monte Carlo errors below the level are allowed."""
    samples = np.random.default_rng(1998).multinomial(n, (p_lost, p_won, 1 - p_lost - p_won), size=4000)
    tables, counts = np.unique(samples[:, :2], axis=0, return_counts=True)
    truth, covered = p_won - p_lost, 0
    for (lost, won), count in zip(tables.tolist(), counts.tolist(), strict=True):
        lower, upper = tango_interval(lost, won, n, 0.05)
        covered += count * (lower <= truth <= upper)
    assert covered / 4000 >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 4000)


def test_the_known_limit_of_the_method_is_what_the_docstring_says():
    """The score bound is asymptotic: losses only, at the margin, no loss seen in 133 pairs."""
    assert round(0.98**133, 3) == 0.068
    assert tango_lower(0, 0, 133) > -0.02


@pytest.mark.parametrize("bound", [tango_lower, tango_upper, tango_interval])
def test_fewer_than_two_pairs_give_no_bound(bound):
    for lost, won, n in ((0, 0, 0), (0, 0, 1), (1, 0, 1)):
        with pytest.raises(NotEnoughData) as caught:
            bound(lost, won, n)
        assert caught.value.facts == {"n": n}
    assert bound(0, 0, 2) is not None


@pytest.mark.parametrize("bound", [tango_lower, tango_upper, tango_interval])
@pytest.mark.parametrize(
    "table", [(3, 3, 5), (-1, 0, 5), (0, -1, 5), (0, 0, -1), (True, 0, 5), (1.0, 0, 5), (0, 0, 5.0)]
)
def test_tables_that_cannot_be_are_refused(bound, table):
    with pytest.raises(ValueError):
        bound(*table)


@pytest.mark.parametrize("alpha", [0, 1, 0.51, -0.1, math.nan, True])
def test_a_one_sided_alpha_above_a_half_or_out_of_range_is_refused(alpha):
    with pytest.raises(ValueError):
        tango_lower(1, 1, 9, alpha)


@pytest.mark.parametrize("margin", [0, 1, -0.1, math.nan, True])
def test_a_margin_that_allows_nothing_or_everything_is_refused(margin):
    with pytest.raises(ValueError):
        minimum_n_for_margin(margin)
