"""Eval runs in the middle of their work or at its end, with everything that a page or the API says of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from django.utils import timezone

from rollouts.models import Backend, Claim, EvalRun, Invocation, InvocationState, Rollout, Suite
from rollouts.services import runs
from tests import factories

PRICES = {"prompt_price": 150_000, "completion_price": 600_000}
# outcome -> columns of a rollout
RIGHT: dict[str, Any] = {
    "state": "scored",
    "answer": "{}",
    "answer_class": "ok",
    "exact": True,
    "decision": True,
    "json_valid": True,
    "latency_ms": 20.0,
}
WRONG: dict[str, Any] = {**RIGHT, "answer": "no", "exact": False, "decision": False}
CUT: dict[str, Any] = {**WRONG, "answer": '{"dec', "answer_class": "truncated", "json_valid": False}
MASKED: dict[str, Any] = {"state": "masked", "failure_kind": "server"}
POISONED: dict[str, Any] = {"state": "unscored", "failure_kind": "worker_lost", "lost_workers": 3}
SKIPPED: dict[str, Any] = {"state": "unscored", "failure_kind": "budget"}
OPEN: dict[str, Any] = {"state": "queued"}


def priced_backend(house: factories.House, **values: Any) -> Backend:
    return factories.remote_backend(house.engineer, "http://127.0.0.1:9/v1", **{**PRICES, **values})


def planned(
    house: factories.House, *, suite: Suite | None = None, backend: Backend | None = None, **values: Any
) -> EvalRun:
    return runs.plan(
        subject=factories.remote_subject(**values.pop("sampling", {})),
        suite=suite or house.suite,
        backend=backend or priced_backend(house),
        by=house.engineer,
        **values,
    )


def give(run: EvalRun, outcome: Callable[[int, int], Mapping[str, Any]], *, close: bool = False) -> EvalRun:
    """Gives each rollout the columns of `outcome(number of its case, sample index)`, and closes the run if asked."""
    positions = {case: at for at, case in enumerate(run.suite.cases.values_list("pk", flat=True))}
    for rollout in run.rollouts.all():
        columns = outcome(positions[rollout.case_id], rollout.sample_index)
        Rollout.objects.filter(pk=rollout.pk).update(**columns)
    EvalRun.objects.filter(pk=run.pk).update(state="running", started_at=timezone.now())
    assert runs.close_if_done(run.pk) is close
    run.refresh_from_db()
    return run


def claim(run: EvalRun, *, age_s: float = 10.0, ended: bool = False, **counts: int) -> Claim:
    now = timezone.now()
    return Claim.objects.create(
        run=run,
        worker="worker-1:4711",
        created_at=now - timedelta(seconds=age_s),
        lease_expires_at=now + timedelta(seconds=20),
        ended_at=now if ended else None,
        **counts,
    )


def answered_by(rollout: Rollout, source: Rollout) -> Invocation:
    """As if `rollout` had taken the answer of `source`, or (where both are one) had asked for its own."""
    now = timezone.now()
    invocation = Invocation.objects.create(
        rollout=source,
        claim=claim(source.run, ended=True),
        state=InvocationState.FINISHED,
        started_at=now,
        finished_at=now,
    )
    Rollout.objects.filter(pk=rollout.pk).update(answered_by=invocation)
    return invocation
