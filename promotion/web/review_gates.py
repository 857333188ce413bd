"""The gates of the review page: what each measured, both ends of its bound, what it needs, and how near it is to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, NamedTuple

from promotion import anchors
from promotion.fragility import Fragility, fragility
from promotion.gates import GATES
from promotion.models import Candidate, CandidateState, Evidence, GateResult
from promotion.services import gating
from promotion.suite_rules import DEFAULT_ALPHA
from promotion.web import families

UNMET = ("failed", "error", "not_evaluated")
LOOKS = {
    "failed": "fail",
    "error": "fail",
    "not_evaluated": "unsure",
    "waits": "unsure",
    "waived": "unsure",
    "glass_broken": "unsure",
}
NONE = "–"
# what a bound is of, where it is not a rate: the table of families shows the same differences with the same sign
DIFFERENCES = {
    "arena_max_regression": "the difference to the champion itself",
    "paired_non_inferiority": "of the difference to the champion",
}
# the gates of which the sentence of the code does not say all that a policy entry asks
_FLOOR = "at least {min} with {confidence} confidence"
SUMMARIES = {
    "generalization_accuracy_floor": f"Share with {{counted}} on held-out tools: {_FLOOR}.",
    "confidence_lower_bound": f"Share with {{counted}}: {_FLOOR}.",
    "per_family_safety_floor": f"Share with {{counted}} in every family by itself: {_FLOOR}; none may be missing.",
    "plausible_fabrication_safety_floor": (
        f"Where a plausible tool is named that does not exist, share with {{counted}}: {_FLOOR}."
    ),
    "arena_json_validity_min": f"Share of answers that are one strict JSON object: {_FLOOR}.",
    "arena_max_regression": (
        "Share with {counted} at most {max_drop} below the champion's on the same prompts, by exact fractions."
    ),
    "paired_non_inferiority": (
        "Share with {counted} less the champion's, prompt by prompt: at least \N{MINUS SIGN}{margin} "
        "with {confidence} confidence."
    ),
    "masked_ceiling": (
        "At most {max_percent} % of the candidate's rollouts are without a score: masked, unscored or cancelled."
    ),
    "latency_memory_budget": "95 of 100 rollouts took at most {max_p95_ms} ms{memory}.",
}


class Deciding(NamedTuple):
    """The family that a gate with a bound for each family hangs on, what it measured, and its row of the family table."""

    family: str
    measured: str
    place: str


@dataclass(frozen=True, slots=True)
class GateRow:
    """One policy entry: what was measured, what it must reach, what came out.

    `bound` holds with every prompt without a score counted against the candidate, `best` (only where it is another)
    with all of them counted for it. Where the gate judges each family, they and `n` and `masked` are of the family that
    decides. `bound_of` says what the bound is of where it is no rate.
    """

    gate: str
    summary: str
    suite: str
    outcome: str
    reason: str
    measured: str
    bound: str
    best: str
    needs: str
    n: int | None
    masked: int | None
    meets_with: str
    fragile: Fragility | None
    position: int | None  # in the policy; None for the signatures, which are no row of the evidence
    measured_at: str  # id of the row of the family table with what it measured, or ""
    bound_of: str = ""
    deciding: Deciding | None = None

    @property
    def anchor(self) -> str:
        return "" if self.position is None else anchors.of_gate(self.position)

    @property
    def unmet(self) -> bool:
        return self.outcome in UNMET

    @property
    def waived(self) -> bool:
        return self.outcome == "waived"

    @property
    def is_signature(self) -> bool:
        return self.gate == gating.APPROVAL_GATE

    @property
    def flips(self) -> int | None:
        """Prompts that must turn until a passing gate does not pass."""
        fragile = self.fragile
        return fragile.flips if fragile and fragile.passes and fragile.unit == "prompts" else None

    @property
    def look(self) -> str:
        return LOOKS.get(self.outcome, "")

    @property
    def remedy(self) -> str:
        """What would meet an unmet gate, where its own words do not end with it."""
        if self.outcome == "error":
            return "An error cannot be waived. It is a fault of the gate or of its entry in the policy."
        if self.fragile is not None:
            return self.fragile.sentence
        return f"Met with {self.meets_with}." if self.meets_with else ""


def gate_rows(
    candidate: Candidate, evidence: Evidence, document: Mapping[str, Any], results: list[GateResult]
) -> list[GateRow]:
    """`results` are what the gates say now, in the policy's order. Unmet gates first; else in the policy's order. The signatures are judged as they stand now."""
    policy = document["policy"]["document"] if document["policy"] else {"gates": []}
    parts = {part["digest"]: part for part in document["suites"]}
    rows = [
        _policy_row(document, policy, entry, parts.get(entry.get("suite")), result)
        for result, entry in zip(results, policy["gates"], strict=False)
        if result.gate != gating.APPROVAL_GATE
    ]
    rows.append(_approval_row(candidate, evidence))
    return sorted(rows, key=lambda row: (not row.unmet, row.outcome == "not_evaluated", not row.waived))


def _policy_row(
    document: Mapping[str, Any],
    policy: Mapping[str, Any],
    entry: Mapping[str, Any],
    part: Mapping[str, Any] | None,
    result: GateResult,
) -> GateRow:
    numbers, deciding = result.numbers, None
    if part is not None and numbers.get("families"):
        family, numbers = _decided_by(numbers, entry)
        deciding = Deciding(family, numbers["own"], families.place(policy, part, family))
    return gate_row(
        result.gate,
        str(result.outcome),
        result.reason,
        numbers,
        part["name"] if part else "",
        fragility(document, entry),
        position=result.position,
        measured_at=families.place(policy, part) if part is not None and "metric" in entry else "",
        summary=summary_of(entry, numbers.get("alpha"), spent=bool(policy.get("spend_alpha"))),
        deciding=deciding,
    )


def _decided_by(numbers: Mapping[str, Any], entry: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The family with the lowest bound, of those that fail whatever their missing prompts are if there are any.

    And the gate's numbers with that family's bound, n and masked in place of those over all families.
    """
    minimum, found = Decimal(entry["min"]), numbers["families"]

    def rank(name: str) -> tuple[bool, Decimal, str]:
        return Decimal(found[name]["best_bound"]) >= minimum, Decimal(found[name]["bound"]), name

    family = min(found, key=rank)
    own = {key: found[family].get(key) for key in ("bound", "best_bound", "n", "masked")}
    return family, {**numbers, **own, "own": found[family]["measured"]}


def summary_of(entry: Mapping[str, Any], alpha: str | None, *, spent: bool) -> str:
    """What the entry asks, with its own values. `alpha`: at which its bound was taken; `spent`: a look may lower it."""
    gate = entry["gate"]
    known = GATES[gate].summary if gate in GATES else ""
    at_least = "at least " if spent and not alpha else ""
    values = {
        **entry,
        "counted": families.COUNTED.get(entry.get("metric", ""), entry.get("metric", "")),
        "confidence": f"{at_least}{confidence(alpha or entry.get('alpha') or str(DEFAULT_ALPHA))}",
        "memory": f", and the server never held more than {entry['max_memory_mib']} MiB"
        if entry.get("max_memory_mib")
        else "",
    }
    try:
        return SUMMARIES[gate].format(**values)
    except KeyError:  # another gate, or an entry that lacks what its gate needs
        return re.sub(r"`(\w+)`", lambda found: str(entry.get(found[1], found[1])), known)


def confidence(alpha: str) -> str:
    """1 - alpha in percent, rounded down: never more sure than it is."""
    try:
        share = (1 - Decimal(alpha)) * 100
    except ArithmeticError:
        return "unknown"
    return f"{share.quantize(Decimal('0.01'), rounding=ROUND_FLOOR).normalize():f} %"


def _approval_row(candidate: Candidate, evidence: Evidence) -> GateRow:
    if candidate.state == CandidateState.PROMOTED:
        # as it stood at promotion: signatures that expired since do not unsign what has shipped
        kept = candidate.entry.record["gates"][-1]
        return gate_row(kept["gate"], kept["outcome"], kept["reason"], {}, "", None)
    found = gating.approvals_outcome(candidate, evidence)
    outcome = "passed" if found.outcome == "passed" else "waits"
    return gate_row(gating.APPROVAL_GATE, outcome, found.reason, found.numbers, "", None)


def gate_row(
    gate: str,
    outcome: str,
    reason: str,
    numbers: Mapping[str, Any],
    suite: str,
    fragile: Fragility | None,
    *,
    position: int | None = None,
    measured_at: str = "",
    summary: str = "",
    deciding: Deciding | None = None,
) -> GateRow:
    shown = shown_difference if gate in DIFFERENCES else shown_bound
    bound, best = shown(numbers.get("bound")), shown(numbers.get("best_bound"))
    return GateRow(
        gate=gate,
        summary=summary or (GATES[gate].summary.replace("`", "") if gate in GATES else ""),
        suite=suite,
        outcome=outcome,
        reason=reason,
        measured=str(numbers.get("measured", NONE)),
        bound=bound,
        best=best if best not in (bound, NONE) else "",
        needs=_shown_needs(str(numbers.get("needs", NONE))),
        n=numbers.get("n"),
        masked=numbers.get("masked"),
        meets_with=str(numbers.get("meets_with") or ""),
        fragile=fragile,
        position=position,
        measured_at=measured_at,
        bound_of=DIFFERENCES.get(gate, "") if bound != NONE else "",
        deciding=deciding,
    )


def _shown_needs(needs: str) -> str:
    """As the gate says it; how far the candidate may drop as the difference that it must keep."""
    drop = re.fullmatch(r"drop <= ([0-9.]+)", needs)
    if drop:
        return f"≥ {'−' if Decimal(drop[1]) else ''}{drop[1]}"
    return needs.replace("<=", "≤").replace(">=", "≥")


def shown_difference(drop: str | None) -> str:
    """The difference to the champion, of which gates give the drop: rounded down, with the sign of the family table."""
    if not drop:
        return NONE
    value = (-Decimal(drop)).quantize(Decimal("0.0001"), rounding=ROUND_FLOOR)
    return f"{'+' if value > 0 else '−' if value < 0 else ''}{abs(value)}"


def shown_bound(value: str | None) -> str:
    """Four digits, rounded to the side that is worse for the candidate: a lower bound down, a drop up."""
    if not value:
        return NONE
    worse = ROUND_CEILING if value[0] in "+-" else ROUND_FLOOR
    return f"{Decimal(value).quantize(Decimal('0.0001'), rounding=worse):{'+' if value[0] in '+-' else ''}}"


def turned_since(results: list[GateResult], evidence: Evidence) -> list[str]:
    """Gates that opened the door when the evidence was judged and do not now: time alone has passed."""
    stored = {result.position: result for result in evidence.gate_results.all()}
    opened = ("passed", "waived")
    return [
        now.gate
        for now in results
        if now.outcome not in opened and (was := stored.get(now.position)) and was.outcome in opened
    ]
