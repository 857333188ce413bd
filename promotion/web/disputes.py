"""Disputes: what a case expects and what it should, what that would change for both sides, and who decides."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from promotion import evidence as evidence_module
from promotion import permissions, selectors
from promotion.models import Candidate, Dispute, DisputeState, Evidence
from promotion.services import dispute_effects, disputes
from promotion.web.review import allowed
from rollouts.amendments import expected_now
from rollouts.errors import AssayError, Conflict, InvalidInput, NotFound, StaleEvidence
from rollouts.models import Case
from rollouts.scoring.decision import NotStrictJson, parse_strict_json
from rollouts.suite_format import EXPECTED_KEYS
from rollouts.web.http import acts, reads

SHOWN = 50


@dataclass(frozen=True, slots=True)
class DisputeSection:
    """Shown by review_disputes: disputes of cases that the evidence counts, open ones first, then the newest."""

    open: list[Dispute] = field(default_factory=list)
    decided: list[Dispute] = field(default_factory=list)
    hidden: int = 0  # open ones, raised on candidates that this person may not see
    may_raise: bool = False


def dispute_section(candidate: Candidate, document: Mapping[str, Any] | None, person: User) -> DisputeSection:
    """Of the evidence that a review shows. One query."""
    if document is None:
        return DisputeSection()
    found = list(disputes.disputes_about(document, person)[:SHOWN])
    return DisputeSection(
        open=[dispute for dispute in found if dispute.seen and dispute.state == DisputeState.OPEN],
        decided=[dispute for dispute in found if dispute.seen and dispute.state != DisputeState.OPEN],
        hidden=sum(not dispute.seen and dispute.state == DisputeState.OPEN for dispute in found),
        may_raise=candidate.state in disputes.DISPUTED and allowed(permissions.require_can_dispute, person),
    )


# raising one


class RaiseForm(forms.Form):
    evidence_digest = forms.CharField(widget=forms.HiddenInput)
    expected = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 10, "spellcheck": "false", "class": "mono"}),
        label="What should it expect? (JSON, as in the sealed suite)",
        error_messages={"required": "Write what the case should expect."},
    )
    reason = forms.CharField(
        max_length=disputes.MAX_REASON,
        widget=forms.Textarea(attrs={"rows": 5}),
        label="Why is the present expectation wrong?",
        help_text="Whoever decides and whoever signs reads this. It stays in the history.",
        error_messages={"required": "Say why. Whoever decides and whoever signs reads it."},
    )

    def clean_expected(self) -> Any:
        try:
            return parse_strict_json(self.cleaned_data["expected"])
        except NotStrictJson as error:
            raise forms.ValidationError(f"This is not strict JSON: {error}.") from error


class DecideForm(forms.Form):
    resolution = forms.CharField(
        max_length=disputes.MAX_REASON,
        widget=forms.Textarea(attrs={"rows": 4}),
        label="Why do you decide so?",
        error_messages={"required": "Say why. It stays in the history."},
    )


@reads
def new(request: HttpRequest, pk: int, case_pk: int) -> HttpResponse:
    permissions.require_can_dispute(request.user)
    found, evidence, case = _disputed(request, pk, case_pk)
    written = {
        "expected": json.dumps(expected_now(case), indent=2, ensure_ascii=False),
        "evidence_digest": evidence.digest,
    }
    return _render_new(request, found, evidence, case, RaiseForm(initial=written))


def _disputed(request: HttpRequest, pk: int, case_pk: int) -> tuple[Candidate, Evidence, Case]:
    found = selectors.candidate_by_id(pk, request.user)
    evidence = selectors.latest_evidence(found)
    if evidence is None:
        raise NotFound("This candidate has no evidence yet.")
    return found, evidence, disputes.case_of(evidence_module.document_of(evidence), case_pk)


def _render_new(
    request: HttpRequest,
    found: Candidate,
    evidence: Evidence,
    case: Case,
    form: RaiseForm,
    *,
    stale: bool = False,
    status: int = 200,
) -> HttpResponse:
    context = {
        "area": "tracks",
        "candidate": found,
        "case": case,
        "expected": expected_now(case),
        "judged": found.state in disputes.DISPUTED,
        "judge_scored": case.suite.scorer not in EXPECTED_KEYS,
        "standing": disputes.disputes().visible_to(request.user).filter(case=case, state="open").first(),
        "sides": dispute_effects.sides_of(evidence_module.document_of(evidence), case),
        "form": form,
        "stale": stale,
        "evidence": evidence,
    }
    return render(request, "promotion/dispute_new.html", context, status=status)


@acts(permissions.require_can_read)
def raise_dispute(request: HttpRequest, pk: int, case_pk: int) -> HttpResponse:
    """The service decides who may, and keeps what it refused in the history."""
    found, evidence, case = _disputed(request, pk, case_pk)
    form = RaiseForm(request.POST)
    if not form.is_valid():
        permissions.require_can_dispute(request.user)
        return _render_new(request, found, evidence, case, form, status=422)
    try:
        made = disputes.raise_dispute(candidate_id=pk, case_id=case_pk, by=request.user, **form.cleaned_data)
    except (InvalidInput, Conflict) as error:
        _refused(form, error)
        stale = isinstance(error, StaleEvidence)
        if stale:  # the page as it is now: sent again, it answers what stands there
            form.data = {**form.data.dict(), "evidence_digest": evidence.digest}
        status = 422 if isinstance(error, InvalidInput) else error.status
        return _render_new(request, found, evidence, case, form, stale=stale, status=status)
    messages.success(request, "Raised. Nothing changes until a second person decides.")
    return redirect("promotion:dispute", pk, made.pk)


def _refused(form: forms.Form, error: AssayError) -> None:
    """A fault inside the expectation is told at its field, with the place."""
    path = getattr(error, "field", "")
    name = path.split(".")[0].split("[")[0]
    told = error.message.removeprefix(f"{name}: ") if path == name else error.message
    form.add_error(name if name in form.fields else None, told)


# one dispute


@reads
def dispute(request: HttpRequest, pk: int, number: int) -> HttpResponse:
    found = selectors.candidate_by_id(pk, request.user)
    return _render(request, found, _dispute_of(found, number), DecideForm())


def _dispute_of(candidate: Candidate, number: int) -> Dispute:
    found: Dispute | None = disputes.disputes().filter(candidate=candidate, pk=number).first()
    if found is None:
        raise NotFound("There is no such dispute.")
    return found


def _render(
    request: HttpRequest,
    found: Candidate,
    shown: Dispute,
    form: DecideForm,
    *,
    error: str = "",
    status: int = 200,
) -> HttpResponse:
    sides, problem = _effects(found, shown)
    context = {
        "area": "tracks",
        "candidate": found,
        "dispute": shown,
        "case": shown.case,
        "open": shown.state == DisputeState.OPEN,
        "sides": sides,
        "problem": problem,
        "why_not": _why_not_decide(found, shown, request.user),
        "may_withdraw": shown.state == DisputeState.OPEN and shown.raised_by_id == request.user.pk,
        "form": form,
        "error": error,
    }
    return render(request, "promotion/dispute.html", context, status=status)


def _effects(found: Candidate, shown: Dispute) -> tuple[list[dispute_effects.Side], str]:
    """Both sides as they are, and what an open dispute would change; else why that cannot be said."""
    evidence = selectors.latest_evidence(found)
    if evidence is None:
        return [], "The candidate has no evidence any more."
    document = evidence_module.document_of(evidence)
    if shown.case.suite.digest not in [part["digest"] for part in document["suites"]]:
        return [], "The candidate's evidence no longer counts this suite."
    try:
        read = dispute_effects.proposal(shown)
    except AssayError as error:
        return dispute_effects.sides_of(document, shown.case), error.message
    return dispute_effects.sides_of(document, shown.case, read), ""


def _why_not_decide(found: Candidate, shown: Dispute, person: User) -> str:
    """Why this person cannot decide it; empty where they can."""
    if shown.state != DisputeState.OPEN:
        return f"It is {shown.state}."
    try:
        permissions.require_can_decide_dispute(
            person, raised_by=shown.raised_by.get_username(), submitters=disputes.submitters(shown)
        )
    except AssayError as error:
        return error.message
    return ""


def _deciding(decide: Callable[..., Dispute], said: str) -> Callable[..., HttpResponse]:
    @acts(permissions.require_can_read)
    def view(request: HttpRequest, pk: int, number: int) -> HttpResponse:
        found = selectors.candidate_by_id(pk, request.user)
        shown, form = _dispute_of(found, number), DecideForm(request.POST)
        permissions.require_can_decide_dispute(request.user, raised_by=shown.raised_by.get_username())
        if not form.is_valid():
            return _render(request, found, shown, form, status=422)
        try:
            decide(dispute_id=shown.pk, by=request.user, resolution=form.cleaned_data["resolution"])
        except (InvalidInput, Conflict) as error:
            return _again(request, pk, number, form, error)
        messages.success(request, said)
        return redirect("promotion:dispute", pk, number)

    return view


accept = _deciding(
    disputes.accept,
    "Accepted: every run of the suite is scored by it, and earlier signatures no longer count.",
)
decline = _deciding(disputes.decline, "Declined: the case stays as it is.")


@acts(permissions.require_can_read)
def withdraw(request: HttpRequest, pk: int, number: int) -> HttpResponse:
    shown = _dispute_of(selectors.candidate_by_id(pk, request.user), number)
    try:
        disputes.withdraw(dispute_id=shown.pk, by=request.user)
    except Conflict as error:
        return _again(request, pk, number, DecideForm(), error)
    messages.success(request, "Withdrawn. Nothing was changed.")
    return redirect("promotion:dispute", pk, number)


def _again(request: HttpRequest, pk: int, number: int, form: DecideForm, error: AssayError) -> HttpResponse:
    """The page as things stand by now, with what was refused."""
    found = selectors.candidate_by_id(pk, request.user)
    status = 422 if isinstance(error, InvalidInput) else error.status
    return _render(request, found, _dispute_of(found, number), form, error=error.message, status=status)
