"""How much a page takes, and parameters that no page ever gave."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.test.client import BOUNDARY, MULTIPART_CONTENT, encode_multipart

from tests.factories import person

pytestmark = pytest.mark.django_db
MIB = 1 << 20


@pytest.mark.parametrize("path", ["/theme/", "/accounts/login/", "/tracks/t/submit/files/"])
def test_nobody_fills_the_disk_without_signing_in(client: Client, path: str) -> None:
    answer = client.post(path, b"x" * (MIB + 1), content_type="multipart/form-data; boundary=x")

    assert answer.status_code == 413


def test_the_last_day_of_the_calendar_is_a_filter_like_any_other(client: Client) -> None:
    client.force_login(person("reader", "auditor"))

    assert client.get("/audit/?until=9999-12-31").status_code == 200


@pytest.mark.parametrize("path", ["/runs/?cursor=", "/audit/?cursor="])
def test_a_number_of_any_length_is_no_server_error(client: Client, path: str) -> None:
    client.force_login(person("reader", "auditor"))

    assert client.get(path + "9" * 5000).status_code in {400, 404}


@pytest.mark.parametrize("charset", ["utf-7", "raw_unicode_escape", "hex", "undefined"])
@pytest.mark.parametrize("path", ["/theme/", "/accounts/login/", "/api/v1/bases"])
def test_texts_come_as_utf_8(client: Client, path: str, charset: str) -> None:
    """In others are lone surrogates, or no text at all; a form that Django reads so would end as an error of ours."""
    typed = {"theme": r"\ud800 +2AA-", "login": r"\ud800 +2AA-", "password": "p"}

    answer = _sent(client, path, typed, charset)

    assert answer.status_code == 415


def test_the_name_of_utf_8_may_be_said(client: Client) -> None:
    answer = _sent(client, "/theme/", {"theme": "dark"}, "UTF-8")

    assert answer.cookies["theme"].value == "dark"


def _sent(client: Client, path: str, typed: dict[str, str], charset: str) -> Any:
    body = encode_multipart(BOUNDARY, typed)
    return client.generic("POST", path, body, content_type=f"{MULTIPART_CONTENT}; charset={charset}")
