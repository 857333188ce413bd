"""Before money is spent: the chance that a good model passes, and the cases that it takes.

Power is exact, by the binomial and trinomial distributions and the same bounds that gates use. It is a
saw-tooth of n: the sizes below reach the power asked for, one case less does not, and a somewhat larger n may
fall a little under it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from rollouts.statistics.base import DEFAULT_ALPHA, NotEnoughData, check_count
from rollouts.statistics.binomial import required_successes
from rollouts.statistics.discordant import check_margin, null_variance, one_sided_z

DEFAULT_POWER = 0.8
MAX_CASES = 100_000


def power_for_bound(n: int, minimum: Fraction | float, rate: float, alpha: float = DEFAULT_ALPHA) -> float:
    """Chance, 0 to 1, that n cases reach the exact lower bound `minimum` at a true success rate of `rate`.

    P(X >= k | n, rate) with k from `required_successes`; 0.0 when n of n do not reach it. `minimum` is in (0,
    1], `rate` in 0 to 1. Raises `NotEnoughData` for n = 0 and `ValueError` for values out of range.
    """
    _check_rate("rate", rate)
    needed = required_successes(n, minimum, alpha)
    return 0.0 if needed is None else float(_at_least(needed, n, rate))


def sample_size_for_bound(
    minimum: Fraction | float,
    rate: float,
    power: float = DEFAULT_POWER,
    alpha: float = DEFAULT_ALPHA,
    limit: int = MAX_CASES,
) -> int | None:
    """Cases whose `power_for_bound` is at least `power`, where one less is not; None beyond `limit`.

    `power` is in (0, 1) and `rate` must be above `minimum`: a model that is not better than the bound cannot
    be planned to pass it. Raises `ValueError` otherwise.
    """
    _check_rate("rate", rate)
    if rate <= minimum:
        raise ValueError(f"a true rate of {rate} is not above the minimum of {minimum}, whatever n is")
    return _first(lambda n: power_for_bound(n, minimum, rate, alpha), power, 1, limit)


def power_non_inferiority(
    n: int, margin: Fraction | float, lost_rate: float, won_rate: float, alpha: float = DEFAULT_ALPHA
) -> float:
    """Chance, 0 to 1, that n pairs have `tango_lower` >= -`margin`, given the true shares lost and won.

    A sum over the trinomial distribution of (lost, won, equal): for each number of lost pairs, the fewest won
    ones that pass. Numbers of lost pairs beyond ten standard deviations are left out. `margin` is in (0, 1),
    `lost_rate + won_rate` at most 1. Raises `NotEnoughData` under two pairs, else `ValueError`.
    """
    check_count(n)
    check_margin(margin)
    _check_shares(lost_rate, won_rate)
    z = one_sided_z(alpha)
    if n < 2:
        raise NotEnoughData("A paired difference needs at least two pairs.", n=n)
    middle, reach = n * lost_rate, 10 * math.sqrt(n * lost_rate * (1 - lost_rate)) + 20
    lost = np.arange(max(0, math.floor(middle - reach)), min(n, math.ceil(middle + reach)) + 1)
    share = _at_least(lost, n, lost_rate) - _at_least(lost + 1, n, lost_rate)
    won_of_rest = min(1.0, won_rate / (1 - lost_rate)) if lost_rate < 1 else 0.0
    passes = _at_least(_fewest_won(lost, n, float(margin), z), n - lost, won_of_rest)
    return min(1.0, math.fsum(share * passes))


def sample_size_non_inferiority(
    margin: Fraction | float,
    lost_rate: float,
    won_rate: float,
    power: float = DEFAULT_POWER,
    alpha: float = DEFAULT_ALPHA,
    limit: int = MAX_CASES,
) -> int | None:
    """Pairs whose `power_non_inferiority` is at least `power`, where one less is not; None beyond `limit`.

    `power` is in (0, 1) and the true difference must lie above -`margin`. Raises `ValueError` otherwise.
    """
    check_margin(margin)
    _check_shares(lost_rate, won_rate)
    if won_rate - lost_rate <= -margin:
        loss = lost_rate - won_rate
        raise ValueError(f"a true loss of {loss} is not inside the margin of {margin}, whatever n is")
    return _first(lambda n: power_non_inferiority(n, margin, lost_rate, won_rate, alpha), power, 2, limit)


def _first(power_at: Callable[[int], float], power: float, least: int, limit: int) -> int | None:
    if isinstance(power, bool) or not 0 < power < 1:
        raise ValueError(f"power must lie strictly between 0 and 1, not {power!r}")
    check_count(limit)
    if limit < least:
        return None
    too_few, enough = least - 1, least
    while power_at(enough) < power:
        if enough == limit:
            return None
        too_few, enough = enough, min(2 * enough, limit)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if power_at(middle) >= power:
            enough = middle
        else:
            too_few = middle
    return enough


def _fewest_won(lost: npt.NDArray[Any], n: int, margin: float, z: float) -> npt.NDArray[Any]:
    """Per number of lost pairs, the fewest won ones that pass; n - lost + 1 when none do."""
    too_few, enough = np.full_like(lost, -1), n - lost + 1
    while (open_ := enough - too_few > 1).any():
        middle = (too_few + enough) // 2
        reached = middle - lost + n * margin >= z * np.sqrt(null_variance(lost, middle, n, margin))
        enough = np.where(open_ & reached, middle, enough)
        too_few = np.where(open_ & ~reached, middle, too_few)
    return enough


def _at_least(count: Any, n: Any, rate: float) -> npt.NDArray[np.float64]:
    """P(X >= count) for X ~ Binomial(n, rate), elementwise; 1 for a count of 0, 0 for one above n."""
    count, n = np.asarray(count), np.asarray(n)
    inside = special.betainc(np.maximum(count, 1), np.maximum(n - count + 1, 1), rate)
    return np.where(count <= 0, 1.0, np.where(count > n, 0.0, inside))


def _check_rate(name: str, rate: float) -> None:
    if isinstance(rate, bool) or not 0 <= rate <= 1:
        raise ValueError(f"{name} lies within 0 to 1, not {rate!r}")


def _check_shares(lost_rate: float, won_rate: float) -> None:
    _check_rate("lost_rate", lost_rate)
    _check_rate("won_rate", won_rate)
    if lost_rate + won_rate > 1:
        raise ValueError(f"shares of {lost_rate} lost and {won_rate} won add up to more than 1")
