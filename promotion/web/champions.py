"""The champion over time: each move of the alias, with one metric's bound on one suite, so that steps compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.utils.safestring import SafeString

from promotion import evidence as evidence_module
from promotion.gates.base import Counts
from promotion.models import AliasMove, Evidence
from promotion.suite_rules import Rule, rule_of
from promotion.web import charts
from rollouts.statistics import clopper_pearson_lower, clopper_pearson_upper

MOST = 50


class Judged(NamedTuple):
    """The evidence under which a version was promoted."""

    number: int
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Move:
    """One move. Rates are on the 0-1 scale; None where the version was not measured on the chart's suite."""

    move: AliasMove
    counts: Counts | None
    lower: float | None
    upper: float | None
    back: bool  # to an earlier version than the one before


@dataclass(frozen=True, slots=True)
class History:
    """Oldest move first. Without a suite (no version was judged yet) there is no chart.

    `suites` are those of the newest policy that the chart can be of: how an address names each, its name, whether it is
    shown.
    """

    moves: list[Move]
    more: bool  # older moves are left out
    suite: str = ""
    suites: tuple[tuple[str, str, bool], ...] = ()
    rule: Rule | None = None
    chart: SafeString | None = None


def history(newest_first: Sequence[AliasMove], wanted: str = "") -> History:
    """Of the alias' moves, newest first. At most 50 are shown; one query for their evidence.

    `wanted` is the suite to draw, as `History.suites` names it; what is no such name counts as none.
    """
    moves, more = list(reversed(newest_first[:MOST])), len(newest_first) > MOST
    judged = _judged(moves)
    suites = _suites(judged)
    if not suites:
        return History([_move(move, None, None) for move in moves], more)
    suite = next((part for part in suites if _named(part) == wanted), suites[0])
    choice = tuple((_named(part), part["name"], part is suite) for part in suites)
    rule = rule_of(judged[-1].document["policy"]["document"], suite["digest"])
    counts = _counts(judged, suite["digest"], rule.metric)
    shown = [_move(move, counts.get(move.new.number), rule) for move in moves]
    return History(shown, more, suite["name"], choice, rule, _chart(shown, suite["name"], rule))


def _judged(moves: Sequence[AliasMove]) -> list[Judged]:
    """Of all versions that a policy judged, the oldest first. A baseline has no policy."""
    entries = {move.new.number: move.new.evidence_id for move in moves}
    found = Evidence.objects.in_bulk(entries.values())
    read = [Judged(number, evidence_module.document_of(found[entries[number]])) for number in sorted(entries)]
    return [judged for judged in read if judged.document["policy"]]


def _named(suite: Mapping[str, Any]) -> str:
    return str(suite["digest"])[:12]


def _suites(judged: Sequence[Judged]) -> list[Mapping[str, Any]]:
    """The newest policy's suites, that on which most versions were measured first; among equals one with a floor."""
    if not judged:
        return []
    measured = Counter(
        part["digest"] for found in judged for part in found.document["suites"] if part["candidate"]
    )
    newest = judged[-1].document
    policy = newest["policy"]["document"]
    return sorted(
        (part for part in newest["suites"] if measured[part["digest"]]),
        key=lambda part: (-measured[part["digest"]], rule_of(policy, part["digest"]).minimum is None),
    )


def _counts(judged: Sequence[Judged], digest: str, metric: str) -> dict[int, Counts]:
    """Version -> its counts on the suite: as it was judged, else as the champion that another one challenged."""
    own: dict[int, Counts] = {}
    challenged: dict[int, Counts] = {}
    for number, document in judged:
        for part in document["suites"]:
            if part["digest"] != digest:
                continue
            if part["candidate"]:
                own[number] = Counts(**part["candidate"]["metrics"][metric])
            if part["champion"] and document["champion"]:
                challenged[document["champion"]["entry"]] = Counts(**part["champion"]["metrics"][metric])
    return challenged | own


def _chart(moves: Sequence[Move], suite: str, rule: Rule) -> SafeString:
    needs = float(rule.minimum) if rule.minimum is not None and not rule.per_family else None
    return charts.steps([_step(found) for found in moves], f"{rule.metric} on {suite}", needs)


def _step(found: Move) -> charts.Step:
    rate = found.counts.successes / found.counts.n if found.counts and found.lower is not None else None
    return charts.Step(f"v{found.move.new.number}", rate, found.lower, found.upper, found.back)


def _move(move: AliasMove, counts: Counts | None, rule: Rule | None) -> Move:
    back = move.old is not None and move.new.number < move.old.number
    if counts is None or rule is None or not counts.n:
        return Move(move, None, None, None, back)
    alpha = float(rule.alpha)
    return Move(
        move,
        counts,
        clopper_pearson_lower(counts.successes, counts.n, alpha),
        clopper_pearson_upper(counts.successes + counts.missing, counts.n, alpha),
        back,
    )
