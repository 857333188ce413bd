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
) -> GateOutcome:
    """Whether valid signatures satisfy the rule. A signature counts for the group it was given in, a person once.

    `involved`: people who may not sign (submitter, run starters), where the rule separates duties.
    """
    needed: dict[str, int] = {}
    for part in rule["approvers"]:
        needed[part["group"]] = needed.get(part["group"], 0) + part["count"]
    oldest = now - timedelta(days=rule["expires_after_days"])
    people: dict[str, str] = {}
    for signature in signatures:
        fresh = signature.evidence_digest == digest and signature.signed_at >= oldest
        # an account without a name is nobody
        if (
            fresh
            and signature.person.strip()
            and not (rule["separation_of_duties"] and signature.person in involved)
        ):
            people.setdefault(signature.person, signature.role)
    have = {group: sum(role == group for role in people.values()) for group in needed}
    numbers = {
        "measured": ", ".join(f"{have[group]} of {count} {group}" for group, count in needed.items()),
        "needs": ", ".join(f"{count} {group}" for group, count in needed.items()),
        "signed_by": sorted(people),
    }
    short = [
        f"{count - have[group]} more of {group}" for group, count in needed.items() if have[group] < count
    ]
    if short:
        return GateOutcome(
            Outcome.NOT_EVALUATED, f"Waits for {' and '.join(short)} to sign {digest[:8]}.", numbers
        )
    return GateOutcome(Outcome.PASSED, f"Signed by {', '.join(sorted(people))}.", numbers)
