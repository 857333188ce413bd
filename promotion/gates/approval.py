"""Did the right people sign these very bytes? Judged at promotion, from the signatures of the current digest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from promotion.gates.base import Evidence, GateOutcome, Outcome, Params, gate

# auditors change nothing, so nothing is signed as one; a policy locked before that was refused may still name them
NEVER_SIGNS = "auditor"


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
    needed = needed_by(rule)
    barred = frozenset(involved) if rule["separation_of_duties"] else frozenset()
    oldest = now - timedelta(days=rule["expires_after_days"])

    def holds(person: str, of: str, at: datetime) -> bool:
        # an account without a name is nobody
        return of == digest and at >= oldest and bool(person.strip()) and person not in barred

    people: dict[str, str] = {}
    for signature in signatures:
        held = holds(signature.person, signature.evidence_digest, signature.signed_at)
        if held and signature.role != NEVER_SIGNS:
            people.setdefault(signature.person, signature.role)
    have = {group: sum(role == group for role in people.values()) for group in needed}
    numbers: dict[str, Any] = {
        "measured": ", ".join(f"{have[group]} of {_people(count, group)}" for group, count in needed.items()),
        "needs": ", ".join(_people(count, group) for group, count in needed.items()),
        "signed_by": sorted(people),
    }
    lacks = {group: count - have[group] for group, count in needed.items() if have[group] < count}
    numbers["missing"] = lacks
    missing = " and ".join(_people(count, group, more=True) for group, count in lacks.items())
    if not missing:
        return GateOutcome(Outcome.PASSED, f"Signed by {', '.join(sorted(people))}.", numbers)
    broken = glass is not None and holds(glass.person, glass.evidence_digest, glass.broken_at)
    if glass is not None and broken and rule.get("break_glass"):
        return GateOutcome(
            Outcome.PASSED,
            f"{glass.person} broke the glass: {missing} did not sign {digest[:8]}.",
            {**numbers, "broke_glass": glass.person},
        )
    reason = f"Waits for {missing} to sign {digest[:8]}."
    if NEVER_SIGNS in needed:
        reason = f"{reason} Auditors sign nothing, so this policy cannot be met: lock one that names another group."
    return GateOutcome(Outcome.NOT_EVALUATED, reason, numbers)


def _people(count: int, group: str, *, more: bool = False) -> str:
    """`2 approvers`, `1 more approver`. Groups are named by one of their people."""
    plural = "" if count == 1 or group.endswith("s") else "s"
    return f"{count} {'more ' if more else ''}{group}{plural}"


def needed_by(rule: Mapping[str, Any]) -> dict[str, int]:
    """Signatures by group. A group that is named twice is asked for the sum."""
    needed: dict[str, int] = {}
    for part in rule["approvers"]:
        needed[part["group"]] = needed.get(part["group"], 0) + part["count"]
    return needed
