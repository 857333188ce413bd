"""Lists: sorted, filtered and paged by what stands in the address."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

from django.core.exceptions import ValidationError
from django.db.models import F, Field, Q, QuerySet
from django.db.models.expressions import OrderBy
from django.forms import Form
from django.http import HttpRequest

from rollouts.errors import InvalidInput

PAGE_SIZE = 50
MAX_NUMBER = 2**63 - 1
MAX_CURSOR = 400
KEYS_AT_ONCE = 2_000
# what stands in a list's address and is no filter
OWN = ("sort", "cursor")
# name in the address -> path of the column, with a minus where it is read downwards first; the first is the list's order
Sorts = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows of a list, and the cursor after which the next ones come; None at the end.

    `sort` is as the address has it: a name of `sorts`, with a minus where it goes downwards.
    """

    rows: Sequence[Any]
    next: str | None
    first: bool
    sort: str
    sorts: Sorts
    narrowed: bool  # by a filter
    status: int = 200  # 400 where a value of the filter is wrong

    @property
    def column(self) -> str:
        return self.sort.removeprefix("-")

    def link(self, column: str) -> str:
        """What `sort` becomes where the head of a column is followed: its first order, then the other way round."""
        if column != self.column:
            return _address_of(column, self.sorts)
        return column if self.sort.startswith("-") else f"-{column}"


def filtered(
    form: Form, rows: Callable[..., QuerySet[Any]], request: HttpRequest, *, sorts: Sorts, **how: Any
) -> Page:
    """The page of what `rows` gives for the filter's values that were given; `how` is as `page_of` takes it.

    With a wrong value nothing is listed: rows that it was to leave out would read as if they had passed it. The form
    says at the field what is wrong.
    """
    if form.is_valid():
        return page_of(rows(**given(form)), request, sorts=sorts, **how)
    return Page((), None, True, _sort_of(request, sorts), sorts, narrowed=True, status=400)


def given(form: Form) -> dict[str, Any]:
    """The values of a filter that were given."""
    return {key: value for key, value in form.cleaned_data.items() if value not in (None, "", False)}


def page_of(
    rows: QuerySet[Any],
    request: HttpRequest,
    *,
    sorts: Sorts,
    size: int = PAGE_SIZE,
    keys_first: bool = False,
    among: AbstractSet[int] | None = None,
) -> Page:
    """The page after the address's cursor, in its order. Rows without a value come last, whichever way it goes.

    A keyset: rows that come in between are neither skipped nor doubled. The primary key decides between equals.
    With `keys_first` only keys are sorted, and the rest is read for one page: for many rows with long texts. With
    `among` only rows with these keys are listed; they may be more than a query takes as values.
    Raises `InvalidInput` for an order that the list does not have, and for a cursor that it did not give.
    """
    sort = _sort_of(request, sorts)
    column = _column_of(rows, sorts[sort.removeprefix("-")].removeprefix("-"))
    down, cursor = sort.startswith("-"), request.GET.get("cursor", "")
    order = _order(column, down=down)
    left = rows.filter(_after(*_position(cursor, column), column=column, down=down)) if cursor else rows
    if among is not None:
        keys = left.order_by(*order).values_list("pk", flat=True).iterator(KEYS_AT_ONCE)
        left = rows.filter(pk__in=list(islice((key for key in keys if key in among), size + 1)))
    elif keys_first:
        left = rows.filter(pk__in=left.order_by(*order).values("pk")[: size + 1])
    found = list(left.order_by(*order)[: size + 1])
    return Page(
        rows=found[:size],
        next=_cursor(found[size - 1], column.path) if len(found) > size else None,
        first=not cursor,
        sort=sort,
        sorts=sorts,
        narrowed=any(value for name, value in request.GET.items() if name not in OWN),
    )


def _address_of(column: str, sorts: Sorts) -> str:
    return f"-{column}" if sorts[column].startswith("-") else column


def _sort_of(request: HttpRequest, sorts: Sorts) -> str:
    wanted = request.GET.get("sort", "")
    if not wanted:
        return _address_of(next(iter(sorts)), sorts)
    if wanted.removeprefix("-") not in sorts:
        raise InvalidInput(
            "sort", f"must be one of {', '.join(sorts)}, with a minus before it for the other direction."
        )
    return wanted


class _Column(NamedTuple):
    path: str
    field: Field[Any, Any]
    nullable: bool


def _column_of(rows: QuerySet[Any], path: str) -> _Column:
    if path in rows.query.annotations:
        return _Column(path, rows.query.annotations[path].output_field, True)
    meta, field, nullable = rows.model._meta, rows.model._meta.pk, False
    for part in path.split("__") if path != "pk" else ():
        field = meta.get_field(part)
        nullable = nullable or field.null
        meta = field.related_model._meta if field.is_relation else meta
    return _Column(path, field, nullable)


def _order(column: _Column, *, down: bool) -> list[OrderBy]:
    # said only where it is needed: an index gives the rows downwards with nulls first, so it would not be used
    last = {"nulls_last": True} if column.nullable else {}
    columns = [(column.path, last)] if column.path == "pk" else [(column.path, last), ("pk", {})]
    return [F(path).desc(**how) if down else F(path).asc(**how) for path, how in columns]


def _cursor(row: Any, path: str) -> str:
    """`<primary key>.<value>`; the key alone where the value is null, or is the key."""
    value = row if path != "pk" else None
    for part in path.split("__"):
        value = getattr(value, part, None)
    if value is None:
        return str(row.pk)
    return f"{row.pk}.{value.isoformat() if isinstance(value, datetime) else value}"


def _position(cursor: str, column: _Column) -> tuple[int, Any]:
    """The key and the value (None: null) of a cursor."""
    wrong = InvalidInput("cursor", "is not one that a page of this list gave. Begin with the first page.")
    key, dot, text = cursor.partition(".")
    digits = key.isascii() and key.isdigit() and len(key) < 20
    if (
        not digits
        or int(key) > MAX_NUMBER
        or len(cursor) > MAX_CURSOR
        or "\x00" in text
        or (dot and column.path == "pk")
    ):
        raise wrong
    if not dot:
        return int(key), None
    try:
        value = column.field.to_python(text)
        if isinstance(value, datetime):
            value = value.astimezone(UTC) if value.tzinfo else None
    except (ValidationError, ValueError, OverflowError) as error:
        raise wrong from error
    if value is None or (isinstance(value, int) and abs(value) > MAX_NUMBER):
        raise wrong
    return int(key), value


def _after(key: int, value: Any, *, column: _Column, down: bool) -> Q:
    path, beyond = column.path, "lt" if down else "gt"
    later = Q(**{f"pk__{beyond}": key})
    if path == "pk":
        return later
    empty = Q(**{f"{path}__isnull": True})
    if value is None:
        return empty & later
    after = Q(**{f"{path}__{beyond}": value}) | Q(**{path: value}) & later
    return after | empty if column.nullable else after
