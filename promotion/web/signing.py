"""The signature: by password at once, or after the way to a passkey or to the sign-in provider."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.urls import reverse

from promotion import permissions, selectors
from promotion.models import Candidate, Decision, Meaning, Method
from promotion.services import approvals, reviews
from promotion.services.proofs import Act, NoProof, Password, Proof, SingleSignOn
from promotion.web import proving, unsigned
from promotion.web.candidates import _render_review
from promotion.web.forms import SignForm
from promotion.web.template_version import template_version
from rollouts.api.problems import CONTENT_TYPE, problem
from rollouts.errors import AssayError, Conflict, InvalidInput, NotAllowed, StaleEvidence
from rollouts.web.http import acts, reads

PURPOSE = "sign"
# what the person did, by decision; the digest is the one that they saw
RECORDED = {
    Decision.APPROVE: "Recorded: you signed {name} at {digest}. It stands in the history.",
    Decision.REQUEST_CHANGES: "Recorded: you sent {name} back at {digest}. The submitter reads your words.",
    Decision.REJECT: "Recorded: you rejected {name} at {digest}. The submitter reads your words.",
}
REFUSALS = (NotAllowed, Conflict, InvalidInput, proving.ProviderAway)


@acts(permissions.require_can_read)
def sign(request: HttpRequest, pk: int) -> HttpResponse:
    """The service decides who may sign; whoever may read gets its answer on the page."""
    found, form = selectors.candidate_by_id(pk, request.user), SignForm(request.POST)
    if not form.is_valid():
        return _render_review(request, found, form=form, status=422)
    try:
        if form.cleaned_data["method"] != Method.PASSWORD:
            return _prove_elsewhere(request, found, form.cleaned_data["method"], form.words)
        return _sign(request, pk, form.words, Password(form.cleaned_data["password"]))
    except REFUSALS as error:
        return _refused(request, found, form, error)


def _sign(request: HttpRequest, pk: int, words: dict[str, str], proof: Proof) -> HttpResponse:
    approval = approvals.sign(
        candidate_id=pk, by=request.user, proof=proof, template_version=template_version(), **words
    )
    # who signs has looked; of whoever only reads besides signing no such mark is kept, and the signature stands
    with suppress(NotAllowed):
        reviews.mark_seen(candidate_id=pk, digest=approval.evidence_digest, by=request.user)
    digest = f"{approval.evidence_digest[:4]} {approval.evidence_digest[4:8]}"
    said = RECORDED[Decision(approval.decision)]
    messages.success(request, said.format(name=approval.candidate.name, digest=digest))
    return redirect("promotion:candidate", pk)


def _prove_elsewhere(
    request: HttpRequest, found: Candidate, method: str, words: dict[str, str]
) -> HttpResponse:
    """The act waits in the session; nothing is signed before the person comes back with the proof."""
    if method not in proving.methods_of(request.user):
        raise InvalidInput("method", "must be one that you have.")
    approvals.check(candidate_id=found.pk, by=request.user, **words)
    act = Act(PURPOSE, request.user.pk, method, words, found.pk)
    if method == Method.OIDC:
        return proving.ask_provider(request, act)
    proving.put(request, act)
    return redirect("promotion:sign-passkey", found.pk)


# by passkey


@reads
def passkey(request: HttpRequest, pk: int) -> HttpResponse:
    """What is about to be signed, once more in words, with the challenge for the passkey."""
    found = selectors.candidate_by_id(pk, request.user)
    act = proving.waiting(request, purpose=PURPOSE, method=Method.PASSKEY)
    if act is None or act.candidate != pk:
        messages.error(request, "Nothing waits for your passkey. Begin in the sign-off box.")
        return _to_box(pk)
    context = {
        "area": "tracks",
        "candidate": found,
        "decision": Decision(act.words["decision"]).label,
        "meaning": Meaning(act.words["meaning"]).label if act.words["meaning"] else "",
    }
    return proving.passkey_page(request, act, "promotion/sign_passkey.html", context)


@acts(permissions.require_can_read)
def passkey_confirm(request: HttpRequest, pk: int) -> HttpResponse:
    """The passkey's answer. The act is used up by it, whatever comes of it."""
    found, proof = selectors.candidate_by_id(pk, request.user), proving.passkey_proof(request)
    act = proof.act
    if act is None or (act.purpose, act.candidate) != (PURPOSE, pk):
        # nothing to sign: the service refuses it and keeps the attempt in the history
        return _sign(request, pk, {"evidence_digest": ""}, replace(proof, act=None))
    try:
        return _sign(request, pk, act.words, proof)
    except REFUSALS as error:
        return _refused(request, found, unsigned.form_of(act.words, Method.PASSKEY), error)


# by single sign-on


def _finish(request: HttpRequest, proof: SingleSignOn | NoProof, candidate: int | None) -> HttpResponse:
    assert candidate is not None
    found = selectors.candidate_by_id(candidate, request.user)
    words = proof.act.words if proof.act else {"evidence_digest": ""}
    try:
        return _sign(request, candidate, words, proof)
    except REFUSALS as error:
        if proof.act is None:
            messages.error(request, error.message)
            return _to_box(candidate)
        return _back(request, found, proof.act, error)


def _cancelled(request: HttpRequest, act: Act, sentence: str) -> HttpResponse:
    assert act.candidate is not None
    found = selectors.candidate_by_id(act.candidate, request.user)
    return _back(request, found, act, proving.ActCancelled(sentence))


proving.ENDS[PURPOSE] = proving.End(_finish, _cancelled)


def _back(request: HttpRequest, found: Candidate, act: Act, error: AssayError) -> HttpResponse:
    """From the provider's address to the page's own, which then shows the refusal and what was written."""
    if isinstance(error, StaleEvidence):
        unsigned.judged_now(found)
    unsigned.keep(request, found, act.words, act.method, error)
    return _to_box(found.pk)


def _to_box(pk: int) -> HttpResponse:
    return redirect(f"{reverse('promotion:candidate', args=[pk])}#sign")


# refusals


def _refused(request: HttpRequest, found: Candidate, form: SignForm, error: AssayError) -> HttpResponse:
    more: dict[str, Any] = {}
    if isinstance(error, StaleEvidence):
        found = unsigned.judged_now(found)
        more = unsigned.what_changed(found, form.cleaned_data["evidence_digest"])
    else:
        form.add_error(*unsigned.field_error(error))
    if _wants_json(request):
        return _as_json(error, {"changed": more["changed"]} if more else {})
    status = 422 if isinstance(error, InvalidInput) else error.status
    # as it is now: a refusal may have been for what somebody else did meanwhile
    found = selectors.candidate_by_id(found.pk, request.user)
    return _render_review(request, found, form=form, status=status, **more)


def _wants_json(request: HttpRequest) -> bool:
    return request.get_preferred_type(["text/html", CONTENT_TYPE, "application/json"]) not in (
        None,
        "text/html",
    )


def _as_json(error: AssayError, facts: dict[str, Any]) -> JsonResponse:
    body = problem(
        error.status,
        error.code,
        error.message,
        field=getattr(error, "field", None),
        blocked_by=getattr(error, "blocked_by", None),
        facts={**error.facts, **facts},
    )
    return JsonResponse(body, status=error.status, content_type=CONTENT_TYPE)
