"""Whether this process can serve: asked by load balancers, so it needs no sign-in and says no more than that."""

from __future__ import annotations

from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from rollouts import append_only


@require_safe
@never_cache
def healthz(request: HttpRequest) -> JsonResponse:
    try:
        missing = append_only.missing(connection)
    except DatabaseError:
        return JsonResponse({"status": "unavailable", "reason": "the database does not answer"}, status=503)
    if missing:
        return JsonResponse(
            {"status": "unavailable", "reason": "append-only triggers are missing"}, status=503
        )
    return JsonResponse({"status": "ok"})
