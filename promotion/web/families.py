"""The family table of the review page: one group a suite, nearest to its threshold first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, NamedTuple

from django.db.models import Count
from django.utils.safestring import SafeString

from promotion import anchors
from promotion.attention import row_id
from promotion.gates import Outcome
from promotion.gates.base import Counts, bound_floor
from promotion.suite_rules import PER_FAMILY, Rule, rule_at_look, rule_of
from promotion.web import charts
from rollouts.models import ComparedCase, Comparison, Turn
from rollouts.statistics import clopper_pearson_lower, clopper_pearson_upper, tango_lower

LOOKS = {Outcome.PASSED: "pass", Outcome.FAILED: "fail", Outcome.ERROR: "fail"}
# what a prompt has to be so that it counts as right
COUNTED = {
    "decision": "the right decision",
    "tool": "the right tool",
    "exact": "the exact answer",
    "safe": "no call made",
    "json_valid": "strict JSON",
}
# as few quiet rows are shown: to fold them would save nothing
FEWEST_FOLDED = 4
# (suite digest, family; "" for the suite as a whole) -> turn -> cases
CaseCounts = Mapping[tuple[str, str], Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Paired:
    """The candidate's rate minus the champion's over the prompts that both answered, and its one-sided lower bound.

    `lost` and `won` count prompts; a prompt without a score on either side is counted as lost in `lower`, and is not among
    the `n` of `difference`. Where cases repeat prompts, `cases` are (lost, won) as cases, by which they are listed.
    """

    lost: int
    won: int
    n: int
    missing: int
    lower: float
    cases: tuple[int, int] | None = None

    @property
    def difference(self) -> float | None:
        return (self.won - self.lost) / self.n if self.n else None

    @property
    def turns(self) -> list[tuple[str, int]]:
        """What can be listed: the turn of cases and how many there are."""
        lost, won = self.cases or (self.lost, self.won)
        return [(str(Turn.LOST), lost), (str(Turn.WON), won)]


@dataclass(frozen=True, slots=True)
class Row:
    """A suite as a whole, or one of its families. `lower` holds with every missing prompt counted as wrong."""

    label: str
    family: str | None  # None: the suite as a whole
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

    @property
    def worse(self) -> bool:
        """Whether it is behind the champion: by the pairs, or by the two rates where nothing is paired."""
        if self.paired is not None:
            return self.paired.lost > self.paired.won
        theirs = self.champion
        return theirs is not None and self.counts.successes * theirs.n < theirs.successes * self.counts.n

    @property
    def quiet(self) -> bool:
        """Nobody judges it, and nothing in it asks for a look."""
        lost = self.paired is not None and (self.paired.lost or self.paired.missing)
        return not (self.outcome or self.counts.missing or self.worse or lost)


@dataclass(frozen=True, slots=True)
class Group:
    """A suite with its families."""

    name: str
    digest: str
    rule: Rule
    gate: int | None  # position in the policy of the gate that counts what is shown
    folds: bool  # whether quiet rows may be folded: no gate of the policy looks at single families
    total: Row
    rows: list[Row]

    @property
    def counted(self) -> str:
        return COUNTED.get(self.rule.metric, self.rule.metric)

    @property
    def loud(self) -> list[Row]:
        folded = {row.id for row in self.folded}
        return [row for row in self.rows if row.id not in folded]

    @property
    def folded(self) -> list[Row]:
        quiet = [row for row in self.rows if row.quiet] if self.folds else []
        return quiet if len(quiet) >= FEWEST_FOLDED else []

    @property
    def danger(self) -> float:
        """How near the nearest judged row is to its threshold; suites that nothing judges come last."""
        rooms = [row.danger for row in (self.total, *self.rows) if row.needs is not None]
        return min([*rooms, *self._room_to_champion()], default=2.0)

    def _room_to_champion(self) -> list[float]:
        """What the suite's gate leaves where it compares with the champion, in points; under 0 it fails."""
        counts, champion, paired = self.total.counts, self.total.champion, self.total.paired
        if self.rule.margin and paired is not None:
            return [paired.lower + float(self.rule.margin)]
        if self.rule.max_drop and champion is not None:
            rates = (counts.successes / counts.n, champion.successes / champion.n)
            return [rates[0] - rates[1] + float(self.rule.max_drop)]
        return []


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
    cases = _cases_of(measured, comparisons or {})
    found = [_group(policy["document"], part, compared.get(part["digest"], {}), cases) for part in measured]
    groups = [_compared(group, outcomes) for group in found if group is not None]
    rows = [row for group in groups for row in (group.total, *group.rows)]
    axis = charts.axis_for([value for row in rows for value in _values(row)])
    drawn = [
        replace(group, total=_drawn(group.total, axis), rows=[_drawn(row, axis) for row in group.rows])
        for group in groups
    ]
    drawn.sort(key=lambda group: (group.danger, group.name))
    masked = sum(group.total.counts.missing for group in drawn)
    return Table(charts.axis_ticks(axis), drawn, masked, document["champion"] is not None)


def place(policy: Mapping[str, Any], part: Mapping[str, Any], family: str = "") -> str:
    """The id of the table's row for a suite or one of its families; "" where the table has none."""
    run, rule = part["candidate"], rule_of(policy, part["digest"])
    if run is None or not Counts(**run["metrics"][rule.metric]).n:
        return ""
    if not family:
        return row_id(part["digest"])
    shown = [name for name, metrics in run["families"].items() if sum(metrics[rule.metric].values())]
    listed = len(shown) > 1 or rule.per_family
    return row_id(part["digest"], family) if listed and family in shown else ""


def _cases_of(parts: list[Mapping[str, Any]], comparisons: Mapping[str, Comparison]) -> CaseCounts:
    """Lost and won as cases, of suites whose cases repeat prompts; in the others pairs and cases are the same. One query."""
    repeated = {
        comparisons[part["digest"]].pk: part["digest"]
        for part in parts
        if part["digest"] in comparisons and part.get("prompt_count", 0) != part["case_count"]
    }
    if not repeated:
        return {}
    rows = ComparedCase.objects.filter(comparison__in=repeated, turn__in=(Turn.LOST, Turn.WON)).order_by()
    found: dict[tuple[str, str], dict[str, int]] = {(digest, ""): {} for digest in repeated.values()}
    for pk, family, turn, n in rows.values_list("comparison", "family", "turn").annotate(n=Count("id")):
        for key in ((repeated[pk], ""), (repeated[pk], family)):
            counted = found.setdefault(key, {})
            counted[turn] = counted.get(turn, 0) + n
    return found


def _group(
    policy: Mapping[str, Any], part: Mapping[str, Any], compared: Mapping[str, Any], cases: CaseCounts
) -> Group | None:
    rule, digest = rule_at_look(policy, part), part["digest"]
    run, champion = part["candidate"], part["champion"]
    theirs = champion["families"] if champion else {}
    paired_alpha = _paired_alpha(policy, part, rule)

    def paired(pairs: Mapping[str, int] | None, family: str = "") -> Paired | None:
        counted = cases.get((digest, family), {}) if (digest, "") in cases else None
        return _paired(pairs, paired_alpha, counted) if pairs else None

    rows = [
        _row(
            family,
            Counts(**metrics[rule.metric]),
            Counts(**theirs[family][rule.metric]) if family in theirs else None,
            rule,
            judged=rule.per_family,
            paired=paired(compared.get("family_pairs", {}).get(family), family),
            family=family,
            at=row_id(digest, family),
            anchor=anchors.of_family(digest, family),
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
        paired=paired(compared.get("paired")),
        at=row_id(digest),
        anchor=anchors.of_suite(digest),
    )
    rows.sort(key=lambda row: (row.danger, row.label))
    return Group(
        name=part["name"],
        digest=digest,
        rule=rule,
        gate=_position(policy, digest, rule),
        folds=not any(
            entry["gate"] == PER_FAMILY and entry.get("suite") == digest for entry in policy["gates"]
        ),
        total=total,
        rows=rows if len(rows) > 1 or rule.per_family else [],
    )


def _position(policy: Mapping[str, Any], digest: str, rule: Rule) -> int | None:
    wanted = (rule.gate, digest, rule.metric)
    found = (
        at
        for at, entry in enumerate(policy["gates"])
        if (entry["gate"], entry.get("suite"), entry.get("metric")) == wanted
    )
    return next(found, None)


def _paired_alpha(policy: Mapping[str, Any], part: Mapping[str, Any], rule: Rule) -> float:
    """That of the gate which compares pairs by the metric shown, so that table and gate say one bound; else the rule's."""
    for entry in policy["gates"]:
        if (entry.get("suite"), entry.get("metric")) == (part["digest"], rule.metric) and "margin" in entry:
            return float(rule_at_look({**policy, "gates": [entry]}, part).alpha)
    return float(rule.alpha)


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
    paired: Paired | None,
    at: str,
    anchor: str,
    family: str | None = None,
) -> Row:
    alpha = float(rule.alpha)
    needs = rule.minimum if judged else None
    outcome = bound_floor(counts, needs, rule.alpha, label).outcome if needs is not None else None
    return Row(
        label=label,
        family=family,
        counts=counts,
        lower=clopper_pearson_lower(counts.successes, counts.n, alpha),
        best=clopper_pearson_lower(counts.successes + counts.missing, counts.n, alpha),
        upper=clopper_pearson_upper(counts.successes + counts.missing, counts.n, alpha),
        outcome=str(outcome) if outcome else "",
        look=LOOKS.get(outcome, "unsure") if outcome else "",
        needs=needs,
        champion=champion if champion and champion.n else None,
        paired=paired,
        id=at,
        anchor=anchor,
    )


def _paired(pairs: Mapping[str, int], alpha: float, cases: Mapping[str, int] | None) -> Paired | None:
    n = sum(pairs[kind] for kind in ("both", "lost", "won", "neither"))
    missing = pairs["missing"]
    if n + missing < 2:
        return None  # of one pair nothing can be said
    lost, won = pairs["lost"], pairs["won"]
    lower = tango_lower(lost + missing, won, n + missing, alpha)
    if not won:
        # the gate asks for the exact bound as well where no pair was won
        lower = min(lower, -clopper_pearson_upper(lost + missing, n + missing, alpha))
    counted = None if cases is None else (cases.get(Turn.LOST, 0), cases.get(Turn.WON, 0))
    return Paired(lost, won, n, missing, lower, counted)


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
