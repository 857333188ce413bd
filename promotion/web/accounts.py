"""How people get in: an administrator makes accounts, nobody signs up; how django-allauth asks who they are."""

from __future__ import annotations

import time
from typing import Any

from allauth.account import app_settings
from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.authentication import get_authentication_records
from allauth.core import context
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialLogin
from allauth.socialaccount.providers.base.constants import AuthError, AuthProcess
from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.shortcuts import redirect, render
from django.urls import reverse

from promotion.services import sso
from promotion.web import proving

SSO = "socialaccount"  # django-allauth's name for a sign-in by the provider


class ClosedSignupAdapter(DefaultAccountAdapter):
    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def get_login_stages(self) -> list[str]:
        """A passkey proves an act. It is no second factor at the door, so that a lost one locks nobody out."""
        return [stage for stage in super().get_login_stages() if not stage.startswith("allauth.mfa.")]

    def get_reauthentication_methods(self, user: User) -> list[dict[str, Any]]:
        methods: list[dict[str, Any]] = super().get_reauthentication_methods(user)
        if user.is_authenticated and (name := proving.methods_of(user).sso):
            methods.append(
                {"id": "sso", "description": f"Use {name}", "url": reverse("promotion:sso-confirm")}
            )
        return methods

    def is_reauthentication_required(self, *, app: str, **more: Any) -> bool:
        return super().is_reauthentication_required(app=app, **more) and not _lately_by_sso()


def _lately_by_sso() -> bool:
    request = context.request
    return any(
        record["method"] == SSO
        and record.get("reauthenticated")
        and time.time() - record["at"] < app_settings.REAUTHENTICATION_TIMEOUT
        for record in get_authentication_records(request, request.user)
    )


class PasskeyAdapter(DefaultMFAAdapter):
    error_messages = {
        **DefaultMFAAdapter.error_messages,
        "incorrect_code": "The passkey's answer could not be used. Try again.",
    }

    def generate_authenticator_name(self, user: User, type: Authenticator.Type) -> str:
        return f"Passkey {Authenticator.objects.filter(user_id=user.pk, type=type).count() + 1}"


class SingleSignOnAdapter(DefaultSocialAccountAdapter):
    """What the provider's answers lead to. Only the server's own state says what one is for, never the address."""

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        if (sociallogin.state.get("data") or {}).get("purpose"):
            raise ImmediateHttpResponse(proving.come_back(request, sociallogin))
        claims = sociallogin.account.extra_data.get("id_token") or {}
        try:
            if (
                sociallogin.state.get("process") != AuthProcess.LOGIN
                or claims.get("sub") != sociallogin.account.uid
            ):
                raise sso.NotKnown("The provider's answer does not fit together. Sign in again.")
            if not sociallogin.is_existing:
                _bind(sociallogin, claims)
        except sso.NotKnown as error:
            page = render(request, "socialaccount/not_known.html", {"error": error}, status=error.status)
            raise ImmediateHttpResponse(page) from error

    def on_authentication_error(
        self,
        request: HttpRequest,
        provider: Any,
        error: str | None = None,
        exception: Exception | None = None,
        extra_context: dict[str, Any] | None = None,
    ) -> None:
        cancelled = error == AuthError.CANCELLED
        page = proving.broke_off(request, (extra_context or {}).get("state"), cancelled)
        if page is None:
            said = "You cancelled at" if cancelled else "You could not be signed in by"
            messages.error(request, f"{said} {provider.name}. Try again, or ask an administrator.")
            page = redirect("account_login")
        raise ImmediateHttpResponse(page)


def _bind(login: SocialLogin, claims: dict[str, Any]) -> None:
    """The first time: the account with the address that the provider verified."""
    told = {**claims, **(login.account.extra_data.get("userinfo") or {})}
    email = told.get("email") if told.get("email_verified") is True else ""
    bound = sso.bind(
        provider=login.account.provider,
        subject=login.account.uid,
        email=email if isinstance(email, str) else "",
    )
    login.account, login.user = bound, bound.user
