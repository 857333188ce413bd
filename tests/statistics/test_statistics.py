"""Rules of the bounds and tests, checked against published vectors and against scipy.stats."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rollouts.errors import AssayError
from rollouts.statistics import (
    NotEnoughData,
    clopper_pearson_interval,
    clopper_pearson_lower,
    clopper_pearson_upper,
    exact_drop,
    mcnemar_exact,
    minimum_n_for_bound,
    percentile_ms,
    required_successes,
    wilson_interval,
)

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
SUMMARY = DATA / "toolcaller-smollm2" / "results" / "summary.json"

# shared/spec/foundry.md, section 3.5
FOUNDRY_VECTORS = [
    (1386, 1386, 0.997841),
    (1362, 1386, 0.975733),
    (1383, 1386, 0.994415),
    (767, 1200, 0.615711),
    (1158, 1200, 0.954964),
    (1161, 1200, 0.957762),
    (1193, 1200, 0.989071),
    (137, 150, 0.865743),
    (122, 150, 0.753145),
    (4381, 4788, 0.908073),
    (14, 14, 0.807364),
    (9, 10, 0.605837),
    (1, 1, 0.05),
]
BOUNDS = [clopper_pearson_lower, clopper_pearson_upper, clopper_pearson_interval, wilson_interval]


@st.composite
def counts(draw: st.DrawFn, max_n: int = 5000) -> tuple[int, int]:
    n = draw(st.integers(1, max_n))
    return draw(st.integers(0, n)), n


alphas = st.floats(0.001, 0.5)


@pytest.mark.parametrize(("successes", "n", "bound"), FOUNDRY_VECTORS)
def test_lower_bound_reproduces_the_seed_systems_vectors(successes, n, bound):
    assert clopper_pearson_lower(successes, n) == pytest.approx(bound, abs=5e-7)


def test_lower_bound_reproduces_every_published_bound_of_the_demo_data():
    if not SUMMARY.exists():
        pytest.skip(f"demo data missing: {SUMMARY}")
    seen = 0
    for suites in json.loads(SUMMARY.read_text()).values():
        for row in suites.values():
            for part in (row, *row["per_family"].values()):
                if part["must_not_call"]:
                    bound = clopper_pearson_lower(part["safe"], part["must_not_call"])
                    assert round(bound, 4) == part["safe_cp95_lower"]
                    seen += 1
    assert seen > 100


@given(counts(), alphas)
def test_one_sided_bounds_are_beta_quantiles(case, alpha):
    k, n = case
    lower = 0.0 if k == 0 else stats.beta.ppf(alpha, k, n - k + 1)
    upper = 1.0 if k == n else stats.beta.ppf(1 - alpha, k + 1, n - k)
    assert clopper_pearson_lower(k, n, alpha) == pytest.approx(lower, rel=1e-9)
    assert clopper_pearson_upper(k, n, alpha) == pytest.approx(upper, rel=1e-9)


@given(counts(), alphas)
def test_intervals_agree_with_scipys_binomtest(case, alpha):
    k, n = case
    test = stats.binomtest(k, n)
    exact = test.proportion_ci(1 - alpha, method="exact")
    wilson = test.proportion_ci(1 - alpha, method="wilson")
    assert clopper_pearson_interval(k, n, alpha) == pytest.approx((exact.low, exact.high), abs=1e-9)
    assert wilson_interval(k, n, alpha) == pytest.approx((wilson.low, wilson.high), abs=1e-9)


@given(counts(), alphas)
def test_lower_bound_is_where_the_binomial_tail_equals_alpha(case, alpha):
    k, n = case
    if k:
        assert stats.binom.sf(k - 1, n, clopper_pearson_lower(k, n, alpha)) == pytest.approx(alpha, rel=1e-6)


@given(counts())
def test_every_interval_holds_the_observed_rate_inside_zero_and_one(case):
    k, n = case
    for interval in (clopper_pearson_interval(k, n), wilson_interval(k, n)):
        assert 0 <= interval.lower <= k / n <= interval.upper <= 1


@given(counts())
def test_one_more_success_never_lowers_the_bound(case):
    k, n = case
    if k < n:
        assert clopper_pearson_lower(k + 1, n) > clopper_pearson_lower(k, n)


@pytest.mark.parametrize("n", [1, 7, 150, 10**9])
def test_no_success_bounds_at_zero_and_all_successes_at_the_nth_root_of_alpha(n):
    assert clopper_pearson_lower(0, n) == 0.0
    assert clopper_pearson_lower(n, n) == 0.05 ** (1 / n)
    assert clopper_pearson_upper(n, n) == 1.0
    assert clopper_pearson_upper(0, n) == pytest.approx(1 - 0.05 ** (1 / n), rel=1e-6)
    assert clopper_pearson_upper(0, n) > 0


@pytest.mark.parametrize("bound", BOUNDS)
def test_no_cases_give_no_bound_but_an_error_with_a_stable_code(bound):
    with pytest.raises(NotEnoughData) as caught:
        bound(0, 0)
    assert caught.value.code == "not_enough_data"
    assert isinstance(caught.value, AssayError)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize(
    ("successes", "n"),
    [(-1, 5), (6, 5), (1, 0), (0, -1), (True, 5), (1, True), (2.0, 5), (2, 5.0), (math.nan, 5), ("2", 5)],
)
def test_counts_that_cannot_be_are_refused(bound, successes, n):
    with pytest.raises(ValueError):
        bound(successes, n)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("alpha", [0, 1, -0.1, 1.5, math.nan, True])
def test_an_alpha_outside_zero_and_one_is_refused(bound, alpha):
    with pytest.raises(ValueError):
        bound(3, 5, alpha)


def test_fifty_nine_of_fifty_nine_are_the_fewest_that_bound_at_95_percent():
    assert minimum_n_for_bound(Fraction(95, 100), 0.05) == 59
    assert minimum_n_for_bound(0.95) == 59
    assert minimum_n_for_bound(Fraction("0.99")) == 299
    assert minimum_n_for_bound(0.05, 0.05) == 1


@given(st.floats(0.001, 0.99999), alphas)
def test_minimum_n_reaches_the_bound_and_one_less_does_not(minimum, alpha):
    n = minimum_n_for_bound(minimum, alpha)
    assert clopper_pearson_lower(n, n, alpha) >= minimum
    assert n == 1 or clopper_pearson_lower(n - 1, n - 1, alpha) < minimum


def test_minimum_n_ends_for_a_minimum_one_step_below_one():
    assert minimum_n_for_bound(math.nextafter(1, 0)) > 10**15


@pytest.mark.parametrize("minimum", [0, 1, -0.5, 1.5, math.nan, Fraction(1), Fraction(0)])
def test_a_bound_that_asks_nothing_or_the_impossible_has_no_minimum_n(minimum):
    with pytest.raises(ValueError):
        minimum_n_for_bound(minimum)


@given(st.integers(1, 400), st.fractions(Fraction(1, 100), 1, max_denominator=1000), alphas)
def test_required_successes_are_the_first_that_reach_the_bound(n, minimum, alpha):
    passing = [k for k in range(n + 1) if clopper_pearson_lower(k, n, alpha) >= minimum]
    assert required_successes(n, minimum, alpha) == (passing[0] if passing else None)


def test_required_successes_know_vectors_and_limits():
    assert required_successes(160, Fraction("0.80")) == 137
    assert required_successes(58, 0.95) is None
    assert required_successes(59, 0.95) == 59
    assert required_successes(10, 1) is None
    with pytest.raises(NotEnoughData):
        required_successes(0, 0.5)
    with pytest.raises(ValueError):
        required_successes(10, 0)


def test_a_drop_of_exactly_the_allowed_margin_is_exact():
    assert exact_drop(93, 100, 91, 100) == Fraction(2, 100) == Decimal("0.02")
    assert 0.93 - 0.91 > 0.02
    assert exact_drop(1, 3, 1, 2) == Fraction(-1, 6)
    with pytest.raises(NotEnoughData):
        exact_drop(1, 2, 0, 0)
    with pytest.raises(ValueError):
        exact_drop(3, 2, 1, 2)


@given(st.integers(0, 400), st.integers(0, 400))
def test_mcnemar_is_the_two_sided_binomial_test_at_one_half(lost, won):
    expected = stats.binomtest(lost, lost + won).pvalue if lost + won else 1.0
    assert mcnemar_exact(lost, won) == pytest.approx(expected, rel=1e-9)
    assert mcnemar_exact(lost, won) == mcnemar_exact(won, lost)


def test_mcnemar_knows_exact_values():
    assert mcnemar_exact(0, 0) == 1.0
    assert mcnemar_exact(5, 0) == pytest.approx(2 / 2**5)
    assert mcnemar_exact(1, 8) == pytest.approx(2 * (1 + 9) / 2**9)
    with pytest.raises(ValueError):
        mcnemar_exact(-1, 3)
    with pytest.raises(ValueError):
        mcnemar_exact(1, True)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.integers(1, 100))
def test_a_percentile_is_the_first_value_with_q_percent_at_or_below_it(values, q):
    ranked = sorted(values)
    first = next(v for i, v in enumerate(ranked, start=1) if 100 * i >= q * len(ranked))
    assert percentile_ms(values, q) == first


def test_a_rank_that_is_whole_is_not_rounded_up():
    assert percentile_ms(range(1, 101), 7) == 7
    assert percentile_ms(range(1, 1001), 99.9) == 999
    assert percentile_ms([5.0], 1) == percentile_ms([5.0], 100) == 5.0
    assert percentile_ms([3, 1, 2], 50) == 2


@pytest.mark.parametrize("q", [0, 0.95, 100.5, -1, math.nan, True])
def test_a_percentile_given_as_a_fraction_is_refused(q):
    with pytest.raises(ValueError):
        percentile_ms([1.0], q)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_a_duration_that_cannot_be_is_refused(bad):
    with pytest.raises(ValueError):
        percentile_ms([1.0, bad], 50)


def test_no_durations_have_no_percentile():
    with pytest.raises(NotEnoughData):
        percentile_ms([], 95)


@settings(max_examples=20)
@given(st.integers(10**6, 10**9))
def test_bounds_stay_tight_for_very_large_n(n):
    interval = clopper_pearson_interval(n // 2, n)
    assert interval.upper - interval.lower < 4 / math.sqrt(n)
