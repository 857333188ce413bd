"""Which measured bounds are so near to their threshold that whoever signs has to look at them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Any

from promotion.gates.base import Counts, Evidence, GateOutcome, Outcome, judge, spent_alpha
from promotion.suite_rules import DEFAULT_ALPHA, PER_FAMILY
from rollouts.hashing import sha256_bytes
from rollouts.statistics import clopper_pearson_lower

DEFAULT_MARGIN = Decimal("0.02")
PLACES = Decimal("0.0001")
LEAST_SHORT = Decimal("0.000001")


@dataclass(frozen=True, slots=True)
class Near:
    """A suite (`family` is "") or a family that a gate judges with less than `margin` to spare.

    `room` is what it has, in points (0 to 1), rounded down; under 0 the bound, or the drop, misses its threshold.
    `outcome` is the gate's, without waivers; `counted` is False where it could not use the counts at all.
    """

    suite: str
    suite_name: str
    family: str
    counts: Counts
    gate: str
    metric: str
    room: Decimal
    margin: Decimal
    outcome: Outcome
    counted: bool

    @property
    def key(self) -> str:
        """Names what was counted: other counts are another panel."""
        counts = self.counts
        tally = f"{counts.successes}-{counts.failures}-{counts.missing}"
        return f"family:{self.suite[:12]}:{self.family}:{tally}"

    @property
    def passes(self) -> bool:
        return self.outcome is Outcome.PASSED

    @property
    def reason(self) -> str:
        return f"{self.gate}, {self.metric}: {self._said}"

    @property
    def _said(self) -> str:
        if self.passes:
            return f"{self.room} to spare, and a margin is {self.margin}"
        said = str(self.outcome).replace("_", " ")
        if not self.counted:
            return said
        if self.room < 0:
            return f"{said}, {-self.room} short"
        # only a gate on each family: this one clears it, another does not
        return (
            f"{said} by another family; {self.room} above its threshold here, and a margin is {self.margin}"
        )


def row_id(suite_digest: str, family: str = "") -> str:
    """The id of a row of the family table: of a family, or of the suite as a whole. Family names may hold anything."""
    return f"family-{suite_digest[:12]}-{sha256_bytes(family.encode())[:8] if family else 'all'}"


def near_threshold(document: Mapping[str, Any]) -> list[Near]:
    """Every suite and family that a gate judges with less than a margin to spare, in the policy's order.

    Where several gates judge the same counts, the one that says the worst: what is unmet before what passes, then what
    has the least room. What was not measured is not listed: its gate is not evaluated, which blocks by itself.
    """
    found: dict[str, Near] = {}
    for near in near_by_gate(document):
        known = found.get(near.key)
        if known is None or (near.passes, near.room) < (known.passes, known.room):
            found[near.key] = near
    return list(found.values())


def near_by_gate(document: Mapping[str, Any]) -> Iterator[Near]:
    """The same for each gate by itself, so that a suite or family may come more than once."""
    if document["policy"] is None:
        return
    policy = document["policy"]["document"]
    parts = {part["digest"]: part for part in document["suites"] if part["candidate"]}
    for entry in policy["gates"]:
        part = parts.get(entry.get("suite", ""))
        if part is not None and "metric" in entry:
            yield from _of_entry(document, entry, part, margin_on(policy, part["digest"]))


def margin_on(policy: Mapping[str, Any], suite_digest: str) -> Decimal:
    """What the policy itself takes for small on the suite, in points: its margin, else its max_drop, else 0.02."""
    entries = [entry for entry in policy["gates"] if entry.get("suite") == suite_digest]
    for name in ("margin", "max_drop"):
        given = [Decimal(entry[name]) for entry in entries if entry.get(name)]
        if given:
            return max(given)
    return DEFAULT_MARGIN


def _of_entry(
    document: Mapping[str, Any], entry: Mapping[str, Any], part: Mapping[str, Any], margin: Decimal
) -> Iterator[Near]:
    found = judge(Evidence(document), entry)
    if found.outcome is Outcome.ERROR:
        return
    metric = entry["metric"]
    whole = Counts(**part["candidate"]["metrics"][metric])
    if "margin" in entry:
        rooms = [("", whole, _drop_room(found, entry["margin"]))]
    elif "max_drop" in entry:
        # a drop of nothing leaves all that this gate allows: whatever else the policy allows, that is not near
        margin = min(margin, Decimal(entry["max_drop"]))
        rooms = [("", whole, _drop_room(found, entry["max_drop"]))]
    elif "min" in entry:
        rooms = list(_floor_rooms(document, entry, part))
    else:
        return
    for family, counts, room in rooms:
        if room is not None and room < margin:
            yield Near(
                suite=part["digest"],
                suite_name=part["name"],
                family=family,
                counts=counts,
                gate=entry["gate"],
                metric=metric,
                room=room.quantize(PLACES, rounding=ROUND_FLOOR),
                margin=margin.normalize(),
                outcome=found.outcome,
                counted=bool(found.numbers),
            )


def _drop_room(found: GateOutcome, allowed: str) -> Decimal | None:
    """By the gate itself, which knows which runs may be compared at all. None where they may not."""
    drop = found.numbers.get("bound")
    if drop is None:
        return None
    room = Decimal(allowed) - Decimal(drop)
    # the gate writes six decimals: what misses by less than they show still misses
    return room if found.outcome is Outcome.PASSED else min(room, -LEAST_SHORT)


def _floor_rooms(
    document: Mapping[str, Any], entry: Mapping[str, Any], part: Mapping[str, Any]
) -> Iterator[tuple[str, Counts, Decimal | None]]:
    """(family, counts, room) with every prompt without a score counted as wrong, as the gate passes."""
    run, metric = part["candidate"], entry["metric"]
    alpha = Decimal(entry.get("alpha", DEFAULT_ALPHA))
    if document["policy"]["document"].get("spend_alpha"):
        if run["look"] is None:
            return
        alpha = spent_alpha(alpha, run["look"])
    families = {name: metrics[metric] for name, metrics in sorted(run["families"].items())}
    counted = families if entry["gate"] == PER_FAMILY else {"": run["metrics"][metric]}
    for family, table in counted.items():
        counts = Counts(**table)
        if counts.n:
            bound = clopper_pearson_lower(counts.successes, counts.n, float(alpha))
            yield family, counts, Decimal(bound) - Decimal(entry["min"])
