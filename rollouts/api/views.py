"""The base of every view: who may, which query, which body, one effect a key."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, TypeVar

from django.core.files.uploadedfile import UploadedFile
from django.db.models import Model, QuerySet
from django.http import QueryDict
from rest_framework.parsers import BaseParser
from rest_framework.permissions import BasePermission, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer
from rest_framework.viewsets import ViewSet

from rollouts import idempotency
from rollouts.api.errors import PreconditionFailed
from rollouts.api.fields import NoInput, Query, StrictSerializer
from rollouts.api.pagination import page
from rollouts.errors import NotFound
from rollouts.hashing import CHUNK_BYTES, sha256_bytes, sha256_json
from rollouts.idempotency import Answer
from rollouts.permissions import require_can_read

# what path parameters may look like: longer numbers are no row's, so they are no address either
ID, NAME, DIGEST, KEY = "[0-9]{1,18}", "[a-zA-Z0-9_-]{1,100}", "[0-9a-f]{64}", "[a-zA-Z0-9]{1,25}"
KEPT_HEADERS = ("Location", "ETag")
Handler = Callable[..., Response]
Row = TypeVar("Row", bound=Model)


class MayDo(BasePermission):
    """Asks the permission function of the verb; it raises `NotAllowed` with the reason."""

    def has_permission(self, request: Request, view: Any) -> bool:
        view.may.get(view.action, require_can_read)(request.user)
        return True


class ApiViewSet(ViewSet):
    """`may` maps a verb to its permission function (default: reading), `queries` to its query parameters."""

    permission_classes = [IsAuthenticated, MayDo]
    may: ClassVar[dict[str, Callable[[Any], None]]] = {}
    queries: ClassVar[dict[str, type[Query]]] = {}
    # media types of bodies, where a verb takes other than JSON
    parsers: ClassVar[dict[str, list[type[BaseParser]]]] = {}
    query: dict[str, Any]

    def get_parsers(self) -> list[BaseParser]:
        # asked before DRF sets `action`
        action = getattr(self, "action", None) or self.action_map.get((self.request.method or "").lower(), "")
        return [parser() for parser in self.parsers.get(action, self.parser_classes)]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if self.action not in (None, "metadata"):
            self.query = read(self.queries.get(self.action, Query), request.query_params)

    def paged(
        self, rows: QuerySet[Any], serializer: type[BaseSerializer[Any]], *, ascending: bool = False
    ) -> Response:
        found, following = page(rows, self.query, self.request, ascending=ascending)
        return Response(
            {"next": following, "results": serializer(found, many=True, context=self.context()).data}
        )

    def context(self) -> dict[str, Any]:
        return {"request": self.request}


def read(serializer: type[StrictSerializer], data: Any) -> dict[str, Any]:
    """The validated values. Raises what the exception handler turns into a 400 naming the field."""
    filled = serializer(data=data)
    filled.is_valid(raise_exception=True)
    values: dict[str, Any] = filled.validated_data
    return values


def row_or_404(rows: QuerySet[Row], **lookup: Any) -> Row:
    row = rows.filter(**lookup).first()
    if row is None:
        raise NotFound(f"There is no such {rows.model._meta.verbose_name}.")
    return row


def gives(
    output: Any, *, status: int = 200, problems: tuple[int, ...] = (), cached: bool = False
) -> Callable[[Handler], Handler]:
    """Declares what a verb answers, its problems beside those that all have, and whether a 304 may come."""

    def decorate(handler: Handler) -> Handler:
        handler.gives = {status: output, **({304: None} if cached else {})}  # type: ignore[attr-defined]
        handler.problems = problems  # type: ignore[attr-defined]
        return handler

    return decorate


def effect(
    takes: Any, *, output: Any, status: int = 200, problems: tuple[int, ...] = ()
) -> Callable[[Handler], Handler]:
    """A verb with an effect: its body is read strictly and given as `data`; an `Idempotency-Key` is honoured.

    `takes` is a serializer, None for no input, or a dict of media types where the verb reads `data` itself.
    """
    reader = takes if isinstance(takes, type) else NoInput if takes is None else None

    def decorate(handler: Handler) -> Handler:
        @wraps(handler)
        def wrapped(self: ApiViewSet, request: Request, *args: Any, **kwargs: Any) -> Response:
            body = request.data
            key = request.headers.get("Idempotency-Key")

            def run() -> Response:
                return handler(self, request, *args, data=read(reader, body) if reader else body, **kwargs)

            if key is None:
                return run()
            answer, replayed = idempotency.once(
                user=request.user,
                key=key,
                request_digest=_digest(request, body),
                effect=lambda: _answer(run()),
            )
            extra = {"Idempotency-Replayed": "true"} if replayed else {}
            return Response(answer.body, answer.status, headers={**answer.headers, **extra})

        wrapped.takes, wrapped.takes_idempotency_key = takes, True  # type: ignore[attr-defined]
        return gives(output, status=status, problems=problems)(wrapped)

    return decorate


def _answer(response: Response) -> Answer:
    headers = {name: response[name] for name in KEPT_HEADERS if name in response}
    return Answer(response.status_code, headers, response.data)


def _digest(request: Request, body: Any) -> str:
    """What makes two requests the same: method, address, and the content of the body, files included."""
    if isinstance(body, bytes):
        content: Any = sha256_bytes(body)
    elif isinstance(body, QueryDict):
        content = [[name, [_part(value) for value in values]] for name, values in body.lists()]
    else:
        content = body
    return sha256_json([request.method, request.get_full_path(), content])


def _part(value: Any) -> Any:
    if not isinstance(value, UploadedFile):
        return value
    hasher = hashlib.sha256()
    for chunk in value.chunks(CHUNK_BYTES):
        hasher.update(chunk)
    value.seek(0)
    return {"file": hasher.hexdigest()}


def etag_of(*parts: object) -> str:
    return f'"{"-".join(str(part) for part in parts)}"'


def require_match(request: Request, etag: str) -> None:
    """Raises `PreconditionFailed` where an `If-Match` header names another state than the present one."""
    wanted = request.headers.get("If-Match")
    if wanted is None or wanted.strip() == "*":
        return
    if etag not in {part.strip() for part in wanted.split(",")}:
        raise PreconditionFailed(
            "It changed since you read it. Read it again before you decide.", current=etag
        )


def not_modified(request: Request, etag: str) -> bool:
    wanted = request.headers.get("If-None-Match", "")
    return etag in {part.strip().removeprefix("W/") for part in wanted.split(",")}
