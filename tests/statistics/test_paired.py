"""The clustered paired difference and the paired bootstrap, against scipy and statsmodels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.regression.linear_model import OLS

from rollouts.statistics import NotEnoughData, paired_bootstrap, paired_difference

scores = st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 1.0])
PAIRS = st.lists(st.tuples(scores, scores, st.integers(0, 5)), min_size=2, max_size=60)


def sides(rows):
    """Champion, candidate and clusters by case, from (champion, candidate, cluster) rows."""
    return tuple({f"case-{i:03}": row[part] for i, row in enumerate(rows)} for part in range(3))


@settings(deadline=None)
@given(PAIRS)
def test_without_clusters_it_is_the_paired_t_test(rows):
    champion, candidate, _ = sides(rows)
    result = paired_difference(champion, candidate, alpha=0.1)
    differences = np.array(list(candidate.values())) - np.array(list(champion.values()))
    assert result.difference == pytest.approx(differences.mean(), abs=1e-12)
    assert result.standard_error == pytest.approx(stats.sem(differences), abs=1e-12)
    assert result.n == result.clusters == len(rows)
    if np.ptp(differences) > 0:
        expected = stats.ttest_1samp(differences, 0).confidence_interval(0.9)
        assert result.interval == pytest.approx((max(-1, expected.low), min(1, expected.high)), abs=1e-9)


@settings(deadline=None)
@given(PAIRS)
def test_the_clustered_error_is_that_of_statsmodels(rows):
    champion, candidate, clusters = sides(rows)
    if len(set(clusters.values())) < 2:
        return
    result = paired_difference(champion, candidate, clusters)
    differences = np.array([candidate[case] - champion[case] for case in champion])
    fit = OLS(differences, np.ones(len(rows))).fit(
        cov_type="cluster", cov_kwds={"groups": np.array(list(clusters.values()))}
    )
    assert result.difference == pytest.approx(fit.params[0], abs=1e-12)
    assert result.standard_error == pytest.approx(fit.bse[0], abs=1e-9)
    assert result.clusters == len(set(clusters.values()))


def test_a_worked_example_by_hand():
    """Clusters a (+1, +1) and b (0, 0): mean 0.5, sums of residuals +1 and -1, SE = sqrt(2 * 2 / 16)."""
    champion = {"1": 0, "2": 0, "3": 1, "4": 1}
    candidate = {"1": 1, "2": 1, "3": 1, "4": 1}
    clusters = {"1": "a", "2": "a", "3": "b", "4": "b"}
    result = paired_difference(champion, candidate, clusters)
    assert (result.difference, result.standard_error, result.n, result.clusters) == (0.5, 0.5, 4, 2)
    assert result.interval == (-1.0, 1.0)
    assert paired_difference(champion, candidate).standard_error == pytest.approx(math.sqrt(1 / 12))


@given(PAIRS, st.integers(2, 4))
def test_copies_of_a_case_in_its_cluster_add_no_certainty(rows, copies):
    champion, candidate, clusters = sides(rows)
    if len(set(clusters.values())) < 2:
        return
    once = paired_difference(champion, candidate, clusters)
    repeated = paired_difference(*sides(rows * copies))
    assert repeated.n == copies * once.n
    assert repeated.difference == pytest.approx(once.difference, abs=1e-12)
    assert repeated.standard_error == pytest.approx(once.standard_error, abs=1e-9)


@given(PAIRS)
def test_twice_the_clusters_never_widen_the_interval(rows):
    champion, candidate, clusters = sides(rows)
    if len(set(clusters.values())) < 2:
        return
    once = paired_difference(champion, candidate, clusters)
    twice = paired_difference(*sides(rows + [(old, new, group + 10) for old, new, group in rows]))
    assert twice.standard_error <= once.standard_error + 1e-12
    if once.interval and twice.interval:
        assert twice.interval.lower >= once.interval.lower - 1e-12


@given(PAIRS)
def test_swapping_the_models_mirrors_difference_and_interval(rows):
    champion, candidate, _ = sides(rows)
    there, back = paired_difference(champion, candidate), paired_difference(candidate, champion)
    assert back.difference == -there.difference
    assert back.standard_error == pytest.approx(there.standard_error, abs=1e-15)
    if there.interval and back.interval:
        assert back.interval == pytest.approx((-there.interval.upper, -there.interval.lower), abs=1e-12)


@settings(deadline=None)
@given(PAIRS, st.randoms())
def test_the_order_of_cases_changes_nothing(rows, random):
    champion, candidate, _ = sides(rows)
    shuffled = list(champion)
    random.shuffle(shuffled)
    other = {case: champion[case] for case in shuffled}
    assert paired_difference(other, candidate) == paired_difference(champion, candidate)
    one, two = (paired_bootstrap(side, candidate, seed=4, resamples=50) for side in (champion, other))
    assert one == two


@pytest.mark.parametrize("gain", [0.0, 0.1])
def test_equal_differences_give_no_interval_of_width_zero(gain):
    champion = {case: case / 100 for case in range(30)}
    candidate = {case: case / 100 + gain for case in range(30)}
    result = paired_difference(champion, candidate)
    assert (result.standard_error, result.interval) == (0.0, None)
    assert result.difference == pytest.approx(gain)
    assert paired_bootstrap(champion, candidate, seed=1, resamples=100).interval is None


def test_clusters_that_cancel_out_give_no_interval_either():
    champion, candidate = {"a": 1, "b": 0, "c": 1, "d": 0}, {"a": 0, "b": 1, "c": 0, "d": 1}
    clusters = {"a": 1, "b": 1, "c": 2, "d": 2}
    assert paired_difference(champion, candidate, clusters).interval is None
    assert paired_bootstrap(champion, candidate, clusters, seed=1, resamples=100).interval is None


@settings(max_examples=25, deadline=None)
@given(PAIRS, st.integers(0, 2**32))
def test_the_bootstrap_is_scipys_percentile_bootstrap_with_the_same_generator(rows, seed):
    champion, candidate, _ = sides(rows)
    differences = np.array([candidate[case] - champion[case] for case in champion])
    result = paired_bootstrap(champion, candidate, seed=seed, resamples=200)
    if result.interval is None:
        return
    expected = stats.bootstrap(
        (differences,), np.mean, n_resamples=200, method="percentile", rng=np.random.default_rng(seed)
    ).confidence_interval
    assert result.interval == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_the_same_seed_gives_the_same_interval_and_another_seed_another():
    rng = np.random.default_rng(0)
    champion = dict(enumerate(rng.integers(0, 2, 200).tolist()))
    candidate = dict(enumerate(rng.integers(0, 2, 200).tolist()))
    first, again, other = (paired_bootstrap(champion, candidate, seed=seed) for seed in (7, 7, 8))
    assert first == again
    assert first.interval != other.interval
    assert (first.n, first.clusters, first.resamples, first.seed) == (200, 200, 10_000, 7)
    assert first.interval == pytest.approx(paired_difference(champion, candidate).interval, abs=0.01)


def test_clusters_widen_the_bootstrap_of_cases_that_fall_together():
    champion = dict.fromkeys(range(100), 0.5)
    candidate = {case: float(case // 10 % 2) for case in champion}
    clusters = {case: case // 10 for case in champion}
    alone = paired_bootstrap(champion, candidate, seed=3, resamples=2000)
    together = paired_bootstrap(champion, candidate, clusters, seed=3, resamples=2000)
    assert together.clusters == 10
    width = alone.interval.upper - alone.interval.lower
    assert together.interval.upper - together.interval.lower > 2.5 * width


def test_resamples_beyond_one_block_of_memory_are_drawn(monkeypatch):
    champion, candidate = dict.fromkeys(range(40), 0.0), {case: case % 2 for case in range(40)}
    whole = paired_bootstrap(champion, candidate, seed=5, resamples=101)
    monkeypatch.setattr("rollouts.statistics.paired.DRAWS_AT_ONCE", 400)
    assert paired_bootstrap(champion, candidate, seed=5, resamples=101) == whole


def differ(champion, candidate, clusters=None, **keywords):
    return paired_difference(champion, candidate, clusters, **keywords)


def draw(champion, candidate, clusters=None, **keywords):
    return paired_bootstrap(champion, candidate, clusters, seed=1, resamples=20, **keywords)


@pytest.mark.parametrize("compare", [differ, draw])
def test_fewer_than_two_pairs_or_clusters_are_not_enough(compare):
    for cases in ({}, {"a": 1.0}):
        with pytest.raises(NotEnoughData):
            compare(cases, cases)
    with pytest.raises(NotEnoughData):
        compare({"a": 0, "b": 1}, {"a": 1, "b": 1}, {"a": "same", "b": "same"})


@pytest.mark.parametrize("compare", [differ, draw])
def test_a_case_without_partner_or_cluster_or_with_a_bad_value_is_refused(compare):
    good = {"a": 0.0, "b": 1.0}
    with pytest.raises(ValueError, match="2 cases lack a partner, such as 'b'"):
        compare(good, {"a": 1.0, "c": 1.0})
    with pytest.raises(ValueError, match="'b' has no cluster"):
        compare(good, good, {"a": 1})
    for bad in (-0.1, 1.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="'b'"):
            compare(good, {"a": 0.0, "b": bad})
    for alpha in (0, 1, math.nan, True):
        with pytest.raises(ValueError):
            compare(good, good, alpha=alpha)


@pytest.mark.parametrize(
    "keywords", [{"seed": -1}, {"seed": 1.5}, {"seed": True}, {"seed": 1, "resamples": 0}]
)
def test_a_seed_or_number_of_resamples_that_cannot_be_is_refused(keywords):
    with pytest.raises(ValueError):
        paired_bootstrap({"a": 0, "b": 1}, {"a": 1, "b": 1}, **keywords)
