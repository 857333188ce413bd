"""Eval runs: plan, work a shard, close, cancel, run again, sweep."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import uuid
from datetime import timedelta

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction
from django.db.models import Count, Exists, Max, OuterRef, Q
from django.utils import timezone

from rollouts import audit, permissions, store
from rollouts.backends import kind_named, parse_config
from rollouts.backends.base import Backend as BackendKind
from rollouts.backends.base import BackendUnavailable, Opened, SubjectFiles
from rollouts.capture.recorder import ShardRecorder, shown
from rollouts.engine import claims, planner
from rollouts.engine.runner import LeaseLost, Limits, run_shard
from rollouts.errors import Conflict, InvalidInput, NotFound
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
from rollouts.services.backends import KEY_PREFIX
from rollouts.signals import run_closed
from rollouts.states import require_move

log = logging.getLogger(__name__)
SHARDS_AT_ONCE = 4
MAX_SAMPLES = 100


def plan(
    *, subject: Subject, suite: Suite, backend: Backend, by: User, samples: int = 1, label: str = ""
) -> EvalRun:
    """Write an eval run and all its rollouts, and send its first shards after commit.

    Raises `Conflict` where the same subject is being measured on the same suite already.
    """
    permissions.require_can_run(by)
    if not 1 <= samples <= MAX_SAMPLES:
        raise InvalidInput("samples", f"must be from 1 to {MAX_SAMPLES}.")
    kind = kind_named(backend.kind)
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
                    subject=subject, suite=suite, backend=backend, samples=samples
                ),
                suite_digest=planner.digest_of_stored_cases(suite),
                planned=suite.case_count * samples,
                created_by=by,
                created_at=timezone.now(),
            )
            written = planner.write_rollouts(run)
            assert written == run.planned, f"{written} rollouts written, {run.planned} planned"
            audit.record("run.planned", subject=run, actor=by, plan=run.plan_digest, planned=run.planned)
            send(run)
    except IntegrityError as error:
        active = _active(suite_id=suite.pk, subject_id=subject.pk, samples=samples)
        if active is None:
            raise
        raise _measured_already(active) from error
    return run


def _active(*, suite_id: int, subject_id: int, samples: int) -> EvalRun | None:
    """The one active run of a measurement (evalrun_one_active)."""
    same = EvalRun.objects.filter(suite_id=suite_id, subject_id=subject_id, samples=samples)
    return same.filter(state__in=ACTIVE_RUN_STATES).first()


def _measured_already(active: EvalRun) -> Conflict:
    return Conflict(f"Run {active.pk} measures the same already. Wait for it or cancel it.", run=active.pk)


def send(run: EvalRun) -> None:
    """Tell workers to look at the run, after commit. Doubled or lost messages do no harm."""
    from rollouts import tasks

    shards = 1 if kind_named(run.backend.kind).exclusive else SHARDS_AT_ONCE
    shards = max(1, min(shards, run.planned // max(1, run.backend.concurrency)))
    EvalRun.objects.filter(pk=run.pk).update(last_sent_at=timezone.now())
    for _ in range(shards):
        transaction.on_commit(lambda: tasks.work_shard.delay(run.pk))


def work_shard(run_id: int) -> int:
    """Work on one shard of a run; returns the number of rollouts finished. Called twice it does no harm."""
    run = EvalRun.objects.select_related("backend", "subject__base", "suite").filter(pk=run_id).first()
    if run is None or run.state not in ACTIVE_RUN_STATES:
        return 0
    kind = _instance(run.backend)
    worker = f"{socket.gethostname()}:{os.getpid()}"
    claim = claims.open_claim(run_id=run_id, worker=worker, exclusive=kind.exclusive)
    if claim is None:
        close_if_done(run_id)
        return 0
    try:
        return asyncio.run(_shard(run, claim, kind))
    except BackendUnavailable as error:
        fail(run_id, code=error.code, detail=error.message)
        return 0
    except LeaseLost:
        log.warning("claim %s lost its lease; its work goes to another worker", claim.pk)
        return 0
    finally:
        claims.end_claim(claim.pk)
        _continue(run_id)


async def _shard(run: EvalRun, claim: Claim, kind: BackendKind) -> int:
    async with kind.open(_subject_files(run.subject)) as opened:
        await asyncio.to_thread(_pin_facts, run.pk, opened)
        recorder = ShardRecorder(
            claim=claim,
            backend=run.backend,
            kind=kind,
            sampling=run.subject.sampling,
            remote=run.subject.remote_model,
        )
        limits = Limits(
            concurrency=run.backend.concurrency,
            timeout_s=run.backend.timeout_s,
            max_attempts=run.backend.max_attempts,
            claim_until=time.monotonic() + settings.SHARD_SECONDS,
        )
        with recorder:
            return await run_shard(recorder=recorder, backend=kind, opened=opened, limits=limits)


def _instance(backend: Backend) -> BackendKind:
    # asked again here: a revision from before the rule must not read other variables of the worker
    key = os.environ.get(backend.key_env) if backend.key_env.startswith(KEY_PREFIX) else None
    return kind_named(backend.kind)(parse_config(backend.kind, backend.config), key=key)


def _subject_files(subject: Subject) -> SubjectFiles:
    if subject.base is None:
        return SubjectFiles(remote_model=subject.remote_model)
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


def _pin_facts(run_id: int, opened: Opened) -> None:
    """The first shard pins what answered; a later shard that finds something else makes the run invalid."""
    facts = dict(opened.facts)
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


def _continue(run_id: int) -> None:
    """After a shard: close the run, or send for the next shard."""
    if close_if_done(run_id):
        return
    run = EvalRun.objects.select_related("backend").get(pk=run_id)
    if run.state in ACTIVE_RUN_STATES and run.rollouts.filter(state=RolloutState.QUEUED).exists():
        from rollouts import tasks

        EvalRun.objects.filter(pk=run_id).update(last_sent_at=timezone.now())
        transaction.on_commit(lambda: tasks.work_shard.delay(run_id))


def close_if_done(run_id: int) -> bool:
    """Close a run of which every rollout is final. True where the run is final now."""
    with transaction.atomic():
        run = EvalRun.objects.select_for_update().get(pk=run_id)
        if run.state not in ACTIVE_RUN_STATES:
            return True
        counts = dict(run.rollouts.order_by().values_list("state").annotate(Count("id")))
        if counts.get(RolloutState.QUEUED) or counts.get(RolloutState.RUNNING):
            return False
        now = timezone.now()
        # the database checks planned = scored + masked + unscored + cancelled (evalrun_accounting_identity)
        run.scored, run.masked, run.unscored, run.cancelled = (
            counts.get(state, 0)
            for state in (
                RolloutState.SCORED,
                RolloutState.MASKED,
                RolloutState.UNSCORED,
                RolloutState.CANCELLED,
            )
        )
        run.state, run.finished_at, run.started_at = RunState.SCORED, now, run.started_at or now
        run.save(
            update_fields=["scored", "masked", "unscored", "cancelled", "state", "finished_at", "started_at"]
        )
        look = _count_look(run)
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


def _count_look(run: EvalRun) -> Look:
    seen = Look.objects.filter(suite_id=run.suite_id, subject_id=run.subject_id).first()
    if seen is not None:
        return seen
    # the suite's row is the lock under which numbers are given
    Suite.objects.select_for_update().get(pk=run.suite_id)
    last = Look.objects.filter(suite_id=run.suite_id).aggregate(Max("number"))["number__max"]
    return Look.objects.create(
        suite_id=run.suite_id, subject_id=run.subject_id, number=(last or 0) + 1, created_at=timezone.now()
    )


def fail(run_id: int, *, code: str, detail: str) -> None:
    """The run cannot go on or cannot be trusted. Its rollouts stay as they are."""
    detail = shown(detail)  # it may quote a server's log
    with transaction.atomic():
        run = EvalRun.objects.select_for_update().get(pk=run_id)
        if run.state not in ACTIVE_RUN_STATES:
            return
        run.state, run.error_code, run.error_detail, run.finished_at = (
            RunState.FAILED,
            code[:40],
            detail,
            timezone.now(),
        )
        run.save(update_fields=["state", "error_code", "error_detail", "finished_at"])
        audit.record("run.failed", subject=run, actor="system:rollouts", code=code, detail=detail[:1000])


def _locked(run_id: int) -> EvalRun:
    run = EvalRun.objects.select_for_update(of=("self",)).select_related("backend").filter(pk=run_id).first()
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
        held = list(run.claims.select_for_update().filter(ended_at__isnull=True))
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
    """Queue what a closed or cancelled run has no score for again. Scored rollouts are never touched."""
    permissions.require_can_run(by)
    with transaction.atomic():
        run = _locked(run_id)
        require_move(f"Run {run.pk}", RUN_MOVES, run.state, RunState.QUEUED)
        active = _active(suite_id=run.suite_id, subject_id=run.subject_id, samples=run.samples)
        if active is not None:
            raise _measured_already(active)
        without_score = [RolloutState.MASKED, RolloutState.UNSCORED, RolloutState.CANCELLED]
        failed = run.rollouts.filter(state__in=without_score)
        queued = failed.update(
            state=RolloutState.QUEUED,
            lost_workers=0,
            failure_kind="",
            failure_reason="",
            answer=None,
            answer_class="",
            finish_reason="",
            latency_ms=None,
            prompt_tokens=None,
            completion_tokens=None,
            finished_at=None,
        )
        if not queued:
            raise Conflict(f"Run {run.pk} has no masked, unscored or cancelled rollouts to run again.")
        run.state, run.finished_at = RunState.QUEUED, None
        run.scored = run.masked = run.unscored = run.cancelled = None
        run.reopened_by = sorted({*run.reopened_by, by.get_username()})
        run.save(
            update_fields=["state", "finished_at", "scored", "masked", "unscored", "cancelled", "reopened_by"]
        )
        audit.record("run.reopened", subject=run, actor=by, queued=queued)
        send(run)
    return run


def sweep() -> None:
    """Finds what lost messages and lost workers left behind, and sends for it again."""
    claims.expire_leases()
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


def progress(run: EvalRun) -> dict[str, int]:
    """Rollouts by state, from one query."""
    counts = dict(Rollout.objects.filter(run=run).order_by().values_list("state").annotate(n=Count("id")))
    return {state: counts.get(state, 0) for state in RolloutState.values}
