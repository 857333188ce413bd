"""Eval runs, rollouts, suites, backends, base models."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.contrib import messages
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from rollouts import overview, permissions, selectors
from rollouts.amendments import amendments_of_case
from rollouts.clusters import unpack
from rollouts.errors import Conflict, InvalidInput, NotFound
from rollouts.hashing import canonical_bytes
from rollouts.models import EvalRun, Rollout
from rollouts.services import runs as run_services
from rollouts.services import subjects
from rollouts.web.forms import (
    BackendFilter,
    BaseFilter,
    CaseFilter,
    RolloutFilter,
    RunFilter,
    RunForm,
    SuiteFilter,
)
from rollouts.web.http import acts, raw_text, reads
from rollouts.web.lists import filtered, given, page_of

RUN_SORTS = {
    "started": "-pk",
    "label": "label",
    "state": "state",
    "suite": "suite__name",
    "planned": "-planned",
    "scored": "-scored",
    "masked": "-masked",
    "unscored": "-unscored",
    "backend": "backend__name",
}
# only what stays under 50 ms at 100,000 rollouts without an index of its own: each would be written twice a rollout
ROLLOUT_SORTS = {"plan": "pk", "state": "state", "latency": "-latency_ms"}
SUITE_SORTS = {
    "sealed": "-pk",
    "name": "name",
    "cases": "-case_count",
    "scorer": "scorer",
    "source": "source",
}
CASE_SORTS = {"position": "position", "key": "key", "family": "family"}
BACKEND_SORTS = {"saved": "-pk", "name": "name", "kind": "kind"}
BASE_SORTS = {
    "registered": "-pk",
    "name": "name",
    "architecture": "architecture",
    "size": "-artifact__size_bytes",
}


@reads
def runs(request: HttpRequest) -> HttpResponse:
    form = RunFilter(request.GET)
    page = filtered(form, partial(selectors.runs_where, request.user), request, sorts=RUN_SORTS)
    context = {"area": "runs", "page": page, "form": form, "may_run": _may_run(request)}
    return render(request, "rollouts/runs.html", context, status=page.status)


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


@acts(permissions.require_can_run)
def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    run_services.cancel(run_id=selectors.run_by_id(pk, request.user).pk, by=request.user)
    messages.success(request, "Cancelled. What was scored before stays as it is.")
    return redirect("rollouts:run", pk)


@acts(permissions.require_can_run)
def again(request: HttpRequest, pk: int) -> HttpResponse:
    run_services.run_again(run_id=selectors.run_by_id(pk, request.user).pk, by=request.user)
    messages.success(request, "What failed is queued again. Scored rollouts stay as they are.")
    return redirect("rollouts:run", pk)


@acts(permissions.require_can_run)
def rescore(request: HttpRequest, pk: int) -> HttpResponse:
    run_services.rescore(run_id=selectors.run_by_id(pk, request.user).pk, by=request.user)
    messages.success(request, "The captured answers were scored again, without a call.")
    return redirect("rollouts:run", pk)


@reads
def rollouts(request: HttpRequest, pk: int) -> HttpResponse:
    found = selectors.run_by_id(pk, request.user)
    summary = overview.stored(found)
    groups = [(said, cluster) for said, cluster in summary.groups if cluster.members] if summary else []
    form = RolloutFilter([cluster for _, cluster in groups], request.GET)
    chosen = form.cleaned_data.get("cluster") if form.is_valid() else ""
    said, members = next(
        ((said, set(unpack(cluster.members))) for said, cluster in groups if cluster.did == chosen),
        ("", None),
    )

    def rows(cluster: str = "", **filters: str) -> QuerySet[Rollout]:
        # members are misses, so that the others need not be looked through
        misses = {"wrong": "exact"} if cluster else {}
        return selectors.rollouts_where(found, **{**misses, **filters})

    page = filtered(form, rows, request, sorts=ROLLOUT_SORTS, keys_first=True, among=members)
    context = {
        "area": "runs",
        "run": found,
        "page": page,
        "form": form,
        "said": said,
        "narrowed_more": bool(said) and len(given(form)) > 1,
        "metrics": selectors.METRICS,
    }
    return render(request, "rollouts/rollouts.html", context, status=page.status)


@reads
def suites(request: HttpRequest) -> HttpResponse:
    form = SuiteFilter(request.GET)
    page = filtered(form, selectors.suites, request, sorts=SUITE_SORTS)
    context = {"area": "suites", "page": page, "form": form}
    return render(request, "rollouts/suites.html", context, status=page.status)


@reads
def suite(request: HttpRequest, name: str, version: int) -> HttpResponse:
    found, form = selectors.suite_by_name(name, version), CaseFilter(request.GET)
    page = filtered(form, partial(selectors.cases_where, found), request, sorts=CASE_SORTS, size=25)
    context = {
        "area": "suites",
        "suite": found,
        "families": selectors.family_sizes(found),
        "page": page,
        "form": form,
    }
    return render(request, "rollouts/suite.html", context, status=page.status)


@reads
def case(request: HttpRequest, pk: int) -> HttpResponse:
    found = selectors.case_by_id(pk)
    context = {"area": "suites", "case": found, "amendments": amendments_of_case(found)}
    return render(request, "rollouts/case.html", context)


@reads
def case_json(request: HttpRequest, pk: int) -> HttpResponse:
    return raw_text(canonical_bytes(selectors.case_by_id(pk).content), f"case-{pk}.txt")


@reads
def backends(request: HttpRequest) -> HttpResponse:
    form = BackendFilter(request.GET)
    page = filtered(form, selectors.backends_in_use, request, sorts=BACKEND_SORTS)
    context = {"area": "backends", "page": page, "form": form}
    return render(request, "rollouts/backends.html", context, status=page.status)


@reads
def backend(request: HttpRequest, name: str) -> HttpResponse:
    page = page_of(selectors.revisions_of(name), request, sorts={"revision": "-revision"}, size=20)
    if not page.rows and page.first:
        raise NotFound("There is no such backend.")
    return render(request, "rollouts/backend.html", {"area": "backends", "page": page, "name": name})


@reads
def bases(request: HttpRequest) -> HttpResponse:
    form = BaseFilter(request.GET)
    page = filtered(form, selectors.base_models, request, sorts=BASE_SORTS)
    context = {"area": "bases", "page": page, "form": form}
    return render(request, "rollouts/bases.html", context, status=page.status)
