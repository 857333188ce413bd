"""What every page does the same way: who may see it, how errors look, pages of a list, raw text downloads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

from django.contrib.auth.decorators import login_required
from django.db.models import QuerySet
from django.forms import Form
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST, require_safe

from rollouts import permissions
from rollouts.errors import AssayError, InvalidInput, NotFound

View = Callable[..., HttpResponse]
PAGE_SIZE = 50
MAX_CURSOR = 2**63 - 1


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
    context = {"error": error, "no_role": no_role, "back": request.headers.get("Referer") is not None}
    return render(request, "error.html", context, status=error.status)


class Page(NamedTuple):
    """Some rows of a list, and the cursor after which the next ones come; None at the end."""

    rows: Sequence[Any]
    next: int | None
    first: bool


def page_of(rows: QuerySet[Any], request: HttpRequest, *, by: str = "-pk", size: int = PAGE_SIZE) -> Page:
    """The page after the address's cursor. A keyset page costs the same wherever it lies in the list."""
    cursor, field = cursor_of(request), by.removeprefix("-")
    if cursor is not None:
        rows = rows.filter(**{f"{field}__{'lt' if by.startswith('-') else 'gt'}": cursor})
    found = list(rows.order_by(by)[: size + 1])
    after = getattr(found[size - 1], field) if len(found) > size else None
    return Page(found[:size], after, cursor is None)


def cursor_of(request: HttpRequest) -> int | None:
    value = request.GET.get("cursor", "")
    if not value:
        return None
    if not value.isascii() or not value.isdigit() or len(value) > 19 or int(value) > MAX_CURSOR:
        raise InvalidInput("cursor", "is not one that a page of this list gave. Begin with the first page.")
    return int(value)


def chosen(form: Form) -> dict[str, Any]:
    """The filter's values that were given. Raises `InvalidInput` with the first wrong field."""
    if not form.is_valid():
        field, errors = next(iter(form.errors.items()))
        raise InvalidInput(field, str(errors[0]))
    return {key: value for key, value in form.cleaned_data.items() if value not in (None, "")}


def raw_text(data: bytes, filename: str) -> HttpResponse:
    """Foreign bytes as a download that no browser renders."""
    response = HttpResponse(data, content_type="text/plain; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{filename}"'
    response["X-Content-Type-Options"] = "nosniff"
    return response
