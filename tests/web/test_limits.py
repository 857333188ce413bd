"""How much a page takes, and parameters that no page ever gave."""

from __future__ import annotations

import pytest
from django.test import Client

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
