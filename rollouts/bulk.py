"""Many rows in one statement. The ORM's bulk_create and bulk_update prepare every field of every row and build a
CASE per value, which costs more than the rest of a rollout together (tests/benchmarks/engine.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.db import connection
from django.db.models import Field, Model

ROWS_PER_STATEMENT = 50  # SQLite takes 250,000 parameters, PostgreSQL 65,535


def insert_many(model: type[Model], fields: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[int]:
    """Inserts rows and returns their primary keys in the same order. Fields left out must be nullable."""
    columns = _columns(model, fields)
    head = f"INSERT INTO {_table(model)} ({_names(columns)}) VALUES "
    one = "(" + ", ".join(["%s"] * len(columns)) + ")"
    keys: list[int] = []
    with connection.cursor() as cursor:
        for start in range(0, len(rows), ROWS_PER_STATEMENT):
            part = rows[start : start + ROWS_PER_STATEMENT]
            sql = f"{head}{', '.join([one] * len(part))} RETURNING {_quote(model._meta.pk.column)}"
            cursor.execute(sql, [value for row in part for value in _prepared(columns, row)])
            keys += [key for (key,) in cursor.fetchall()]
    return keys


def insert_new(model: type[Model], fields: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Inserts the rows whose key is not there yet."""
    columns = _columns(model, fields)
    values = ", ".join(["%s"] * len(columns))
    sql = f"INSERT INTO {_table(model)} ({_names(columns)}) VALUES ({values}) ON CONFLICT DO NOTHING"
    _execute_many(sql, [_prepared(columns, row) for row in rows])


def update_many(model: type[Model], fields: Sequence[str], rows: Iterable[tuple[int, Sequence[Any]]]) -> None:
    """Sets `fields` of each (primary key, values) row."""
    columns = _columns(model, fields)
    assignments = ", ".join(f"{_quote(column.column)} = %s" for column in columns)
    sql = f"UPDATE {_table(model)} SET {assignments} WHERE {_quote(model._meta.pk.column)} = %s"
    _execute_many(sql, [(*_prepared(columns, values), key) for key, values in rows])


def _execute_many(sql: str, rows: list[tuple[Any, ...]]) -> None:
    if rows:
        with connection.cursor() as cursor:
            cursor.executemany(sql, rows)


def _prepared(columns: Sequence[Field[Any, Any]], values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        value
        if value is None or type(value) in (int, str, float)
        else column.get_db_prep_save(value, connection)
        for column, value in zip(columns, values, strict=True)
    )


def _columns(model: type[Model], fields: Sequence[str]) -> list[Field[Any, Any]]:
    return [model._meta.get_field(name) for name in fields]


def _quote(name: str) -> str:
    return connection.ops.quote_name(name)


def _table(model: type[Model]) -> str:
    return _quote(model._meta.db_table)


def _names(columns: Sequence[Field[Any, Any]]) -> str:
    return ", ".join(_quote(column.column) for column in columns)
