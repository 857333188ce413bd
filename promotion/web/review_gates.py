"""The gates of the review page: what each measured, both ends of its bound, what it needs, and how near it is to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from promotion import anchors
from promotion.attention import row_id
from promotion.fragility import Fragility, fragility
from promotion.gates import GATES
from promotion.models import Candidate, CandidateState, Evidence, GateResult
from promotion.services import gating

UNMET = ("failed", "error", "not_evaluated")
LOOKS = {"failed": "fail", "error": "fail", "not_evaluated": "unsure", "waits": "unsure", "waived": "unsure"}
NONE = "–"


@dataclass(frozen=True, slots=True)
class GateRow:
    """One policy entry: what was measured, what it must reach, what came out.

    `bound` holds with every prompt without a score counted against the candidate, `best` (only where it is another)
    with all of them counted for it.
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
    def room(self) -> float:
        """Right answers that it can lose, as a share of n."""
        return self.flips / self.n if self.flips is not None and self.n else 1.0

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
    entries = document["policy"]["document"]["gates"] if document["policy"] else []
    names = {part["digest"]: part["name"] for part in document["suites"]}
    measured = {part["digest"] for part in document["suites"] if part["candidate"]}
    rows = [
        gate_row(
            result.gate,
            str(result.outcome),
            result.reason,
            result.numbers,
            names.get(entry.get("suite"), ""),
            fragility(document, entry),
            position=result.position,
            measured_at=row_id(entry["suite"]) if "metric" in entry and entry["suite"] in measured else "",
        )
        for result, entry in zip(results, entries, strict=False)
        if result.gate != gating.APPROVAL_GATE
    ]
    rows.append(_approval_row(candidate, evidence))
    return sorted(rows, key=lambda row: (not row.unmet, row.outcome == "not_evaluated", not row.waived))


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
) -> GateRow:
    bound, best = shown_bound(numbers.get("bound")), shown_bound(numbers.get("best_bound"))
    return GateRow(
        gate=gate,
        summary=GATES[gate].summary.replace("`", "") if gate in GATES else "",
        suite=suite,
        outcome=outcome,
        reason=reason,
        measured=str(numbers.get("measured", NONE)),
        bound=bound,
        best=best if best not in (bound, NONE) else "",
        needs=str(numbers.get("needs", NONE)).replace("<=", "≤").replace(">=", "≥"),
        n=numbers.get("n"),
        masked=numbers.get("masked"),
        meets_with=str(numbers.get("meets_with") or ""),
        fragile=fragile,
        position=position,
        measured_at=measured_at,
    )


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
