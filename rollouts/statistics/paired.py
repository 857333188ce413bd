"""Two models on the same cases, by values: the mean difference with a clustered error, and the bootstrap.

Values are per case, on the 0-1 scale, after repeats were reduced; n is distinct cases. Cases that were made
from one another (paraphrases, templates) fall right or wrong together: give them one cluster.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import special

from rollouts.statistics.base import DEFAULT_ALPHA, Interval, NotEnoughData, check_alpha

Case = TypeVar("Case", str, int)

# Below this a spread of values on the 0-1 scale is rounding: a single differing case of a million gives 1e-6.
NO_SPREAD = 1e-12
DRAWS_AT_ONCE = 1 << 20


class PairedDifference(NamedTuple):
    """Mean of candidate minus champion, -1 to 1, over `n` cases in `clusters` groups.

    `interval` is None when nothing varied between the clusters: an error of 0 would claim certainty. The
    score bounds of `tango_interval` hold there.
    """

    difference: float
    standard_error: float
    interval: Interval | None
    n: int
    clusters: int


class PairedBootstrap(NamedTuple):
    """A percentile interval with all that is needed to draw it again; `interval` is None as above."""

    difference: float
    interval: Interval | None
    n: int
    clusters: int
    resamples: int
    seed: int


class _Differences(NamedTuple):
    """Per cluster, float64 (clusters,): the sum of its cases' differences, and the number of its cases."""

    sums: npt.NDArray[np.float64]
    sizes: npt.NDArray[np.float64]
    n: int

    @property
    def mean(self) -> float:
        return math.fsum(self.sums) / self.n


def paired_difference(
    champion: Mapping[Case, float],
    candidate: Mapping[Case, float],
    clusters: Mapping[Case, Hashable] | None = None,
    alpha: float = DEFAULT_ALPHA,
) -> PairedDifference:
    """Mean difference by case with the cluster-robust standard error and a two-sided t interval.

    SE^2 = G / (G - 1) * sum over clusters of (sum of (d - mean d))^2 / n^2: Liang & Zeger 1986, and Miller
    2024, "Adding Error Bars to Evals", with the small-sample factor; the interval takes t with G - 1 degrees
    of freedom (Cameron & Miller 2015) and is cut at -1 and 1. Without `clusters` each case is its own, and SE
    is the paired t test's. `champion`, `candidate` and `clusters` map the same cases.

    Raises `NotEnoughData` under two cases or two clusters, and `ValueError` for a case without its partner (a
    gate fills in the worst case first), without a cluster, or with a value outside 0 to 1.
    """
    check_alpha(alpha)
    differences = _differences(champion, candidate, clusters)
    mean, groups = differences.mean, len(differences.sums)
    residuals = differences.sums - mean * differences.sizes
    error = math.sqrt(groups / (groups - 1) * math.fsum(residuals**2)) / differences.n
    if error < NO_SPREAD:
        return PairedDifference(mean, 0.0, None, differences.n, groups)
    half = -float(special.stdtrit(groups - 1, alpha / 2)) * error
    interval = Interval(max(-1.0, mean - half), min(1.0, mean + half))
    return PairedDifference(mean, error, interval, differences.n, groups)


def paired_bootstrap(
    champion: Mapping[Case, float],
    candidate: Mapping[Case, float],
    clusters: Mapping[Case, Hashable] | None = None,
    alpha: float = DEFAULT_ALPHA,
    *,
    seed: int,
    resamples: int = 10_000,
) -> PairedBootstrap:
    """Two-sided percentile interval of the mean difference over drawn clusters (Efron & Tibshirani 1993).

    Whole pairs are drawn, so the pairing stays. Deterministic: `seed` (0 or more) starts a numpy PCG64
    generator and cases are taken in sorted order, whatever order they came in; numpy may change the stream
    between its versions. Time grows with clusters * `resamples` (1e8 draws take about two seconds), memory
    does not. Percentile intervals are short for few clusters; gates use score bounds. Raises as
    `paired_difference` does.
    """
    check_alpha(alpha)
    for name, value, least in (("seed", seed, 0), ("resamples", resamples, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} is an integer of {least} or more, not {value!r}")
    differences = _differences(champion, candidate, clusters)
    groups = len(differences.sums)
    rng = np.random.default_rng(seed)
    means = np.empty(resamples)
    step = max(1, DRAWS_AT_ONCE // groups)
    for start in range(0, resamples, step):
        drawn = rng.integers(0, groups, size=(min(step, resamples - start), groups))
        sizes = differences.sizes[drawn].sum(axis=1)
        means[start : start + step] = differences.sums[drawn].sum(axis=1) / sizes
    interval = None
    if np.ptp(means) >= NO_SPREAD:
        lower, upper = np.quantile(means, (alpha / 2, 1 - alpha / 2))
        interval = Interval(float(lower), float(upper))
    return PairedBootstrap(differences.mean, interval, differences.n, groups, resamples, seed)


def _differences(
    champion: Mapping[Case, float],
    candidate: Mapping[Case, float],
    clusters: Mapping[Case, Hashable] | None,
) -> _Differences:
    alone = champion.keys() ^ candidate.keys()
    if alone:
        raise ValueError(f"{len(alone)} cases lack a partner, such as {min(alone)!r}: fill in the worst case")
    cases: list[Any] = sorted(champion)
    if len(cases) < 2:
        raise NotEnoughData("A paired difference needs at least two pairs.", n=len(cases))
    for side in (champion, candidate):
        for case in cases:
            if not 0 <= side[case] <= 1:
                raise ValueError(f"the value of case {case!r} is {side[case]!r}, not within 0 to 1")
    labels = np.arange(len(cases)) if clusters is None else _labels(cases, clusters)
    sizes = np.bincount(labels).astype(np.float64)
    if len(sizes) < 2:
        raise NotEnoughData("All cases are of one cluster, so nothing shows how clusters vary.", n=1)
    values = np.array([float(candidate[case]) - float(champion[case]) for case in cases])
    sums = np.bincount(labels, weights=values).astype(np.float64)
    return _Differences(sums, sizes, len(cases))


def _labels(cases: list[Any], clusters: Mapping[Any, Hashable]) -> npt.NDArray[np.int64]:
    """Clusters numbered in the order in which the cases first name them, int64 (cases,)."""
    numbers: dict[Hashable, int] = {}
    for case in cases:
        if case not in clusters:
            raise ValueError(f"case {case!r} has no cluster")
        numbers.setdefault(clusters[case], len(numbers))
    return np.array([numbers[clusters[case]] for case in cases], dtype=np.int64)
