"""Two things that must hold for every address under /api/, whatever answers it."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, JsonResponse

from rollouts import audit
from rollouts.api.problems import CONTENT_TYPE, problem_for_status

PREFIX = "/api/"


class ApiMiddleware:
    """Errors that Django answers itself (unknown address, bad host) are problem+json too, and no request
    leaves the token it acted with to the next request of its thread."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        audit.acts_with_token(None)
        try:
            response = self.get_response(request)
        finally:
            audit.acts_with_token(None)
        if request.path_info.startswith(PREFIX) and response.status_code >= 400:
            return _as_problem(response)
        return response


def _as_problem(response: HttpResponse) -> HttpResponse:
    if response.get("Content-Type", "").startswith(CONTENT_TYPE):
        return response
    answer = JsonResponse(problem_for_status(response.status_code), status=response.status_code)
    answer["Content-Type"] = CONTENT_TYPE
    return answer
