"""Proving who one is at an act by passkey or single sign-on: the act waits in the session meanwhile, for one use."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from allauth.mfa.models import Authenticator
from allauth.socialaccount.adapter import get_adapter
from allauth.socialaccount.models import SocialAccount, SocialLogin
from allauth.socialaccount.providers.base.constants import AuthProcess
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from fido2.webauthn import UserVerificationRequirement
from requests import RequestException

from promotion.models import Method
from promotion.services.proofs import Act, NoProof, Passkey, SingleSignOn, keys_of, server_for
from rollouts.errors import AssayError, NotAllowed

PROVIDER = "sso"
PENDING = "pending_act"
CANCELLED = "You cancelled at the provider. Nothing was recorded."


class ProviderAway(AssayError):
    """The sign-in provider does not answer as it should."""

    code = "sso_unavailable"
    status = 502


class ActCancelled(NotAllowed):
    """The person broke the act off at the provider."""

    code = "act_refused"


@dataclass(frozen=True, slots=True)
class Methods:
    """By what a person can prove who they are; `sso` is the provider's name, empty where it is none of theirs."""

    password: bool
    passkey: bool
    sso: str

    def __contains__(self, method: str) -> bool:
        return method in self.values

    @property
    def values(self) -> list[str]:
        held = ((Method.PASSWORD, self.password), (Method.PASSKEY, self.passkey), (Method.OIDC, self.sso))
        return [str(method) for method, has in held if has]

    @property
    def only(self) -> str:
        """The one there is; empty where there is a choice, or none."""
        return self.values[0] if len(self.values) == 1 else ""


def methods_of(person: User) -> Methods:
    passkeys = Authenticator.objects.filter(user_id=person.pk, type=Authenticator.Type.WEBAUTHN)
    name = sso_name()
    bound = name and SocialAccount.objects.filter(user_id=person.pk, provider=PROVIDER).exists()
    return Methods(person.has_usable_password(), passkeys.exists(), name if bound else "")


def sso_name() -> str:
    """The configured provider's name for people; empty where there is none."""
    apps = settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]["APPS"]
    return apps[0]["name"] if apps else ""


# the act that waits


def put(request: HttpRequest, act: Act) -> None:
    request.session[PENDING] = act.as_json()


def waiting(request: HttpRequest, *, purpose: str, method: str) -> Act | None:
    """The act that waits, for showing it."""
    found = request.session.get(PENDING)
    act = Act(**found) if found else None
    return (
        act if act and (act.purpose, act.method, act.person) == (purpose, method, request.user.pk) else None
    )


def take(request: HttpRequest, nonce: str | None = None) -> Act | None:
    """The act that waits, used up: of two requests at once only one gets it. With `nonce` that one and no other."""
    key = request.session.session_key
    with transaction.atomic():
        # the row, not what the session held when this request began
        if Session.objects.select_for_update().filter(session_key=key).first() is None:
            return None
        stored = type(request.session)(key)
        found = stored.get(PENDING)
        if found is None or nonce not in (None, found["nonce"]):
            return None
        del stored[PENDING]
        stored.save()
    request.session.pop(PENDING, None)
    return Act(**found)


# by passkey


def passkey_page(request: HttpRequest, act: Act, template: str, context: dict[str, Any]) -> HttpResponse:
    """The page that asks for the passkey: its challenge is bound to the act and its words."""
    options, _ = server_for(_host(request)).authenticate_begin(
        keys_of(request.user),
        user_verification=UserVerificationRequirement.REQUIRED,
        challenge=act.challenge,
    )
    return render(request, template, {**context, "act": act, "options": dict(options)})


def passkey_proof(request: HttpRequest) -> Passkey:
    """From the posted answer (`credential`, JSON). It uses the act up, whatever comes of it."""
    try:
        answer = json.loads(request.POST.get("credential", ""))
    except (ValueError, RecursionError):
        answer = None
    return Passkey(take(request), answer if isinstance(answer, dict) else {}, _host(request))


def _host(request: HttpRequest) -> str:
    return request.get_host().partition(":")[0]


# by single sign-on


class End(NamedTuple):
    """How a purpose goes on after the way to the provider.

    `finish` gets the proof, which may be none, and the candidate; `give_up` the act that was cancelled there.
    """

    finish: Callable[[HttpRequest, SingleSignOn | NoProof, int | None], HttpResponse]
    give_up: Callable[[HttpRequest, Act, str], HttpResponse]


ENDS: dict[str, End] = {}


def ask_provider(request: HttpRequest, act: Act) -> HttpResponse:
    """Leads to the provider, which is told to ask anew who it is. What it answers comes to `come_back`."""
    put(request, act)
    data = {"purpose": act.purpose, "nonce": act.nonce, "candidate": act.candidate}
    anew = {"prompt": "login", "max_age": "0", "nonce": act.nonce}
    return leave(request, AuthProcess.REDIRECT, data=data, auth_params=anew)


def leave(request: HttpRequest, process: str, **how: Any) -> HttpResponse:
    """A page that goes on to the provider: a form's answer must not lead away by itself (CSP form-action)."""
    provider = get_adapter().get_provider(request, PROVIDER)
    try:
        away = provider.redirect(request, process, **how)
    except (RequestException, ValueError, KeyError) as error:
        raise ProviderAway(f"{provider.name} does not answer. Try again in a moment.") from error
    return render(request, "socialaccount/leaving.html", {"to": away["Location"], "provider": provider.name})


def come_back(request: HttpRequest, login: SocialLogin) -> HttpResponse:
    """What the provider answered to an act. Whoever it says was there: nobody is signed in by it."""
    data, account = login.state["data"], login.account
    if not request.user.is_authenticated:
        return redirect("account_login")
    proof = SingleSignOn(
        take(request, data["nonce"]), account.provider, account.uid, account.extra_data.get("id_token") or {}
    )
    return ENDS[data["purpose"]].finish(request, proof, data["candidate"])


def broke_off(request: HttpRequest, state: dict[str, Any] | None, cancelled: bool) -> HttpResponse | None:
    """The way to the provider ended in an error. None where no act of this session was on it."""
    sent = (state or {}).get("data") or {}
    if state is not None and not sent.get("nonce"):
        return None  # a sign-in
    act = take(request, sent.get("nonce"))
    if act is None or act.method != Method.OIDC or not request.user.is_authenticated:
        return None
    end = ENDS[act.purpose]
    if cancelled:
        return end.give_up(request, act, CANCELLED)
    said = f"{sso_name()} did not confirm that it was you. Begin again."
    return end.finish(request, NoProof(act, said), act.candidate)
