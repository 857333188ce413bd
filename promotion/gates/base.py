"""What a gate is: a pure function of evidence and its own parameters, registered by name.

Nothing measured is nothing passed: a gate that lacks what it needs says `not_evaluated`, which blocks. Masked and
unscored cases are bracketed: a gate passes only if it passes with all of them counted against the candidate, fails
only if it fails with all of them counted for it, and is `not_evaluated` in between.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict

from rollouts.errors import InvalidInput
from rollouts.statistics import clopper_pearson_lower, required_successes

DECIMAL = re.compile(r"[0-9](\.[0-9]{1,6})?")
METRICS = ("decision", "tool", "exact", "safe", "json_valid")
Metric = Literal["decision", "tool", "exact", "safe", "json_valid"]


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_EVALUATED = "not_evaluated"
    WAIVED = "waived"
    ERROR = "error"


# Only these open the door.
OPENS = frozenset([Outcome.PASSED, Outcome.WAIVED])


@dataclass(frozen=True, slots=True)
class GateOutcome:
    """`numbers` are JSON-safe and for display: measured, bound, needs, n, masked, meets_with."""

    outcome: Outcome
    reason: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counts:
    """Distinct cases of one metric: right, wrong, and those without a score."""

    successes: int
    failures: int
    missing: int

    @property
    def n(self) -> int:
        return self.successes + self.failures + self.missing


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of the evidence document, already known to be of the right subject, suite and time."""

    document: Mapping[str, Any]

    def counts(self, metric: str) -> Counts:
        return Counts(**self.document["metrics"][metric])

    def families(self, metric: str) -> dict[str, Counts]:
        return {name: Counts(**metrics[metric]) for name, metrics in self.document["families"].items()}


class Unusable(Exception):
    """The evidence lacks what a gate needs; the message says what would give it."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The canonical document (see promotion.evidence) and how gates read it."""

    document: Mapping[str, Any]

    def suite(self, digest: str) -> Mapping[str, Any]:
        for suite in self.document["suites"]:
            if suite["digest"] == digest:
                return dict(suite)
        raise Unusable(f"Suite {digest[:12]} is not in the evidence. Start the candidate's evaluation.")

    def candidate(self, suite_digest: str) -> Measurement:
        return self._measurement(suite_digest, "candidate", self.document["artifact"]["subject_digest"])

    def champion(self, suite_digest: str) -> Measurement:
        champion = self.document["champion"]
        if champion is None:
            raise Unusable("The track has no champion to compare with. Adopt a baseline first.")
        return self._measurement(suite_digest, "champion", champion["subject_digest"])

    def _measurement(self, suite_digest: str, who: str, subject_digest: str | None) -> Measurement:
        suite = self.suite(suite_digest)
        run = suite[who]
        if run is None:
            raise Unusable(f"No closed run of the {who} on {suite['name']}. Start its evaluation.")
        if subject_digest is None or run["subject_digest"] != subject_digest:
            raise Unusable(
                f"The {who}'s run on {suite['name']} measured another model. Evaluate the {who} itself."
            )
        if run["suite_digest"] != suite_digest:
            raise Unusable(f"The {who}'s run was scored on another suite than {suite['name']}.")
        expected = suite["case_count"] * run["samples"]
        if (
            not run["planned"]
            == expected
            == sum(run[part] for part in ("scored", "masked", "unscored", "cancelled"))
        ):
            raise Unusable(
                f"The {who}'s run on {suite['name']} does not account for all {expected} rollouts."
            )
        counted = Counts(**run["metrics"]["decision"]).n
        if counted != suite["case_count"]:
            raise Unusable(
                f"The {who}'s run on {suite['name']} has results of {counted} of {suite['case_count']} cases. "
                "Rows are missing; evaluate it again."
            )
        if run["planned_at"] < self.document["policy"]["locked_at"]:
            raise Unusable(
                f"The {who}'s run on {suite['name']} was planned before the policy was locked. Run it again."
            )
        return Measurement(run)


def _decimal(value: Any) -> Decimal:
    if not isinstance(value, str):
        raise ValueError('must be a decimal in quotes, such as "0.85"')
    if not DECIMAL.fullmatch(value):
        raise ValueError(f"{value[:40]!r} is not a decimal of at most six places, such as 0.85")
    return Decimal(value)


def _floor(value: Any) -> Decimal:
    number = _decimal(value)
    if not Decimal("0.01") <= number <= 1:
        raise ValueError("must be from 0.01 to 1: a floor of 0 can never fail")
    return number


def _drop(value: Any) -> Decimal:
    number = _decimal(value)
    if not 0 <= number <= Decimal("0.5"):
        raise ValueError("must be from 0 to 0.5: a drop of 1 can never fail")
    return number


def _alpha(value: Any) -> Decimal:
    number = _decimal(value)
    if not Decimal("0.000001") <= number <= Decimal("0.2"):
        raise ValueError("must be from 0.000001 to 0.2")
    return number


Floor = Annotated[Decimal, BeforeValidator(_floor)]
MaxDrop = Annotated[Decimal, BeforeValidator(_drop)]
Alpha = Annotated[Decimal, BeforeValidator(_alpha)]
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


Check = Callable[[Evidence, Any], GateOutcome]


@dataclass(frozen=True, slots=True)
class Gate:
    name: str
    params: type[Params]
    check: Check

    @property
    def summary(self) -> str:
        return (self.check.__doc__ or "").strip().splitlines()[0]


GATES: dict[str, Gate] = {}


def gate(name: str, params: type[Params]) -> Callable[[Check], Check]:
    """Registers a gate."""

    def register(check: Check) -> Check:
        GATES[name] = Gate(name, params, check)
        return check

    return register


def parse_params(entry: Mapping[str, Any], where: str) -> Params:
    """Raises `InvalidInput` naming the key of the policy entry."""
    name = entry.get("gate") if isinstance(entry, Mapping) else None
    if name not in GATES:
        raise InvalidInput(
            f"{where}.gate", f"{name!r} is not a gate. Use one of: {', '.join(sorted(GATES))}."
        )
    try:
        return GATES[name].params.model_validate(dict(entry))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        path = ".".join([where, *(str(part) for part in first["loc"])])
        raise InvalidInput(path, first["msg"].removeprefix("Value error, ")) from error


def judge(evidence: Evidence, entry: Mapping[str, Any]) -> GateOutcome:
    """What one policy entry says of the evidence. Never raises: what goes wrong is an outcome that blocks."""
    try:
        params = parse_params(entry, "gate")
        return GATES[params.gate].check(evidence, params)
    except Unusable as unusable:
        return GateOutcome(Outcome.NOT_EVALUATED, str(unusable))
    except Exception as error:
        return GateOutcome(Outcome.ERROR, f"The gate itself failed: {type(error).__name__}: {error}"[:500])


def bound_floor(counts: Counts, minimum: Decimal, alpha: Decimal, what: str) -> GateOutcome:
    """The exact one-sided lower bound of `counts` against `minimum`, with missing cases bracketed."""
    if counts.n == 0:
        return GateOutcome(Outcome.NOT_EVALUATED, f"{what}: no case of this suite has this metric.")
    worst = clopper_pearson_lower(counts.successes, counts.n, float(alpha))
    best = clopper_pearson_lower(counts.successes + counts.missing, counts.n, float(alpha))
    needed = required_successes(counts.n, float(minimum), float(alpha))
    numbers = {
        "measured": f"{counts.successes}/{counts.n}",
        "bound": f"{worst:.6f}",
        "best_bound": f"{best:.6f}",
        "needs": f">= {minimum}",
        "n": counts.n,
        "masked": counts.missing,
        "alpha": str(alpha),
        "meets_with": None if needed is None else f"{needed}/{counts.n}",
    }
    would = (
        "no count reaches it at this n" if needed is None else f"it would pass with {needed} of {counts.n}"
    )
    if Decimal(worst) >= minimum:
        return GateOutcome(Outcome.PASSED, f"{what}: lower bound {worst:.4f} reaches {minimum}.", numbers)
    if Decimal(best) < minimum:
        return GateOutcome(
            Outcome.FAILED, f"{what}: lower bound {best:.4f} is under {minimum}; {would}.", numbers
        )
    return GateOutcome(
        Outcome.NOT_EVALUATED,
        f"{what}: {counts.missing} cases without a score decide it (bound {worst:.4f} to {best:.4f}, needs {minimum}). "
        "Run again what failed.",
        numbers,
    )
