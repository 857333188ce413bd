"""What every page does the same way: who may see it, how errors look, raw text downloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.urls import Resolver404, resolve
from django.views.decorators.http import require_POST, require_safe

from rollouts import permissions
from rollouts.errors import AssayError, NotFound

View = Callable[..., HttpResponse]
# pages of one thing, by the name of their address, and what each is called where something about it was refused
THINGS = {
    "promotion:candidate": "the candidate",
    "promotion:dispute": "the dispute",
    "promotion:glass": "what was promoted without signatures",
    "promotion:policy": "the policy",
    "promotion:track": "the track",
    "promotion:waiver": "the waiver",
    "rollouts:dataset": "the dataset",
    "rollouts:rollout": "the rollout",
    "rollouts:run": "the run",
    "rollouts:suite": "the suite",
}


def reads(view: View) -> View:
    """A page that shows something: signed in, with any role. It never writes."""
    return require_safe(_guarded(view, permissions.require_can_read))


def acts(require: Callable[[Any], None]) -> Callable[[View], View]:
    """A POST that changes something, by those whom `require` lets."""
    return lambda view: require_POST(_guarded(view, require))


def _guarded(view: View, require: Callable[[Any], None]) -> View:
    @login_required
    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            require(request.user)
            return view(request, *args, **kwargs)
        except AssayError as error:
            return error_page(request, error)

    return guarded


def error_page(request: HttpRequest, error: AssayError) -> HttpResponse:
    if isinstance(error, NotFound):
        raise Http404(error.message)
    no_role = request.user.is_authenticated and not permissions.groups_of(request.user)
    context = {"error": error, "no_role": no_role, "about": thing_about(request.path)}
    context["asked_wrongly"] = request.method == "GET" and error.status == 400 and bool(request.GET)
    return render(request, "error.html", context, status=error.status)


def thing_about(path: str) -> tuple[str, str] | None:
    """The page of the thing under which an address stands, and what it is called: of `/runs/7/cancel/` that of the run.

    Read from the address alone, so it tells nothing of what a person may not see.
    """
    parts = path.strip("/").split("/")
    for length in range(len(parts) - 1, 1, -1):
        address = f"/{'/'.join(parts[:length])}/"
        try:
            name = resolve(address).view_name
        except Resolver404:
            continue
        if name in THINGS:
            return address, THINGS[name]
    return None


def raw_text(data: bytes, filename: str) -> HttpResponse:
    """Foreign bytes as a download that no browser renders."""
    response = HttpResponse(data, content_type="text/plain; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{filename}"'
    response["X-Content-Type-Options"] = "nosniff"
    return response


def raw_pieces(pieces: Iterator[bytes], size_bytes: int, filename: str) -> StreamingHttpResponse:
    """Foreign bytes as `raw_text` gives them, without holding them."""
    response = StreamingHttpResponse(pieces, content_type="text/plain; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{filename}"'
    response["Content-Length"] = str(size_bytes)
    response["X-Content-Type-Options"] = "nosniff"
    return response
