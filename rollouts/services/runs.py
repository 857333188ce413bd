"""Eval runs: plan, work a shard, close, cancel, run again, sweep."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction
from django.db.models import Count, Exists, Max, OuterRef, Q
from django.utils import timezone

from rollouts import audit, permissions, store
from rollouts.amendments import newest_of_suite
from rollouts.backends import make
from rollouts.backends.base import Backend as BackendKind
from rollouts.backends.base import BackendUnavailable, Opened, SubjectFiles
from rollouts.backends.dual import Dual
from rollouts.capture.outcome import shown
from rollouts.capture.recorder import ShardRecorder
from rollouts.engine import claims, planner
from rollouts.engine.dialogue import Asker
from rollouts.engine.runner import Endpoint, LeaseLost, Shard, run_shard
from rollouts.errors import Conflict, InvalidInput, NotFound
from rollouts.messages import send_after_commit
from rollouts.models import (
    ACTIVE_RUN_STATES,
    RUN_MOVES,
    Backend,
    Claim,
    EvalRun,
    Look,
    Rollout,
    RolloutState,
    RunState,
    Subject,
    Suite,
)
from rollouts.processes import peak_memory_bytes
from rollouts.scoring.judge import PROMPT_VERSION, same_model
from rollouts.services import overviews, rescoring
from rollouts.services.backends import KEY_PREFIX
from rollouts.signals import run_closed
from rollouts.states import require_move

log = logging.getLogger(__name__)
SHARDS_AT_ONCE = 4
MAX_SAMPLES = 100
WHOLE_RUN = ("backend", "subject__base", "suite", "judge_backend")
RESCORE_BATCH = 500


BUDGET_LIMITS = ("calls", "tokens", "microusd", "wall_s")


@dataclass(frozen=True, slots=True)
class Judge:
    """Who judges the answers of a suite that is scored by a judge: a backend, and the model's name there."""

    backend: Backend
    model: str


def plan(
    *,
    subject: Subject,
    suite: Suite,
    backend: Backend,
    by: User,
    samples: int = 1,
    label: str = "",
    reuse: bool = False,
    judge: Judge | None = None,
    budget: Mapping[str, int | None] | None = None,
) -> EvalRun:
    """Write an eval run and all its rollouts, and send its first shards after commit.

    With `reuse`, an answer that the same attempt got before (in any run) is taken instead of a call; evidence never
    counts such a run. `budget` holds the most calls, tokens, microusd and wall_s that may be used. Raises `Conflict`
    where the same subject is being measured on the same suite already, and `InvalidInput` with the field.
    """
    permissions.require_can_run(by)
    if not 1 <= samples <= MAX_SAMPLES:
        raise InvalidInput("samples", f"must be from 1 to {MAX_SAMPLES}.")
    kind = _instance(backend, secret=False)
    limits = _checked_budget(budget, [backend, *([judge.backend] if judge else [])])
    judge = _checked_judge(judge, suite, subject, backend, kind)
    asker = Asker(kind, subject.sampling, subject.remote_model, suite.scorer)
    if kind.serves_files is not (subject.base_id is not None):
        raise InvalidInput(
            "backend",
            f"{backend.name} ({backend.kind}) cannot serve this subject: llama_cpp serves registered base models "
            "and adapters, remote kinds serve models by name.",
        )
    try:
        with transaction.atomic():
            run = EvalRun.objects.create(
                uid=uuid.uuid4(),
                subject=subject,
                suite=suite,
                backend=backend,
                samples=samples,
                label=label[:200],
                plan_digest=planner.plan_digest(
                    subject=subject,
                    suite=suite,
                    backend=backend,
                    samples=samples,
                    judge=_judge_facts(judge) if judge else None,
                ),
                suite_digest=planner.digest_of_stored_cases(suite),
                planned=suite.case_count * samples,
                reuse=reuse,
                independence=kind.independence,
                judge_backend=judge.backend if judge else None,
                judge_model=judge.model if judge else "",
                budget=limits,
                created_by=by,
                created_at=timezone.now(),
            )
            written = planner.write_rollouts(run, asker)
            assert written == run.planned, f"{written} rollouts written, {run.planned} planned"
            audit.record("run.planned", subject=run, actor=by, plan=run.plan_digest, planned=run.planned)
            send(run)
    except IntegrityError as error:
        active = _active(suite_id=suite.pk, subject_id=subject.pk, samples=samples)
        if active is None:
            raise
        raise _measured_already(active) from error
    return run


def _checked_budget(
    budget: Mapping[str, int | None] | None, backends: list[Backend]
) -> dict[str, int] | None:
    if budget is None:
        return None
    limits = {name: limit for name, limit in budget.items() if limit is not None}
    for name, limit in limits.items():
        if name not in BUDGET_LIMITS:
            raise InvalidInput(f"budget.{name}", f"is not known. Use {', '.join(BUDGET_LIMITS)}.")
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit < 2**53:
            raise InvalidInput(f"budget.{name}", "must be a whole number, at least 1.")
    for backend in backends if "microusd" in limits else ():
        if None in (backend.prompt_price, backend.completion_price):
            raise InvalidInput(
                "budget.microusd",
                f"cannot be kept: {backend.name} has no prices. Save them with the backend.",
            )
    return limits or None


def _checked_judge(
    judge: Judge | None, suite: Suite, subject: Subject, backend: Backend, kind: BackendKind
) -> Judge | None:
    """The judge of a suite that needs one: the one named, else the generator of a dual backend."""
    if suite.scorer != "judge":
        if judge is not None:
            raise InvalidInput(
                "judge", f"has nothing to judge: {suite} is scored by {suite.scorer}. Leave it out."
            )
        return None
    if judge is None and isinstance(kind, Dual):
        judge = Judge(backend, kind.generator.model)
    if judge is None:
        raise InvalidInput("judge", f"is missing: {suite} is scored by a judge. Give its backend and model.")
    if not judge.model or len(judge.model) > 200:
        raise InvalidInput(
            "judge.model", "must be 1 to 200 characters, as the judge's endpoint knows the model."
        )
    if _judging(_instance(judge.backend, secret=False)).serves_files:
        raise InvalidInput(
            "judge.backend", f"{judge.backend.name} serves local files; a judge is asked by name."
        )
    under_test = subject.remote_model or (subject.base.name if subject.base else "")
    if same_model(judge.model, under_test):
        raise InvalidInput(
            "judge.model", f"{judge.model} is the model under test ({under_test}); let another one judge it."
        )
    return judge


def _judge_facts(judge: Judge) -> dict[str, Any]:
    return {"backend": judge.backend.digest, "model": judge.model, "prompt": PROMPT_VERSION}


def _active(*, suite_id: int, subject_id: int, samples: int) -> EvalRun | None:
    """The one active run of a measurement (evalrun_one_active)."""
    same = EvalRun.objects.filter(suite_id=suite_id, subject_id=subject_id, samples=samples)
    return same.filter(state__in=ACTIVE_RUN_STATES).first()


def _measured_already(active: EvalRun) -> Conflict:
    return Conflict(f"Run {active.pk} measures the same already. Wait for it or cancel it.", run=active.pk)


def send(run: EvalRun) -> None:
    """Tell workers to look at the run, after commit. Doubled or lost messages do no harm."""
    from rollouts import tasks

    try:
        shards = 1 if _instance(run.backend, secret=False).exclusive else SHARDS_AT_ONCE
    except InvalidInput:  # the worker that looks says what is wrong with it
        shards = 1
    shards = max(1, min(shards, run.planned // max(1, run.backend.concurrency)))
    EvalRun.objects.filter(pk=run.pk).update(last_sent_at=timezone.now())
    send_after_commit(tasks.work_shard, run.pk, times=shards)


def take_back() -> None:
    """Takes what lost workers held, and sends for each: the run must not go on with one worker less."""
    from rollouts import tasks

    for run_id in claims.expire_leases():
        send_after_commit(tasks.work_shard, run_id)


def work_shard(run_id: int) -> int:
    """Work on one shard of a run; returns the number of rollouts finished. Called twice it does no harm."""
    run = EvalRun.objects.select_related(*WHOLE_RUN).filter(pk=run_id).first()
    if run is None or run.state not in ACTIVE_RUN_STATES:
        return 0
    try:
        kind = _instance(run.backend)
    except InvalidInput as error:  # a plug-in that this worker has not, or a revision from before a rule
        fail(run_id, code="backend_unusable", detail=error.message)
        return 0
    # a sweep waits behind the shards of a busy queue; this does not
    take_back()
    worker = f"{socket.gethostname()}:{os.getpid()}"
    claim = claims.open_claim(run_id=run_id, worker=worker, exclusive=kind.exclusive)
    if claim is None:
        close_if_done(run_id)
        return 0
    done = 0
    try:
        done = asyncio.run(_shard(run, claim, kind))
    except BackendUnavailable as error:
        fail(run_id, code=error.code, detail=error.message)
    except LeaseLost:
        log.warning("claim %s lost its lease; its work goes to another worker", claim.pk)
    finally:
        claims.end_claim(claim.pk)
        close_if_done(run_id)
    # not after an unexpected error: the sweep sends again, at its own pace and not without end
    _continue(run_id)
    return done


async def _shard(run: EvalRun, claim: Claim, kind: BackendKind) -> int:
    files = _subject_files(run.subject, kind)
    async with AsyncExitStack() as stack:
        opened = await stack.enter_async_context(kind.open(files))
        await asyncio.to_thread(_pin_facts, run.pk, dict(opened.facts))
        judge = await _judge_endpoint(run, stack) if run.judge_backend is not None else None
        recorder = ShardRecorder(
            claim=claim,
            run=run,
            asker=Asker(kind, run.subject.sampling, run.subject.remote_model, run.suite.scorer),
            claim_until=timezone.now() + timedelta(seconds=settings.SHARD_SECONDS),
            judge=run.judge_backend,
        )
        shard = Shard(
            scorer=run.suite.scorer,
            policy=_endpoint(run.backend, kind, opened, run.subject.remote_model),
            judge=judge,
            claim_until=time.monotonic() + settings.SHARD_SECONDS,
        )
        with recorder:
            done = await run_shard(recorder, shard)
        if opened.pid is not None:
            await asyncio.to_thread(_keep_peak_memory, run.pk, peak_memory_bytes(opened.pid))
        # asked again after the work: what was measured in between was measured on something else if it changed
        try:
            after = dict(await kind.facts_after(files, opened))
        except BackendUnavailable as error:
            if error.code != "server_gone":
                raise
            # what it did not answer is masked; the next shard's server is asked before it works
            log.warning("run %s: %s", run.pk, error.message)
        else:
            await asyncio.to_thread(_pin_facts, run.pk, after)
        return done


async def _judge_endpoint(run: EvalRun, stack: AsyncExitStack) -> Endpoint:
    backend, kind = run.judge_backend, _judging(_instance(run.judge_backend))
    opened = await stack.enter_async_context(kind.open(_remote_files(run.judge_model, kind)))
    return _endpoint(backend, kind, opened, run.judge_model)


def _judging(kind: BackendKind) -> BackendKind:
    """The part that judges: of a dual backend its generator."""
    return kind.generator.backend if isinstance(kind, Dual) else kind


def _endpoint(backend: Backend, kind: BackendKind, opened: Opened, remote_model: str) -> Endpoint:
    return Endpoint(
        backend=kind,
        opened=opened,
        concurrency=backend.concurrency,
        timeout_s=backend.timeout_s,
        max_attempts=backend.max_attempts,
        remote_model=remote_model,
    )


def _instance(backend: Backend, *, secret: bool = True) -> BackendKind:
    """The kind with its stored configuration; without `secret` it cannot ask, only say what it would."""

    def key_of(name: str) -> str | None:
        # asked again here: a revision from before the rule must not read other variables of the worker
        if not secret or not name.startswith(KEY_PREFIX):
            return None
        value = os.environ.get(name)
        # a secret that was mounted as a file ends in a line end, which no header can hold
        return value.strip() if value is not None else None

    return make(backend.kind, backend.config, key_of=key_of, key_env=backend.key_env)


def _remote_files(model: str, kind: BackendKind) -> SubjectFiles:
    transcript = kind.transcript_sha256
    try:
        path = str(store.path_of(transcript)) if transcript else None
    except NotFound as error:
        raise BackendUnavailable("file_missing", error.message) from error
    return SubjectFiles(remote_model=model, transcript_path=path)


def _subject_files(subject: Subject, kind: BackendKind) -> SubjectFiles:
    if subject.base is None:
        return _remote_files(subject.remote_model, kind)
    try:
        adapter_path = str(store.path_of(subject.adapter_id)) if subject.adapter_id else None
        base_path = str(store.path_of(subject.base.artifact_id))
    except NotFound as error:
        raise BackendUnavailable("file_missing", error.message) from error
    return SubjectFiles(
        base_path=base_path,
        base_sha256=subject.base.artifact_id,
        adapter_path=adapter_path,
        adapter_sha256=subject.adapter_id,
        chat_template_sha256=subject.base.chat_template_sha256,
    )


def _pin_facts(run_id: int, facts: dict[str, Any]) -> None:
    """The first shard pins what answers; whoever finds something else, before or after work, makes the run invalid."""
    try:
        EvalRun.objects.filter(pk=run_id, server_facts__isnull=True).update(server_facts=facts)
        pinned = EvalRun.objects.values_list("server_facts", flat=True).get(pk=run_id)
    finally:
        connection.close()  # of the thread that this runs in, which nothing else would close
    if pinned != facts:
        changed = sorted(name for name in {*pinned, *facts} if pinned.get(name) != facts.get(name))
        raise BackendUnavailable(
            "server_changed", f"The server changed during the run: {', '.join(changed)}."
        )


def _keep_peak_memory(run_id: int, peak: int | None) -> None:
    """The most that any shard's server needed."""
    try:
        less = Q(peak_memory_bytes__isnull=True) | Q(peak_memory_bytes__lt=peak or 0)
        EvalRun.objects.filter(less, pk=run_id).update(peak_memory_bytes=peak)
    finally:
        connection.close()  # of the thread that this runs in


def _continue(run_id: int) -> None:
    """After a shard: close the run, or send for the next shard."""
    if close_if_done(run_id):
        return
    run = EvalRun.objects.select_related("backend").get(pk=run_id)
    if run.state in ACTIVE_RUN_STATES and run.rollouts.filter(state=RolloutState.QUEUED).exists():
        from rollouts import tasks

        EvalRun.objects.filter(pk=run_id).update(last_sent_at=timezone.now())
        send_after_commit(tasks.work_shard, run_id)


def close_if_done(run_id: int) -> bool:
    """Close a run of which every rollout is final. True where the run is final now."""
    seen = EvalRun.objects.only("state", "suite_id").get(pk=run_id)
    if seen.state in ACTIVE_RUN_STATES and _is_open(seen):
        return False
    with transaction.atomic():
        # the suite before the run, as everyone takes the two: under it looks are numbered and cases amended
        Suite.objects.select_for_update(no_key=True).get(pk=seen.suite_id)
        run = EvalRun.objects.select_for_update(no_key=True).get(pk=run_id)
        if run.state not in ACTIVE_RUN_STATES:
            return True
        if _is_open(run):
            return False
        now = timezone.now()
        _score_amended(run)
        _write_counts(run)
        run.state, run.finished_at, run.started_at = RunState.SCORED, now, run.started_at or now
        run.revision += 1
        run.save(
            update_fields=[
                *("scored", "masked", "unscored", "cancelled", "state", "finished_at", "started_at"),
                "revision",
            ]
        )
        look = _count_look(run)
        overviews.write(run)
        audit.record(
            "run.scored",
            subject=run,
            actor="system:rollouts",
            planned=run.planned,
            scored=run.scored,
            masked=run.masked,
            unscored=run.unscored,
            cancelled=run.cancelled,
            look=look.number,
        )
        transaction.on_commit(lambda: run_closed.send(sender=EvalRun, run_id=run_id), robust=True)
    return True


def _is_open(run: EvalRun) -> bool:
    return run.rollouts.filter(state__in=[RolloutState.QUEUED, RolloutState.RUNNING]).exists()


def _score_amended(run: EvalRun) -> None:
    """A case may have been amended since its rollouts were claimed: a closed run is scored by what stands then."""
    newest = newest_of_suite(run.suite_id)
    if newest:
        rescoring.write(rescoring.score_again(asker_of(run), amended_answers(run, newest)), newest)


def amended_answers(run: EvalRun, case_ids: Iterable[int]) -> list[int]:
    """The run's rollouts of these cases that ended with an answer."""
    ended = run.rollouts.filter(
        state__in=[RolloutState.SCORED, RolloutState.UNSCORED], case__in=list(case_ids)
    )
    return list(ended.filter(answered_by__isnull=False).values_list("pk", flat=True))


def asker_of(run: EvalRun) -> Asker:
    """Whom the run's rollouts ask, and how; without secrets, for what was asked before. Raises `InvalidInput`."""
    kind = _instance(run.backend, secret=False)
    return Asker(kind, run.subject.sampling, run.subject.remote_model, run.suite.scorer)


def count_again(run: EvalRun) -> None:
    """After scores of a closed run changed, whose row is locked: its counts, its revision, and what pages kept of it."""
    _write_counts(run)
    run.revision += 1
    run.overview = None
    run.save(update_fields=["scored", "masked", "unscored", "cancelled", "revision", "overview"])


def _write_counts(run: EvalRun) -> None:
    """Counts the rows; the database checks planned = scored + masked + unscored + cancelled."""
    counts = dict(run.rollouts.order_by().values_list("state").annotate(Count("id")))
    run.scored, run.masked, run.unscored, run.cancelled = (
        counts.get(state, 0)
        for state in (RolloutState.SCORED, RolloutState.MASKED, RolloutState.UNSCORED, RolloutState.CANCELLED)
    )


def _count_look(run: EvalRun) -> Look:
    seen = Look.objects.filter(suite_id=run.suite_id, subject_id=run.subject_id).first()
    if seen is not None:
        return seen
    last = Look.objects.filter(suite_id=run.suite_id).aggregate(Max("number"))["number__max"]
    return Look.objects.create(
        suite_id=run.suite_id, subject_id=run.subject_id, number=(last or 0) + 1, created_at=timezone.now()
    )


def fail(run_id: int, *, code: str, detail: str) -> None:
    """The run cannot go on or cannot be trusted. Its rollouts stay as they are."""
    detail = shown(detail)  # it may quote a server's log
    with transaction.atomic():
        run = EvalRun.objects.select_for_update(no_key=True).get(pk=run_id)
        if RunState.FAILED not in RUN_MOVES.get(run.state, ()) or (
            run.state == RunState.SCORED and code != "reused_invalid"
        ):
            return
        run.state, run.error_code, run.error_detail, run.finished_at = (
            RunState.FAILED,
            code[:40],
            detail,
            timezone.now(),
        )
        run.save(update_fields=["state", "error_code", "error_detail", "finished_at"])
        audit.record("run.failed", subject=run, actor="system:rollouts", code=code, detail=detail[:1000])
        _revoke(run)


def _revoke(run: EvalRun) -> None:
    """Nothing is taken from a failed run any more, and runs that took answers from it fail with it."""
    took = (
        Rollout.objects.filter(answered_by__rollout__run=run)
        .exclude(run=run)
        .exclude(run__state=RunState.FAILED)
    )
    for run_id in sorted(set(took.values_list("run_id", flat=True))):
        fail(
            run_id, code="reused_invalid", detail=f"It took answers from run {run.pk}, which proved invalid."
        )


def _locked(run_id: int) -> EvalRun:
    locked = EvalRun.objects.select_for_update(no_key=True, of=("self",)).select_related(*WHOLE_RUN)
    run = locked.filter(pk=run_id).first()
    if run is None:
        raise NotFound("There is no such eval run.")
    return run


def cancel(*, run_id: int, by: User) -> EvalRun:
    """Cancel what is queued; what is in flight may still come in, and is kept and not scored."""
    permissions.require_can_run(by)
    with transaction.atomic():
        run = _locked(run_id)
        require_move(f"Run {run.pk}", RUN_MOVES, run.state, RunState.CANCELLED)
        now = timezone.now()
        held = list(run.claims.select_for_update(no_key=True).filter(ended_at__isnull=True))
        open_rollouts = run.rollouts.filter(state__in=[RolloutState.QUEUED, RolloutState.RUNNING])
        open_rollouts.update(
            state=RolloutState.CANCELLED, claim=None, failure_kind="cancelled", finished_at=now
        )
        for claim in held:
            claims.end_claim(claim.pk)
        run.state, run.finished_at = RunState.CANCELLED, now
        run.save(update_fields=["state", "finished_at"])
        audit.record("run.cancelled", subject=run, actor=by)
    return run


def run_again(*, run_id: int, by: User) -> EvalRun:
    """Queue what a closed or cancelled run has no score for again. Scored rollouts are never touched.

    Where only the scorer or the judge failed, the answer is kept and scored again without a call of the model. A budget
    is allowed once more.
    """
    permissions.require_can_run(by)
    with transaction.atomic():
        run = _locked(run_id)
        require_move(f"Run {run.pk}", RUN_MOVES, run.state, RunState.QUEUED)
        active = _active(suite_id=run.suite_id, subject_id=run.subject_id, samples=run.samples)
        if active is not None:
            raise _measured_already(active)
        without_score = [RolloutState.MASKED, RolloutState.UNSCORED, RolloutState.CANCELLED]
        failed = run.rollouts.filter(state__in=without_score)
        failed.exclude(failure_kind__in=["scorer", "judge"]).update(answered_by=None)
        queued = failed.update(
            state=RolloutState.QUEUED,
            lost_workers=0,
            failure_kind="",
            failure_reason="",
            answer=None,
            answer_class="",
            finish_reason="",
            tool_evidence="",
            details=None,
            latency_ms=None,
            prompt_tokens=None,
            completion_tokens=None,
            finished_at=None,
        )
        if not queued:
            raise Conflict(f"Run {run.pk} has no masked, unscored or cancelled rollouts to run again.")
        run.state, run.finished_at = RunState.QUEUED, None
        run.scored = run.masked = run.unscored = run.cancelled = None
        run.spent_calls = run.spent_tokens = run.spent_microusd = 0
        run.started_at = run.overview = None
        run.reopened_by = sorted({*run.reopened_by, by.get_username()})
        run.save(
            update_fields=[
                *("state", "started_at", "finished_at", "scored", "masked", "unscored", "cancelled"),
                *("reopened_by", "overview", "spent_calls", "spent_tokens", "spent_microusd"),
            ]
        )
        audit.record("run.reopened", subject=run, actor=by, queued=queued)
        send(run)
    return run


def rescore(*, run_id: int, by: User) -> EvalRun:
    """Score every captured answer of a closed run again, with the scorer of today and without a call.

    Raises `Conflict` for a run that is not closed, and for suites that a judge scores: that would take calls.
    """
    permissions.require_can_run(by)
    with transaction.atomic():
        run = _locked(run_id)
        if run.state != RunState.SCORED:
            raise Conflict(f"Run {run.pk} is {run.state}; only a closed run is scored again.")
        if run.judge_backend_id is not None:
            raise Conflict(f"{run.suite} is scored by a judge. Run again what its judge failed on.")
        asker = asker_of(run)
        answered = list(
            run.rollouts.filter(answered_by__isnull=False).order_by("id").values_list("id", flat=True)
        )
        changed = sum(
            _rescore_batch(asker, answered[start : start + RESCORE_BATCH])
            for start in range(0, len(answered), RESCORE_BATCH)
        )
        if changed:
            run.reopened_by = sorted({*run.reopened_by, by.get_username()})
            run.save(update_fields=["reopened_by"])
            count_again(run)
        audit.record("run.rescored", subject=run, actor=by, answers=len(answered), changed=changed)
    return run


def _rescore_batch(asker: Asker, rollout_ids: list[int]) -> int:
    """Returns how many rollouts have another outcome now."""
    rows = rescoring.score_again(asker, rollout_ids)
    for row in rows:
        if row.problem:
            raise Conflict(row.problem)
    return rescoring.write(rows)


def sweep() -> None:
    """Finds what lost messages and lost workers left behind, and sends for it again."""
    take_back()
    before = timezone.now() - timedelta(seconds=2 * settings.SWEEP_SECONDS)
    at_work = Claim.objects.filter(run=OuterRef("pk"), ended_at__isnull=True)
    idle = EvalRun.objects.select_related("backend").filter(
        Q(last_sent_at__isnull=True) | Q(last_sent_at__lt=before),
        ~Exists(at_work),
        state__in=ACTIVE_RUN_STATES,
    )
    for run in idle:
        try:
            if not close_if_done(run.pk):
                with transaction.atomic():
                    send(run)
        except Exception:  # one that cannot be sent must not keep the others waiting
            log.exception("sweeping run %s failed", run.pk)
    overviews.fill()
