"""The page on which a person takes their own signature back."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from promotion import permissions, selectors
from promotion.models import Candidate
from promotion.services import signatures
from rollouts.web.http import acts, reads


class WithdrawSignatureForm(forms.Form):
    reason = forms.CharField(
        max_length=signatures.MAX_REASON,
        widget=forms.Textarea(attrs={"rows": 4}),
        label="Why do you take it back?",
    )


@reads
def withdraw_page(request: HttpRequest, pk: int) -> HttpResponse:
    return _render(request, selectors.candidate_by_id(pk, request.user), WithdrawSignatureForm())


def _render(
    request: HttpRequest, found: Candidate, form: WithdrawSignatureForm, *, status: int = 200
) -> HttpResponse:
    signatures.require_can_withdraw(found, request.user)
    context = {
        "area": "tracks",
        "candidate": found,
        "signature": signatures.standing_of(found, request.user).first(),
        "form": form,
    }
    return render(request, "promotion/withdraw_signature.html", context, status=status)


@acts(permissions.require_can_read)
def withdraw(request: HttpRequest, pk: int) -> HttpResponse:
    found, form = selectors.candidate_by_id(pk, request.user), WithdrawSignatureForm(request.POST)
    if not form.is_valid():
        return _render(request, found, form, status=422)
    signatures.withdraw_signature(candidate_id=pk, by=request.user, reason=form.cleaned_data["reason"])
    messages.success(request, "Your signature is withdrawn. It stays in the history; you may sign anew.")
    return redirect("promotion:candidate", pk)
