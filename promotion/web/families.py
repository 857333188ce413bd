"""The family table of the review page: one group a suite, nearest to its threshold first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, NamedTuple

from django.utils.safestring import SafeString

from promotion import anchors
from promotion.attention import row_id
from promotion.gates import Outcome
from promotion.gates.base import Counts, bound_floor
from promotion.suite_rules import Rule, rule_at_look
from promotion.web import charts
from rollouts.models import Comparison
from rollouts.statistics import clopper_pearson_lower, clopper_pearson_upper, tango_lower

LOOKS = {Outcome.PASSED: "pass", Outcome.FAILED: "fail", Outcome.ERROR: "fail"}


@dataclass(frozen=True, slots=True)
class Paired:
    """The candidate's rate minus the champion's over the prompts that both answered, and its one-sided lower bound.

    `lost` and `won` count prompts; a prompt without a score on either side is counted as lost in `lower`, and is not among
    the `n` of `difference`.
    """

    lost: int
    won: int
    n: int
    missing: int
    lower: float

    @property
    def difference(self) -> float | None:
        return (self.won - self.lost) / self.n if self.n else None


@dataclass(frozen=True, slots=True)
class Row:
    """A suite as a whole, or one of its families. `lower` holds with every missing prompt counted as wrong."""

    label: str
    counts: Counts
    lower: float
    best: float  # the same bound with every missing prompt counted as right
    upper: float
    outcome: str
    look: str
    needs: Decimal | None
    champion: Counts | None
    paired: Paired | None
    id: str  # of the row on the page, see promotion.attention
    anchor: str  # by which comments name it, see promotion.anchors
    chart: str = ""

    @property
    def estimate(self) -> float:
        return self.counts.successes / self.counts.n

    @property
    def danger(self) -> float:
        return self.lower - float(self.needs or 0)


@dataclass(frozen=True, slots=True)
class Group:
    """A suite with its families."""

    name: str
    digest: str
    rule: Rule
    total: Row
    rows: list[Row]

    @property
    def danger(self) -> float:
        """How near the nearest judged row is to its threshold; suites without one come last."""
        return min((row.danger for row in (self.total, *self.rows) if row.needs is not None), default=2.0)


class Table(NamedTuple):
    axis: SafeString
    groups: list[Group]
    masked: int
    has_champion: bool


def table(
    document: Mapping[str, Any],
    outcomes: Mapping[tuple[str, str], str],
    comparisons: Mapping[str, Comparison] | None,
) -> Table | None:
    """None where no run of the candidate is in the evidence.

    `outcomes`: (gate, suite) -> what it said. `comparisons`: by suite digest; without them nothing is said of pairs.
    """
    policy = document["policy"]
    measured = [part for part in document["suites"] if part["candidate"]] if policy else []
    if not measured:
        return None
    compared = {digest: found.summary for digest, found in (comparisons or {}).items()}
    groups = [_group(policy["document"], part, compared.get(part["digest"], {})) for part in measured]
    groups = [_compared(group, outcomes) for group in groups if group is not None]
    rows = [row for group in groups for row in (group.total, *group.rows)]
    axis = charts.axis_for([value for row in rows for value in _values(row)])
    drawn = [
        replace(group, total=_drawn(group.total, axis), rows=[_drawn(row, axis) for row in group.rows])
        for group in groups
    ]
    drawn.sort(key=lambda group: (group.danger, group.name))
    masked = sum(group.total.counts.missing for group in drawn)
    return Table(charts.axis_ticks(axis), drawn, masked, document["champion"] is not None)


def _group(policy: Mapping[str, Any], part: Mapping[str, Any], compared: Mapping[str, Any]) -> Group | None:
    rule = rule_at_look(policy, part)
    run, champion = part["candidate"], part["champion"]
    theirs = champion["families"] if champion else {}
    rows = [
        _row(
            family,
            Counts(**metrics[rule.metric]),
            Counts(**theirs[family][rule.metric]) if family in theirs else None,
            rule,
            judged=rule.per_family,
            pairs=compared.get("family_pairs", {}).get(family),
            at=row_id(part["digest"], family),
            anchor=anchors.of_family(part["digest"], family),
        )
        for family, metrics in run["families"].items()
        if sum(metrics[rule.metric].values())
    ]
    counts = Counts(**run["metrics"][rule.metric])
    if not counts.n:
        return None
    total = _row(
        "all families",
        counts,
        Counts(**champion["metrics"][rule.metric]) if champion else None,
        rule,
        judged=not rule.per_family,
        pairs=compared.get("paired"),
        at=row_id(part["digest"]),
        anchor=anchors.of_suite(part["digest"]),
    )
    rows.sort(key=lambda row: (row.danger, row.label))
    return Group(part["name"], part["digest"], rule, total, rows if len(rows) > 1 or rule.per_family else [])


def _compared(group: Group, outcomes: Mapping[tuple[str, str], str]) -> Group:
    """Where the suite's gate compares with the champion, its outcome is the gate's: no bound decides it."""
    compares = group.rule.max_drop or group.rule.margin
    outcome = outcomes.get((group.rule.gate, group.digest), "") if compares else ""
    if not outcome:
        return group
    return replace(
        group, total=replace(group.total, outcome=outcome, look=LOOKS.get(Outcome(outcome), "unsure"))
    )


def _row(
    label: str,
    counts: Counts,
    champion: Counts | None,
    rule: Rule,
    *,
    judged: bool,
    pairs: Mapping[str, int] | None,
    at: str,
    anchor: str,
) -> Row:
    alpha = float(rule.alpha)
    needs = rule.minimum if judged else None
    outcome = bound_floor(counts, needs, rule.alpha, label).outcome if needs is not None else None
    return Row(
        label=label,
        counts=counts,
        lower=clopper_pearson_lower(counts.successes, counts.n, alpha),
        best=clopper_pearson_lower(counts.successes + counts.missing, counts.n, alpha),
        upper=clopper_pearson_upper(counts.successes + counts.missing, counts.n, alpha),
        outcome=str(outcome) if outcome else "",
        look=LOOKS.get(outcome, "unsure") if outcome else "",
        needs=needs,
        champion=champion if champion and champion.n else None,
        paired=_paired(pairs, alpha) if pairs else None,
        id=at,
        anchor=anchor,
    )


def _paired(pairs: Mapping[str, int], alpha: float) -> Paired | None:
    n = sum(pairs[kind] for kind in ("both", "lost", "won", "neither"))
    missing = pairs["missing"]
    if n + missing < 2:
        return None  # of one pair nothing can be said
    lower = tango_lower(pairs["lost"] + missing, pairs["won"], n + missing, alpha)
    return Paired(pairs["lost"], pairs["won"], n, missing, lower)


def _values(row: Row) -> list[float]:
    champion = row.champion.successes / row.champion.n if row.champion else 1.0
    return [row.lower, float(row.needs or 1), champion]


def _drawn(row: Row, axis: charts.Axis) -> Row:
    bar = charts.Bar(
        label=row.label,
        estimate=row.estimate,
        lower=row.lower,
        upper=row.upper,
        look=row.look,
        needs=float(row.needs) if row.needs is not None else None,
        champion=row.champion.successes / row.champion.n if row.champion else None,
    )
    return replace(row, chart=charts.interval(bar, axis))
