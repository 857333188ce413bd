"""Preflight as a page: the form, and what it finds."""

from __future__ import annotations

from typing import Any

from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from promotion import permissions
from promotion.preflight import ERROR
from promotion.services import preflights
from promotion.web.forms import PreflightForm
from rollouts.errors import AssayError
from rollouts.web.http import acts, reads

MAX_DOCUMENT_BYTES = 4 << 20


@reads
def preflight(request: HttpRequest) -> HttpResponse:
    chosen = {role: request.GET.get(role, "") for role in ("train", "eval")}
    return _render(request, PreflightForm(request.user, initial=chosen))


@acts(permissions.require_can_read)
def check(request: HttpRequest) -> HttpResponse:
    """Writes nothing; a POST because it takes files."""
    form = PreflightForm(request.user, request.POST, request.FILES)
    if not form.is_valid():
        return _render(request, form, status=422)
    try:
        found = _findings(form.cleaned_data, request)
    except AssayError as error:
        form.add_error(None, error.message)
        return _render(request, form, status=422)
    errors = sum(finding.severity == ERROR for finding in found)
    return _render(request, form, findings=found, errors=errors, checked=True)


def _findings(given: dict[str, Any], request: HttpRequest) -> list[Any]:
    policy = given["policy"]
    return preflights.run(
        by=request.user,
        train=given["train"] or _bytes(given["train_file"], preflights.MAX_REQUEST_BYTES),
        evaluation=given["eval"] or _bytes(given["eval_file"], preflights.MAX_REQUEST_BYTES),
        policy=policy.document if policy else _bytes(given["policy_file"]),
        track=policy.track if policy else None,
        most_bytes=preflights.MAX_REQUEST_BYTES,
        **{name: _bytes(given[name]) for name in ("config", "sidecar", "tool_schema")},
    )


def _bytes(file: UploadedFile[bytes] | None, most: int = MAX_DOCUMENT_BYTES) -> bytes | None:
    """The file's bytes; of one that is too large, as many as it takes to say so."""
    return None if file is None else file.read(most + 1)


def _render(request: HttpRequest, form: PreflightForm, *, status: int = 200, **found: Any) -> HttpResponse:
    context = {"area": "datasets", "form": form, **found}
    return render(request, "promotion/preflight.html", context, status=status)
