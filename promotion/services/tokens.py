"""API tokens. A token acts for its person in everything but signing, which asks for the password.

All of a person's tokens end with the password that they were taken with, and with the account.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest
from knox.models import AuthToken

from rollouts import audit
from rollouts.errors import AssayError, NotFound

WRONG = "User name and password do not belong together."


class WrongCredentials(AssayError):
    code = "wrong_credentials"
    status = 401


def issue(*, username: str, password: str, request: HttpRequest) -> tuple[AuthToken, str]:
    """A new token of the person, and its text, which is nowhere kept. Raises `WrongCredentials`."""
    person = authenticate(request, username=username, password=password)
    if not isinstance(person, User):
        raise WrongCredentials(WRONG)
    with transaction.atomic():
        # a password that was changed in this moment ended all tokens, so the old one gives none
        now = User.objects.select_for_update(no_key=True).get(pk=person.pk)
        if now.password != person.password and not now.check_password(password):
            raise WrongCredentials(WRONG)
        row, token = AuthToken.objects.create(person)
        audit.record("token.issued", subject=person, actor=person, key=row.token_key[: audit.TOKEN_KEY_SHOWN])
    return row, token


def own(person: User) -> Any:
    return AuthToken.objects.filter(user=person).order_by("-created")


def revoke(*, key: str, by: User) -> None:
    """End one of the person's own tokens."""
    with transaction.atomic():
        ended, _ = AuthToken.objects.filter(user=by, token_key=key).delete()
        if not ended:
            raise NotFound("You have no such token.")
        audit.record("token.revoked", subject=by, actor=by, key=key[: audit.TOKEN_KEY_SHOWN])


def end_with_account(sender: Any, instance: User, created: bool, **_: Any) -> None:
    """Heard after each save of an account: whoever stole a token loses it where its person takes a new password.

    A hash that Django only renews at sign-in is no change; it leaves `_password` empty.
    """
    if created or (instance.is_active and instance.has_usable_password() and instance._password is None):
        return
    with transaction.atomic():
        keys = sorted(AuthToken.objects.filter(user=instance).values_list("token_key", flat=True))
        if not keys:
            return
        AuthToken.objects.filter(user=instance).delete()
        shown = [key[: audit.TOKEN_KEY_SHOWN] for key in keys]
        reason = "password changed" if instance.is_active else "account deactivated"
        audit.record("token.ended", subject=instance, actor="system:accounts", keys=shown, reason=reason)
