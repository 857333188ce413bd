"""The page of an eval run: how far it is, what it measured, what went wrong."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from rollouts import overview, permissions, selectors
from rollouts.failures import FAILURE_KINDS
from rollouts.models import ACTIVE_RUN_STATES, EvalRun
from rollouts.overview import COUNTED_AT_ONCE, RunSummary, can_rescore, can_run_again, run_summary
from rollouts.reading import milestone
from rollouts.scoring import SCORER_METRICS
from rollouts.web.http import reads


@reads
def run(request: HttpRequest, pk: int) -> HttpResponse:
    """Of an ended run what was counted at its end, of one at work its progress; neither counts rollouts' scores."""
    return _page(request, pk)


@reads
def progress(request: HttpRequest, pk: int) -> HttpResponse:
    """For htmx, every 2 s: how far the run is, from one statement. At its end htmx loads the whole page anew."""
    if not request.htmx:
        return redirect("rollouts:run", selectors.run_by_id(pk, request.user).pk)
    now = selectors.progress(pk, seen_by=request.user)
    response = render(request, "rollouts/run.html#progress", _progress(now))
    if not now.active:
        response["HX-Refresh"] = "true"
    return response


@reads
def measured(request: HttpRequest, pk: int) -> HttpResponse:
    """What a run at work measured so far, for who asks: counted over a bounded number of rollouts.

    Of an ended run it is what is stored; htmx asks for it until it is there.
    """
    found = selectors.run_by_id(pk, request.user)
    summary = run_summary(found, at_most=COUNTED_AT_ONCE) if _active(found) else overview.stored(found)
    if not request.htmx:
        return _page(request, pk, summary)
    return render(request, "rollouts/run.html#measured", _measured(found, summary))


def _page(request: HttpRequest, pk: int, summary: RunSummary | None = None) -> HttpResponse:
    found = selectors.run_by_id(pk, request.user)
    summary = summary or overview.stored(found)
    now = summary.progress if summary else selectors.progress(pk)
    person = permissions.ENGINEER in permissions.groups_of(request.user)
    context = {
        "area": "runs",
        "may_run": person,
        "budget": _budget(found),
        "can_run_again": can_run_again(found, now),
        "can_rescore": can_rescore(found),
        **_measured(found, summary),
        **_progress(now),
    }
    return render(request, "rollouts/run.html", context)


def _active(run: EvalRun) -> bool:
    return run.state in ACTIVE_RUN_STATES


def _progress(now: selectors.Progress) -> dict[str, Any]:
    return {"progress": now, "said": milestone(state=now.state, done=now.done, planned=now.planned)}


def _measured(run: EvalRun, summary: RunSummary | None) -> dict[str, Any]:
    known = SCORER_METRICS.get(run.suite.scorer, selectors.METRICS)
    return {
        "run": run,
        "active": _active(run),
        "summary": summary,
        "counted_at_once": COUNTED_AT_ONCE,
        "kinds": FAILURE_KINDS,
        "metrics": [m for m in summary.metrics if m.n or m.name in known] if summary else [],
        "apart": [m for m in summary.apart if m.n] if summary else [],
    }


def _budget(run: EvalRun) -> list[tuple[str, int, int]]:
    """What of the budget is limited: (name, used, at most)."""
    start, end = run.started_at, run.finished_at or timezone.now()
    used = {
        "calls": run.spent_calls,
        "tokens": run.spent_tokens,
        "microusd": run.spent_microusd,
        "wall_s": int((end - start).total_seconds()) if start else 0,
    }
    return [(name, used[name], limit) for name, limit in (run.budget or {}).items()]
