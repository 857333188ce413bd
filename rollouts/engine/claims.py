"""Claims: which worker holds which rollouts, under a lease, with the claim's id as fencing token.

Every function runs in the caller's transaction. A claim row is locked before anything is written in its name, and
the sweeper locks the same row before it takes the work away: so a result is written under a living claim or not at all.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.utils import timezone

from rollouts.amendments import content_now
from rollouts.engine import budget
from rollouts.models import (
    ACTIVE_RUN_STATES,
    CallState,
    Claim,
    EvalRun,
    Invocation,
    InvocationState,
    ModelCall,
    Rollout,
    RolloutState,
)

MAX_LOST_WORKERS = 3


def open_claim(*, run_id: int, worker: str, exclusive: bool) -> Claim | None:
    """A new claim on an active run, or None: the run has ended, or another worker holds an exclusive one."""
    with transaction.atomic():
        run = (
            EvalRun.objects.select_for_update(no_key=True)
            .filter(pk=run_id, state__in=ACTIVE_RUN_STATES)
            .first()
        )
        if run is None or not run.rollouts.filter(state=RolloutState.QUEUED).exists():
            return None
        if exclusive and run.claims.filter(ended_at__isnull=True).exists():
            return None
        now = timezone.now()
        if run.state == "queued":
            EvalRun.objects.filter(pk=run_id).update(state="running", started_at=run.started_at or now)
        return Claim.objects.create(run=run, worker=worker, created_at=now, lease_expires_at=_lease_end(now))


def _lease_end(now: datetime) -> datetime:
    return now + timedelta(seconds=settings.LEASE_SECONDS)


def hold(claim_id: int, *, done: int = 0, masked: int = 0, cost_microusd: int = 0) -> bool:
    """Locks the claim, renews its lease and counts what is about to be written.

    False: it was taken away, and nothing may be written in its name.
    """
    now = timezone.now()
    counts = {"done": done, "masked": masked, "cost_microusd": cost_microusd}
    held = Claim.objects.filter(pk=claim_id, ended_at__isnull=True).update(
        lease_expires_at=_lease_end(now), **{name: F(name) + n for name, n in counts.items() if n}
    )
    if not held and cost_microusd:  # what came too late was billed all the same
        Claim.objects.filter(pk=claim_id).update(cost_microusd=F("cost_microusd") + cost_microusd)
    return bool(held)


class Taken(NamedTuple):
    """A rollout that a claim was given. `content` is what its case is scored by now.

    `answered_by`: its answer is known, and only its score is missing.
    """

    rollout_id: int
    sample_index: int
    content: dict[str, Any]
    attempt_key: str
    answered_by: int | None
    cost_microusd: int | None


def take(*, claim_id: int, run_id: int, limit: int) -> list[Taken]:
    """Gives up to `limit` queued rollouts to a held claim, oldest first, those that lost a worker last.

    One that lost all workers but the last it may lose is given alone, so that it cannot take others along: a worker
    that dies of it leaves no doubt which one it died of.
    """
    taken: list[Taken] = []
    for lost_workers in range(MAX_LOST_WORKERS - 1):
        if len(taken) < limit:
            taken += _take(claim_id, run_id, limit - len(taken), lost_workers)
    if not taken and not _suspects(claim_id=claim_id, state=RolloutState.RUNNING):
        taken = _take(claim_id, run_id, 1, MAX_LOST_WORKERS - 1)
    return taken


def work_left(run_id: int) -> bool:
    """Whether anything of the run is queued."""
    return Rollout.objects.filter(run_id=run_id, state=RolloutState.QUEUED).exists()


def suspects_left(run_id: int) -> bool:
    """Whether rollouts are queued that are given one at a time."""
    return _suspects(run_id=run_id, state=RolloutState.QUEUED)


def _suspects(**where: Any) -> bool:
    return Rollout.objects.filter(lost_workers=MAX_LOST_WORKERS - 1, **where).exists()


def _take(claim_id: int, run_id: int, limit: int, lost_workers: int) -> list[Taken]:
    queued = Rollout.objects.filter(
        run_id=run_id,
        run__state__in=ACTIVE_RUN_STATES,
        state=RolloutState.QUEUED,
        lost_workers=lost_workers,
    )
    if connection.features.has_select_for_update_skip_locked:
        queued = queued.select_for_update(skip_locked=True, of=("self",))
    columns = ("case__content", "case__amended_expected", "id", "sample_index")
    columns += ("attempt_key", "answered_by_id", "cost_microusd")
    taken = [
        Taken(rollout_id, sample_index, content_now(content, amended), *rest)
        for content, amended, rollout_id, sample_index, *rest in queued.order_by("id").values_list(*columns)[
            :limit
        ]
    ]
    Rollout.objects.filter(pk__in=[row.rollout_id for row in taken]).update(
        state=RolloutState.RUNNING, claim_id=claim_id
    )
    return taken


def give_back(rollout_ids: Collection[int]) -> None:
    """Queues rollouts again that a claim was given and has not begun."""
    Rollout.objects.filter(pk__in=rollout_ids).update(state=RolloutState.QUEUED, claim=None)


def skip_for_budget(run_id: int, also: Collection[int]) -> int:
    """The budget is spent: nothing queued, nor the rollouts `also`, will be asked. Returns how many that were."""
    queued = Q(run_id=run_id, state=RolloutState.QUEUED) | Q(pk__in=also)
    return Rollout.objects.filter(queued).update(
        state=RolloutState.UNSCORED,
        claim=None,
        failure_kind="budget",
        failure_reason="The run's budget was spent before this rollout was asked.",
        finished_at=timezone.now(),
    )


def end_claim(claim_id: int) -> None:
    """The shard is over. Rollouts it still holds (it was cut short) go back, as after a lost worker."""
    with transaction.atomic():
        claim = _locked(Claim.objects.filter(pk=claim_id, ended_at__isnull=True), wait=True)
        if claim is not None:
            running = Invocation.objects.filter(claim=claim, state=InvocationState.RUNNING)
            _release(claim, lost=running.exists())


def expire_leases() -> list[int]:
    """Takes the work of every claim whose lease ran out. Returns the ids of the runs that got work back."""
    run_ids: list[int] = []
    due = Claim.objects.filter(ended_at__isnull=True, lease_expires_at__lt=timezone.now())
    for claim_id in due.values_list("pk", flat=True):
        with transaction.atomic():
            # a row that somebody holds is looked at again by the next sweep, which waits for nobody
            claim = _locked(due.filter(pk=claim_id, lease_expires_at__lt=timezone.now()), wait=False)
            if claim is not None:
                _release(claim, lost=True)
                run_ids.append(claim.run_id)
    return run_ids


def _locked(claims: QuerySet[Claim], *, wait: bool) -> Claim | None:
    """The one claim of the query, its run's row locked first: the order in which everyone takes the two."""
    skip = not wait and connection.features.has_select_for_update_skip_locked
    run_id = claims.values_list("run_id", flat=True).first()
    if (
        run_id is None
        or EvalRun.objects.select_for_update(skip_locked=skip).filter(pk=run_id).first() is None
    ):
        return None
    return claims.select_for_update(skip_locked=skip).first()


def _release(claim: Claim, *, lost: bool) -> None:
    now = timezone.now()
    held = Rollout.objects.filter(claim=claim, state=RolloutState.RUNNING)
    running = Invocation.objects.filter(claim=claim, state=InvocationState.RUNNING)
    ModelCall.objects.filter(invocation__in=running, state=CallState.OPEN).update(
        state=CallState.LOST, finished_at=now
    )
    running.update(state=InvocationState.LOST, finished_at=now)
    # what it was given and had not begun was not lost
    begun = held.filter(Exists(Invocation.objects.filter(rollout=OuterRef("pk"), claim=claim)))
    begun.filter(lost_workers__gte=MAX_LOST_WORKERS - 1).update(
        state=RolloutState.UNSCORED,
        claim=None,
        lost_workers=F("lost_workers") + 1,
        failure_kind="worker_lost",
        failure_reason=f"{MAX_LOST_WORKERS} workers were lost while they worked on it.",
        finished_at=now,
    )
    begun.update(state=RolloutState.QUEUED, claim=None, lost_workers=F("lost_workers") + 1)
    held.update(state=RolloutState.QUEUED, claim=None)
    budget.settle_lost(claim)
    Claim.objects.filter(pk=claim.pk).update(ended_at=now, lost=lost)
