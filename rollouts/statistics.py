"""Exact bounds and paired tests on counts. Pure functions of integers: no database, no randomness.

Rates and bounds are on the 0-1 scale. A bound that cannot be computed raises; it is never 0 or 1 by default.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from scipy import special

from rollouts.errors import AssayError

DEFAULT_ALPHA = 0.05


class NotEnoughData(AssayError):
    """Nothing was measured, so there is no rate, bound or percentile to give."""

    code = "not_enough_data"
    status = 422


class Interval(NamedTuple):
    """A two-sided interval for a rate, 0 <= lower <= upper <= 1."""

    lower: float
    upper: float


def clopper_pearson_lower(successes: int, n: int, alpha: float = DEFAULT_ALPHA) -> float:
    """Exact one-sided lower limit for a success rate (Clopper & Pearson 1934).

    It is the p with P(X >= successes | n, p) = alpha, that is the alpha quantile of Beta(k, n - k + 1).
    0.0 when nothing succeeded, alpha ** (1 / n) when everything did. `alpha` is the error of this one side,
    in (0, 1). Raises `NotEnoughData` for n = 0 and `ValueError` for counts or an alpha out of range.
    """
    _check_counts(successes, n)
    _check_alpha(alpha)
    if successes == 0:
        return 0.0
    if successes == n:
        return float(alpha ** (1 / n))
    return float(special.betaincinv(successes, n - successes + 1, alpha))


def clopper_pearson_upper(successes: int, n: int, alpha: float = DEFAULT_ALPHA) -> float:
    """Exact one-sided upper limit for a success rate (Clopper & Pearson 1934); the mirror of the lower one.

    1.0 when everything succeeded, 1 - alpha ** (1 / n) when nothing did. Raises as the lower limit does.
    """
    _check_counts(successes, n)
    _check_alpha(alpha)
    if successes == n:
        return 1.0
    if successes == 0:
        # expm1 keeps the digits that 1 - alpha ** (1 / n) loses for large n.
        return -math.expm1(math.log(alpha) / n)
    return float(special.betainccinv(successes + 1, n - successes, alpha))


def clopper_pearson_interval(successes: int, n: int, alpha: float = DEFAULT_ALPHA) -> Interval:
    """Exact two-sided interval; each side has error alpha / 2, so it covers at least 1 - alpha."""
    _check_alpha(alpha)
    return Interval(
        clopper_pearson_lower(successes, n, alpha / 2),
        clopper_pearson_upper(successes, n, alpha / 2),
    )


def wilson_interval(successes: int, n: int, alpha: float = DEFAULT_ALPHA) -> Interval:
    """Two-sided score interval without continuity correction (Wilson 1927), for display beside a rate.

    Its coverage is near 1 - alpha on average and may be below it; gates use the exact bounds above.
    """
    _check_counts(successes, n)
    _check_alpha(alpha)
    z = float(special.ndtri(1 - alpha / 2))
    rate, spread = successes / n, z * z / n
    centre = (rate + spread / 2) / (1 + spread)
    half = z * math.sqrt(rate * (1 - rate) / n + spread / (4 * n)) / (1 + spread)
    # Rounding must not leave 1e-17 where the formula gives exactly 0 or 1.
    lower = 0.0 if successes == 0 else max(0.0, centre - half)
    upper = 1.0 if successes == n else min(1.0, centre + half)
    return Interval(lower, upper)


def minimum_n_for_bound(minimum: Fraction | float, alpha: float = DEFAULT_ALPHA) -> int:
    """Smallest n for which n successes of n reach the exact lower bound `minimum`.

    With fewer cases even a perfect model cannot pass. `minimum` is in (0, 1): a bound of 0 asks for nothing
    and a bound of 1 is out of reach of any n; both raise `ValueError`.
    """
    _check_alpha(alpha)
    if not 0 < minimum < 1:
        raise ValueError(f"minimum must lie strictly between 0 and 1, not {minimum}")
    # Searched, not solved by logarithms: it must agree with the gate's own comparison, rounding and all.
    too_few, enough = 0, 1
    while clopper_pearson_lower(enough, enough, alpha) < minimum:
        too_few, enough = enough, 2 * enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if clopper_pearson_lower(middle, middle, alpha) >= minimum:
            enough = middle
        else:
            too_few = middle
    return enough


def required_successes(n: int, minimum: Fraction | float, alpha: float = DEFAULT_ALPHA) -> int | None:
    """Smallest k such that k successes of n reach the lower bound `minimum`; None when n of n do not.

    `minimum` is in (0, 1]. Raises `NotEnoughData` for n = 0.
    """
    _check_counts(0, n)
    _check_alpha(alpha)
    if not 0 < minimum <= 1:
        raise ValueError(f"minimum must be above 0 and at most 1, not {minimum}")
    if clopper_pearson_lower(n, n, alpha) < minimum:
        return None
    too_few, enough = 0, n
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if clopper_pearson_lower(middle, n, alpha) >= minimum:
            enough = middle
        else:
            too_few = middle
    return enough


def exact_drop(
    champion_successes: int, champion_n: int, candidate_successes: int, candidate_n: int
) -> Fraction:
    """Champion's rate minus candidate's, in points on the 0-1 scale: positive when the candidate is worse.

    A fraction, because 0.93 - 0.91 as floats exceeds an allowed drop of 0.02 that it equals.
    """
    _check_counts(champion_successes, champion_n)
    _check_counts(candidate_successes, candidate_n)
    return Fraction(champion_successes, champion_n) - Fraction(candidate_successes, candidate_n)


def percentile_ms(values: Sequence[float], q: float) -> float:
    """The q-th percentile of durations in ms by nearest rank: a value that occurred, never one between two.

    `q` is in percent, 1 to 100; 0.95 is refused because it would silently read as the lowest value. Raises
    `NotEnoughData` for no values and `ValueError` for a value that is negative, NaN or infinite.
    """
    if isinstance(q, bool) or not 1 <= q <= 100:
        raise ValueError(f"q is a percentage from 1 to 100, not {q}")
    if len(values) == 0:
        raise NotEnoughData("No durations were measured, so there is no percentile.", n=0)
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise ValueError("durations must be finite and not negative")
    # str() keeps 99.9 what was written; as a binary fraction it lies above and would round one rank up.
    rank = math.ceil(Fraction(str(q)) * len(values) / 100)
    return float(sorted(values)[rank - 1])


def mcnemar_exact(lost: int, won: int) -> float:
    """Two-sided exact p-value that losses and wins of a paired comparison are equally likely (McNemar 1947).

    `lost` cases were right with the champion only, `won` with the candidate only; equal outcomes carry no
    information. Twice the smaller binomial tail at 1/2, at most 1.0; 1.0 when no case differs.
    """
    for count in (lost, won):
        _check_count(count)
    if lost == won:
        return 1.0
    return min(1.0, 2 * float(special.bdtr(min(lost, won), lost + won, 0.5)))


def _check_count(count: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f"a count is an integer of 0 or more, not {count!r}")


def _check_counts(successes: int, n: int) -> None:
    _check_count(successes)
    _check_count(n)
    if successes > n:
        raise ValueError(f"{successes} successes of {n} cases cannot be")
    if n == 0:
        raise NotEnoughData("No case was scored, so there is no rate to bound.", n=0)


def _check_alpha(alpha: float) -> None:
    if isinstance(alpha, bool) or not 0 < alpha < 1:
        raise ValueError(f"alpha must lie strictly between 0 and 1, not {alpha!r}")
