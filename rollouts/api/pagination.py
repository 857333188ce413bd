"""Pages by primary key: rows that come in between are neither skipped nor doubled."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from django.db.models import Model, QuerySet
from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers
from rest_framework.request import Request

from rollouts.api.fields import Query, QueryId, Text
from rollouts.errors import InvalidInput

PAGE_SIZE, MAX_PAGE_SIZE = 50, 200


class PageQuery(Query):
    cursor = Text(required=False, help_text="From `next` of the page before.")
    page_size = QueryId(most=MAX_PAGE_SIZE, default=PAGE_SIZE, help_text="Rows a page.")


def page(
    rows: QuerySet[Any], query: dict[str, Any], request: Request, *, ascending: bool = False
) -> tuple[list[Model], str | None]:
    """One page of rows by primary key, and the address of the next one."""
    size = query["page_size"]
    if "cursor" in query:
        position = _position(query["cursor"])
        rows = rows.filter(pk__gt=position) if ascending else rows.filter(pk__lt=position)
    found = list(rows.order_by("pk" if ascending else "-pk")[: size + 1])
    if len(found) <= size:
        return found, None
    found.pop()
    parameters = request.query_params.copy()
    parameters["cursor"] = _cursor(found[-1].pk)
    return found, request.build_absolute_uri(f"{request.path}?{parameters.urlencode()}")


def _cursor(position: int) -> str:
    return base64.urlsafe_b64encode(b"k%d" % position).decode().rstrip("=")


def _position(cursor: str) -> int:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
    except (binascii.Error, ValueError):
        text = ""
    if not re.fullmatch(r"k[0-9]{1,18}", text):
        raise InvalidInput("cursor", "is not a cursor of this API. Take it from `next` of the page before.")
    return int(text[1:])


_pages: dict[type, Any] = {}


def page_of(serializer: type[serializers.BaseSerializer[Any]]) -> Any:
    """The serializer of a page of these, for the OpenAPI document."""
    if serializer not in _pages:
        name = f"{serializer.__name__.removesuffix('Output')}Page"
        fields = {
            "next": serializers.URLField(allow_null=True, help_text="The address of the next page, or null."),
            "results": serializer(many=True),
        }
        made = type(name, (serializers.Serializer,), fields)
        _pages[serializer] = extend_schema_serializer(many=False, component_name=name)(made)
    return _pages[serializer]
