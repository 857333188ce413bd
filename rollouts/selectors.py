"""What pages, the API and evidence read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, F, FilteredRelation, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone

from rollouts.errors import NotFound
from rollouts.hashing import sha256_json
from rollouts.models import (
    ACTIVE_RUN_STATES,
    AuditEvent,
    Backend,
    BaseModel,
    Case,
    Claim,
    Dataset,
    EvalRun,
    Invocation,
    Look,
    ModelCall,
    Overlap,
    Rollout,
    RolloutState,
    Subject,
    Suite,
)
from rollouts.reading import Flag, Repeats, repeats_of, run_flags

METRICS = ("decision", "tool", "exact", "safe", "json_valid")
# what some scorers say beside the metrics; no policy asks for them
APART = ("reason_code", "arguments_valid")
MAX_CALLS_SHOWN = 50


def local_subject_digest(
    *, base: BaseModel, adapter_sha256: str | None, adapter_source_sha256: str, sampling: dict[str, Any]
) -> str:
    """The identity of what an eval run tests: every byte that shapes its answers."""
    return sha256_json(
        {
            "base": base.artifact_id,
            "adapter": adapter_sha256,
            "adapter_source": adapter_source_sha256,
            "chat_template": base.chat_template_sha256,
            "sampling": sampling,
        }
    )


# eval runs


def runs_where(*, state: str = "", suite: str = "", subject: str = "", label: str = "") -> QuerySet[EvalRun]:
    """Eval runs by state, suite name, beginning of the subject's digest, and words of the label."""
    runs = EvalRun.objects.select_related("suite", "backend", "subject", "created_by")
    if state:
        runs = runs.filter(state=state)
    if suite:
        runs = runs.filter(suite__name=suite)
    if subject:
        runs = runs.filter(subject__digest__startswith=subject.lower())
    if label:
        runs = runs.filter(label__icontains=label)
    return runs


def run_by_id(run_id: int) -> EvalRun:
    related = ("suite", "backend", "subject__base", "created_by", "judge_backend")
    run = EvalRun.objects.select_related(*related).filter(pk=run_id).first()
    if run is None:
        raise NotFound("There is no such eval run.")
    return run


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    `rate_per_s` counts rollouts that ended under the claims that are open now; None where none is. `cost_microusd` is
    of all calls so far; None where a backend that is asked has no prices.
    """

    run_id: int
    state: str
    planned: int
    states: dict[str, int]
    rate_per_s: float | None
    cost_microusd: int | None
    started_at: datetime | None

    @property
    def left(self) -> int:
        return self.states["queued"] + self.states["running"]

    @property
    def done(self) -> int:
        return self.planned - self.left

    @property
    def masked(self) -> int:
        return self.states["masked"]

    @property
    def eta_s(self) -> float | None:
        """Seconds until nothing is left, at the present rate; None where nothing moves."""
        return self.left / self.rate_per_s if self.rate_per_s and self.active else None

    @property
    def active(self) -> bool:
        return self.state in ACTIVE_RUN_STATES


def progress(run_id: int) -> Progress:
    """One statement: counts over an index, and sums over the run's few claims. Cheap enough to ask every 2 s."""
    spent = Claim.objects.filter(run_id=run_id).order_by().values("run_id").annotate(n=Sum("cost_microusd"))
    rows = list(
        EvalRun.objects.filter(pk=run_id)
        .order_by()
        .annotate(
            open_claim=FilteredRelation("claims", condition=Q(claims__ended_at__isnull=True)),
            spent=Subquery(spent.values("n")),
            **{f"n_{state}": _rollouts_in(run_id, state) for state in RolloutState.values},
        )
        .values(
            *("state", "planned", "started_at", "spent", "judge_backend"),
            *("open_claim__created_at", "open_claim__done"),
            *("backend__prompt_price", "backend__completion_price"),
            *("judge_backend__prompt_price", "judge_backend__completion_price"),
            *(f"n_{state}" for state in RolloutState.values),
        )
    )
    if not rows:
        raise NotFound("There is no such eval run.")
    run = rows[0]
    asked = ("backend", "judge_backend") if run["judge_backend"] else ("backend",)
    priced = None not in {run[f"{of}__{side}_price"] for of in asked for side in ("prompt", "completion")}
    return Progress(
        run_id=run_id,
        state=run["state"],
        planned=run["planned"],
        states={state: run[f"n_{state}"] for state in RolloutState.values},
        rate_per_s=_rate([(row["open_claim__created_at"], row["open_claim__done"]) for row in rows]),
        cost_microusd=(run["spent"] or 0) if priced else None,
        started_at=run["started_at"],
    )


def _rollouts_in(run_id: int, state: str) -> Coalesce:
    # the run's id as a value: with OuterRef each would be counted again for every open claim
    rows = Rollout.objects.filter(run_id=run_id, state=state).order_by().values("run_id")
    return Coalesce(Subquery(rows.annotate(n=Count("id")).values("n")), 0)


def _rate(claims: list[tuple[datetime | None, int]]) -> float | None:
    """`claims` are (opened at, rollouts ended), or (None, ...) for none. The first second counts as a whole one."""
    now = timezone.now()
    held = [(max(1.0, (now - opened).total_seconds()), done) for opened, done in claims if opened is not None]
    return sum(done / age for age, done in held) if held else None


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

    `repeats` is None for one sample a case, and where repeats are not proven to be draws of their own. `mean_share` is
    the mean share of the task done over `shares` rollouts, of scorers that give one.
    """

    run: EvalRun
    progress: Progress
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

    @property
    def states(self) -> dict[str, int]:
        return self.progress.states

    @property
    def active(self) -> bool:
        return self.run.state in ACTIVE_RUN_STATES

    @property
    def can_run_again(self) -> bool:
        without_score = self.states["masked"] + self.states["unscored"] + self.states["cancelled"]
        return self.run.state in {"scored", "cancelled"} and bool(without_score)

    @property
    def can_rescore(self) -> bool:
        return self.run.state == "scored" and self.run.judge_backend_id is None


_TALLIED = ("state", "failure_kind", "answer_class", "tool_evidence")


def run_summary(run: EvalRun) -> RunSummary:
    """Eight queries at most, whatever the number of rollouts."""
    now = progress(run.pk)
    rows = run.rollouts.order_by()
    # the columns have few values, so that one pass over the rollouts gives a few dozen rows
    tally = list(
        rows.values(*_TALLIED).annotate(
            n=Count("id"),
            measured=Count("latency_ms"),
            shares=Count("score"),
            share_sum=Sum("score"),
            **{f"{name}_right": Count("id", filter=Q(**{name: True})) for name in (*METRICS, *APART)},
            **{f"{name}_wrong": Count("id", filter=Q(**{name: False})) for name in (*METRICS, *APART)},
        )
    )
    kinds = _counted(tally, "state", "failure_kind")
    failures = [Failure(state, kind, n) for (state, kind), n in kinds.items() if kind]
    shares = sum(row["shares"] for row in tally)
    measured = sum(row["measured"] for row in tally)
    reused, avoided_microusd = _reused(run)
    look = Look.objects.filter(suite_id=run.suite_id, subject_id=run.subject_id)
    return RunSummary(
        run=run,
        progress=now,
        failures=sorted(failures, key=lambda failure: (-failure.n, failure.kind)),
        metrics=[_metric(tally, name) for name in METRICS],
        apart=[_metric(tally, name) for name in APART],
        answer_classes={name: n for (name,), n in _counted(tally, "answer_class").most_common() if name},
        tool_evidence={name: n for (name,), n in _counted(tally, "tool_evidence").most_common() if name},
        mean_share=sum(row["share_sum"] or 0.0 for row in tally) / shares if shares else None,
        shares=shares,
        measured=measured,
        p50_ms=_percentile(rows, measured, 50),
        p95_ms=_percentile(rows, measured, 95),
        look=look.values_list("number", flat=True).first(),
        repeats=_repeats(run) if run.samples > 1 and run.independence == "independent" else None,
        flags=run_flags(
            planned=run.planned,
            masked=now.masked,
            unscored=now.states["unscored"],
            samples=run.samples,
            independence=run.independence,
            reused=reused,
            avoided_microusd=avoided_microusd,
            poisoned=sum(failure.n for failure in failures if failure.kind == "worker_lost"),
            skipped=sum(failure.n for failure in failures if failure.kind == "budget"),
        ),
    )


def _counted(tally: list[dict[str, Any]], *columns: str) -> Counter[tuple[str, ...]]:
    counts: Counter[tuple[str, ...]] = Counter()
    for row in tally:
        counts[tuple(row[column] for column in columns)] += row["n"]
    return counts


def _metric(tally: list[dict[str, Any]], name: str) -> Metric:
    return Metric(name, *(sum(row[f"{name}_{side}"] for row in tally) for side in ("right", "wrong")))


def _reused(run: EvalRun) -> tuple[int, int | None]:
    """Answers that were taken from other rollouts, and the cost that avoided; None where that is not known."""
    if not run.reuse:
        return 0, None
    taken = run.rollouts.filter(answered_by__isnull=False).exclude(answered_by__rollout_id=F("id"))
    found = taken.aggregate(n=Count("id"), avoided=Sum("avoided_microusd"))
    return found["n"], found["avoided"]


def _repeats(run: EvalRun) -> Repeats:
    """One query, one row a case."""
    scored = Q(state=RolloutState.SCORED)
    cases = (
        run.rollouts.order_by()
        .values("case_id")
        .annotate(
            right=Count("id", filter=Q(exact=True)),
            scored=Count("id", filter=scored),
            answers=Count("answer", filter=scored),
            distinct=Count("answer", filter=scored, distinct=True),
        )
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


# rollouts


def rollouts_where(
    run: EvalRun,
    *,
    state: str = "",
    family: str = "",
    wrong: str = "",
    kind: str = "",
    read_as: str = "",
    key: str = "",
) -> QuerySet[Rollout]:
    """A run's rollouts by state, family, what is wrong, failure kind, class of the answer, and the case's key."""
    rollouts = run.rollouts.select_related("case")
    if state:
        rollouts = rollouts.filter(state=state)
    if family:
        rollouts = rollouts.filter(case__family=family)
    if wrong:
        assert wrong in (*METRICS, *APART), wrong
        rollouts = rollouts.filter(**{wrong: False})
    if kind:
        rollouts = rollouts.filter(failure_kind=kind)
    if read_as:
        rollouts = rollouts.filter(answer_class=read_as)
    if key:
        rollouts = rollouts.filter(case__key__icontains=key)
    return rollouts


def rollout_by_id(rollout_id: int) -> Rollout:
    related = ("case__suite", "run__suite", "run__backend", "run__subject", "answered_by")
    rollout = Rollout.objects.select_related(*related).filter(pk=rollout_id).first()
    if rollout is None:
        raise NotFound("There is no such rollout.")
    return rollout


def reused_from(rollout: Rollout) -> int | None:
    """The rollout whose answer this one took; None where it asked itself. `answered_by` is selected along with it."""
    source = rollout.answered_by
    return None if source is None or source.rollout_id == rollout.pk else source.rollout_id


@dataclass(frozen=True, slots=True)
class Execution:
    """An invocation with its model calls, oldest first."""

    invocation: Invocation
    calls: list[ModelCall]


def executions_of(rollout: Rollout) -> list[Execution]:
    """Every invocation of a rollout, the first 50 calls of all of them with their bodies. Two queries."""
    invocations = list(rollout.invocations.select_related("claim").order_by("id")[:MAX_CALLS_SHOWN])
    calls = (
        ModelCall.objects.filter(invocation__in=invocations)
        .select_related("request", "response")
        .order_by("invocation_id", "turn", "attempt")[:MAX_CALLS_SHOWN]
    )
    by_invocation: dict[int, list[ModelCall]] = {}
    for call in calls:
        by_invocation.setdefault(call.invocation_id, []).append(call)
    return [Execution(invocation, by_invocation.get(invocation.pk, [])) for invocation in invocations]


def call_by_id(call_id: int) -> ModelCall:
    call = ModelCall.objects.select_related("request", "response").filter(pk=call_id).first()
    if call is None:
        raise NotFound("There is no such model call.")
    return call


# comparing two runs case by case


@dataclass(frozen=True, slots=True)
class Pair:
    """A candidate's run, the champion's on the same suite if there is one, and the metric compared."""

    candidate: int
    champion: int | None
    metric: str


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """A case not right on both sides: `then` (None: no champion) and `now` are right, wrong or missing."""

    case_id: int
    suite_id: int
    family: str
    expects_call: bool
    then: str | None
    now: str

    @property
    def turn(self) -> str:
        """lost (right to wrong), won, wrong (on both sides, or with no champion), missing."""
        if "missing" in (self.then, self.now):
            return "missing"
        if self.now == "right":
            return "won"
        return "lost" if self.then == "right" else "wrong"


def cases_not_right(pairs: Iterable[Pair]) -> list[CaseOutcome]:
    """Cases that either side did not get right, each case's samples reduced to one value. One query."""
    pairs = list(pairs)
    if not pairs:
        return []
    ours = {pair.candidate: pair.metric for pair in pairs}
    theirs = {pair.champion: pair.metric for pair in pairs if pair.champion is not None}
    applies = _any(Q(run_id=run, **_applies(metric)) for run, metric in {**ours, **theirs}.items())
    rows = (
        Rollout.objects.filter(applies)
        .order_by()
        .values("case_id", "case__suite_id", "case__family", "case__expects_call")
        .annotate(**_side("now", ours), **_side("then", theirs))
        .filter(Q(now_wrong__gt=0) | Q(now_open__gt=0) | Q(then_wrong__gt=0) | Q(then_open__gt=0))
    )
    with_champion = bool(theirs)
    return [
        CaseOutcome(
            row["case_id"],
            row["case__suite_id"],
            row["case__family"],
            row["case__expects_call"],
            _value(row, "then") if with_champion and row["then_n"] else None,
            _value(row, "now"),
        )
        for row in rows
    ]


def _applies(metric: str) -> dict[str, bool]:
    return {"tool": {"case__expects_call": True}, "safe": {"case__expects_call": False}}.get(metric, {})


def _side(name: str, metrics: dict[int, str]) -> dict[str, Count]:
    wrong = _any(Q(run_id=run, **{metric: False}) for run, metric in metrics.items())
    mine = Q(run_id__in=list(metrics))
    return {
        f"{name}_wrong": Count("id", filter=wrong),
        f"{name}_open": Count("id", filter=mine & ~Q(state=RolloutState.SCORED)),
        f"{name}_n": Count("id", filter=mine),
    }


def _any(conditions: Iterable[Q]) -> Q:
    found = Q(pk__in=[])
    for condition in conditions:
        found |= condition
    return found


def _value(row: dict[str, Any], side: str) -> str:
    if row[f"{side}_wrong"]:
        return "wrong"
    return "missing" if row[f"{side}_open"] or not row[f"{side}_n"] else "right"


def rollouts_of_cases(run_ids: Iterable[int], case_ids: Iterable[int]) -> dict[int, dict[int, Rollout]]:
    """case -> run -> the sample to show: a wrong or unfinished one before a right one, else the first."""
    rows = Rollout.objects.filter(run_id__in=list(run_ids), case_id__in=list(case_ids)).select_related("case")
    found: dict[int, dict[int, Rollout]] = {}
    for rollout in rows.order_by("sample_index"):
        sides = found.setdefault(rollout.case_id, {})
        if rollout.run_id not in sides or (rollout.state != RolloutState.SCORED):
            sides[rollout.run_id] = rollout
    return found


# suites, backends, base models


def suites() -> QuerySet[Suite]:
    return Suite.objects.select_related("sealed_by")


def suite_by_name(name: str, version: int) -> Suite:
    suite = suites().filter(name=name, version=version).first()
    if suite is None:
        raise NotFound("There is no such suite.")
    return suite


def family_sizes(suite: Suite) -> list[dict[str, Any]]:
    """Per family: cases, and those in which a call is right. One query."""
    rows = Case.objects.filter(suite=suite).order_by("family").values("family")
    return list(rows.annotate(n=Count("id"), calls=Count("id", filter=Q(expects_call=True))))


def cases_where(suite: Suite, *, family: str = "", key: str = "") -> QuerySet[Case]:
    cases = Case.objects.filter(suite=suite)
    if family:
        cases = cases.filter(family=family)
    return cases.filter(key__icontains=key) if key else cases


def case_by_id(case_id: int) -> Case:
    case = Case.objects.select_related("suite").filter(pk=case_id).first()
    if case is None:
        raise NotFound("There is no such case.")
    return case


def backends_in_use() -> QuerySet[Backend]:
    """The newest revision of each backend."""
    newest = Backend.objects.filter(name=OuterRef("name")).order_by("-revision").values("pk")[:1]
    return Backend.objects.filter(pk=Subquery(newest)).select_related("created_by")


def revisions_of(name: str) -> QuerySet[Backend]:
    return Backend.objects.filter(name=name).select_related("created_by")


def base_models() -> QuerySet[BaseModel]:
    return BaseModel.objects.select_related("artifact", "created_by")


def subject_by_digest(digest: str) -> Subject | None:
    return Subject.objects.select_related("base").filter(digest=digest).first()


# datasets


def datasets() -> QuerySet[Dataset]:
    return Dataset.objects.select_related("artifact", "registered_by")


def dataset_by_name(name: str, version: int) -> Dataset:
    dataset = datasets().filter(name=name, version=version).first()
    if dataset is None:
        raise NotFound("There is no such dataset.")
    return dataset


def overlaps_of(dataset: Dataset) -> QuerySet[Overlap]:
    """What the dataset was compared with, suites first."""
    found = Overlap.objects.filter(dataset=dataset).select_related("suite", "other")
    return found.order_by(F("suite_id").asc(nulls_last=True), "other_id")


def declared_digest(sidecar: Any, role: str) -> str | None:
    """The SHA-256 that a sidecar gives for the file in this role (train or eval), as far as it gives one."""
    given = sidecar if isinstance(sidecar, dict) else {}
    found = given.get(f"{role}_sha256") or given.get("sha256")
    return found if isinstance(found, str) else None


def declared_streams(sidecar: Any) -> list[str]:
    """The names of the streams that a sidecar says the data was composed of, in alphabetical order."""
    sources = sidecar.get("sources") if isinstance(sidecar, dict) else None
    names = list(sources) if isinstance(sources, dict) else []
    if isinstance(sources, list):
        names = [part.get("name") if isinstance(part, dict) else part for part in sources]
    return sorted({name for name in names if isinstance(name, str)})


# audit


def events_where(
    *,
    action: str = "",
    actor: str = "",
    subject: str = "",
    since_us: int | None = None,
    until_us: int | None = None,
) -> QuerySet[AuditEvent]:
    """Audit events by action, actor, label of the subject, and time in microseconds (from, until)."""
    events = AuditEvent.objects.all()
    if action:
        events = events.filter(action=action)
    if actor:
        events = events.filter(actor__icontains=actor)
    if subject:
        events = events.filter(subject_label__icontains=subject)
    if since_us is not None:
        events = events.filter(at_us__gte=since_us)
    return events if until_us is None else events.filter(at_us__lt=until_us)


def events_of(subject_type: str, subject_id: int) -> QuerySet[AuditEvent]:
    """What happened to one thing, newest first."""
    found = AuditEvent.objects.filter(subject_type=subject_type, subject_id=str(subject_id))
    return found.order_by("-sequence")
