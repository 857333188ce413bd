"""Exact bounds, paired tests, pass@k and power. Pure functions: no database, no unseeded randomness.

Rates, bounds, margins and scores are on the 0-1 scale. n is distinct cases. A bound that cannot be computed
raises; it is never 0 or 1 by default.
"""

from rollouts.statistics.base import DEFAULT_ALPHA, Interval, NotEnoughData
from rollouts.statistics.binomial import (
    clopper_pearson_interval,
    clopper_pearson_lower,
    clopper_pearson_upper,
    minimum_n_for_bound,
    required_successes,
    wilson_interval,
)
from rollouts.statistics.discordant import (
    exact_drop,
    mcnemar_exact,
    minimum_n_for_margin,
    tango_interval,
    tango_lower,
    tango_upper,
)
from rollouts.statistics.durations import percentile_ms
from rollouts.statistics.paired import PairedBootstrap, PairedDifference, paired_bootstrap, paired_difference
from rollouts.statistics.power import (
    power_for_bound,
    power_non_inferiority,
    sample_size_for_bound,
    sample_size_non_inferiority,
)
from rollouts.statistics.repeats import PassAtK, Reduced, pass_at_k, reduce_repeats

__all__ = [
    "DEFAULT_ALPHA",
    "Interval",
    "NotEnoughData",
    "PairedBootstrap",
    "PairedDifference",
    "PassAtK",
    "Reduced",
    "clopper_pearson_interval",
    "clopper_pearson_lower",
    "clopper_pearson_upper",
    "exact_drop",
    "mcnemar_exact",
    "minimum_n_for_bound",
    "minimum_n_for_margin",
    "paired_bootstrap",
    "paired_difference",
    "pass_at_k",
    "percentile_ms",
    "power_for_bound",
    "power_non_inferiority",
    "reduce_repeats",
    "required_successes",
    "sample_size_for_bound",
    "sample_size_non_inferiority",
    "tango_interval",
    "tango_lower",
    "tango_upper",
    "wilson_interval",
]
