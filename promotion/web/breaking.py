"""The act of breaking the glass: by password at once, or after the way to a passkey or to the sign-in provider."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from promotion import permissions, selectors
from promotion.models import Candidate, Method
from promotion.services import gating, glass
from promotion.services.proofs import Act, NoProof, Password, Proof, SingleSignOn
from promotion.web import proving, unsigned
from rollouts.errors import AssayError, Conflict, InvalidInput, NotAllowed, StaleEvidence
from rollouts.web.http import acts, reads

PURPOSE = "break_glass"
RETURNED = "returned_glass"
FIELD_OF = {
    "wrong_password": "password",
    "too_many_tries": "password",
    "act_refused": "method",
    "passkey_refused": "method",
    "sso_refused": "method",
}
REFUSALS = (NotAllowed, InvalidInput, proving.ProviderAway)


class BreakForm(forms.Form):
    evidence_digest = forms.RegexField(r"^[0-9a-f]{64}$", widget=forms.HiddenInput)
    reason = forms.CharField(
        max_length=glass.MAX_REASON,
        widget=forms.Textarea(attrs={"rows": 4}),
        label="Why can this not wait for the signatures?",
        help_text=f"At least {glass.MIN_REASON} characters. Everybody who is alarmed reads it.",
    )
    method = forms.ChoiceField(choices=Method.choices, error_messages={"required": "Choose how."})
    password = forms.CharField(
        required=False,
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}),
    )

    @property
    def words(self) -> dict[str, str]:
        return {name: self.cleaned_data[name] for name in ("evidence_digest", "reason")}

    def clean(self) -> dict[str, Any]:
        if self.cleaned_data.get("method") == Method.PASSWORD and not self.cleaned_data.get("password"):
            self.add_error("password", "Give your password: it is asked each time.")
        return self.cleaned_data


@reads
def break_page(request: HttpRequest, pk: int) -> HttpResponse:
    found = selectors.candidate_by_id(pk, request.user)
    kept = request.session.get(RETURNED) or {}
    # what was written comes back with a person who was refused elsewhere
    reason = kept.get("reason", "") if kept.get("candidate") == pk else ""
    return _render(request, found, BreakForm(initial={"reason": reason}))


def _render(
    request: HttpRequest, found: Candidate, form: BreakForm, *, status: int = 200, **more: Any
) -> HttpResponse:
    evidence = selectors.latest_evidence(found)
    if evidence is None:
        raise Conflict(f"{found} was not judged yet: there is nothing to promote.")
    missing = glass.require_can_break(found, evidence, request.user)
    numbers = gating.approvals_outcome(found, evidence).numbers
    context = {
        "area": "tracks",
        "candidate": found,
        "evidence": evidence,
        "current": gating.evidence_is_current(found, evidence),
        "missing": missing,
        "signed_by": numbers["signed_by"],
        "needs": numbers["needs"],
        "hours": int(glass.REVIEW_WITHIN.total_seconds() // 3600),
        "methods": proving.methods_of(request.user),
        "form": form,
        **more,
    }
    return render(request, "promotion/glass_break.html", context, status=status)


@acts(permissions.require_can_read)
def break_now(request: HttpRequest, pk: int) -> HttpResponse:
    """The service decides who may, and keeps what it refused in the history."""
    found, form = selectors.candidate_by_id(pk, request.user), BreakForm(request.POST)
    if not form.is_valid():
        return _render(request, found, form, status=422)
    try:
        if form.cleaned_data["method"] != Method.PASSWORD:
            return _prove_elsewhere(request, found, form.cleaned_data["method"], form.words)
        return _break(request, pk, form.words, Password(form.cleaned_data["password"]))
    except StaleEvidence as error:
        return _stale(request, found, form, error)
    except REFUSALS as error:
        name = FIELD_OF.get(error.code, getattr(error, "field", ""))
        form.add_error(name if name in form.fields else None, error.message.removeprefix(f"{name}: "))
        status = 422 if isinstance(error, InvalidInput) else error.status
        return _render(request, found, form, status=status)


def _break(request: HttpRequest, pk: int, words: dict[str, str], proof: Proof) -> HttpResponse:
    glass.break_glass(candidate_id=pk, by=request.user, proof=proof, **words)
    request.session.pop(RETURNED, None)
    messages.success(
        request, "The glass is broken. Everybody who must know is told; somebody else looks at it."
    )
    return redirect("promotion:candidate", pk)


def _stale(request: HttpRequest, found: Candidate, form: BreakForm, error: StaleEvidence) -> HttpResponse:
    """The page as it is now, with what changed since the page that was answered."""
    found = unsigned.judged_now(found)
    more = unsigned.what_changed(found, form.cleaned_data["evidence_digest"])
    try:
        return _render(request, found, form, status=412, **more)
    except Conflict:
        raise error from None  # as it is now, nobody can break the glass for it


# by passkey and by single sign-on: the act waits in the session meanwhile


def _prove_elsewhere(
    request: HttpRequest, found: Candidate, method: str, words: dict[str, str]
) -> HttpResponse:
    if method not in proving.methods_of(request.user):
        raise InvalidInput("method", "must be one that you have.")
    glass.check(candidate_id=found.pk, by=request.user, **words)
    act = Act(PURPOSE, request.user.pk, method, words, found.pk)
    if method == Method.OIDC:
        return proving.ask_provider(request, act)
    proving.put(request, act)
    return redirect("promotion:break-glass-passkey", found.pk)


@reads
def passkey(request: HttpRequest, pk: int) -> HttpResponse:
    found = selectors.candidate_by_id(pk, request.user)
    act = proving.waiting(request, purpose=PURPOSE, method=Method.PASSKEY)
    if act is None or act.candidate != pk:
        messages.error(request, "Nothing waits for your passkey. Begin anew.")
        return redirect("promotion:candidate", pk)
    context = {"area": "tracks", "candidate": found}
    return proving.passkey_page(request, act, "promotion/glass_passkey.html", context)


@acts(permissions.require_can_read)
def passkey_confirm(request: HttpRequest, pk: int) -> HttpResponse:
    """The passkey's answer. The act is used up by it, whatever comes of it."""
    found, proof = selectors.candidate_by_id(pk, request.user), proving.passkey_proof(request)
    act = proof.act
    if act is None or (act.purpose, act.candidate) != (PURPOSE, pk):
        # nothing to do: the service refuses it and keeps the attempt in the history
        return _break(request, pk, {"evidence_digest": "", "reason": ""}, replace(proof, act=None))
    return _carried_out(request, found, act, proof)


def _finish(request: HttpRequest, proof: SingleSignOn | NoProof, candidate: int | None) -> HttpResponse:
    assert candidate is not None
    found = selectors.candidate_by_id(candidate, request.user)
    act = proof.act or Act(PURPOSE, request.user.pk, Method.OIDC, {"evidence_digest": "", "reason": ""})
    return _carried_out(request, found, act, proof)


def _carried_out(request: HttpRequest, found: Candidate, act: Act, proof: Proof) -> HttpResponse:
    try:
        return _break(request, found.pk, act.words, proof)
    except (Conflict, *REFUSALS) as error:
        if isinstance(error, StaleEvidence):
            unsigned.judged_now(found)
        return _back(request, act, found.pk, error)


def _cancelled(request: HttpRequest, act: Act, sentence: str) -> HttpResponse:
    assert act.candidate is not None
    return _back(request, act, act.candidate, proving.ActCancelled(sentence))


proving.ENDS[PURPOSE] = proving.End(_finish, _cancelled)


def _back(request: HttpRequest, act: Act, pk: int, error: AssayError) -> HttpResponse:
    """To the page on which it began, with what was written."""
    messages.error(request, error.message)
    request.session[RETURNED] = {"candidate": pk, "reason": act.words["reason"]}
    return redirect("promotion:break-glass", pk)
