"""Which parts of an evidence document whoever signs must open: safety flips, bounds near their threshold, waivers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Count

from promotion.attention import near_threshold, row_id
from promotion.risk_summary import SafetyTurns
from rollouts.models import ComparedCase, Comparison, Turn

MOST_CASES, MOST_WITHOUT_CHAMPION = 200, 25
Document = Mapping[str, Any]
Comparisons = Mapping[str, Comparison]


@dataclass(frozen=True, slots=True)
class Panel:
    """A part of the evidence that must be opened. `key` names its content; `url` is its place on the review page.

    `case` is the id of the case where it is one.
    """

    key: str
    kind: str  # case, family, waiver
    label: str
    url: str
    reason: str
    case: int | None = None


@dataclass(frozen=True, slots=True)
class MustOpen:
    """The parts to open. `cases` counts the cases that belong to them, of which at most 200 are listed.

    `compared` is False while the cases of the evidence are not written down: nobody can say then what must be opened.
    """

    panels: list[Panel]
    cases: int
    compared: bool = True

    @property
    def left_out(self) -> int:
        return self.cases - sum(panel.kind == "case" for panel in self.panels)


def must_open(document: Document, comparisons: Comparisons | None) -> MustOpen:
    """Safety flips, bounds with less than a margin to spare, and waivers, in this order. At most three queries.

    `comparisons` are the document's (`comparing.comparisons_of`), None while they are not written down.
    """
    cases, total = case_panels(comparisons.values()) if comparisons else ([], 0)
    panels = [*cases, *_family_panels(document), *_waiver_panels(document)]
    return MustOpen(panels, total, compared=comparisons is not None)


def case_key(comparison: Comparison, case_id: int) -> str:
    """The same two runs at the same revisions stay opened, whatever else changes in the evidence."""
    return f"case:{comparison.key}:{case_id}"


def case_panels(comparisons: Iterable[Comparison]) -> tuple[list[Panel], int]:
    """Cases where any call is wrong that were lost; where there is no champion, that are wrong. And how many there are."""
    found = {comparison.pk: comparison for comparison in comparisons}
    beside = [pk for pk, comparison in found.items() if comparison.other_id is not None]
    alone = [pk for pk in found if pk not in beside]
    lost, total = _cases(beside, Turn.LOST, MOST_CASES)
    wrong, _ = _cases(alone, Turn.WRONG, MOST_WITHOUT_CHAMPION)
    panels = [
        Panel(
            key=case_key(found[row.comparison_id], row.case_id),
            kind="case",
            label=f"case {row.case.key} ({row.family})",
            url=f"#case-{row.case_id}",
            reason=(
                "right for the champion, wrong now, where any call is wrong"
                if row.turn == Turn.LOST
                else "wrong where any call is wrong"
            ),
            case=row.case_id,
        )
        for row in [*lost, *wrong][:MOST_CASES]
    ]
    return panels, total + len(wrong)


def _cases(comparisons: list[int], turn: str, most: int) -> tuple[list[ComparedCase], int]:
    if not comparisons:
        return [], 0
    rows = ComparedCase.objects.filter(comparison__in=comparisons, turn=turn, expects_call=False)
    first = list(rows.select_related("case").defer("case__content").order_by("family", "case_id")[: most + 1])
    return first[:most], len(first) if len(first) <= most else rows.count()


def safety_turns(comparisons: Comparisons | None) -> SafetyTurns:
    """How many cases where any call is wrong were lost to and won from the champion. One query."""
    if comparisons is None:
        return SafetyTurns(None, None)
    beside = [found.pk for found in comparisons.values() if found.other_id is not None]
    rows = ComparedCase.objects.filter(comparison__in=beside, expects_call=False).order_by()
    counted = dict(rows.values_list("turn").annotate(n=Count("id")))
    return SafetyTurns(counted.get(Turn.LOST, 0), counted.get(Turn.WON, 0))


def _family_panels(document: Document) -> list[Panel]:
    return [
        Panel(
            key=near.key,
            kind="family",
            label=f"family {near.family} of {near.suite_name}"
            if near.family
            else f"all of {near.suite_name}",
            url=f"#{row_id(near.suite, near.family)}",
            reason=near.reason,
        )
        for near in near_threshold(document)
    ]


def _waiver_panels(document: Document) -> list[Panel]:
    names = {part["digest"]: part["name"] for part in document["suites"]}
    return [
        Panel(
            key=f"waiver:{waiver['gate']}:{(waiver['suite'] or '')[:12]}:{waiver['granted_at']}",
            kind="waiver",
            label=f"waiver of {waiver['gate']}"
            + (f" on {names.get(waiver['suite'], waiver['suite'][:12])}" if waiver["suite"] else ""),
            url="#exceptions",
            reason=f"asked for by {waiver['requested_by']}, granted by {waiver['granted_by']}",
        )
        for waiver in document.get("waivers", ())
    ]
