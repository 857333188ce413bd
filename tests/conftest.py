"""What every test shares: where real services are, and how the database is emptied after a test."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import TransactionTestCase

from rollouts import append_only

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
ROOT = Path(__file__).resolve().parents[1]


def _chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def _missing() -> dict[str, str]:
    """Marker -> why its tests cannot run here."""
    found: dict[str, str] = {}
    if not os.environ.get("DATABASE_URL", "").startswith("postgres"):
        found["postgres"] = "DATABASE_URL names no PostgreSQL"
    if not os.environ.get("REDIS_URL"):
        found["redis"] = "REDIS_URL is not set"
    if _chromium() is None:
        found["chromium"] = "no Chromium is installed"
    if importlib.util.find_spec("xllamacpp") is None:
        found["llama"] = "xllamacpp is not installed (pip install -e '.[test]')"
    elif base_gguf() is None:
        found["llama"] = "the base GGUF is not there (python manage.py fetch_model)"
    if not os.environ.get("ASSAY_ORACLE_PYTHON"):
        found["torch"] = "ASSAY_ORACLE_PYTHON names no Python with torch and llama.cpp's converter"
    return found


def base_gguf() -> Path | None:
    named = os.environ.get("ASSAY_TEST_BASE_GGUF")
    path = Path(named) if named else ROOT / "var" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    return path if path.is_file() else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot run here, with the reason; with ASSAY_REQUIRE a missing part is an error instead."""
    required = {part.strip() for part in os.environ.get("ASSAY_REQUIRE", "").split(",") if part.strip()}
    missing = _missing()
    lost = sorted(required & missing.keys())
    if lost:
        raise pytest.UsageError("; ".join(f"ASSAY_REQUIRE={name}: {missing[name]}" for name in lost))
    for item in items:
        for name, reason in missing.items():
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))


# What migrate fills; everything else is a test's own.
KEPT_TABLES = {"django_migrations", "django_content_type", "auth_permission"}


def _empty_every_table(self: TransactionTestCase) -> None:
    """Django's flush truncates and runs post_migrate again: 2 s a test on PostgreSQL, and this 0.1 s."""
    connection = connections["default"]
    with transaction.atomic(), append_only.lifted(connection), connection.cursor() as cursor:
        for table in set(connection.introspection.django_table_names(only_existing=True)) - KEPT_TABLES:
            cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")
        connection.check_constraints()


TransactionTestCase._fixture_teardown = _empty_every_table  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def django_db_modify_db_settings(tmp_path_factory: pytest.TempPathFactory) -> None:
    """SQLite in a file, as in use: several threads write, and in memory they would not wait."""
    default = connections.databases["default"]
    if default["ENGINE"] == "django.db.backends.sqlite3":
        default["TEST"]["NAME"] = str(tmp_path_factory.mktemp("database") / "test.sqlite3")


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, settings: Any) -> Iterator[None]:
    """Each test has its own artifact store and export folder, and passwords that are cheap to check."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.ARTIFACTS_DIR = tmp_path / "artifacts"
    settings.EXPORTS_DIR = tmp_path / "exports"
    settings.ARTIFACTS_DIR.mkdir()
    settings.EXPORTS_DIR.mkdir()
    yield


@pytest.fixture
def data() -> Path:
    if not DATA.is_dir():
        pytest.skip("../shared/data is not there")
    return DATA


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[Any, ...]]]:
    """Messages that would have gone to the broker: (task name, arguments)."""
    from celery.app.task import Task

    messages: list[tuple[str, tuple[Any, ...]]] = []
    monkeypatch.setattr(
        Task, "apply_async", lambda self, args=(), **_: messages.append((self.name, tuple(args)))
    )
    return messages
