"""Two closed runs beside each other, case by case: what was lost, won, wrong or without a score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db.models import Count, Q

from rollouts.measurements import measured, paired
from rollouts.models import ComparedCase, Comparison, EvalRun, Rollout, RolloutState, Turn

SIDES = ("run", "other")


class Pair(NamedTuple):
    """A run, the one it is held against on the same suite if there is one, and the metric that decides what is right."""

    run: EvalRun
    other: EvalRun | None
    metric: str

    @property
    def key(self) -> str:
        """Names both runs as they are now: another revision of either is another comparison."""
        return key_of(
            (self.run.pk, self.run.revision),
            (self.other.pk, self.other.revision) if self.other else None,
            self.metric,
        )


def key_of(run: tuple[int, int], other: tuple[int, int] | None, metric: str) -> str:
    """Of (id, revision) of each side and the metric."""
    return f"{run[0]}.{run[1]}:{f'{other[0]}.{other[1]}' if other else 'alone'}:{metric}"


@dataclass(frozen=True, slots=True)
class CaseTurn:
    case_id: int
    family: str
    expects_call: bool
    turn: Turn


def turns_of(pair: Pair) -> list[CaseTurn]:
    """Cases that either side did not get right, each case's samples reduced to one value. One query."""
    runs = [side.pk for side in (pair.run, pair.other) if side is not None]
    rows = (
        Rollout.objects.filter(run__in=runs, **_applies(pair.metric))
        .order_by()
        .values("case_id", "case__family", "case__expects_call")
        .annotate(**_side("run", pair.run.pk, pair.metric))
    )
    if pair.other is not None:
        rows = rows.annotate(**_side("other", pair.other.pk, pair.metric))
    unequal = Q(run_wrong__gt=0) | Q(run_open__gt=0)
    if pair.other is not None:
        unequal |= Q(other_wrong__gt=0) | Q(other_open__gt=0)
    return [
        CaseTurn(
            row["case_id"],
            row["case__family"],
            row["case__expects_call"],
            _turn(
                _value(row, "other") if pair.other is not None and row["other_n"] else None,
                _value(row, "run"),
            ),
        )
        for row in rows.filter(unequal)
    ]


def _applies(metric: str) -> dict[str, bool]:
    return {"tool": {"case__expects_call": True}, "safe": {"case__expects_call": False}}.get(metric, {})


def _side(name: str, run_id: int, metric: str) -> dict[str, Count]:
    mine = Q(run_id=run_id)
    return {
        f"{name}_wrong": Count("id", filter=mine & Q(**{metric: False})),
        f"{name}_open": Count("id", filter=mine & ~Q(state=RolloutState.SCORED)),
        f"{name}_n": Count("id", filter=mine),
    }


def _value(row: Mapping[str, Any], side: str) -> str:
    if row[f"{side}_wrong"]:
        return "wrong"
    return "missing" if row[f"{side}_open"] or not row[f"{side}_n"] else "right"


def _turn(then: str | None, now: str) -> Turn:
    """`then` is None where there is nothing to compare with."""
    if "missing" in (then, now):
        return Turn.MISSING
    if now == "right":
        return Turn.WON
    return Turn.LOST if then == "right" else Turn.WRONG


def summary_of(pair: Pair, turns: Sequence[CaseTurn]) -> dict[str, Any]:
    """{"turns": {turn: cases}, "paired": …, "family_pairs": {family: …}}.

    Cases are counted as cases; the pairs, for intervals, as distinct prompts: both right, lost, won, neither, missing.
    """
    counted = dict(Counter(str(turn.turn) for turn in turns))
    if pair.other is None:
        return {"turns": counted, "paired": None, "family_pairs": {}}
    both = measured([pair.run, pair.other])
    ours, theirs = both[pair.run.pk], both[pair.other.pk]
    return {
        "turns": counted,
        "paired": paired(ours.prompts, theirs.prompts)[pair.metric],
        "family_pairs": {
            family: paired(ours.families.get(family, {}), theirs.families.get(family, {}))[pair.metric]
            for family in sorted(ours.families.keys() | theirs.families.keys())
        },
    }


def stored(keys: Iterable[str]) -> dict[str, Comparison]:
    """The comparisons that are written down, by key. One query."""
    return {found.key: found for found in Comparison.objects.filter(key__in=list(keys))}


def compared_cases(comparisons: Iterable[Comparison], turn: str) -> Any:
    """The cases of one turn over several comparisons: where a call is wrong first, then by family."""
    cases = ComparedCase.objects.filter(comparison__in=list(comparisons), turn=turn)
    return cases.order_by("expects_call", "family", "case_id")
