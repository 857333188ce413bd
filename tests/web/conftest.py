"""People with sessions, and the usual scene."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests import factories


@pytest.fixture(autouse=True)
def _surroundings(sent: list[Any], settings: Any, tmp_path: Path) -> None:
    """Nothing is sent, so no broker is needed; whitenoise warns where its folder is missing."""
    settings.STATIC_ROOT = tmp_path / "static"
    settings.STATIC_ROOT.mkdir()


@pytest.fixture
def house(db: None) -> factories.House:
    return factories.house(calls=20, declines=20, champion=True)


def signed_in(person: User) -> Client:
    client = Client()
    client.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    return client


def html(response: Any) -> str:
    return str(response.content.decode())
