"""Tasks take ids, call one service, and may run twice."""

from __future__ import annotations

from celery import shared_task


@shared_task
def work_shard(run_id: int) -> None:
    from rollouts.services import runs

    runs.work_shard(run_id)


@shared_task
def sweep() -> None:
    from rollouts.services import runs

    runs.sweep()
