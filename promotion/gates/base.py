"""What a gate is: a pure function of evidence and its own parameters, registered by name.

Nothing measured is nothing passed: a gate that lacks what it needs says `not_evaluated`, which blocks. Masked and
unscored rollouts are bracketed: a gate passes only if it passes with all of them counted against the candidate, fails
only if it fails with all of them counted for it, and is `not_evaluated` in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import ROUND_FLOOR, Decimal
from enum import StrEnum
from typing import Any

import pydantic

from promotion.gates.document import (
    Counts,
    Evidence,
    Measurement,
    Unmet,
    Unusable,
    measurement_digest,
    moment,
    spent_alpha,
)
from promotion.gates.params import METRICS, FloorParams, Metric, Params, SuiteParams
from rollouts.errors import InvalidInput
from rollouts.statistics import clopper_pearson_lower, required_successes

__all__ = [
    "GATES",
    "METRICS",
    "OPENS",
    "Counts",
    "Evidence",
    "FloorParams",
    "Gate",
    "GateOutcome",
    "Measurement",
    "Metric",
    "Outcome",
    "Params",
    "SuiteParams",
    "Unmet",
    "Unusable",
    "bound_floor",
    "floor",
    "gate",
    "judge",
    "measurement_digest",
    "parse_params",
    "spent_alpha",
]


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
    """`numbers` are JSON-safe and for display: measured, bound, best_bound, needs, n, masked, alpha, look, meets_with.

    n is distinct prompts. `bound` holds with every prompt without a score counted against the candidate, `best_bound`
    with all of them counted for it; a bound with a sign is of a drop.
    """

    outcome: Outcome
    reason: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


Check = Callable[[Evidence, Any], GateOutcome]


@dataclass(frozen=True, slots=True)
class Gate:
    """`waivable`: two persons may let it be for a time. `alias_of`: the gate whose former name this is."""

    name: str
    params: type[Params]
    check: Check
    waivable: bool = True
    alias_of: str = ""

    @property
    def summary(self) -> str:
        return (self.check.__doc__ or "").strip().splitlines()[0]


GATES: dict[str, Gate] = {}


def gate(
    name: str, params: type[Params], *, waivable: bool = True, alias_of: str = ""
) -> Callable[[Check], Check]:
    """Registers a gate."""

    def register(check: Check) -> Check:
        GATES[name] = Gate(name, params, check, waivable, alias_of)
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


def judge(evidence: Evidence, entry: Mapping[str, Any], at: datetime | None = None) -> GateOutcome:
    """What one policy entry says of the evidence. Never raises: what goes wrong is an outcome that blocks.

    `at`, an aware time, is when waivers must still hold; without it none applies. A gate that erred said nothing that
    could be waived.
    """
    try:
        params = parse_params(entry, "gate")
        outcome = GATES[params.gate].check(evidence, params)
    except Unusable as unusable:
        outcome = GateOutcome(Outcome.NOT_EVALUATED, str(unusable))
    except Unmet as unmet:
        outcome = GateOutcome(Outcome.FAILED, str(unmet))
    except Exception as error:
        return GateOutcome(Outcome.ERROR, f"The gate itself failed: {type(error).__name__}: {error}"[:500])
    if outcome.outcome in (Outcome.FAILED, Outcome.NOT_EVALUATED) and at is not None:
        return _waived(evidence, entry, outcome, at)
    return outcome


def _waived(evidence: Evidence, entry: Mapping[str, Any], outcome: GateOutcome, at: datetime) -> GateOutcome:
    """The outcome as a waiver of it leaves it: unchanged where none is valid at `at`."""
    if not GATES[entry["gate"]].waivable:
        return outcome
    waivers = evidence.document.get("waivers")
    for waiver in waivers if isinstance(waivers, list) else ():
        try:
            applies = _applies(waiver, evidence, entry, at)
        except Exception:
            applies = False  # a waiver that cannot be read waives nothing
        if applies:
            return GateOutcome(
                Outcome.WAIVED,
                f"Waived until {waiver['expires_at']}, asked for by {waiver['requested_by']} and granted by "
                f"{waiver['granted_by']}: {waiver['reason']} The gate itself, {outcome.outcome}: {outcome.reason}",
                outcome.numbers,
            )
    return outcome


def _applies(waiver: Mapping[str, Any], evidence: Evidence, entry: Mapping[str, Any], at: datetime) -> bool:
    moment(waiver["granted_at"])
    people = [waiver["requested_by"], waiver["granted_by"]]
    return (
        (waiver["gate"], waiver["suite"]) == (entry["gate"], entry.get("suite"))
        and all(isinstance(text, str) and text.strip() for text in (*people, waiver["reason"]))
        and people[0] != people[1]
        and moment(waiver["expires_at"]) > at
        and bool(waiver["measurement_digest"] == measurement_digest(evidence.document))
    )


def _shown(bound: float) -> str:
    """A lower bound with four decimals, rounded down: a sentence never says more than was compared."""
    return str(Decimal(bound).quantize(Decimal("0.0001"), rounding=ROUND_FLOOR))


def bound_floor(
    counts: Counts, minimum: Decimal, alpha: Decimal, what: str, look: int | None = None
) -> GateOutcome:
    """The exact one-sided lower bound of `counts` at `alpha` against `minimum`, with missing prompts bracketed."""
    if counts.n == 0:
        return GateOutcome(Outcome.NOT_EVALUATED, f"{what}: no case of this suite has this metric.")
    bound = clopper_pearson_lower(counts.successes, counts.n, float(alpha))
    best = clopper_pearson_lower(counts.successes + counts.missing, counts.n, float(alpha))
    needed = required_successes(counts.n, float(minimum), float(alpha))
    numbers = {
        "measured": f"{counts.successes}/{counts.n}",
        "bound": f"{bound:.6f}",
        "best_bound": f"{best:.6f}",
        "needs": f">= {minimum}",
        "n": counts.n,
        "masked": counts.missing,
        "alpha": f"{alpha:.6g}",
        "look": look,
        "meets_with": None if needed is None else f"{needed}/{counts.n}",
    }
    would = (
        "no count reaches it at this n" if needed is None else f"it would pass with {needed} of {counts.n}"
    )
    if Decimal(bound) >= minimum:
        return GateOutcome(Outcome.PASSED, f"{what}: lower bound {_shown(bound)} reaches {minimum}.", numbers)
    if Decimal(best) < minimum:
        return GateOutcome(
            Outcome.FAILED, f"{what}: lower bound {_shown(best)} is under {minimum}; {would}.", numbers
        )
    return GateOutcome(
        Outcome.NOT_EVALUATED,
        f"{what}: {counts.missing} prompts without a score decide it (bound {_shown(bound)} to {_shown(best)}, "
        f"needs {minimum}; {would}). Run again what failed.",
        numbers,
    )


def floor(evidence: Evidence, params: FloorParams) -> GateOutcome:
    """`bound_floor` of the candidate's counts on the whole suite, at the alpha that its look may spend."""
    run = evidence.candidate(params.suite)
    alpha = evidence.alpha(run, params.alpha)
    what = f"{params.metric} on {evidence.suite(params.suite)['name']}"
    return bound_floor(run.counts(params.metric), params.min, alpha, what, run.look)
