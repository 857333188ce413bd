"""Triggers that refuse UPDATE, DELETE and TRUNCATE on append-only tables, on PostgreSQL and SQLite.

Of the people's table they refuse a change of the name and a DELETE: evidence and history name people by it, and duties
are kept apart by it.

SQLite drops triggers when a table is altered, so they are installed again after every migrate; `missing` is
asked at start (promotion.checks). `lifted` is for the test suite's flush alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.apps import apps
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

APPEND_ONLY = (
    "rollouts.AuditEvent",
    "rollouts.Amendment",
    "rollouts.AmendedScore",
    "promotion.Evidence",
    "promotion.GateResult",
    "promotion.RegistryEntry",
    "promotion.AliasMove",
    "promotion.Comment",
    "promotion.RiskSummary",
)


PEOPLE = "auth_user"


def _tables(connection: BaseDatabaseWrapper) -> list[str]:
    present = set(connection.introspection.table_names())
    names = [
        apps.get_model(label)._meta.db_table
        for label in APPEND_ONLY
        if apps.is_installed(label.split(".")[0])
    ]
    return [name for name in (*names, PEOPLE) if name in present]


def _trigger_names(table: str, vendor: str) -> list[str]:
    verbs = ["update", "delete"] + (["truncate"] if vendor == "postgresql" else [])
    return [f"{table}_no_{verb}" for verb in verbs]


def _when(table: str, verb: str, vendor: str) -> str:
    """What of the verb is refused, between the table's name and the trigger's body."""
    if (table, verb) != (PEOPLE, "UPDATE"):
        return ""
    differs = "IS DISTINCT FROM" if vendor == "postgresql" else "IS NOT"
    return f"WHEN (OLD.username {differs} NEW.username) "


def _existing(connection: BaseDatabaseWrapper) -> set[str]:
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        else:
            cursor.execute("SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgenabled <> 'D'")
        return {row[0] for row in cursor.fetchall()}


def missing(connection: BaseDatabaseWrapper) -> list[str]:
    """Names of the triggers that should exist and do not."""
    existing = _existing(connection)
    wanted = [name for table in _tables(connection) for name in _trigger_names(table, connection.vendor)]
    return [name for name in wanted if name not in existing]


def install(connection: BaseDatabaseWrapper) -> None:
    tables = _tables(connection)
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "CREATE OR REPLACE FUNCTION assay_append_only() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'append-only table %', TG_TABLE_NAME; END $$"
            )
        for table in tables:
            _drop(cursor, table, connection.vendor)
            for name in _trigger_names(table, connection.vendor):
                verb = name.rsplit("_", 1)[1].upper()
                if connection.vendor == "sqlite":
                    cursor.execute(
                        f'CREATE TRIGGER "{name}" BEFORE {verb} ON "{table}" {_when(table, verb, connection.vendor)}'
                        f"BEGIN SELECT RAISE(ABORT, 'append-only table {table}'); END"
                    )
                else:
                    each = "STATEMENT" if verb == "TRUNCATE" else "ROW"
                    cursor.execute(
                        f'CREATE TRIGGER "{name}" BEFORE {verb} ON "{table}" '
                        f"FOR EACH {each} {_when(table, verb, connection.vendor)}EXECUTE FUNCTION assay_append_only()"
                    )


def _drop(cursor: Any, table: str, vendor: str) -> None:
    for name in _trigger_names(table, vendor):
        on = f' ON "{table}"' if vendor == "postgresql" else ""
        cursor.execute(f'DROP TRIGGER IF EXISTS "{name}"{on}')


@contextmanager
def lifted(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Without the triggers for the length of the block. Only the test suite may use it."""
    with connection.cursor() as cursor:
        for table in _tables(connection):
            _drop(cursor, table, connection.vendor)
    try:
        yield
    finally:
        install(connection)


def install_after_migrate(*, using: str, **_: Any) -> None:
    install(connections[using])
