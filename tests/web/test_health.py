"""What load balancers ask."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client

from rollouts import append_only

pytestmark = pytest.mark.django_db


def test_a_serving_process_says_ok_without_sign_in(client: Client) -> None:
    answer = client.get("/healthz")

    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_missing_append_only_triggers_make_it_unhealthy(client: Client) -> None:
    with append_only.lifted(connection):
        answer = client.get("/healthz")

    assert answer.status_code == 503
    assert "append-only" in answer.json()["reason"]
