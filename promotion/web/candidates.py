"""The review page and what people do on it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from promotion import permissions, selectors
from promotion.models import Candidate, Track
from promotion.services import candidate_datasets, candidates, gating, registry
from promotion.web.conversation import conversation_of
from promotion.web.disputes import dispute_section
from promotion.web.forms import DatasetsForm, EvaluateForm, SignForm, SubmitForm, WithdrawForm
from promotion.web.glass import glass_section
from promotion.web.masked import masked_section
from promotion.web.proving import methods_of
from promotion.web.review import review
from promotion.web.unsigned import changes_between, returned
from promotion.web.waivers import exceptions
from rollouts.errors import Conflict, InvalidInput, NotFound
from rollouts.hashing import CHUNK_BYTES
from rollouts.web.http import acts, reads


@reads
def candidate(request: HttpRequest, pk: int) -> HttpResponse:
    found = selectors.candidate_by_id(pk, request.user)
    return _render_review(request, found, **returned(request, found))


def _render_review(
    request: HttpRequest, found: Candidate, *, form: SignForm | None = None, status: int = 200, **more: Any
) -> HttpResponse:
    shown = review(found, request.user, request.GET.dict())
    context = {
        "area": "tracks",
        "review": shown,
        "exceptions": exceptions(found, shown.evidence, shown.document, request.user),
        "conversation": conversation_of(
            found,
            shown.evidence,
            shown.document,
            shown.comparisons,
            request.user,
            request.GET.get("comment", ""),
        ),
        "disputes": dispute_section(found, shown.document, request.user),
        "glass": glass_section(found, shown.evidence, request.user),
        "masked": masked_section(shown.document, shown.runs, request.GET.dict()),
        "people": gating.parts_of(shown.document) if shown.document else {},
        "separated": bool(shown.document) and gating.approval_rule(shown.document)["separation_of_duties"],
        "form": form,
        "methods": methods_of(request.user) if shown.sign.allowed else None,
        "evaluate_form": EvaluateForm(),
        "back_url": reverse("promotion:candidate", args=[found.pk]),
        **more,
    }
    return render(request, "promotion/review.html", context, status=status)


@acts(permissions.require_can_judge)
def judge(request: HttpRequest, pk: int) -> HttpResponse:
    before = selectors.latest_evidence(selectors.candidate_by_id(pk, request.user))
    after = gating.judge_again(candidate_id=pk, by=request.user)
    changed = [] if before is None or before.digest == after.digest else changes_between(before, after)
    messages.success(
        request, " ".join(["Judged again.", *changed[:6]]) if changed else "Judged again: nothing changed."
    )
    return redirect("promotion:candidate", pk)


@acts(permissions.require_can_evaluate)
def evaluate(request: HttpRequest, pk: int) -> HttpResponse:
    found, form = selectors.candidate_by_id(pk, request.user), EvaluateForm(request.POST)
    if not form.is_valid():
        raise InvalidInput(
            "backend", "must be one of the registered backends. Choose one on the candidate's page."
        )
    started = gating.start_evaluation(
        candidate_id=found.pk, backend=form.cleaned_data["backend"], by=request.user
    )
    said = f"{len(started)} eval runs started. Their progress is on the pages of the runs."
    messages.success(request, said if started else "No eval run was missing, so none was started.")
    return redirect("promotion:candidate", pk)


def _retry(
    require: Callable[..., None], again: Callable[..., Candidate], said: str
) -> Callable[..., HttpResponse]:
    @acts(require)
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        selectors.candidate_by_id(pk, request.user)
        again(candidate_id=pk, by=request.user)
        messages.success(request, said)
        return redirect("promotion:candidate", pk)

    return view


retry_build = _retry(permissions.require_can_retry, candidates.retry_build, "The build was sent again.")
retry_publish = _retry(
    permissions.require_can_retry, registry.retry_publish, "The publication was sent again."
)


@reads
def withdraw_page(request: HttpRequest, pk: int) -> HttpResponse:
    found = selectors.candidate_by_id(pk, request.user)
    permissions.require_can_withdraw(request.user, found.submitted_by_id)
    return render(
        request, "promotion/withdraw.html", {"area": "tracks", "candidate": found, "form": WithdrawForm()}
    )


@acts(permissions.require_can_read)
def withdraw(request: HttpRequest, pk: int) -> HttpResponse:
    found, form = selectors.candidate_by_id(pk, request.user), WithdrawForm(request.POST)
    permissions.require_can_withdraw(request.user, found.submitted_by_id)
    if not form.is_valid():
        context = {"area": "tracks", "candidate": found, "form": form}
        return render(request, "promotion/withdraw.html", context, status=422)
    candidates.withdraw(candidate_id=pk, by=request.user, reason=form.cleaned_data["reason"])
    messages.success(request, "Withdrawn. Its history stays.")
    return redirect("promotion:candidate", pk)


@reads
def submit_page(request: HttpRequest, name: str) -> HttpResponse:
    permissions.require_can_submit(request.user)
    return _render_submit(request, selectors.track_by_name(name, request.user), SubmitForm(), 200)


def _render_submit(request: HttpRequest, track: Track, form: SubmitForm, status: int) -> HttpResponse:
    return render(
        request, "promotion/submit.html", {"area": "tracks", "track": track, "form": form}, status=status
    )


@acts(permissions.require_can_submit)
def submit(request: HttpRequest, name: str) -> HttpResponse:
    track, form = selectors.track_by_name(name, request.user), SubmitForm(request.POST, request.FILES)
    if not form.is_valid():
        return _render_submit(request, track, form, 422)
    try:
        made = _submit_files(track, form, request)
    except (InvalidInput, Conflict) as error:
        form.add_error(error.field if getattr(error, "field", "") in form.fields else None, error.message)
        return _render_submit(request, track, form, 422 if isinstance(error, InvalidInput) else error.status)
    return redirect("promotion:candidate", made.pk)


def _submit_files(track: Track, form: SubmitForm, request: HttpRequest) -> Candidate:
    values = form.cleaned_data
    with tempfile.TemporaryDirectory(prefix="assay-upload-") as folder:
        return candidates.submit(
            track=track,
            name=values["name"],
            base=values["base"],
            adapter_config=_kept(values["adapter_config"], Path(folder) / "adapter_config.json"),
            adapter_weights=_kept(values["adapter_model"], Path(folder) / "adapter_model.safetensors"),
            by=request.user,
            outtype=values["outtype"],
            baseline=values["baseline"],
            datasets=form.uses,
            tool_schema_sha256=form.schema_digest,
        )


@reads
def datasets_page(request: HttpRequest, pk: int) -> HttpResponse:
    return _render_datasets(request, selectors.candidate_by_id(pk, request.user), DatasetsForm())


def _render_datasets(
    request: HttpRequest, found: Candidate, form: DatasetsForm, status: int = 200
) -> HttpResponse:
    context = {"area": "tracks", "candidate": found, "uses": selectors.dataset_uses(found.pk), "form": form}
    context["may_attach"] = found.submitted_by_id == request.user.pk
    return render(request, "promotion/candidate_datasets.html", context, status=status)


@acts(permissions.require_can_submit)
def attach_datasets(request: HttpRequest, pk: int) -> HttpResponse:
    found, form = selectors.candidate_by_id(pk, request.user), DatasetsForm(request.POST, request.FILES)
    if not form.is_valid():
        return _render_datasets(request, found, form, 422)
    try:
        candidate_datasets.attach_datasets(
            candidate_id=pk, by=request.user, datasets=form.uses, tool_schema_sha256=form.schema_digest
        )
    except (InvalidInput, Conflict) as error:
        field = "tool_schema" if getattr(error, "field", "").startswith("tool_schema") else None
        form.add_error(field, error.message)
        status = 422 if isinstance(error, InvalidInput) else error.status
        return _render_datasets(request, found, form, status)
    messages.success(request, "Recorded. It is compared with the policy's suites by a worker.")
    return redirect("promotion:candidate-datasets", pk)


def _kept(upload: UploadedFile[bytes], path: Path) -> Path:
    with path.open("wb") as file:
        for chunk in upload.chunks(CHUNK_BYTES):
            file.write(chunk)
    return path


@reads
def evidence(request: HttpRequest, pk: int, digest: str) -> HttpResponse:
    """The canonical bytes that were hashed, for those who compute the digest themselves."""
    found = selectors.evidence_of(selectors.candidate_by_id(pk, request.user), digest)
    if found is None:
        raise NotFound("This candidate has no such evidence.")
    response = HttpResponse(bytes(found.document), content_type="application/json")
    response["Content-Disposition"] = f'attachment; filename="evidence-{digest[:12]}.json"'
    return response
