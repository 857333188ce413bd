"""What a policy's entry may say to a gate. Values with which a gate could never fail, or never pass, are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

DECIMAL = re.compile(r"[0-9](\.[0-9]{1,6})?")
PERCENT = re.compile(r"[0-9]{1,2}(\.[0-9]{1,6})?")
METRICS = ("decision", "tool", "exact", "safe", "json_valid")
Metric = Literal["decision", "tool", "exact", "safe", "json_valid"]


def decimal(value: Any, form: re.Pattern[str] = DECIMAL) -> Decimal:
    """A decimal written as a string of at most six places. Raises `ValueError` for anything else."""
    if not isinstance(value, str):
        raise ValueError('must be a decimal in quotes, such as "0.85"')
    if not form.fullmatch(value):
        raise ValueError(f"{value[:40]!r} is not a decimal of at most six places, such as 0.85")
    return Decimal(value)


def _between(
    least: str, most: str, why: str = "", form: re.Pattern[str] = DECIMAL
) -> Callable[[Any], Decimal]:
    def read(value: Any) -> Decimal:
        number = decimal(value, form)
        if not Decimal(least) <= number <= Decimal(most):
            raise ValueError(f"must be from {least} to {most}{why}")
        return number

    return read


Floor = Annotated[Decimal, BeforeValidator(_between("0.01", "1", ": a floor of 0 can never fail"))]
MaxDrop = Annotated[Decimal, BeforeValidator(_between("0", "0.5", ": a drop of 1 can never fail"))]
Margin = Annotated[
    Decimal,
    BeforeValidator(
        _between("0.001", "0.5", ": at 0 no number of equal answers is enough, 1 can never fail")
    ),
]
MaxPercent = Annotated[
    Decimal, BeforeValidator(_between("0", "50", " percent: a ceiling of 100 can never fail", PERCENT))
]
MaxAccuracy = Annotated[
    Decimal, BeforeValidator(_between("0.51", "0.99", ": under 0.51 nothing passes, and 1 can hardly fail"))
]
Alpha = Annotated[Decimal, BeforeValidator(_between("0.000001", "0.2"))]
SuiteDigest = Annotated[str, pydantic.StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Params(BaseModel):
    """Base of a gate's parameters: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    gate: str


class SuiteParams(Params):
    suite: SuiteDigest


class FloorParams(SuiteParams):
    """A lower confidence bound of `metric` on `suite` must reach `min`."""

    metric: Metric
    min: Floor
    alpha: Alpha = Decimal("0.05")


class MaxDropParams(SuiteParams):
    """`max_drop` in points (0 to 1) of `metric`, by integer counts."""

    metric: Metric
    max_drop: MaxDrop


class MarginParams(SuiteParams):
    """`margin` in points (0 to 1) of `metric`, by a bound at `alpha`."""

    metric: Metric
    margin: Margin
    alpha: Alpha = Decimal("0.05")


class NearParams(Params):
    """`max_near`: rows of a dataset that may be nearly, but not quite, a row of another set; for each comparison."""

    max_near: Annotated[int, Field(strict=True, ge=0, le=1000)] = 0


class BudgetParams(SuiteParams):
    """`max_p95_ms` in milliseconds, up to ten minutes; `max_memory_mib` in MiB, up to 1 TiB, or left out."""

    max_p95_ms: Annotated[int, Field(strict=True, ge=1, le=600_000)]
    max_memory_mib: Annotated[int, Field(strict=True, ge=1, le=1 << 20)] | None = None


class MaskedParams(SuiteParams):
    """`max_percent` of the planned rollouts, 0 to 50."""

    max_percent: MaxPercent


class LeakParams(SuiteParams):
    """`max_accuracy`, 0.51 to 0.99, above the share of the commonest label."""

    max_accuracy: MaxAccuracy


class LookParams(SuiteParams):
    max_looks: Annotated[int, Field(strict=True, ge=1, le=1000)]
