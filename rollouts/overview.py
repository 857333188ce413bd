"""What the page of an eval run shows: scores, failures, what went wrong in groups. Counted once for a run that ended.

Counting takes a pass over all rollouts, so a page never counts: it reads `EvalRun.overview`, which
`services.overviews` writes when a run closes, and whoever changes scores takes away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from django.db.models import Count, F, Q, QuerySet, Sum

from rollouts.amendments import content_now
from rollouts.clusters import Cluster, Miss, clusters
from rollouts.models import ACTIVE_RUN_STATES, EvalRun, Look, Rollout, RolloutState
from rollouts.reading import Flag, PassAt, Repeats, repeats_of, run_flags
from rollouts.selectors import APART, METRICS, Progress, progress

FORMAT = 1
# of a run at work: how many of its rollouts a reader may have counted at once, the first in order
COUNTED_AT_ONCE = 20_000
MISSES_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Metric:
    """Rollouts of a run that a metric applies to."""

    name: str
    right: int
    wrong: int

    @property
    def n(self) -> int:
        return self.right + self.wrong


@dataclass(frozen=True, slots=True)
class Failure:
    state: str
    kind: str
    n: int


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What is read of a run's rollouts. Latencies are by nearest rank; None: nothing was measured.

    `counted` is the number of rollouts that were looked at: all, or the first of a run at work. `repeats` is None for one
    sample a case, and where repeats are not proven to be draws of their own. `mean_share` is the mean share of the task
    done over `shares` rollouts, of scorers that give one. `clusters` groups the `misses` on `exact`.
    """

    run: EvalRun
    progress: Progress
    counted: int
    failures: list[Failure]
    metrics: list[Metric]
    apart: list[Metric]
    answer_classes: dict[str, int]
    tool_evidence: dict[str, int]
    mean_share: float | None
    shares: int
    measured: int
    p50_ms: float | None
    p95_ms: float | None
    look: int | None
    repeats: Repeats | None
    flags: list[Flag]
    misses: int
    clusters: list[Cluster]

    @property
    def states(self) -> dict[str, int]:
        return self.progress.states

    @property
    def active(self) -> bool:
        return self.run.state in ACTIVE_RUN_STATES

    @property
    def partial(self) -> bool:
        """Whether more rollouts were planned than were looked at."""
        return self.counted < self.run.planned

    @property
    def groups(self) -> list[tuple[str, Cluster]]:
        """What went wrong: a sentence and what it is about."""
        return [(cluster.sentence(self.misses), cluster) for cluster in self.clusters]


def can_run_again(run: EvalRun, now: Progress) -> bool:
    without_score = now.states["masked"] + now.states["unscored"] + now.states["cancelled"]
    return run.state in {"scored", "cancelled"} and bool(without_score)


def can_rescore(run: EvalRun) -> bool:
    return run.state == "scored" and run.judge_backend_id is None


def summary_of(run: EvalRun) -> RunSummary:
    """What is stored of a run that ended; else counted now, over all its rollouts, without groups of misses."""
    return stored(run) or run_summary(run, grouped=False)


# what is stored


def stored(run: EvalRun) -> RunSummary | None:
    """The overview that was written when the run ended; None for a run at work, and until it is written. No query."""
    data = run.overview
    if run.state in ACTIVE_RUN_STATES or not data or data.get("format") != FORMAT:
        return None
    now = ended_progress(run, data["states"], data["cost_microusd"])
    return RunSummary(
        run=run,
        progress=now,
        failures=[Failure(**part) for part in data["failures"]],
        metrics=[Metric(**part) for part in data["metrics"]],
        apart=[Metric(**part) for part in data["apart"]],
        repeats=data["repeats"] and _repeats_from(data["repeats"]),
        flags=[Flag(**part) for part in data["flags"]],
        clusters=[Cluster(**part) for part in data["clusters"]],
        **{name: data[name] for name in _AS_IT_IS},
    )


_AS_IT_IS = (
    *("counted", "answer_classes", "tool_evidence", "mean_share", "shares"),
    *("measured", "p50_ms", "p95_ms", "look", "misses"),
)


def as_stored(summary: RunSummary) -> dict[str, Any]:
    """The summary as JSON. `stored` reads it again."""
    parts = ("failures", "metrics", "apart", "flags", "clusters")
    return {
        "format": FORMAT,
        "states": summary.states,
        "cost_microusd": summary.progress.cost_microusd,
        **{name: getattr(summary, name) for name in _AS_IT_IS},
        **{name: [asdict(part) for part in getattr(summary, name)] for name in parts},
        "repeats": summary.repeats and asdict(summary.repeats),
    }


def _repeats_from(data: dict[str, Any]) -> Repeats:
    return Repeats(**{**data, "pass_at": [PassAt(**part) for part in data["pass_at"]]})


def ended_progress(run: EvalRun, states: dict[str, int], cost_microusd: int | None) -> Progress:
    return Progress(
        run_id=run.pk,
        state=run.state,
        planned=run.planned,
        states=states,
        rate_per_s=None,
        cost_microusd=cost_microusd,
        started_at=run.started_at,
    )


# counting

_TALLIED = ("state", "failure_kind", "answer_class", "tool_evidence")


def run_summary(run: EvalRun, *, at_most: int | None = None, grouped: bool = True) -> RunSummary:
    """Counts the rollouts, of a long run only the first `at_most`. Ten queries at most, whatever their number.

    Misses are read one by one to be grouped; not `grouped` leaves them out.
    """
    now = progress(run.pk)
    rows = run.rollouts.order_by()
    counted = run.planned
    if at_most is not None and run.planned > at_most:
        last = run.rollouts.order_by("id").values_list("id", flat=True)[at_most - 1 : at_most]
        rows, counted = rows.filter(id__lte=next(iter(last))), at_most
    tally = _tally(rows)
    kinds = _counted(tally, "state", "failure_kind")
    failures = [Failure(state, kind, n) for (state, kind), n in kinds.items() if kind]
    shares = sum(row["shares"] for row in tally)
    measured = sum(row["measured"] for row in tally)
    look = Look.objects.filter(suite_id=run.suite_id, subject_id=run.subject_id)
    misses, groups = clusters(run.suite.scorer, _misses(rows) if grouped else ())
    return RunSummary(
        run=run,
        progress=now,
        counted=counted,
        failures=sorted(failures, key=lambda failure: (-failure.n, failure.kind)),
        metrics=[_metric(tally, name) for name in METRICS],
        apart=[_metric(tally, name) for name in APART],
        answer_classes=_by_number(_counted(tally, "answer_class")),
        tool_evidence=_by_number(_counted(tally, "tool_evidence")),
        mean_share=sum(row["share_sum"] or 0.0 for row in tally) / shares if shares else None,
        shares=shares,
        measured=measured,
        p50_ms=_percentile(rows, measured, 50),
        p95_ms=_percentile(rows, measured, 95),
        look=look.values_list("number", flat=True).first(),
        repeats=_repeats(run, rows) if run.samples > 1 and run.independence == "independent" else None,
        flags=_flags(run, rows, now, failures),
        misses=misses,
        clusters=groups,
    )


def _tally(rows: QuerySet[Rollout]) -> list[dict[str, Any]]:
    """The columns have few values, so that one pass over the rollouts gives a few dozen rows."""
    return list(
        rows.values(*_TALLIED).annotate(
            n=Count("id"),
            measured=Count("latency_ms"),
            shares=Count("score"),
            share_sum=Sum("score"),
            **{f"{name}_right": Count("id", filter=Q(**{name: True})) for name in (*METRICS, *APART)},
            **{f"{name}_wrong": Count("id", filter=Q(**{name: False})) for name in (*METRICS, *APART)},
        )
    )


def _counted(tally: list[dict[str, Any]], *columns: str) -> Counter[tuple[str, ...]]:
    counts: Counter[tuple[str, ...]] = Counter()
    for row in tally:
        counts[tuple(row[column] for column in columns)] += row["n"]
    return counts


def _by_number(counts: Counter[tuple[str, ...]]) -> dict[str, int]:
    return {name: n for (name,), n in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if name}


def _metric(tally: list[dict[str, Any]], name: str) -> Metric:
    return Metric(name, *(sum(row[f"{name}_{side}"] for row in tally) for side in ("right", "wrong")))


def _flags(run: EvalRun, rows: QuerySet[Rollout], now: Progress, failures: list[Failure]) -> list[Flag]:
    reused, avoided_microusd = _reused(run, rows)
    return run_flags(
        planned=run.planned,
        masked=now.masked,
        unscored=now.states["unscored"],
        samples=run.samples,
        independence=run.independence,
        reused=reused,
        avoided_microusd=avoided_microusd,
        poisoned=sum(failure.n for failure in failures if failure.kind == "worker_lost"),
        skipped=sum(failure.n for failure in failures if failure.kind == "budget"),
    )


def _reused(run: EvalRun, rows: QuerySet[Rollout]) -> tuple[int, int | None]:
    """Answers that were taken from other rollouts, and the cost that avoided; None where that is not known."""
    if not run.reuse:
        return 0, None
    taken = rows.filter(answered_by__isnull=False).exclude(answered_by__rollout_id=F("id"))
    found = taken.aggregate(n=Count("id"), avoided=Sum("avoided_microusd"))
    return found["n"], found["avoided"]


def _repeats(run: EvalRun, rows: QuerySet[Rollout]) -> Repeats:
    """One query, one row a case."""
    scored = Q(state=RolloutState.SCORED)
    cases = rows.values("case_id").annotate(
        right=Count("id", filter=Q(exact=True)),
        scored=Count("id", filter=scored),
        answers=Count("answer", filter=scored),
        distinct=Count("answer", filter=scored, distinct=True),
    )
    counts: Counter[tuple[int, int]] = Counter()
    answers = distinct = 0
    for row in cases.values_list("right", "scored", "answers", "distinct"):
        counts[row[0], row[1]] += 1
        answers, distinct = answers + row[2], distinct + row[3]
    return repeats_of(counts, samples=run.samples, answers=answers, distinct_answers=distinct)


def _percentile(rows: QuerySet[Rollout], measured: int, q: int) -> float | None:
    if not measured:
        return None
    rank = -(-q * measured // 100)
    latencies = (
        rows.filter(latency_ms__isnull=False).order_by("latency_ms").values_list("latency_ms", flat=True)
    )
    return float(latencies[rank - 1])


def _misses(rows: QuerySet[Rollout]) -> Iterator[Miss]:
    """One query, read in batches."""
    wrong = rows.filter(state=RolloutState.SCORED, exact=False).order_by("id")
    columns = (
        *("id", "case__prompt_sha256", "case_id", "case__content", "case__amended_expected"),
        *("answer_class", "answer", "details", "decision", "tool"),
    )
    for pk, prompt, case, content, amended, *said in wrong.values_list(*columns).iterator(MISSES_AT_ONCE):
        yield Miss(pk, prompt or f"case {case}", content_now(content, amended), *said)
