"""Every error as problem+json (RFC 9457), made in one place.

Members: `type`, `title`, `status`, `detail`, and ours: `code` (stable, safe to match on), `field` (dotted
path of the value that is wrong, or null), `blocked_by` (each unmet condition), `facts` (the values in it).
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import OperationalError
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import set_rollback

from rollouts.api.errors import Busy, TooLarge
from rollouts.errors import AssayError, InvalidInput, NotAllowed, NotFound

log = logging.getLogger(__name__)
CONTENT_TYPE = "application/problem+json"


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    field: str | None = None,
    blocked_by: list[str] | None = None,
    facts: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "type": f"urn:assay:problem:{code}",
        "title": code.replace("_", " ").capitalize(),
        "status": status,
        "detail": detail,
        "code": code,
        "field": field,
        "blocked_by": blocked_by or [],
        "facts": facts or {},
    }


def problem_for_status(status: int) -> dict[str, Any]:
    """For an error that Django itself answered, outside of any view of ours."""
    phrase = HTTPStatus(status).phrase
    return problem(status, phrase.lower().replace(" ", "_"), f"{phrase}.")


def exception_handler(error: Exception, context: Any) -> Response:
    """The one mapping from errors to HTTP."""
    set_rollback()
    error = _ours(error)
    if isinstance(error, AssayError):
        answer = _from_assay(error)
    elif isinstance(error, exceptions.APIException):
        answer = _from_drf(error)
    else:
        log.error("unexpected error in the API", exc_info=error, extra={"action": "api_error"})
        detail = "Something went wrong on our side. The log holds the details."
        answer = problem(500, "internal_error", detail)
    return Response(answer, answer["status"], headers=_headers(error), content_type=CONTENT_TYPE)


def _ours(error: Exception) -> Exception:
    """Django's own errors in our words."""
    if isinstance(error, Http404):
        return NotFound("There is nothing at this address.")
    if isinstance(error, PermissionDenied):
        return NotAllowed("You may not do this.")
    if isinstance(error, RequestDataTooBig):
        return TooLarge("The body is too large.")
    if isinstance(error, SuspiciousOperation):
        return InvalidInput("request", f"is refused: {str(error)[:200]}")
    if isinstance(error, OperationalError) and "locked" in str(error):
        return Busy("The database is busy. Nothing was changed; send the same request again.")
    return error


def _from_assay(error: AssayError) -> dict[str, Any]:
    return problem(
        error.status,
        error.code,
        error.message,
        field=getattr(error, "field", None),
        blocked_by=getattr(error, "blocked_by", None),
        facts=error.facts,
    )


def _from_drf(error: exceptions.APIException) -> dict[str, Any]:
    if isinstance(error, exceptions.ValidationError):
        found = _flat(error.detail, "")
        field, message = found[0]
        facts = (
            {"errors": [{"field": name, "message": words} for name, words in found]} if len(found) > 1 else {}
        )
        return problem(400, InvalidInput.code, f"{field}: {message}", field=field, facts=facts)
    if isinstance(error, exceptions.PermissionDenied):
        return problem(403, NotAllowed.code, str(error.detail))
    if isinstance(error, exceptions.Throttled):
        wait = {"wait_s": round(error.wait)} if error.wait else {}
        return problem(429, "throttled", str(error.detail), facts=wait)
    if isinstance(error, exceptions.ParseError):
        return problem(400, InvalidInput.code, f"body: {error.detail}", field="body")
    codes = error.get_codes()
    return problem(error.status_code, codes if isinstance(codes, str) else "error", str(error.detail))


def _flat(detail: Any, path: str) -> list[tuple[str, str]]:
    if isinstance(detail, dict):
        found = []
        for name, part in detail.items():
            inner = path if name == "non_field_errors" else f"{path}.{name}" if path else str(name)
            found += _flat(part, inner)
        return found
    if isinstance(detail, list):
        return [pair for part in detail for pair in _flat(part, path)]
    return [(path or "body", str(detail))]


def _headers(error: Exception) -> dict[str, str]:
    headers = {}
    if getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = error.auth_header  # type: ignore[attr-defined]
    elif getattr(error, "status", None) == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Token"
    if getattr(error, "wait", None):
        headers["Retry-After"] = str(max(1, round(error.wait)))  # type: ignore[attr-defined]
    if isinstance(error, Busy):
        headers["Retry-After"] = "1"
    return headers
