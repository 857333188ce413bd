"""What pages, the API and evidence read."""

from __future__ import annotations

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
    ModelCall,
    Overlap,
    Rollout,
    RolloutState,
    Suite,
)
from rollouts.roles import Person

METRICS = ("decision", "tool", "exact", "safe", "json_valid")
# what some scorers say beside the metrics; no policy asks for them
APART = ("reason_code", "arguments_valid")


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


def runs_where(
    person: Person, *, state: str = "", suite: str = "", subject: str = "", label: str = ""
) -> QuerySet[EvalRun]:
    """Eval runs that the person may see, by state, suite name, beginning of the subject's digest, words of the label."""
    related = ("suite", "backend", "subject", "created_by")
    # what a run's own page shows is long, and no list shows it
    runs = EvalRun.objects.visible_to(person).select_related(*related).defer("overview")
    if state:
        runs = runs.filter(state=state)
    if suite:
        runs = runs.filter(suite__name=suite)
    if subject:
        runs = runs.filter(subject__digest__startswith=subject.lower())
    if label:
        runs = runs.filter(label__icontains=label)
    return runs


def run_by_id(run_id: int, person: Person) -> EvalRun:
    related = ("suite", "backend", "subject__base", "created_by", "judge_backend")
    run = EvalRun.objects.visible_to(person).select_related(*related).filter(pk=run_id).first()
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


def progress(run_id: int, *, seen_by: Person | None = None) -> Progress:
    """One statement: counts over an index, and sums over the run's few claims. Cheap enough to ask every 2 s.

    `seen_by` is who asks; left out where nobody is shown it, or where the run was found for them already.
    """
    runs = EvalRun.objects.all() if seen_by is None else EvalRun.objects.visible_to(seen_by)
    spent = Claim.objects.filter(run_id=run_id).order_by().values("run_id").annotate(n=Sum("cost_microusd"))
    rows = list(
        runs.filter(pk=run_id)
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


def rollout_by_id(rollout_id: int, person: Person) -> Rollout:
    related = ("case__suite", "run__suite", "run__backend", "run__subject", "answered_by")
    rollout = Rollout.objects.visible_to(person).select_related(*related).filter(pk=rollout_id).first()
    if rollout is None:
        raise NotFound("There is no such rollout.")
    return rollout


def reused_from(rollout: Rollout) -> int | None:
    """The rollout whose answer this one took; None where it asked itself. `answered_by` is selected along with it."""
    source = rollout.answered_by
    return None if source is None or source.rollout_id == rollout.pk else source.rollout_id


def call_by_id(call_id: int, person: Person) -> ModelCall:
    call = ModelCall.objects.visible_to(person).filter(pk=call_id).first()
    if call is None:
        raise NotFound("There is no such model call.")
    return call


# comparing two runs case by case


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


def suites(*, name: str = "", scorer: str = "") -> QuerySet[Suite]:
    """By a part of the name, and the scorer."""
    found = Suite.objects.select_related("sealed_by")
    if scorer:
        found = found.filter(scorer=scorer)
    return found.filter(name__icontains=name) if name else found


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


def backends_in_use(*, name: str = "", kind: str = "") -> QuerySet[Backend]:
    """The newest revision of each backend, by a part of the name, and the kind."""
    newest = Backend.objects.filter(name=OuterRef("name")).order_by("-revision").values("pk")[:1]
    found = Backend.objects.filter(pk=Subquery(newest)).select_related("created_by")
    if kind:
        found = found.filter(kind=kind)
    return found.filter(name__icontains=name) if name else found


def revisions_of(name: str) -> QuerySet[Backend]:
    return Backend.objects.filter(name=name).select_related("created_by")


def base_models(*, name: str = "") -> QuerySet[BaseModel]:
    """By a part of the name."""
    found = BaseModel.objects.select_related("artifact", "created_by")
    return found.filter(name__icontains=name) if name else found


# datasets


def datasets(*, name: str = "", source: str = "") -> QuerySet[Dataset]:
    """By parts of the name and of the source."""
    found = Dataset.objects.select_related("artifact", "registered_by")
    if source:
        found = found.filter(source__icontains=source)
    return found.filter(name__icontains=name) if name else found


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
    person: Person,
    *,
    action: str = "",
    actor: str = "",
    subject: str = "",
    since_us: int | None = None,
    until_us: int | None = None,
) -> QuerySet[AuditEvent]:
    """Audit events of what the person may see, by action, actor, label of the subject, and microseconds (from, until)."""
    events = AuditEvent.objects.visible_to(person)
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
    """What happened to one thing, newest first. The caller has seen to it that the person may see the thing."""
    found = AuditEvent.objects.filter(subject_type=subject_type, subject_id=str(subject_id))
    return found.order_by("-sequence")
