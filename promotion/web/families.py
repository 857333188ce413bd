"""The family table of the review page: one group a suite, nearest to its threshold first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, NamedTuple

from django.utils.safestring import SafeString

from promotion.gates import Outcome
from promotion.gates.base import Counts, bound_floor, spent_alpha
from promotion.web import charts
from rollouts.selectors import CaseOutcome
from rollouts.statistics import clopper_pearson_lower, clopper_pearson_upper

LOOKS = {Outcome.PASSED: "pass", Outcome.FAILED: "fail", Outcome.ERROR: "fail"}
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
    minimum = Decimal(entry["min"]) if "min" in entry else None
    return Rule(
        entry["metric"],
        minimum,
        Decimal(entry.get("alpha", "0.05")),
        entry["gate"],
        entry.get("max_drop", ""),
        entry.get("margin", ""),
    )


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
    lost: int
    won: int
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
    turns: Sequence[CaseOutcome],
    suite_ids: Mapping[str, int],
) -> Table | None:
    """None where no run of the candidate is in the evidence. `outcomes`: (gate, suite) -> what it said."""
    policy = document["policy"]
    measured = [part for part in document["suites"] if part["candidate"]] if policy else []
    if not measured:
        return None
    flips = Counter((turn.suite_id, turn.family, turn.turn) for turn in turns)
    groups = [_group(policy["document"], part, flips, suite_ids.get(part["digest"], 0)) for part in measured]
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


def _group(
    policy: Mapping[str, Any], part: Mapping[str, Any], flips: Counter[Any], suite_id: int
) -> Group | None:
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
            flips=(flips[suite_id, family, "lost"], flips[suite_id, family, "won"]),
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
        flips=(sum(row.lost for row in rows), sum(row.won for row in rows)),
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
    label: str, counts: Counts, champion: Counts | None, rule: Rule, *, judged: bool, flips: tuple[int, int]
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
        lost=flips[0],
        won=flips[1],
    )


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
