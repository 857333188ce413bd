"""Eval runs, rollouts, suites, backends, base models."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from rollouts import permissions, selectors
from rollouts.errors import NotFound
from rollouts.failures import FAILURE_KINDS
from rollouts.hashing import canonical_bytes
from rollouts.models import Payload
from rollouts.services import runs as run_services
from rollouts.text import body_shown, unpacked
from rollouts.web.forms import CaseFilter, RolloutFilter, RunFilter, SuiteFilter
from rollouts.web.http import acts, chosen, page_of, raw_text, reads


@reads
def runs(request: HttpRequest) -> HttpResponse:
    form = RunFilter(request.GET)
    page = page_of(selectors.runs_where(**chosen(form)), request)
    return render(request, "rollouts/runs.html", {"area": "runs", "page": page, "form": form})


@reads
def run(request: HttpRequest, pk: int) -> HttpResponse:
    """The page, or for htmx its progress alone. When the run has ended htmx loads the whole page anew."""
    summary = selectors.run_summary(selectors.run_by_id(pk))
    may_run = bool(permissions.groups_of(request.user) & {permissions.ENGINEER})
    context = {
        "area": "runs",
        "summary": summary,
        "run": summary.run,
        "kinds": FAILURE_KINDS,
        "may_run": may_run,
    }
    if not request.htmx:
        return render(request, "rollouts/run.html", context)
    response = render(request, "rollouts/run.html#progress", context)
    if not summary.active:
        response["HX-Refresh"] = "true"
    return response


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


@reads
def rollouts(request: HttpRequest, pk: int) -> HttpResponse:
    found, form = selectors.run_by_id(pk), RolloutFilter(request.GET)
    page = page_of(selectors.rollouts_where(found, **chosen(form)), request, by="pk")
    context = {"area": "runs", "run": found, "page": page, "form": form, "metrics": selectors.METRICS}
    return render(request, "rollouts/rollouts.html", context)


@reads
def rollout(request: HttpRequest, pk: int) -> HttpResponse:
    found = selectors.rollout_by_id(pk)
    context = {
        "area": "runs",
        "rollout": found,
        "scores": [(metric, getattr(found, metric)) for metric in selectors.METRICS],
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
