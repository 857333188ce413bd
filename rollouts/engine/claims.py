"""Claims: which worker holds which rollouts, under a lease, with the claim's id as fencing token.

Every function runs in the caller's transaction. A claim row is locked before anything is written in its name, and
the sweeper locks the same row before it takes the work away: so a result is written under a living claim or not at all.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

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
        run = EvalRun.objects.select_for_update().filter(pk=run_id, state__in=ACTIVE_RUN_STATES).first()
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


def hold(claim_id: int) -> bool:
    """Locks the claim and renews its lease. False: it was taken away, and nothing may be written in its name."""
    now = timezone.now()
    return bool(
        Claim.objects.filter(pk=claim_id, ended_at__isnull=True).update(lease_expires_at=_lease_end(now))
    )


def take(*, claim_id: int, run_id: int, limit: int) -> list[tuple[int, int, dict[str, Any]]]:
    """Gives up to `limit` queued rollouts to a held claim, oldest first: (rollout id, sample index, case content)."""
    queued = Rollout.objects.filter(
        run_id=run_id, run__state__in=ACTIVE_RUN_STATES, state=RolloutState.QUEUED
    )
    if connection.features.has_select_for_update_skip_locked:
        queued = queued.select_for_update(skip_locked=True, of=("self",))
    taken = list(queued.order_by("id").values_list("id", "sample_index", "case__content")[:limit])
    Rollout.objects.filter(pk__in=[rollout_id for rollout_id, _, _ in taken]).update(
        state=RolloutState.RUNNING, claim_id=claim_id
    )
    return taken


def end_claim(claim_id: int) -> None:
    """The shard is over. Rollouts it still holds (it was cut short) go back, as after a lost worker."""
    with transaction.atomic():
        claim = Claim.objects.select_for_update().filter(pk=claim_id, ended_at__isnull=True).first()
        if claim is not None:
            _release(claim, lost=claim.rollouts.filter(state=RolloutState.RUNNING).exists())


def expire_leases() -> list[int]:
    """Takes the work of every claim whose lease ran out. Returns the ids of the runs that got work back."""
    run_ids: list[int] = []
    due = Claim.objects.filter(ended_at__isnull=True, lease_expires_at__lt=timezone.now())
    for claim_id in due.values_list("pk", flat=True):
        with transaction.atomic():
            locked = Claim.objects.select_for_update().filter(
                pk=claim_id, ended_at__isnull=True, lease_expires_at__lt=timezone.now()
            )
            claim = locked.first()
            if claim is not None:
                _release(claim, lost=True)
                run_ids.append(claim.run_id)
    return run_ids


def _release(claim: Claim, *, lost: bool) -> None:
    now = timezone.now()
    held = Rollout.objects.filter(claim=claim, state=RolloutState.RUNNING)
    running = Invocation.objects.filter(claim=claim, state=InvocationState.RUNNING)
    ModelCall.objects.filter(invocation__in=running, state=CallState.OPEN).update(
        state=CallState.LOST, finished_at=now
    )
    running.update(state=InvocationState.LOST, finished_at=now)
    held.filter(lost_workers__gte=MAX_LOST_WORKERS - 1).update(
        state=RolloutState.UNSCORED,
        claim=None,
        lost_workers=F("lost_workers") + 1,
        failure_kind="worker_lost",
        failure_reason=f"{MAX_LOST_WORKERS} workers were lost while they worked on it.",
        finished_at=now,
    )
    held.update(state=RolloutState.QUEUED, claim=None, lost_workers=F("lost_workers") + 1)
    Claim.objects.filter(pk=claim.pk).update(ended_at=now, lost=lost)
