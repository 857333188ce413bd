"""Two models on the same cases, by counts: the drop, McNemar's test and Tango's score bounds.

A pair is one case. `lost` pairs were right with the champion only, `won` with the candidate only; differences
are candidate minus champion, so a negative one is a loss. `n` counts all pairs, equal outcomes included.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, TypeVar

import numpy.typing as npt
from scipy import special

from rollouts.statistics.base import (
    DEFAULT_ALPHA,
    Interval,
    NotEnoughData,
    check_alpha,
    check_count,
    check_counts,
)

Count = TypeVar("Count", int, npt.NDArray[Any])


def exact_drop(
    champion_successes: int, champion_n: int, candidate_successes: int, candidate_n: int
) -> Fraction:
    """Champion's rate minus candidate's, in points on the 0-1 scale: positive when the candidate is worse.

    A fraction, because 0.93 - 0.91 as floats exceeds an allowed drop of 0.02 that it equals.
    """
    check_counts(champion_successes, champion_n)
    check_counts(candidate_successes, candidate_n)
    return Fraction(champion_successes, champion_n) - Fraction(candidate_successes, candidate_n)


def mcnemar_exact(lost: int, won: int) -> float:
    """Two-sided exact p-value that losses and wins of a paired comparison are equally likely (McNemar 1947).

    `lost` cases were right with the champion only, `won` with the candidate only; equal outcomes carry no
    information. Twice the smaller binomial tail at 1/2, at most 1.0; 1.0 when no case differs.
    """
    for count in (lost, won):
        check_count(count)
    if lost == won:
        return 1.0
    return min(1.0, 2 * float(special.bdtr(min(lost, won), lost + won, 0.5)))


def tango_lower(lost: int, won: int, n: int, alpha: float = DEFAULT_ALPHA) -> float:
    """One-sided lower score limit for the paired difference of two success rates (Tango 1998).

    Statistics in Medicine 17:891-908. It is the smallest difference that the score test does not reject: the
    d with won - lost - n * d = z * sqrt(n * v(d)), where v(d) is the variance of one pair's difference at the
    restricted maximum likelihood estimate given d. Between -1 and (won - lost) / n; without a discordant pair
    it is -z^2 / (n + z^2), not 0.

    `alpha` is the error of this one side, in (0, 0.5]. The limit is asymptotic: with few discordant pairs its
    real error passes alpha, to about 0.07 for 0.05. When 2 % of the pairs are truly lost and none won, none
    of 133 is lost with probability 0.068, and the limit is then above -0.02. Raises `NotEnoughData` under two
    pairs and `ValueError` for counts or an alpha out of range.
    """
    _check_pairs(lost, won, n)
    z = one_sided_z(alpha)
    if lost == n:
        return -1.0
    rejected, accepted = -1.0, (won - lost) / n
    # 64 halvings of an interval of at most 2 end at the last digit; the rejected end is the cautious one.
    for _ in range(64):
        middle = (rejected + accepted) / 2
        if won - lost - n * middle <= z * _null_deviation(lost, won, n, middle):
            accepted = middle
        else:
            rejected = middle
    return rejected


def tango_upper(lost: int, won: int, n: int, alpha: float = DEFAULT_ALPHA) -> float:
    """One-sided upper score limit for the paired difference; the mirror of the lower one, with its errors."""
    return -tango_lower(won, lost, n, alpha)


def tango_interval(lost: int, won: int, n: int, alpha: float = DEFAULT_ALPHA) -> Interval:
    """Two-sided score interval for the paired difference (Tango 1998); each side has error alpha / 2."""
    check_alpha(alpha)
    return Interval(tango_lower(lost, won, n, alpha / 2), tango_upper(lost, won, n, alpha / 2))


def minimum_n_for_margin(margin: Fraction | float, alpha: float = DEFAULT_ALPHA) -> int:
    """Smallest n for which n pairs without a lost or a won one have `tango_lower` >= -`margin`.

    With fewer pairs a candidate that is never better cannot be shown to be non-inferior. `margin` is on the
    0-1 scale, in (0, 1); anything else raises `ValueError`.
    """
    check_margin(margin)
    # Searched, so that it agrees with a gate's own comparison, rounding and all.
    too_few, enough = 1, 2
    while tango_lower(0, 0, enough, alpha) < -margin:
        too_few, enough = enough, 2 * enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if tango_lower(0, 0, middle, alpha) >= -margin:
            enough = middle
        else:
            too_few = middle
    return enough


def one_sided_z(alpha: float) -> float:
    """The normal quantile of 1 - alpha, for alpha in (0, 0.5]; a bound beyond the estimate is no bound."""
    check_alpha(alpha)
    if alpha > 0.5:
        raise ValueError(f"alpha of a score bound is at most 0.5, not {alpha!r}")
    return float(-special.ndtri(alpha))


def check_margin(margin: Fraction | float) -> None:
    if isinstance(margin, bool) or not 0 < margin < 1:
        raise ValueError(f"a margin must lie strictly between 0 and 1, not {margin!r}")


def null_variance(lost: Count, won: Count, n: int, drop: float) -> Any:
    """Variance of won - lost over n pairs when the true difference is -`drop`, for `drop` in 0 to 1.

    Tango 1998, with the restricted estimate q of the share lost as the larger root of
    2n q^2 - s q + lost * drop * (1 + drop) = 0. A scalar for counts, an array for arrays of counts.
    """
    s = won + lost + (2 * n - won + lost) * drop
    # Both are negative by rounding only. For a drop of 0 or more s and the root add, so no digits cancel.
    root = abs(s * s - 8 * n * drop * (1 + drop) * lost) ** 0.5
    return abs((s + root) / 2 - n * drop * (1 + drop))


def _null_deviation(lost: int, won: int, n: int, difference: float) -> float:
    if difference > 0:
        return _null_deviation(won, lost, n, -difference)
    return math.sqrt(null_variance(lost, won, n, -difference))


def _check_pairs(lost: int, won: int, n: int) -> None:
    for count in (lost, won, n):
        check_count(count)
    if lost + won > n:
        raise ValueError(f"{lost} lost and {won} won of {n} pairs cannot be")
    if n < 2:
        raise NotEnoughData("A paired difference needs at least two pairs.", n=n)
