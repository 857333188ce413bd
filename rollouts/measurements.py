"""What closed runs measured, as counts over distinct prompts. Two queries, whatever the number of runs and rollouts.

A case's samples reduce to one value per metric: right if every sample is right, wrong if any is wrong, else missing;
a sample without a row or without a score is not right, so what is gone cannot help. Cases that show the model the same
prompt reduce to one value in the same way: they are one observation, however often a suite repeats them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from django.db import connection

from rollouts.models import Case, EvalRun, Rollout
from rollouts.selectors import METRICS

BITS = {metric: 1 << position for position, metric in enumerate(METRICS)}
ALL = sum(BITS.values())
# tool applies where a call is right, safe where it is wrong, the others to every case
APPLIES = {True: ALL & ~BITS["safe"], False: ALL & ~BITS["tool"]}
Counts = dict[str, dict[str, int]]


@dataclass(slots=True)
class Observation:
    """One prompt, or one case of it: bits of the metrics that apply, that are not right, and that are wrong."""

    applies: int = 0
    not_right: int = 0
    wrong: int = 0

    def add(self, applies: int, right: int, wrong: int) -> None:
        self.applies |= applies
        self.not_right |= applies & ~right
        self.wrong |= applies & wrong

    def value(self, bit: int) -> str | None:
        """successes, failures or missing; None where the metric does not apply."""
        if not self.applies & bit:
            return None
        if self.wrong & bit:
            return "failures"
        return "missing" if self.not_right & bit else "successes"


@dataclass(slots=True)
class Measured:
    """One run: its prompts, those of each family, what its answers were, and the latencies that were measured, sorted."""

    prompts: dict[str, Observation] = field(default_factory=dict)
    families: dict[str, dict[str, Observation]] = field(default_factory=lambda: defaultdict(dict))
    classes: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)


def measured(runs: Iterable[EvalRun]) -> dict[int, Measured]:
    """By run id. Missing rollouts of a case leave it missing."""
    samples = {run.pk: run.samples for run in runs}
    found: dict[int, Measured] = {run_id: Measured() for run_id in samples}
    cases: dict[tuple[int, int], list[int]] = {}
    about: dict[int, tuple[str, bool, str]] = {}
    for run_id, case_id, family, expects_call, prompt, right, wrong, answer_class, latency_ms in _rows(
        samples
    ):
        run = found[run_id]
        if answer_class:
            run.classes[answer_class] += 1
        if latency_ms is not None:
            run.latencies.append(latency_ms)
        case = cases.get((run_id, case_id))
        if case is None:
            cases[run_id, case_id] = [1, right, wrong]
            about[case_id] = (family, bool(expects_call), prompt or f"case {case_id}")
        else:
            case[0] += 1
            case[1] &= right
            case[2] |= wrong
    for (run_id, case_id), (rows, right, wrong) in cases.items():
        family, expects_call, prompt = about[case_id]
        applies = APPLIES[expects_call]
        if rows < samples[run_id]:
            right = 0
        run = found[run_id]
        for prompts in (run.prompts, run.families[family]):
            observation = prompts.get(prompt)
            if observation is None:
                observation = prompts[prompt] = Observation()
            observation.add(applies, right, wrong)
    for run in found.values():
        run.latencies.sort()
    return found


def _rows(run_ids: Iterable[int]) -> Iterable[tuple[int, int, str, bool, str, int, int, str, float | None]]:
    """A row a rollout. The ORM would make objects of a hundred thousand rows; the metrics come as two numbers."""
    ids = list(run_ids)
    if not ids:
        return []

    def bits(value: str) -> str:
        terms = (f"CASE WHEN r.{metric} IS {value} THEN {bit} ELSE 0 END" for metric, bit in BITS.items())
        return f"CASE WHEN r.state = 'scored' THEN {' + '.join(terms)} ELSE 0 END"

    sql = (
        "SELECT r.run_id, r.case_id, c.family, c.expects_call, c.prompt_sha256, "
        f"{bits('TRUE')}, {bits('FALSE')}, CASE WHEN r.state = 'scored' THEN r.answer_class ELSE '' END, "
        "CASE WHEN r.state = 'scored' THEN r.latency_ms END "
        f"FROM {Rollout._meta.db_table} r JOIN {Case._meta.db_table} c ON c.id = r.case_id "
        f"WHERE r.run_id IN ({', '.join(['%s'] * len(ids))})"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, ids)
        return cursor.fetchall()


def counts(prompts: Mapping[str, Observation]) -> Counts:
    """Per metric, the prompts that are right, wrong and without a value."""
    kinds = Counter((seen.applies, seen.not_right, seen.wrong) for seen in prompts.values())
    table: Counts = {metric: {"successes": 0, "failures": 0, "missing": 0} for metric in METRICS}
    for kind, n in kinds.items():
        seen = Observation(*kind)
        for metric, bit in BITS.items():
            value = seen.value(bit)
            if value is not None:
                table[metric][value] += n
    return table


def paired(ours: Mapping[str, Observation], theirs: Mapping[str, Observation]) -> Counts:
    """Per metric over the same prompts, from theirs to ours: both right, lost, won, neither; a missing side is missing."""
    names = {
        ("successes", "successes"): "both",
        ("successes", "failures"): "lost",
        ("failures", "successes"): "won",
        ("failures", "failures"): "neither",
    }
    table: Counts = {metric: dict.fromkeys([*names.values(), "missing"], 0) for metric in METRICS}
    for prompt in ours.keys() | theirs.keys():
        mine, other = ours.get(prompt), theirs.get(prompt)
        known = mine or other
        assert known is not None
        for metric, bit in BITS.items():
            if not known.applies & bit:
                continue
            sides = (other.value(bit) if other else None, mine.value(bit) if mine else None)
            table[metric][names.get(sides, "missing")] += 1  # type: ignore[call-overload]
    return table
