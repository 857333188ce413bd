"""Tokens (django-rest-knox). A token acts for its person. Signing has no address here."""

from __future__ import annotations

from typing import Any

from knox.auth import TokenAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from rollouts import audit


class AuditedTokenAuthentication(TokenAuthentication):
    """Knox, with the token named in the audit history of what is done with it."""

    def authenticate(self, request: Request) -> tuple[Any, Any] | None:
        audit.acts_with_token(None)
        found: tuple[Any, Any] | None = super().authenticate(request)
        if found is not None:
            user, token = found
            audit.acts_with_token(audit.Token(user_id=user.pk, key=token.token_key))
        return found

    def authenticate_credentials(self, token: bytes) -> tuple[Any, Any]:
        if not token.isascii() or b"\x00" in token:
            raise AuthenticationFailed("Invalid token.")
        found: tuple[Any, Any] = super().authenticate_credentials(token)
        return found
