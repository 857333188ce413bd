"""What an accepted dispute would change for the candidate and for the champion. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from promotion.models import Dispute
from rollouts.errors import AssayError
from rollouts.measurements import ALL, APPLIES, BITS, Observation
from rollouts.models import Case, EvalRun, Rollout, RunState
from rollouts.selectors import METRICS
from rollouts.services import amendments
from rollouts.services.rescoring import Rescored, kept
from rollouts.suite_format import Expectation

SIDES = ("candidate", "champion")
Scores = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answered:
    """One sample's answer with its scores, and what they would be; None where nothing is proposed."""

    rollout: Rollout
    now: Scores
    then: Scores | None

    @property
    def metrics(self) -> list[tuple[str, bool | None, bool | None]]:
        """(metric, now, then), of those that apply on either side of the amendment."""
        rows = [(name, self.now[name], (self.then or self.now)[name]) for name in METRICS]
        return [row for row in rows if row[1:] != (None, None)]


@dataclass(frozen=True, slots=True)
class MetricEffect:
    """Distinct prompts of the whole suite that are right, of those that the metric applies to, now and then."""

    metric: str
    right_now: int
    of_now: int
    right_then: int
    of_then: int

    @property
    def changes(self) -> bool:
        return (self.right_now, self.of_now) != (self.right_then, self.of_then)


@dataclass(frozen=True, slots=True)
class Side:
    """`problem`: why it cannot be said what would change for this side."""

    who: str
    run: EvalRun | None
    answers: list[Answered]
    metrics: list[MetricEffect]
    problem: str = ""


def sides_of(document: Mapping[str, Any], case: Case, read: Expectation | None = None) -> list[Side]:
    """Both sides' answers to a case of the evidence, and with `read` what they would score. At most sixteen queries."""
    part = next(part for part in document["suites"] if part["digest"] == case.suite.digest)
    uids = [part[who]["run"] for who in SIDES if part[who]]
    found = (
        EvalRun.objects.filter(uid__in=uids).select_related("backend", "subject", "suite").defer("overview")
    )
    runs = {str(run.uid): run for run in found}
    return [_side(who, part[who], runs, case, read) for who in SIDES]


def proposal(dispute: Dispute) -> Expectation | None:
    """What an open dispute proposes, read as when it was raised; None where it is decided."""
    return amendments.read_amended(dispute.case, dispute.expected_after) if dispute.state == "open" else None


def _side(
    who: str,
    counted: Mapping[str, Any] | None,
    runs: Mapping[str, EvalRun],
    case: Case,
    read: Expectation | None,
) -> Side:
    run = runs.get(counted["run"]) if counted else None
    if run is None or counted is None:
        return Side(who, None, [], [], "It has no closed run on this suite.")
    answers = list(run.rollouts.filter(case=case).order_by("sample_index"))
    shown = [Answered(rollout, _scores(rollout), None) for rollout in answers]
    if read is None:
        return Side(who, run, shown, [])
    if run.state != RunState.SCORED:
        return Side(
            who, run, shown, [], f"Run {run.pk} is {run.state}; what would change is known when it closes."
        )
    try:
        rescored = amendments.would_score(case, [run], read)[run.pk]
    except AssayError as error:
        return Side(who, run, shown, [], error.message)
    then = {row.rollout_id: kept(row.after) for row in rescored}
    shown = [Answered(row.rollout, row.now, then.get(row.rollout.pk, row.now)) for row in shown]
    return Side(who, run, shown, _metrics(counted, run, case, read, rescored))


def _scores(rollout: Rollout) -> dict[str, Any]:
    return {name: getattr(rollout, name) for name in (*METRICS, "state", "answer_class", "details")}


def _metrics(
    counted: Mapping[str, Any], run: EvalRun, case: Case, read: Expectation, rescored: list[Rescored]
) -> list[MetricEffect]:
    """The evidence's counts, with the one prompt moved whose cases are scored anew."""
    expects, scores = _same_prompt(run, case)
    before = _observed(run.samples, expects, scores)
    new = {row.rollout_id: kept(row.after) for row in rescored}
    moved = {**scores, case.pk: {pk: new.get(pk, old) for pk, old in scores.get(case.pk, {}).items()}}
    after = _observed(run.samples, {**expects, case.pk: read.expects_call}, moved)
    found = []
    for metric, bit in BITS.items():
        now = dict(counted["metrics"][metric])
        then = dict(now)
        for counts, value, step in ((then, before.value(bit), -1), (then, after.value(bit), 1)):
            if value is not None:
                counts[value] += step
        found.append(
            MetricEffect(metric, now["successes"], sum(now.values()), then["successes"], sum(then.values()))
        )
    return [effect for effect in found if effect.of_now or effect.of_then]


def _same_prompt(run: EvalRun, case: Case) -> tuple[dict[int, bool], dict[int, dict[int, Scores]]]:
    """Cases that are one observation with this one: whether a call is right, and the scores of the run's rollouts."""
    same = Case.objects.filter(suite=case.suite_id)
    same = same.filter(prompt_sha256=case.prompt_sha256) if case.prompt_sha256 else same.filter(pk=case.pk)
    expects = dict(same.values_list("pk", "expects_call"))
    scores: dict[int, dict[int, Scores]] = {}
    for row in run.rollouts.filter(case__in=expects).values("pk", "case_id", *METRICS):
        scores.setdefault(row["case_id"], {})[row["pk"]] = row
    return expects, scores


def _observed(
    samples: int, expects: Mapping[int, bool], scores: Mapping[int, Mapping[int, Scores]]
) -> Observation:
    """As `rollouts.measurements` reduces samples and cases to one value a metric."""
    seen = Observation()
    for case_id, calls in expects.items():
        rows = list(scores.get(case_id, {}).values())
        right, wrong = ALL if len(rows) >= samples else 0, 0
        for row in rows:
            right &= sum(bit for metric, bit in BITS.items() if row[metric] is True)
            wrong |= sum(bit for metric, bit in BITS.items() if row[metric] is False)
        seen.add(APPLIES[calls], right, wrong)
    return seen
