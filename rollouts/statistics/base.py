"""What the statistics share: the error for missing data, the interval, and the checks of counts and alpha."""

from __future__ import annotations

from typing import NamedTuple

from rollouts.errors import AssayError

DEFAULT_ALPHA = 0.05


class NotEnoughData(AssayError):
    """Too little was measured, so there is no rate, bound, difference or percentile to give."""

    code = "not_enough_data"
    status = 422


class Interval(NamedTuple):
    """A two-sided interval, lower <= upper: within 0 to 1 for a rate, within -1 to 1 for a difference."""

    lower: float
    upper: float


def check_count(count: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f"a count is an integer of 0 or more, not {count!r}")


def check_counts(successes: int, n: int) -> None:
    check_count(successes)
    check_count(n)
    if successes > n:
        raise ValueError(f"{successes} successes of {n} cases cannot be")
    if n == 0:
        raise NotEnoughData("No case was scored, so there is no rate to bound.", n=0)


def check_alpha(alpha: float) -> None:
    if isinstance(alpha, bool) or not 0 < alpha < 1:
        raise ValueError(f"alpha must lie strictly between 0 and 1, not {alpha!r}")
