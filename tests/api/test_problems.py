"""Every error is problem+json, also those that Django or DRF would answer themselves."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError

from rollouts.api import parsers
from tests.api.conftest import Api, problem_of


@pytest.mark.parametrize(
    "path", ["nothing", "runs/abc", "runs/-1", "runs/1/", "", "candidates/1/sign", "..%2fsecret"]
)
def test_an_unknown_address_is_a_404_problem(db: None, path: str):
    Api().problem(404, "GET", f"/api/v1/{path}")


@pytest.mark.parametrize(
    "path", ["runs", "rollouts", "calls", "candidates", "policies", "registry", "exports", "audit"]
)
@pytest.mark.parametrize("number", ["999999", "999999999999999999", "9" * 19, "9" * 400, "0"])
def test_an_id_that_no_row_can_have_is_a_404(engineer: Any, path: str, number: str):
    engineer.problem(404, "GET", f"{path}/{number}")


@pytest.mark.parametrize("path", ["runs/%00", "tracks/a%00b", "suites/%ff", "bases/%ed%a0%80"])
def test_nul_and_broken_bytes_in_an_address_are_a_404(engineer: Any, path: str):
    engineer.problem(404, "GET", path)


@pytest.mark.parametrize("query", ["family=%00", "cursor=%00", "%00=1"])
def test_nul_in_a_query_is_a_400(engineer: Any, query: str):
    engineer.problem(400, "GET", f"rollouts?run=1&{query}")


def test_no_token_is_a_401_that_says_how(db: None):
    response = Api().send("GET", "runs")
    assert problem_of(response, 401)["code"] == "not_authenticated"
    assert response["WWW-Authenticate"] == "Token"


@pytest.mark.parametrize("token", ["nonsense", "\xff\xfe", "a b", "0" * 64, ""])
def test_a_wrong_token_is_a_401(db: None, token: str):
    response = Api().send("GET", "runs", Authorization=f"Token {token}")
    problem_of(response, 401)


def test_a_person_without_a_role_is_refused_with_the_reason(acting: Any, db: None):
    from tests.factories import person

    found = acting(person("nobody")).problem(403, "GET", "runs")
    assert found["code"] == "not_allowed"
    assert "engineer" in found["detail"]


def test_a_wrong_method_is_a_405_that_names_the_right_ones(engineer: Any):
    for method in ("PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
        response = engineer.send(method, "runs")
        assert problem_of(response, 405)["code"] == "method_not_allowed"
        assert response["Allow"] == "GET, POST, HEAD, OPTIONS"


def test_a_wrong_accept_header_is_a_406(engineer: Any):
    engineer.problem(406, "GET", "runs", Accept="text/html")


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "nonsense", "application/xml"]
)
def test_a_wrong_media_type_is_a_415(administrator: Any, content_type: str):
    administrator.problem(415, "POST", "tracks", raw=b"name=t", Content_Type=content_type)


def test_a_broken_form_is_a_400(engineer: Any):
    for content_type in ("multipart/form-data", "multipart/form-data; boundary=x"):
        engineer.problem(400, "POST", "bases", raw=b"no form", Content_Type=content_type)


def test_a_body_that_is_too_large_is_a_413(engineer: Any, settings: Any, monkeypatch: Any):
    monkeypatch.setattr(parsers, "MAX_JSON_BYTES", 10)
    assert engineer.problem(413, "POST", "backends", {"name": "x" * 20})["code"] == "too_large"
    settings.MAX_UPLOAD_BYTES = 20
    monkeypatch.setattr(parsers, "FORM_OVERHEAD_BYTES", 0)
    path = "suites?name=large"
    engineer.problem(413, "POST", path, raw=b"x" * 21, Content_Type="application/x-ndjson")
    engineer.problem(413, "POST", "bases", raw=b"x" * 21, Content_Type="multipart/form-data; boundary=b")


def test_a_bug_is_a_500_that_tells_nothing(engineer: Any, monkeypatch: Any, caplog: Any):
    def explode(*_: Any, **__: Any) -> None:
        raise RuntimeError("the secret is 42")

    monkeypatch.setattr("rollouts.api.resources.run_rows", explode)
    found = engineer.problem(500, "GET", "runs")
    assert found["code"] == "internal_error"
    assert "42" not in found["detail"]
    assert "the secret is 42" in caplog.text


def test_a_busy_database_is_a_503_that_may_be_tried_again(engineer: Any, monkeypatch: Any):
    def busy(*_: Any, **__: Any) -> None:
        raise OperationalError("database is locked")

    monkeypatch.setattr("rollouts.api.resources.run_rows", busy)
    response = engineer.send("GET", "runs")
    assert problem_of(response, 503)["code"] == "busy"
    assert response["Retry-After"] == "1"


def test_a_wrong_host_is_a_problem_too(db: None):
    assert Api().send("GET", "runs", Host="evil.example").status_code == 400
    problem_of(Api().send("GET", "runs", Host="evil.example"), 400)


def test_too_many_parameters_are_a_400(engineer: Any):
    engineer.problem(400, "GET", "runs?" + "&".join(f"p{number}=1" for number in range(1001)))


def test_a_conflict_says_what_is_in_the_way(engineer: Any, house: Any):
    candidate = house.evaluated(wrong=20)
    detail = engineer.get(f"candidates/{candidate.pk}")
    assert detail["state"] == "blocked"
    assert detail["blocked_by"][0].startswith("generalization_accuracy_floor: ")
    found = engineer.problem(409, "POST", f"candidates/{candidate.pk}/retry_publish")
    assert found["facts"] == {"state": "blocked", "to": "publishing"}
