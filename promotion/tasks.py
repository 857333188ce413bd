"""Tasks take ids, call one service, and may run twice."""

from __future__ import annotations

from celery import shared_task


@shared_task
def build(candidate_id: int) -> None:
    from promotion.services import candidates, gating

    candidates.build(candidate_id)
    gating.judge_if_measured(candidate_id)


@shared_task
def compare_datasets(candidate_id: int) -> None:
    from promotion.services import candidate_datasets

    candidate_datasets.compare_and_judge(candidate_id)


@shared_task
def publish(candidate_id: int) -> None:
    from promotion.services import registry

    registry.publish(candidate_id)


@shared_task
def sweep() -> None:
    from promotion.services import sweeping

    sweeping.sweep()
