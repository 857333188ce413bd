"""Percentiles of durations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from rollouts.statistics.base import NotEnoughData


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
