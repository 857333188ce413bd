"""Did the right people sign these very bytes? Judged at promotion, from the signatures of the current digest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from promotion.gates.base import Evidence, GateOutcome, Outcome, Params, gate


@dataclass(frozen=True, slots=True)
class Signature:
    person: str
    role: str
    evidence_digest: str
    signed_at: datetime


@dataclass(frozen=True, slots=True)
class Glass:
    """That an administrator promoted without the signatures. It stands in for them, never for another gate."""

    person: str
    evidence_digest: str
    broken_at: datetime


@gate("human_approval_record", Params, waivable=False)
def human_approval_record(evidence: Evidence, params: Params) -> GateOutcome:
    """Enough people of the right groups have signed this evidence digest.

    The one gate that is judged at promotion, from the signatures of that digest. Cannot be waived.
    """
    return GateOutcome(
        Outcome.NOT_EVALUATED, "Waits for signatures; judged from the approvals of this digest."
    )


def approval_outcome(
    *,
    rule: Mapping[str, Any],
    signatures: Sequence[Signature],
    digest: str,
    involved: Sequence[str],
    now: datetime,
    glass: Glass | None = None,
) -> GateOutcome:
    """Whether valid signatures satisfy the rule. A signature counts for the group it was given in, a person once.

    `involved`: people who may not sign (submitter, run starters), where the rule separates duties. `glass` stands in for
    the signatures that are missing, where the rule has `break_glass`, under the same conditions as a signature.
    """
    needed = _needed(rule)
    barred = frozenset(involved) if rule["separation_of_duties"] else frozenset()
    oldest = now - timedelta(days=rule["expires_after_days"])

    def holds(person: str, of: str, at: datetime) -> bool:
        # an account without a name is nobody
        return of == digest and at >= oldest and bool(person.strip()) and person not in barred

    people: dict[str, str] = {}
    for signature in signatures:
        if holds(signature.person, signature.evidence_digest, signature.signed_at):
            people.setdefault(signature.person, signature.role)
    have = {group: sum(role == group for role in people.values()) for group in needed}
    numbers: dict[str, Any] = {
        "measured": ", ".join(f"{have[group]} of {count} {group}" for group, count in needed.items()),
        "needs": ", ".join(f"{count} {group}" for group, count in needed.items()),
        "signed_by": sorted(people),
    }
    missing = " and ".join(
        f"{count - have[group]} more of {group}" for group, count in needed.items() if have[group] < count
    )
    if not missing:
        return GateOutcome(Outcome.PASSED, f"Signed by {', '.join(sorted(people))}.", numbers)
    broken = glass is not None and holds(glass.person, glass.evidence_digest, glass.broken_at)
    if glass is not None and broken and rule.get("break_glass"):
        return GateOutcome(
            Outcome.PASSED,
            f"{glass.person} broke the glass: {missing} did not sign {digest[:8]}.",
            {**numbers, "broke_glass": glass.person},
        )
    return GateOutcome(Outcome.NOT_EVALUATED, f"Waits for {missing} to sign {digest[:8]}.", numbers)


def _needed(rule: Mapping[str, Any]) -> dict[str, int]:
    """Signatures by group. A group that is named twice is asked for the sum."""
    needed: dict[str, int] = {}
    for part in rule["approvers"]:
        needed[part["group"]] = needed.get(part["group"], 0) + part["count"]
    return needed
