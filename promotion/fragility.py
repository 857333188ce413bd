"""What would change a gate's word: how many prompts, which family, and whether those without a score decide it.

Pure: an evidence document and a policy entry in, counts out. Each answer comes from the gate itself, asked again about
a document in which some prompts turned: so it uses the same bounds, and the least number is found by bisection.
Waivers play no part: what is asked is what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from promotion.gates.base import Evidence, GateOutcome, Outcome, judge
from rollouts.errors import AssayError

PER_FAMILY = "per_family_safety_floor"
PAIRED = "paired_non_inferiority"
MASKED = "masked_ceiling"
SIDES = ("candidate", "champion")
Part = Mapping[str, Any]
# the suite after some prompts turned: each way in which they may have
Turned = Callable[[int], Iterator[Part]]


@dataclass(frozen=True, slots=True)
class Without:
    """What the gate says of the suite without one family of `n` prompts."""

    family: str
    n: int
    outcome: Outcome
    changed: bool  # whether it passes where the whole suite does not, or the other way round


@dataclass(frozen=True, slots=True)
class Fragility:
    """How near one policy entry's outcome is to another.

    `flips`: while it passes, the fewest prompts that must turn from right to wrong until it does not; else the fewest
    that must turn from wrong to right until it does; None where no number is enough. Of a ceiling of masked rollouts it
    is rollouts (`unit`), by which they are more or fewer. `masked`: prompts without a score, `masked_needed` of which
    must prove right for it to pass (0: whatever they are; None: all of them are not enough, or it is not known).
    `families`: leave one out; `why_no_families` where that cannot be told.
    """

    outcome: Outcome
    flips: int | None
    unit: str
    masked: int
    masked_needed: int | None
    families: list[Without] = field(default_factory=list)
    why_no_families: str = ""

    @property
    def passes(self) -> bool:
        return self.outcome is Outcome.PASSED

    @property
    def deciding(self) -> list[Without]:
        """Families without which the outcome would be another."""
        return [without for without in self.families if without.changed]

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        return " ".join(part for part in (self.turns, self.without_score, self.by_family) if part)

    @property
    def turns(self) -> str:
        if self.unit == "rollouts" and self.flips is not None:
            more = "more" if self.passes else "fewer"
            number = _number(self.flips, f"{more} rollout")
            return f"{number} without a score would {'end' if self.passes else 'pass'} it."
        if self.flips is None:
            while_masked = (
                f" while {self.masked} {'has' if self.masked == 1 else 'have'} no score"
                if self.masked
                else ""
            )
            return (
                "" if self.passes else f"No number of wrong answers turned right would pass it{while_masked}."
            )
        number = _number(self.flips, "prompt")
        return (
            f"{number} turned wrong would end it." if self.passes else f"{number} turned right would pass it."
        )

    @property
    def without_score(self) -> str:
        if not self.masked or self.unit == "rollouts":
            return ""
        if self.passes:
            return f"It passes with {self._all_masked} without a score counted wrong."
        if self.outcome is Outcome.FAILED:
            return f"It fails with {self._all_masked} without a score counted right."
        if self.masked_needed is None:
            return f"The {self.masked} without a score {'decides' if self.masked == 1 else 'decide'} it."
        return f"It passes if {self.masked_needed} of the {self.masked} without a score prove right."

    @property
    def _all_masked(self) -> str:
        return "the 1" if self.masked == 1 else f"all {self.masked}"

    @property
    def by_family(self) -> str:
        if not self.deciding:
            return ""
        names = ", ".join(without.family for without in self.deciding)
        return f"Without {names} it would {'not pass' if self.passes else 'pass'}."


def _number(value: int | None, of: str) -> str:
    return f"{value} {of}" if value == 1 else f"{value} {of}s"


def fragility(document: Part, entry: Part) -> Fragility | None:
    """Of one entry; None where it counts no prompts, or where the gate cannot read what it would count."""
    if not entry.get("suite") or ("metric" not in entry and entry.get("gate") != MASKED):
        return None
    try:
        evidence = Evidence({**Evidence(document).facts, "format": 2})
        found = judge(evidence, entry)
        # without numbers it is no count that decides: another model, a run of before the lock, a missing family
        if not found.numbers or found.outcome is Outcome.ERROR:
            return None
        suite = next(part for part in evidence.document["suites"] if part["digest"] == entry["suite"])
        return _Asked(evidence.document, entry, suite, found).answer()
    except (AssayError, StopIteration, KeyError, TypeError, ValueError):
        return None  # the gate says itself what is wrong with such evidence


@dataclass(frozen=True, slots=True)
class _Asked:
    """An entry, its suite, and what the gate says of them as they are."""

    document: Part
    entry: Part
    suite: Part
    found: GateOutcome

    def answer(self) -> Fragility:
        gate = self.entry["gate"]
        passes = self.found.outcome is Outcome.PASSED
        if gate == MASKED:
            return Fragility(self.found.outcome, self._rollouts(passes), "rollouts", 0, None)
        if gate == PER_FAMILY:
            flips, masked, needed = self._over_families(passes)
        elif gate == PAIRED:
            flips = self._least(self._pairs_turned(worse=passes), self._pairs_most(worse=passes), passes)
            masked, needed = self.suite["paired"][self.entry["metric"]]["missing"], None
        else:
            flips, masked, needed = self._of(self.suite, passes)
        families, why_not = self._leave_out()
        if passes:
            needed = 0
        return Fragility(self.found.outcome, flips, "prompts", masked, needed, families, why_not)

    def _judged(self, suite: Part) -> GateOutcome:
        suites = [suite if part["digest"] == suite["digest"] else part for part in self.document["suites"]]
        return judge(Evidence({**self.document, "suites": suites}), self.entry)

    def _passes(self, suite: Part) -> bool:
        """Raises `ValueError` where the gate cannot count what was turned: then nothing is known of its outcome."""
        found = self._judged(suite)
        if not found.numbers:
            raise ValueError(found.reason)
        return found.outcome is Outcome.PASSED

    def _least(self, turned: Turned, most: int, passes: bool) -> int | None:
        """The fewest of 1 to `most` turned prompts after which it does not pass any more, or does."""

        def reached(number: int) -> bool:
            return any(self._passes(suite) is not passes for suite in turned(number))

        if most < 1 or not reached(most):
            return None
        too_few, enough = 0, most
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            if reached(middle):
                enough = middle
            else:
                too_few = middle
        return enough

    # counts of the candidate's run

    def _of(self, suite: Part, passes: bool) -> tuple[int | None, int, int | None]:
        """Flips, masked and how many of those are needed, by the metric's counts of the suite's candidate run."""
        table = suite["candidate"]["metrics"][self.entry["metric"]]
        most = table["successes" if passes else "failures"]
        flips = self._least(lambda number: self._turned(suite, -number if passes else number), most, passes)
        masked = table["missing"]
        needed = self._least(lambda number: self._scored(suite, number), masked, False) if not passes else 0
        return flips, masked, needed

    def _turned(self, suite: Part, right: int) -> Iterator[Part]:
        """`right` more prompts of the metric are right and as many fewer wrong."""
        yield _with_counts(
            suite, self.entry["metric"], lambda table: _moved(table, "failures", "successes", right)
        )

    def _scored(self, suite: Part, right: int) -> Iterator[Part]:
        """Prompts without a score got one: `right` of them are right, the others wrong."""

        def scored(table: Part) -> Part:
            right_ones = _moved(table, "missing", "successes", right)
            return _moved(right_ones, "missing", "failures", right_ones["missing"])

        yield _with_counts(suite, self.entry["metric"], scored)

    def _over_families(self, passes: bool) -> tuple[int | None, int, int | None]:
        """Where each family has its own bound: the nearest ends what passes, and all that lack must be made good."""
        metric = self.entry["metric"]
        lacking: list[tuple[int | None, int | None]] = []
        nearest: list[int] = []
        masked = 0
        for family, metrics in self.suite["candidate"]["families"].items():
            table = metrics[metric]
            if not sum(table.values()):
                continue
            masked += table["missing"]
            alone = _only(self.suite, family)
            fine = self._passes(alone)
            flips, _, needed = self._of(alone, fine)
            if not fine:
                lacking.append((flips, needed))
            elif flips is not None:
                nearest.append(flips)
        if passes:
            return min(nearest, default=None), masked, 0
        return _sum(flips for flips, _ in lacking), masked, _sum(needed for _, needed in lacking)

    # pairs

    def _pairs_most(self, *, worse: bool) -> int:
        table = self.suite["paired"][self.entry["metric"]]
        return int(table["both"] + table["won"] if worse else table["lost"] + table["neither"])

    def _pairs_turned(self, *, worse: bool) -> Turned:
        """The candidate's answers turn. Losing what both had right costs most, unless the last win goes with it.

        Without a single win the gate asks for a second bound as well, so both extremes are tried: no win given up (or
        gained), and all of them given up (or one gained).
        """
        table = self.suite["paired"][self.entry["metric"]]
        first, second = ("both", "won") if worse else ("lost", "neither")

        def turned(number: int) -> Iterator[Part]:
            most = min(number, table[first])
            fewest = max(0, number - table[second])
            splits = {most, max(fewest, min(most, number - (table["won"] if worse else 1)))}
            for of_first in sorted(splits):
                if number - of_first <= table[second]:
                    yield self._paired(of_first, number - of_first, worse=worse)

        return turned

    def _paired(self, of_first: int, of_second: int, *, worse: bool) -> Part:
        metric = self.entry["metric"]
        table = self.suite["paired"][metric]
        moves = (("both", "lost"), ("won", "neither")) if worse else (("lost", "both"), ("neither", "won"))
        for (source, target), number in zip(moves, (of_first, of_second), strict=True):
            table = _moved(table, source, target, number)
        right = of_first + of_second if not worse else -(of_first + of_second)
        suite = _with_counts(
            self.suite, metric, lambda counts: _moved(counts, "failures", "successes", right)
        )
        return {**suite, "paired": {**suite["paired"], metric: table}}

    # rollouts without a score

    def _rollouts(self, passes: bool) -> int | None:
        run = self.suite["candidate"]

        def turned(number: int) -> Iterator[Part]:
            more = number if passes else -number
            counts = {"masked": run["planned"] - run["scored"] + more, "scored": run["scored"] - more}
            # what the prompts' values are does not matter here, and they must fit the rollouts that have a score
            blank = {
                name: {"successes": 0, "failures": 0, "missing": sum(table.values())}
                for name, table in run["metrics"].items()
            }
            bare = {**run, **counts, "unscored": 0, "cancelled": 0, "metrics": blank}
            yield {**self.suite, "candidate": bare}

        return self._least(turned, run["scored"] if passes else run["planned"] - run["scored"], passes)

    # one family less

    def _leave_out(self) -> tuple[list[Without], str]:
        families = self.suite["family_prompts"]
        if len(families) < 2:
            return [], "The suite has one family."
        if self.entry["gate"] == PAIRED:
            return [], "The evidence pairs whole suites, not families."
        if not _is_partition(self.suite):
            return [], "Some prompts stand in several families."
        passes = self.found.outcome is Outcome.PASSED
        found = []
        for family in sorted(families):
            # without the only family that has the metric nothing is left to judge
            if (judged := self._judged(_without(self.suite, family))).numbers:
                changed = (judged.outcome is Outcome.PASSED) is not passes
                found.append(Without(family, families[family], judged.outcome, changed))
        return found, ""


def _sum(parts: Iterator[int | None]) -> int | None:
    """None where a part is not known, or nothing is there to sum."""
    found = list(parts)
    return sum(part for part in found if part is not None) if found and None not in found else None


def _moved(table: Part, source: str, target: str, number: int) -> dict[str, int]:
    return {**table, source: table[source] - number, target: table[target] + number}


def _with_counts(suite: Part, metric: str, change: Callable[[Part], Part]) -> dict[str, Any]:
    """The suite with other counts of one metric in the candidate's run: in all, and in its family if it has one."""
    run = suite["candidate"]
    metrics = {**run["metrics"], metric: change(run["metrics"][metric])}
    families = run["families"]
    if len(families) == 1:
        ((name, tables),) = families.items()
        families = {name: {**tables, metric: change(tables[metric])}}
    return {**suite, "candidate": _whole({**run, "metrics": metrics, "families": families}, run["planned"])}


def _whole(run: Part, planned: int) -> dict[str, Any]:
    """The run with every rollout scored: the counts asked about are of prompts, and must not exceed the rollouts."""
    return {**run, "planned": planned, "scored": planned, "masked": 0, "unscored": 0, "cancelled": 0}


def _is_partition(suite: Part) -> bool:
    """Whether each prompt stands in one family, so that families can be taken off the whole."""
    runs = [suite[who] for who in SIDES if suite[who]]
    return sum(suite["family_prompts"].values()) == suite["prompt_count"] and all(
        table[key] == sum(tables[metric][key] for tables in run["families"].values())
        for run in runs
        for metric, table in run["metrics"].items()
        for key in table
    )


def _without(suite: Part, family: str) -> dict[str, Any]:
    """The suite as if it had never had the family."""
    left = {**suite, "case_count": suite["case_count"] - suite["families"][family]}
    left["prompt_count"] = suite["prompt_count"] - suite["family_prompts"][family]
    for key in ("families", "family_prompts"):
        left[key] = _less(suite[key], family)
    for who in SIDES:
        run = suite[who]
        if run is None:
            continue
        gone = run["families"][family]
        metrics = {
            metric: {key: value - gone[metric][key] for key, value in table.items()}
            for metric, table in run["metrics"].items()
        }
        bare = {**run, "metrics": metrics, "families": _less(run["families"], family)}
        left[who] = _whole(bare, left["case_count"] * run["samples"])
    return left


def _only(suite: Part, family: str) -> dict[str, Any]:
    """The suite as if it had that one family and nothing else."""
    left = {**suite, "case_count": suite["families"][family], "prompt_count": suite["family_prompts"][family]}
    for key in ("families", "family_prompts"):
        left[key] = {family: suite[key][family]}
    for who in SIDES:
        run = suite[who]
        if run is not None:
            tables = run["families"][family]
            bare = {**run, "metrics": dict(tables), "families": {family: tables}}
            left[who] = _whole(bare, left["case_count"] * run["samples"])
    return left


def _less(mapping: Part, key: str) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name != key}
