"""Many rows in one statement. The ORM's bulk_create and bulk_update prepare every field of every row and build a
CASE per value, which costs more than the rest of a rollout together (tests/benchmarks/engine.py).

PostgreSQL is given the rows as one JSON parameter: a quarter of the time, on both sides, of a statement per row. SQLite
prepares a statement once, and is fastest with a row of parameters each.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any

from django.db import connection
from django.db.models import BinaryField, DateTimeField, Field, JSONField, Model

ROWS_PER_STATEMENT = 50  # SQLite takes 250,000 parameters
ADAPTED = (DateTimeField, JSONField)
Row = Sequence[Any]


def insert_many(model: type[Model], fields: Sequence[str], rows: Sequence[Row]) -> list[int]:
    """Inserts rows and returns their primary keys in the same order. Fields left out must be nullable."""
    columns = _columns(model, fields)
    head = f"INSERT INTO {_table(model)} ({_names(columns)})"
    returning = f"RETURNING {_quote(model._meta.pk.column)}"
    if not rows:
        return []
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                f"{head} {_select(columns)} ORDER BY v.nth {returning}", [_document(columns, rows)]
            )
            return sorted(key for (key,) in cursor.fetchall())  # keys are given in the order of `nth`
        keys: list[int] = []
        one = "(" + ", ".join(["%s"] * len(columns)) + ")"
        for start in range(0, len(rows), ROWS_PER_STATEMENT):
            part = rows[start : start + ROWS_PER_STATEMENT]
            sql = f"{head} VALUES {', '.join([one] * len(part))} {returning}"
            cursor.execute(sql, [value for row in _prepared(columns, part) for value in row])
            keys += [key for (key,) in cursor.fetchall()]
        return keys


def insert_new(model: type[Model], fields: Sequence[str], rows: Sequence[Row]) -> None:
    """Inserts the rows whose key is not there yet, in the given order."""
    columns = _columns(model, fields)
    head = f"INSERT INTO {_table(model)} ({_names(columns)})"
    if not rows:
        return
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            sql = f"{head} {_select(columns)} ORDER BY v.nth ON CONFLICT DO NOTHING"
            cursor.execute(sql, [_document(columns, rows)])
            return
        values = ", ".join(["%s"] * len(columns))
        cursor.executemany(f"{head} VALUES ({values}) ON CONFLICT DO NOTHING", _prepared(columns, rows))


def update_many(model: type[Model], fields: Sequence[str], rows: Iterable[tuple[int, Row]]) -> None:
    """Sets `fields` of each (primary key, values) row."""
    rows = list(rows)
    columns, key = _columns(model, fields), model._meta.pk
    if not rows:
        return
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            assignments = ", ".join(f"{_quote(column.column)} = {_value(column)}" for column in columns)
            sql = (
                f"UPDATE {_table(model)} t SET {assignments} FROM {_recordset([key, *columns])} "
                f"WHERE t.{_quote(key.column)} = v.{_quote(key.column)}"
            )
            cursor.execute(sql, [_document([key, *columns], [(pk, *values) for pk, values in rows])])
            return
        assignments = ", ".join(f"{_quote(column.column)} = %s" for column in columns)
        cursor.executemany(
            f"UPDATE {_table(model)} SET {assignments} WHERE {_quote(key.column)} = %s",
            _prepared([*columns, key], [(*values, pk) for pk, values in rows]),
        )


def _select(columns: Sequence[Field[Any, Any]]) -> str:
    return f"SELECT {', '.join(map(_value, columns))} FROM {_recordset(columns)}"


def _recordset(columns: Sequence[Field[Any, Any]]) -> str:
    types = ", ".join(f"{_quote(column.column)} {_type(column)}" for column in columns)
    return f"json_to_recordset(%s::json) AS v(nth integer, {types})"


def _value(column: Field[Any, Any]) -> str:
    name = f"v.{_quote(column.column)}"
    return f"decode({name}, 'base64')" if isinstance(column, BinaryField) else name


def _type(column: Field[Any, Any]) -> str:
    """The type of the values, not of the column: no identity, and bytes come as base64."""
    return "text" if isinstance(column, BinaryField) else str(column.rel_db_type(connection))


def _document(columns: Sequence[Field[Any, Any]], rows: Iterable[Row]) -> str:
    names = [column.column for column in columns]
    document = [{"nth": nth, **dict(zip(names, row, strict=True))} for nth, row in enumerate(rows)]
    return json.dumps(document, default=_as_json)


def _as_json(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _prepared(columns: Sequence[Field[Any, Any]], rows: Iterable[Row]) -> list[list[Any]]:
    """Rows as SQLite takes them. Most values are of types that it takes as they are."""
    adapted = [column.get_db_prep_save if isinstance(column, ADAPTED) else None for column in columns]
    last: dict[int, tuple[Any, Any]] = {}  # the rows of one call mostly hold the same time
    prepared = []
    for row in rows:
        values = list(row)
        for at, adapt in enumerate(adapted):
            value = values[at]
            if value is None or adapt is None:
                continue
            before = last.get(at)
            if before is None or before[0] is not value:
                last[at] = before = (value, adapt(value, connection))
            values[at] = before[1]
        prepared.append(values)
    return prepared


def _columns(model: type[Model], fields: Sequence[str]) -> list[Field[Any, Any]]:
    return [model._meta.get_field(name) for name in fields]


def _quote(name: str) -> str:
    return connection.ops.quote_name(name)


def _table(model: type[Model]) -> str:
    return _quote(model._meta.db_table)


def _names(columns: Sequence[Field[Any, Any]]) -> str:
    return ", ".join(_quote(column.column) for column in columns)
