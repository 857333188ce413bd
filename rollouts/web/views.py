"""Eval runs, rollouts, suites, backends, base models."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from rollouts import permissions, reading, selectors
from rollouts.errors import Conflict, InvalidInput, NotFound
from rollouts.failures import FAILURE_KINDS
from rollouts.hashing import canonical_bytes
from rollouts.models import EvalRun, Payload
from rollouts.reading import milestone
from rollouts.scoring import SCORER_METRICS
from rollouts.services import runs as run_services
from rollouts.services import subjects
from rollouts.text import body_shown, unpacked
from rollouts.web.forms import CaseFilter, RolloutFilter, RunFilter, RunForm, SuiteFilter
from rollouts.web.http import acts, chosen, page_of, raw_text, reads


@reads
def runs(request: HttpRequest) -> HttpResponse:
    form = RunFilter(request.GET)
    page = page_of(selectors.runs_where(**chosen(form)), request)
    context = {"area": "runs", "page": page, "form": form, "may_run": _may_run(request)}
    return render(request, "rollouts/runs.html", context)


def _may_run(request: HttpRequest) -> bool:
    return permissions.ENGINEER in permissions.groups_of(request.user)


@reads
def new_run(request: HttpRequest) -> HttpResponse:
    permissions.require_can_run(request.user)
    return _render_form(request, RunForm())


@acts(permissions.require_can_run)
def start_run(request: HttpRequest) -> HttpResponse:
    form = RunForm(request.POST)
    if not form.is_valid():
        return _render_form(request, form, status=422)
    try:
        planned = _plan(form, request.user)
    except InvalidInput as error:
        field = form.FIELD_OF.get(error.field, error.field)
        form.add_error(
            field if field in form.fields else None, error.message.removeprefix(f"{error.field}: ")
        )
        return _render_form(request, form, status=422)
    except Conflict as error:
        form.add_error(None, error.message)
        return _render_form(request, form, status=error.status, active=error.facts.get("run"))
    messages.success(request, "Planned and sent to the workers.")
    return redirect("rollouts:run", planned.pk)


def _plan(form: RunForm, by: User) -> EvalRun:
    given = form.cleaned_data
    backend, judge = given["backend"], given["judge_backend"]
    with transaction.atomic():
        if given["model"]:
            subject = subjects.remote_subject(
                model=given["model"], backend_name=backend.name, sampling=form.sampling
            )
        else:
            subject = subjects.local_subject(
                base=given["base"], adapter=None, adapter_source_sha256="", sampling=form.sampling
            )
        return run_services.plan(
            subject=subject,
            suite=given["suite"],
            backend=backend,
            by=by,
            samples=given["samples"],
            label=given["label"],
            reuse=given["reuse"],
            judge=run_services.Judge(judge, given["judge_model"]) if judge else None,
            budget=form.budget,
        )


def _render_form(request: HttpRequest, form: RunForm, *, status: int = 200, **more: Any) -> HttpResponse:
    return render(request, "rollouts/run_new.html", {"area": "runs", "form": form, **more}, status=status)


@reads
def run(request: HttpRequest, pk: int) -> HttpResponse:
    summary = selectors.run_summary(selectors.run_by_id(pk))
    context = {"area": "runs", **_measured(summary), **_progress(summary.progress)}
    return render(request, "rollouts/run.html", {**context, "may_run": _may_run(request)})


@reads
def progress(request: HttpRequest, pk: int) -> HttpResponse:
    """For htmx, every 2 s: how far the run is, from one statement. At its end htmx loads the whole page anew."""
    if not request.htmx:
        return redirect("rollouts:run", pk)
    now = selectors.progress(pk)
    response = render(request, "rollouts/run.html#progress", _progress(now))
    if not now.active:
        response["HX-Refresh"] = "true"
    return response


@reads
def measured(request: HttpRequest, pk: int) -> HttpResponse:
    """For htmx, every 15 s: scores and failures, which take a pass over all rollouts."""
    if not request.htmx:
        return redirect("rollouts:run", pk)
    summary = selectors.run_summary(selectors.run_by_id(pk))
    return render(request, "rollouts/run.html#measured", _measured(summary))


def _progress(now: selectors.Progress) -> dict[str, Any]:
    return {"progress": now, "said": milestone(state=now.state, done=now.done, planned=now.planned)}


def _measured(summary: selectors.RunSummary) -> dict[str, Any]:
    known = SCORER_METRICS.get(summary.run.suite.scorer, selectors.METRICS)
    return {
        "summary": summary,
        "run": summary.run,
        "kinds": FAILURE_KINDS,
        "metrics": [metric for metric in summary.metrics if metric.n or metric.name in known],
        "apart": [metric for metric in summary.apart if metric.n],
        "budget": _budget(summary.run),
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


@acts(permissions.require_can_run)
def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    run_services.cancel(run_id=selectors.run_by_id(pk).pk, by=request.user)
    messages.success(request, "Cancelled. What was scored before stays as it is.")
    return redirect("rollouts:run", pk)


@acts(permissions.require_can_run)
def again(request: HttpRequest, pk: int) -> HttpResponse:
    run_services.run_again(run_id=selectors.run_by_id(pk).pk, by=request.user)
    messages.success(request, "What failed is queued again. Scored rollouts stay as they are.")
    return redirect("rollouts:run", pk)


@acts(permissions.require_can_run)
def rescore(request: HttpRequest, pk: int) -> HttpResponse:
    run_services.rescore(run_id=selectors.run_by_id(pk).pk, by=request.user)
    messages.success(request, "The captured answers were scored again, without a call.")
    return redirect("rollouts:run", pk)


@reads
def rollouts(request: HttpRequest, pk: int) -> HttpResponse:
    found, form = selectors.run_by_id(pk), RolloutFilter(request.GET)
    page = page_of(selectors.rollouts_where(found, **chosen(form)), request, by="pk")
    context = {"area": "runs", "run": found, "page": page, "form": form, "metrics": selectors.METRICS}
    return render(request, "rollouts/rollouts.html", context)


@reads
def rollout(request: HttpRequest, pk: int) -> HttpResponse:
    found = selectors.rollout_by_id(pk)
    content = found.case.content
    context = {
        "area": "runs",
        "rollout": found,
        "reused_from": selectors.reused_from(found),
        "scores": [(metric, getattr(found, metric)) for metric in selectors.METRICS],
        "apart": [
            (name, getattr(found, name)) for name in selectors.APART if getattr(found, name) is not None
        ],
        "expected": [
            (label, content[key]) for key, label in reading.WANTED.items() if content.get(key) is not None
        ],
        "kind_says": FAILURE_KINDS.get(found.failure_kind, ""),
        "executions": [
            (
                execution.invocation,
                [(call, _body(call.request), _body(call.response)) for call in execution.calls],
            )
            for execution in selectors.executions_of(found)
        ],
    }
    return render(request, "rollouts/rollout.html", context)


def _body(payload: Payload | None) -> object:
    return body_shown(bytes(payload.data), payload.size_bytes) if payload else None


@reads
def answer(request: HttpRequest, pk: int) -> HttpResponse:
    found = selectors.rollout_by_id(pk)
    if found.answer is None:
        raise NotFound("This rollout has no answer.")
    return raw_text(found.answer.encode(), f"rollout-{pk}-answer.txt")


@reads
def body(request: HttpRequest, pk: int, part: str) -> HttpResponse:
    payload = getattr(selectors.call_by_id(pk), part)
    if payload is None:
        raise NotFound(f"This model call has no {part}.")
    return raw_text(unpacked(bytes(payload.data), payload.size_bytes), f"call-{pk}-{part}.txt")


@reads
def suites(request: HttpRequest) -> HttpResponse:
    form = SuiteFilter(request.GET)
    named = chosen(form).get("name", "")
    page = page_of(selectors.suites().filter(name__icontains=named), request)
    return render(request, "rollouts/suites.html", {"area": "suites", "page": page, "form": form})


@reads
def suite(request: HttpRequest, name: str, version: int) -> HttpResponse:
    found, form = selectors.suite_by_name(name, version), CaseFilter(request.GET)
    page = page_of(selectors.cases_where(found, **chosen(form)), request, by="position", size=25)
    context = {
        "area": "suites",
        "suite": found,
        "families": selectors.family_sizes(found),
        "page": page,
        "form": form,
    }
    return render(request, "rollouts/suite.html", context)


@reads
def case(request: HttpRequest, pk: int) -> HttpResponse:
    return render(request, "rollouts/case.html", {"area": "suites", "case": selectors.case_by_id(pk)})


@reads
def case_json(request: HttpRequest, pk: int) -> HttpResponse:
    return raw_text(canonical_bytes(selectors.case_by_id(pk).content), f"case-{pk}.txt")


@reads
def backends(request: HttpRequest) -> HttpResponse:
    page = page_of(selectors.backends_in_use(), request)
    return render(request, "rollouts/backends.html", {"area": "backends", "page": page})


@reads
def backend(request: HttpRequest, name: str) -> HttpResponse:
    page = page_of(selectors.revisions_of(name), request, by="-revision", size=20)
    if not page.rows and page.first:
        raise NotFound("There is no such backend.")
    return render(request, "rollouts/backend.html", {"area": "backends", "page": page, "name": name})


@reads
def bases(request: HttpRequest) -> HttpResponse:
    page = page_of(selectors.base_models(), request)
    return render(request, "rollouts/bases.html", {"area": "bases", "page": page})
