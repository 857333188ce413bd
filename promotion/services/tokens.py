"""API tokens. A token acts for its person in everything but signing, which asks for the password."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest
from knox.models import AuthToken

from rollouts import audit
from rollouts.errors import AssayError, NotFound


class WrongCredentials(AssayError):
    code = "wrong_credentials"
    status = 401


def issue(*, username: str, password: str, request: HttpRequest) -> tuple[AuthToken, str]:
    """A new token of the person, and its text, which is nowhere kept. Raises `WrongCredentials`."""
    person = authenticate(request, username=username, password=password)
    if not isinstance(person, User):
        raise WrongCredentials("User name and password do not belong together.")
    with transaction.atomic():
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
