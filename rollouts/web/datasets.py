"""Datasets: what candidates were made from, and what it shares with the suites."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from rollouts import permissions, selectors
from rollouts.errors import AssayError, Conflict, InvalidInput
from rollouts.models import Dataset
from rollouts.selectors import declared_streams
from rollouts.services import datasets as services
from rollouts.web.forms import DatasetFilter, DatasetForm
from rollouts.web.http import acts, reads
from rollouts.web.lists import filtered

SORTS = {
    "registered": "-pk",
    "name": "name",
    "rows": "-row_count",
    "prompts": "-text_count",
    "source": "source",
}
MAY_REGISTER = {permissions.ENGINEER, permissions.ADMINISTRATOR}


@reads
def datasets(request: HttpRequest) -> HttpResponse:
    form = DatasetFilter(request.GET)
    page = filtered(form, selectors.datasets, request, sorts=SORTS)
    context = {
        "area": "datasets",
        "page": page,
        "form": form,
        "may_register": bool(MAY_REGISTER & permissions.groups_of(request.user)),
    }
    return render(request, "rollouts/datasets.html", context, status=page.status)


@reads
def dataset(request: HttpRequest, name: str, version: int) -> HttpResponse:
    found = selectors.dataset_by_name(name, version)
    context = {
        "area": "datasets",
        "dataset": found,
        "streams": declared_streams(found.sidecar),
        "matches": found.declared_sha256 == found.artifact_id,
        "overlaps": selectors.overlaps_of(found),
    }
    return render(request, "rollouts/dataset.html", context)


@reads
def new_dataset(request: HttpRequest) -> HttpResponse:
    permissions.require_can_register(request.user)
    return _render_form(request, DatasetForm())


@acts(permissions.require_can_register)
def register_dataset(request: HttpRequest) -> HttpResponse:
    form = DatasetForm(request.POST, request.FILES)
    if not form.is_valid():
        return _render_form(request, form, status=422)
    try:
        made = _register(form, request)
    except (InvalidInput, Conflict) as error:
        form.add_error(_field_of(error), error.message)
        status = 422 if isinstance(error, InvalidInput) else error.status
        return _render_form(request, form, status=status)
    messages.success(request, "Registered. It is compared with a policy's suites when a candidate names it.")
    return redirect("rollouts:dataset", made.name, made.version)


def _register(form: DatasetForm, request: HttpRequest) -> Dataset:
    given = form.cleaned_data
    sidecar = services.sidecar_of(given["sidecar"].read()) if given["sidecar"] else None
    return services.register(
        name=given["name"],
        data=given["file"].read(),
        sidecar=sidecar,
        source=given["source"] or given["file"].name,
        by=request.user,
    )


def _field_of(error: AssayError) -> str | None:
    """The field of the form that a refusal is about: one of the file's lines, or of the sidecar's keys."""
    field = getattr(error, "field", "")
    if field == "name":
        return "name"
    if field.startswith("sidecar"):
        return "sidecar"
    return "file" if isinstance(error, InvalidInput) else None


def _render_form(request: HttpRequest, form: DatasetForm, status: int = 200) -> HttpResponse:
    return render(request, "rollouts/dataset_new.html", {"area": "datasets", "form": form}, status=status)
