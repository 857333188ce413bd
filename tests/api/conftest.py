"""A client that speaks the API with a person's token, and the usual scene."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.http import HttpResponse
from django.test import Client
from knox.models import AuthToken

from tests import factories

V1 = "/api/v1"


class Api:
    """JSON in, JSON out; `problem` asks for an error and checks its form."""

    def __init__(self, token: str = "") -> None:
        self.client = Client()
        self.token = token

    def send(
        self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str
    ) -> HttpResponse:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        content_type = names.pop("Content-Type", "application/json")
        if self.token:
            names["Authorization"] = f"Token {self.token}"
        data = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        sent: HttpResponse = self.client.generic(method, _full(path), data, content_type, headers=names)
        return sent

    def get(self, path: str, **headers: str) -> Any:
        response = self.send("GET", path, **headers)
        assert response.status_code == 200, response.content
        return response.json()

    def post(self, path: str, body: Any = None, *, status: int = 201, **headers: str) -> Any:
        response = self.send("POST", path, body, **headers)
        assert response.status_code == status, response.content
        return response.json()

    def upload(self, path: str, fields: dict[str, Any], *, status: int = 201, **headers: str) -> HttpResponse:
        """A form; values that are paths are sent as files."""
        opened = {
            name: value.open("rb") if isinstance(value, Path) else value for name, value in fields.items()
        }
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        names["Authorization"] = f"Token {self.token}"
        try:
            response: HttpResponse = self.client.post(_full(path), opened, headers=names)
        finally:
            for value in opened.values():
                if hasattr(value, "close"):
                    value.close()
        assert response.status_code == status, response.content
        return response

    def problem(self, status: int, method: str, path: str, body: Any = None, **options: Any) -> Any:
        return problem_of(self.send(method, path, body, **options), status)


def problem_of(response: HttpResponse, status: int) -> Any:
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json", response["Content-Type"]
    found = json.loads(response.content)
    assert found["status"] == status
    assert set(found) == {"type", "title", "status", "detail", "code", "field", "blocked_by", "facts"}
    assert found["type"] == f"urn:assay:problem:{found['code']}"
    return found


def _full(path: str) -> str:
    return path if path.startswith("/api") else f"{V1}/{path}"


@pytest.fixture(autouse=True)
def quiet_edges(settings: Any, tmp_path: Path, sent: Any) -> Iterator[None]:
    """No message reaches a broker, no throttle remembers another test, uploads go to the test's folder."""
    settings.FILE_UPLOAD_TEMP_DIR = settings.STATIC_ROOT = str(tmp_path)
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def house(db: None) -> factories.House:
    return factories.house(champion=True)


def token_of(person: User) -> str:
    token: str = AuthToken.objects.create(person)[1]
    return token


@pytest.fixture
def acting(db: None) -> Callable[[User], Api]:
    """The API as a person sees it."""
    return lambda person: Api(token_of(person))


@pytest.fixture
def engineer(house: factories.House, acting: Any) -> Api:
    api: Api = acting(house.engineer)
    return api


@pytest.fixture
def auditor(house: factories.House, acting: Any) -> Api:
    api: Api = acting(house.auditor)
    return api


@pytest.fixture
def administrator(house: factories.House, acting: Any) -> Api:
    api: Api = acting(house.administrator)
    return api
