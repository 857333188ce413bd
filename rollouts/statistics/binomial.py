"""Exact and score bounds for one success rate, and the counts that reach them."""

from __future__ import annotations

import math
from fractions import Fraction

from scipy import special

from rollouts.statistics.base import DEFAULT_ALPHA, Interval, check_alpha, check_counts


def clopper_pearson_lower(successes: int, n: int, alpha: float = DEFAULT_ALPHA) -> float:
    """Exact one-sided lower limit for a success rate (Clopper & Pearson 1934).

    It is the p with P(X >= successes | n, p) = alpha, that is the alpha quantile of Beta(k, n - k + 1).
    0.0 when nothing succeeded, alpha ** (1 / n) when everything did. `alpha` is the error of this one side,
    in (0, 1). Raises `NotEnoughData` for n = 0 and `ValueError` for counts or an alpha out of range.
    """
    check_counts(successes, n)
    check_alpha(alpha)
    if successes == 0:
        return 0.0
    if successes == n:
        return float(alpha ** (1 / n))
    return float(special.betaincinv(successes, n - successes + 1, alpha))


def clopper_pearson_upper(successes: int, n: int, alpha: float = DEFAULT_ALPHA) -> float:
    """Exact one-sided upper limit for a success rate (Clopper & Pearson 1934); the mirror of the lower one.

    1.0 when everything succeeded, 1 - alpha ** (1 / n) when nothing did. Raises as the lower limit does.
    """
    check_counts(successes, n)
    check_alpha(alpha)
    if successes == n:
        return 1.0
    if successes == 0:
        # expm1 keeps the digits that 1 - alpha ** (1 / n) loses for large n.
        return -math.expm1(math.log(alpha) / n)
    return float(special.betainccinv(successes + 1, n - successes, alpha))


def clopper_pearson_interval(successes: int, n: int, alpha: float = DEFAULT_ALPHA) -> Interval:
    """Exact two-sided interval; each side has error alpha / 2, so it covers at least 1 - alpha."""
    check_alpha(alpha)
    return Interval(
        clopper_pearson_lower(successes, n, alpha / 2),
        clopper_pearson_upper(successes, n, alpha / 2),
    )


def wilson_interval(successes: int, n: int, alpha: float = DEFAULT_ALPHA) -> Interval:
    """Two-sided score interval without continuity correction (Wilson 1927), for display beside a rate.

    Its coverage is near 1 - alpha on average and may be below it; gates use the exact bounds above.
    """
    check_counts(successes, n)
    check_alpha(alpha)
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
    check_alpha(alpha)
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
    check_counts(0, n)
    check_alpha(alpha)
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
