"""Which measured bounds are so near to their threshold that whoever signs has to look at them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Any

from promotion.gates.base import Counts, Evidence, judge, spent_alpha
from promotion.suite_rules import DEFAULT_ALPHA, PER_FAMILY
from rollouts.hashing import sha256_bytes
from rollouts.statistics import clopper_pearson_lower

DEFAULT_MARGIN = Decimal("0.02")
PLACES = Decimal("0.0001")


@dataclass(frozen=True, slots=True)
class Near:
    """A suite (`family` is "") or a family whose bound has less than `margin` to spare.

    `room` is what it has, in points (0 to 1), rounded down; under 0 the bound misses its threshold.
    """

    suite: str
    suite_name: str
    family: str
    counts: Counts
    gate: str
    metric: str
    room: Decimal
    margin: Decimal

    @property
    def key(self) -> str:
        """Names what was counted: other counts are another panel."""
        counts = self.counts
        tally = f"{counts.successes}-{counts.failures}-{counts.missing}"
        return f"family:{self.suite[:12]}:{self.family}:{tally}"

    @property
    def reason(self) -> str:
        spare = f"{self.room} to spare" if self.room >= 0 else f"{-self.room} short"
        return f"{self.gate}, {self.metric}: {spare}, and a margin is {self.margin}"


def row_id(suite_digest: str, family: str = "") -> str:
    """The id of a row of the family table: of a family, or of the suite as a whole. Family names may hold anything."""
    return f"family-{suite_digest[:12]}-{sha256_bytes(family.encode())[:8] if family else 'all'}"


def near_threshold(document: Mapping[str, Any]) -> list[Near]:
    """Every suite and family that a bound of the policy judges with less than a margin to spare, in the policy's order.

    What was not measured is not listed: its gate is not evaluated, which blocks by itself.
    """
    if document["policy"] is None:
        return []
    policy = document["policy"]["document"]
    parts = {part["digest"]: part for part in document["suites"] if part["candidate"]}
    found: dict[str, Near] = {}
    for entry in policy["gates"]:
        part = parts.get(entry.get("suite", ""))
        if part is not None and "metric" in entry:
            for near in _of_entry(document, entry, part, margin_on(policy, part["digest"])):
                found.setdefault(near.key, near)
    return list(found.values())


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
    metric = entry["metric"]
    if "margin" in entry:
        rooms = [("", Counts(**part["candidate"]["metrics"][metric]), _paired_room(document, entry))]
    elif "min" in entry:
        rooms = list(_floor_rooms(document, entry, part))
    else:
        return
    for family, counts, room in rooms:
        if room is not None and room < margin:
            shown = room.quantize(PLACES, rounding=ROUND_FLOOR)
            yield Near(
                part["digest"], part["name"], family, counts, entry["gate"], metric, shown, margin.normalize()
            )


def _paired_room(document: Mapping[str, Any], entry: Mapping[str, Any]) -> Decimal | None:
    """By the gate itself, which knows which runs may be compared at all."""
    drop = judge(Evidence(document), entry).numbers.get("bound")
    return None if drop is None else Decimal(entry["margin"]) - Decimal(drop)


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
