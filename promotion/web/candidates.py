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

from promotion import evidence as evidence_module
from promotion import permissions, selectors
from promotion.models import Candidate, Evidence, Track
from promotion.services import approvals, candidate_datasets, candidates, gating, registry
from promotion.services.proofs import Password
from promotion.web import compare
from promotion.web.conversation import conversation_of
from promotion.web.disputes import dispute_section
from promotion.web.forms import DatasetsForm, EvaluateForm, SignForm, SubmitForm, WithdrawForm
from promotion.web.glass import glass_section
from promotion.web.masked import masked_section
from promotion.web.review import JUDGED, is_stale, review
from promotion.web.waivers import exceptions
from rollouts.errors import AssayError, Conflict, InvalidInput, NotAllowed, NotFound, StaleEvidence
from rollouts.hashing import CHUNK_BYTES
from rollouts.web.http import acts, reads

FIELD_OF = {"wrong_password": "password", "not_allowed": "decision", "conflict": "decision"}


@reads
def candidate(request: HttpRequest, pk: int) -> HttpResponse:
    return _render_review(request, selectors.candidate_by_id(pk))


def _render_review(
    request: HttpRequest, found: Candidate, *, form: SignForm | None = None, status: int = 200, **more: Any
) -> HttpResponse:
    shown = review(found, request.user, request.GET.dict())
    context = {
        "area": "tracks",
        "review": shown,
        "exceptions": exceptions(found, shown.evidence, shown.document, request.user),
        "conversation": conversation_of(found, shown.evidence, shown.document, request.user),
        "disputes": dispute_section(found, shown.evidence, request.user),
        "glass": glass_section(found, shown.evidence, request.user),
        "masked": masked_section(shown.document, request.GET.dict()),
        "form": form,
        "evaluate_form": EvaluateForm(),
        "back_url": reverse("promotion:candidate", args=[found.pk]),
        **more,
    }
    return render(request, "promotion/review.html", context, status=status)


@acts(permissions.require_can_read)
def sign(request: HttpRequest, pk: int) -> HttpResponse:
    """The service decides who may sign; whoever may read gets its answer on the page."""
    found, form = selectors.candidate_by_id(pk), SignForm(request.POST)
    if not form.is_valid():
        return _render_review(request, found, form=form, status=422)
    try:
        values = form.cleaned_data
        proof = Password(values.pop("password"))
        approvals.sign(candidate_id=pk, by=request.user, proof=proof, **values)
    except StaleEvidence:
        return _stale(request, found, form)
    except (NotAllowed, Conflict, InvalidInput) as error:
        form.add_error(*_field_error(error))
        status = 422 if isinstance(error, InvalidInput) else error.status
        return _render_review(request, selectors.candidate_by_id(pk), form=form, status=status)
    messages.success(request, "Recorded: your decision stands in the history, with the digest that you saw.")
    return redirect("promotion:candidate", pk)


def _field_error(error: AssayError) -> tuple[str, str]:
    """The form's field that the refusal is about, and its sentence."""
    if isinstance(error, InvalidInput) and error.field in SignForm.base_fields:
        return error.field, error.message.removeprefix(f"{error.field}: ")
    return FIELD_OF.get(error.code, "decision"), error.message


def _stale(request: HttpRequest, found: Candidate, form: SignForm) -> HttpResponse:
    """The page as it is now, with what changed since the page that was signed. Both documents are kept."""
    shown = selectors.evidence_of(found, form.cleaned_data["evidence_digest"])
    if found.state in JUDGED and is_stale(found, selectors.latest_evidence(found)):
        gating.judge_now(found.pk)
        found = selectors.candidate_by_id(found.pk)
    current = selectors.latest_evidence(found)
    return _render_review(
        request, found, form=form, status=412, changed=_changes(shown, current), shown=shown, stale_post=True
    )


def _changes(shown: Evidence | None, current: Evidence | None) -> list[str]:
    if shown is None or current is None:
        return ["The form named evidence that this candidate never had."]
    return compare.changes(evidence_module.document_of(shown), evidence_module.document_of(current))


@acts(permissions.require_can_judge)
def judge(request: HttpRequest, pk: int) -> HttpResponse:
    before = selectors.latest_evidence(selectors.candidate_by_id(pk))
    after = gating.judge_again(candidate_id=pk, by=request.user)
    changed = [] if before is None or before.digest == after.digest else _changes(before, after)
    messages.success(
        request, " ".join(["Judged again.", *changed[:6]]) if changed else "Judged again: nothing changed."
    )
    return redirect("promotion:candidate", pk)


@acts(permissions.require_can_evaluate)
def evaluate(request: HttpRequest, pk: int) -> HttpResponse:
    form = EvaluateForm(request.POST)
    if not form.is_valid():
        raise InvalidInput(
            "backend", "must be one of the registered backends. Choose one on the candidate's page."
        )
    started = gating.start_evaluation(candidate_id=pk, backend=form.cleaned_data["backend"], by=request.user)
    messages.success(
        request, f"{len(started)} eval runs started. Their progress is on the pages of the runs."
    )
    return redirect("promotion:candidate", pk)


def _retry(
    require: Callable[..., None], again: Callable[..., Candidate], said: str
) -> Callable[..., HttpResponse]:
    @acts(require)
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        selectors.candidate_by_id(pk)
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
    found = selectors.candidate_by_id(pk)
    permissions.require_can_withdraw(request.user, found.submitted_by_id)
    return render(
        request, "promotion/withdraw.html", {"area": "tracks", "candidate": found, "form": WithdrawForm()}
    )


@acts(permissions.require_can_read)
def withdraw(request: HttpRequest, pk: int) -> HttpResponse:
    found, form = selectors.candidate_by_id(pk), WithdrawForm(request.POST)
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
    return _render_submit(request, selectors.track_by_name(name), SubmitForm(), 200)


def _render_submit(request: HttpRequest, track: Track, form: SubmitForm, status: int) -> HttpResponse:
    return render(
        request, "promotion/submit.html", {"area": "tracks", "track": track, "form": form}, status=status
    )


@acts(permissions.require_can_submit)
def submit(request: HttpRequest, name: str) -> HttpResponse:
    track, form = selectors.track_by_name(name), SubmitForm(request.POST, request.FILES)
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
    return _render_datasets(request, selectors.candidate_by_id(pk), DatasetsForm())


def _render_datasets(
    request: HttpRequest, found: Candidate, form: DatasetsForm, status: int = 200
) -> HttpResponse:
    context = {"area": "tracks", "candidate": found, "uses": selectors.dataset_uses(found.pk), "form": form}
    context["may_attach"] = found.submitted_by_id == request.user.pk
    return render(request, "promotion/candidate_datasets.html", context, status=status)


@acts(permissions.require_can_submit)
def attach_datasets(request: HttpRequest, pk: int) -> HttpResponse:
    found, form = selectors.candidate_by_id(pk), DatasetsForm(request.POST, request.FILES)
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
    found = selectors.evidence_of(selectors.candidate_by_id(pk), digest)
    if found is None:
        raise NotFound("This candidate has no such evidence.")
    response = HttpResponse(bytes(found.document), content_type="application/json")
    response["Content-Disposition"] = f'attachment; filename="evidence-{digest[:12]}.json"'
    return response
