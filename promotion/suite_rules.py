"""Which gate of a policy a table of rates shows for a suite. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from promotion.gates.base import spent_alpha

PER_FAMILY = "per_family_safety_floor"
DEFAULT_ALPHA = Decimal("0.05")


class Rule(NamedTuple):
    """What a policy asks of a suite, as far as a table of rates can show it."""

    metric: str
    minimum: Decimal | None
    alpha: Decimal
    gate: str
    max_drop: str = ""
    margin: str = ""

    @property
    def per_family(self) -> bool:
        return self.gate == PER_FAMILY


def rule_of(policy: Mapping[str, Any], suite_digest: str) -> Rule:
    """The suite's main gate: one on the answer before one on its JSON, a floor before a comparison."""
    entries = [entry for entry in policy["gates"] if entry.get("suite") == suite_digest and "metric" in entry]
    entries.sort(key=lambda entry: (entry["metric"] == "json_valid", "min" not in entry))
    if not entries:
        return Rule("decision", None, DEFAULT_ALPHA, "")
    entry = entries[0]
    # a gate whose entry is unreadable is an error and judges nothing; the table must still be drawn
    return Rule(
        entry["metric"],
        _decimal(entry.get("min")),
        _decimal(entry.get("alpha")) or DEFAULT_ALPHA,
        entry["gate"],
        entry.get("max_drop", ""),
        entry.get("margin", ""),
    )


def _decimal(text: object) -> Decimal | None:
    try:
        value = Decimal(str(text))
    except InvalidOperation:
        return None
    return value if value.is_finite() else None


def rule_at_look(policy: Mapping[str, Any], part: Mapping[str, Any]) -> Rule:
    """`rule_of` the suite, at the share of alpha that the candidate's look may spend, where the policy spends it.

    A look that was not counted spends an unknown share: then nothing is judged here.
    """
    rule, look = rule_of(policy, part["digest"]), part["candidate"]["look"]
    if not policy.get("spend_alpha"):
        return rule
    if look is None:
        return rule._replace(minimum=None)
    return rule._replace(alpha=spent_alpha(rule.alpha, look))
