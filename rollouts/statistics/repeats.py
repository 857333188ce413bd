"""Several samples of one case: their reduction to one value, and pass@k.

n is distinct cases: ten samples of one case are one observation of a suite, not ten.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar

from rollouts.statistics.base import NotEnoughData, check_count

Case = TypeVar("Case")
Rule = Literal["mean", "all"]


class Reduced(NamedTuple, Generic[Case]):
    """One value per case, 0 to 1, and the cases that have none, in the order given. n is len(values)."""

    values: dict[Case, float]
    missing: tuple[Case, ...]


class PassAtK(NamedTuple):
    """Mean pass@k, 0 to 1, over `n` cases; `skipped` cases had fewer than `k` samples."""

    k: int
    value: float
    n: int
    skipped: int


def reduce_repeats(samples: Mapping[Case, Sequence[float | None]], rule: Rule = "mean") -> Reduced[Case]:
    """One value per case from its samples' scores, 0 to 1; None is a sample without a score (masked).

    "mean" is the mean of the scored samples: one failed sample does not discard its siblings. "all" is what
    gates count, on scores of 0 and 1: 1.0 when every sample is right, 0.0 when any is wrong, and missing when
    a sample without a score could decide it. A case without a scored sample is missing, never 0.

    Raises `ValueError` for a score outside 0 to 1, or between them under "all", and for an unknown rule.
    """
    if rule not in ("mean", "all"):
        raise ValueError(f"the rule is mean or all, not {rule!r}")
    values: dict[Case, float] = {}
    missing: list[Case] = []
    for case, scores in samples.items():
        known = [float(score) for score in scores if score is not None]
        if not all(0 <= score <= 1 and (rule == "mean" or score in (0, 1)) for score in known):
            raise ValueError(f"a score of case {case!r} is out of range for {rule}: {known}")
        undecided = rule == "all" and len(known) < len(scores) and all(known)
        if not known or undecided:
            missing.append(case)
        else:
            values[case] = math.fsum(known) / len(known) if rule == "mean" else min(known)
    return Reduced(values, tuple(missing))


def pass_at_k(counts: Iterable[tuple[int, int]], k: int) -> PassAtK:
    """Chance that at least one of `k` samples is right, unbiased, as the mean over cases (Chen et al. 2021).

    "Evaluating Large Language Models Trained on Code", eq. 1: a case with c right of n samples gives
    1 - C(n - c, k) / C(n, k). `counts` holds (c, n) per case, n without masked samples. Cases with n < k are
    skipped and counted; the estimator is not defined there. At k = 1 it is the mean success rate.

    Raises `NotEnoughData` when no case has k samples, and `ValueError` for a k under 1 or counts that cannot
    be.
    """
    check_count(k)
    if k == 0:
        raise ValueError("k is at least 1")
    values: list[float] = []
    skipped = 0
    for successes, n in counts:
        check_count(successes)
        check_count(n)
        if successes > n:
            raise ValueError(f"{successes} right of {n} samples cannot be")
        if n < k:
            skipped += 1
            continue
        # Whole numbers until the one division: no overflow, and no digits lost near 0.
        ways = math.comb(n, k)
        values.append((ways - math.comb(n - successes, k)) / ways)
    if not values:
        raise NotEnoughData(f"No case has {k} scored samples, so there is no pass@{k}.", n=0, skipped=skipped)
    return PassAtK(k, math.fsum(values) / len(values), len(values), skipped)
