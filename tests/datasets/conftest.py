"""Rows of datasets, and the usual scene."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache

from rollouts.models import Dataset
from rollouts.services import datasets
from tests import factories


@pytest.fixture(autouse=True)
def surroundings(settings: Any, tmp_path: Path, sent: Any) -> Iterator[None]:
    """No message reaches a broker, uploads and static files are the test's own."""
    settings.FILE_UPLOAD_TEMP_DIR = settings.STATIC_ROOT = str(tmp_path)
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    cache.clear()
    yield
    cache.clear()


def row(
    key: str | None, text: str, *, group: str | None = None, decision: str = "no_tool", **more: Any
) -> dict[str, Any]:
    """A row as trainers take it."""
    named = {
        name: value for name, value in (("example_id", key), ("lineage_group_id", group)) if value is not None
    }
    messages = [
        {"role": "system", "content": "Decide."},
        {"role": "user", "content": text},
        {"role": "assistant", "content": json.dumps({"decision": decision})},
    ]
    return {**named, "messages": messages, **more}


def rows(prefix: str, n: int = 3) -> list[dict[str, Any]]:
    return [
        row(f"{prefix}{k}", f"{prefix} asks for {prefix}{k}", group=f"{prefix}-group-{k}") for k in range(n)
    ]


def made(by: User, name: str, lines: Sequence[dict[str, Any]] | None = None, **options: Any) -> Dataset:
    data = factories.jsonl(rows(name) if lines is None else lines)
    return datasets.register(name=name, data=data, by=by, **options)


@pytest.fixture
def engineer(db: None) -> User:
    return factories.person("ann", "engineer")


@pytest.fixture
def house(db: None) -> factories.House:
    return factories.house(champion=True)
