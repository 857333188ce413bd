"""Writes down what the page of an ended run shows, once for each state of its scores."""

from __future__ import annotations

import logging

from django.db import transaction
from django.db.models import Exists, OuterRef

from rollouts import overview
from rollouts.models import ACTIVE_RUN_STATES, Claim, EvalRun

log = logging.getLogger(__name__)
RUNS_A_SWEEP = 5


def write(run: EvalRun) -> None:
    """Counts the rollouts of an ended run. The caller holds the run's lock, so that no score changes meanwhile."""
    run.overview = overview.as_stored(overview.run_summary(run))
    run.save(update_fields=["overview"])


def fill() -> None:
    """Writes those that are missing: of runs that failed or were cancelled, from before, or whose scores changed.

    While an answer may still come in for a run, it waits.
    """
    at_work = Claim.objects.filter(run=OuterRef("pk"), ended_at__isnull=True)
    without = EvalRun.objects.filter(~Exists(at_work), overview__isnull=True)
    ended = without.exclude(state__in=ACTIVE_RUN_STATES).order_by("-id").values_list("id", flat=True)
    for run_id in list(ended[:RUNS_A_SWEEP]):
        try:
            _fill_one(run_id)
        except Exception:  # one that cannot be counted must not keep the others waiting
            log.exception("counting run %s failed", run_id)


@transaction.atomic
def _fill_one(run_id: int) -> None:
    locked = EvalRun.objects.select_for_update(no_key=True, of=("self",)).select_related("suite")
    run = locked.get(pk=run_id)
    if run.state not in ACTIVE_RUN_STATES and run.overview is None:
        write(run)
