"""Tokens: taken with the password, listed without their secrets, ended by their person."""

from __future__ import annotations

import hashlib
from typing import Any

from rest_framework.permissions import AllowAny, BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle, SimpleRateThrottle

from promotion.api.inputs import TokenInput
from promotion.api.outputs import TokenMade, TokenOutput
from promotion.services import tokens
from rollouts.api.pagination import page_of
from rollouts.api.views import ApiViewSet, gives, read


class ByAddress(SimpleRateThrottle):
    scope = "sign_in_address"

    def get_cache_key(self, request: Request, view: Any) -> str:
        return f"sign-in-address-{self.get_ident(request)}"


class ByName(SimpleRateThrottle):
    """So that one person's password cannot be guessed from many addresses."""

    scope = "sign_in_name"

    def get_cache_key(self, request: Request, view: Any) -> str | None:
        name = request.data.get("username") if isinstance(request.data, dict) else None
        if not isinstance(name, str):
            return None
        return f"sign-in-name-{hashlib.sha256(name.lower().encode()).hexdigest()}"


def anyone(person: Any) -> None:
    """Own tokens need no role."""


class TokenViewSet(ApiViewSet):
    may = dict.fromkeys(("list", "destroy", "revoke"), anyone)

    def get_permissions(self) -> list[BasePermission]:
        return [AllowAny()] if self.action == "create" else super().get_permissions()

    def get_throttles(self) -> list[BaseThrottle]:
        return [ByAddress(), ByName()] if self.action == "create" else []

    @gives(TokenMade, status=201, problems=(401, 429))
    def create(self, request: Request) -> Response:
        """A token for a user name and a password. Takes no Idempotency-Key: secrets are not kept."""
        data = read(TokenInput, request.data)
        row, token = tokens.issue(**data, request=request._request)
        row.token, row.key = token, row.token_key
        return Response(TokenMade(row).data, 201)

    create.takes = TokenInput

    @gives(None, status=204)
    def destroy(self, request: Request) -> Response:
        """End the token that this request was made with."""
        tokens.revoke(key=request.auth.token_key, by=request.user)
        return Response(status=204)

    @gives(page_of(TokenOutput))
    def list(self, request: Request) -> Response:
        """Your tokens, newest first, without their secrets."""
        rows = TokenOutput(tokens.own(request.user), many=True, context={"request": request}).data
        return Response({"next": None, "results": rows})

    @gives(None, status=204)
    def revoke(self, request: Request, key: str) -> Response:
        """End one of your tokens."""
        tokens.revoke(key=key, by=request.user)
        return Response(status=204)
