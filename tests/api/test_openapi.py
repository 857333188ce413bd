"""The OpenAPI document: complete, clean, and without a verb that signs."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.urls import get_resolver

from rollouts.api.schema import document
from tests.api.conftest import Api

OPERATIONS = [
    (path, method, operation)
    for path, verbs in document()["paths"].items()
    for method, operation in verbs.items()
]
IDS = [operation["operationId"] for *_, operation in OPERATIONS]


def test_the_document_is_valid_and_without_warnings():
    call_command("spectacular", "--validate", "--fail-on-warn", stdout=StringIO())


def test_the_document_is_served_as_json_without_a_token(db: None):
    assert Api().get("schema") == document()


def test_every_route_is_in_the_document():
    routes = set()
    for pattern in next(p for p in get_resolver().url_patterns if str(p.pattern) == "api/v1/").url_patterns:
        for found in getattr(pattern, "url_patterns", [pattern]):
            routes.add(re.sub(r"\(\?P<(\w+)>[^)]*\)", r"{\1}", str(found.pattern)).strip("^$"))
    documented = {path.removeprefix("/api/v1/") for path in document()["paths"]}
    assert {route for route in routes if "\\" not in route} - {"schema"} == documented


def test_no_verb_makes_an_approval():
    """Nothing of the document is named after signing, and no body takes what a signature is made of.

    Waivers are there: they open one gate, and two persons without a part in them still sign in the browser.
    """
    words = re.compile(r"sign|approv(?!al)|approvals$|reject", re.IGNORECASE)
    for path, _, operation in OPERATIONS:
        if path.endswith("/withdraw-signature"):
            continue  # to take one's own back only makes the approval stricter
        assert not words.search(path), path
        assert not words.search(operation["operationId"])
    bodies = [name for name in document()["components"]["schemas"] if name.endswith("Request")]
    for name in bodies:
        fields = set(document()["components"]["schemas"][name]["properties"])
        assert not fields & {"decision", "meaning", "evidence_digest", "signature"}, name
        assert "password" not in fields or name == "TokenInputRequest"


def test_operation_ids_are_unique():
    assert len(set(IDS)) == len(IDS)


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS, ids=IDS)
def test_an_operation_declares_its_problems_and_refuses_unknown_fields(
    path: str, method: str, operation: Any
):
    problems = {status: answer for status, answer in operation["responses"].items() if status >= "400"}
    assert {"400", "406"} <= set(problems)
    for answer in problems.values():
        assert list(answer["content"]) == ["application/problem+json"]
    if "{" in path:
        assert "404" in problems
    if method == "post" and path != "/api/v1/auth/token":
        assert "Idempotency-Key" in {parameter["name"] for parameter in operation["parameters"]}
        assert {"409", "422"} <= set(problems)
    for content in operation.get("requestBody", {}).get("content", {}).values():
        if "$ref" in content["schema"]:
            name = content["schema"]["$ref"].rsplit("/", 1)[1]
            assert document()["components"]["schemas"][name]["additionalProperties"] is False
    assert operation["description"]
