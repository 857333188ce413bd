"""Signing in by the provider, and confirming by it that one is still there."""

from __future__ import annotations

from allauth.account.internal.flows.login import record_authentication
from allauth.socialaccount.providers.base.constants import AuthProcess
from allauth.socialaccount.providers.openid_connect import views
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST, require_safe
from requests import RequestException

from promotion.models import Method
from promotion.services.proofs import Act, NoProof, SingleSignOn
from promotion.web import proving
from promotion.web.accounts import SSO
from rollouts.errors import NotAllowed
from rollouts.web.http import error_page

CONFIRM = "confirm"


@require_POST
def login(request: HttpRequest) -> HttpResponse:
    """Off to the provider. Whoever it names is signed in when they come back."""
    if not proving.sso_name():
        messages.error(request, "Single sign-on is not set up here.")
        return redirect("account_login")
    try:
        return proving.leave(request, AuthProcess.LOGIN, next_url=_next(request.POST.get("next", "")))
    except proving.ProviderAway as error:
        return error_page(request, error)


def callback(request: HttpRequest, provider_id: str) -> HttpResponse:
    """The provider's answer, as django-allauth reads it."""
    try:
        return views.callback(request, provider_id)
    except RequestException:
        return error_page(request, proving.ProviderAway("The sign-in provider does not answer. Try again."))


@login_required
@require_safe
def confirm(request: HttpRequest) -> HttpResponse:
    context = {"sso_name": proving.sso_name(), "next": _next(request.GET.get("next", ""))}
    return render(request, "socialaccount/reauthenticate.html", context)


@login_required
@require_POST
def confirm_start(request: HttpRequest) -> HttpResponse:
    words = {"next": _next(request.POST.get("next", ""))}
    try:
        if Method.OIDC not in proving.methods_of(request.user):
            raise NotAllowed("Your account is bound to no sign-in provider. Use your password or a passkey.")
        act = Act(purpose=CONFIRM, person=request.user.pk, method=Method.OIDC, words=words)
        return proving.ask_provider(request, act)
    except (NotAllowed, proving.ProviderAway) as error:
        return error_page(request, error)


def _confirmed(request: HttpRequest, proof: SingleSignOn | NoProof, candidate: int | None) -> HttpResponse:
    try:
        proof.check(request.user)
    except NotAllowed as error:
        messages.error(request, error.message)
        return redirect("promotion:sso-confirm")
    record_authentication(request, request.user, SSO, reauthenticated=True)
    assert proof.act is not None
    return redirect(proof.act.words["next"])


def _given_up(request: HttpRequest, act: Act, sentence: str) -> HttpResponse:
    messages.error(request, sentence)
    return redirect("promotion:sso-confirm")


proving.ENDS[CONFIRM] = proving.End(_confirmed, _given_up)


def _next(wanted: str) -> str:
    safe = url_has_allowed_host_and_scheme(wanted, allowed_hosts=None) and wanted.startswith("/")
    return wanted if safe else reverse("promotion:home")
