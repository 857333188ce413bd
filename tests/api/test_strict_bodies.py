"""Hostile bodies: 400, naming the field, whatever the verb."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollouts.api.strict_json import MAX_DEPTH, parse_json
from rollouts.errors import InvalidInput

BACKEND = {"name": "remote", "kind": "openai_compatible", "config": {"base_url": "http://127.0.0.1:9/v1"}}


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"a": NaN}', "a"),
        ('{"a": {"b": [1, -Infinity]}}', "a.b.1"),
        ("Infinity", "body"),
        ('{"a": 1, "a": 2}', "a"),
        ('{"a": [{"b": 1, "b": 1}]}', "a.0.b"),
        ('{"a": 9007199254740992}', "a"),
        ('{"a": -9007199254740992}', "a"),
        ('{"a": ' + "9" * 5000 + "}", "a"),
        ('{"a": 1e999}', "a"),
        ('{"a": "x\\u0000y"}', "a"),
        ('{"a": "\\ud800"}', "a"),
        ('{"\\ud800": 1}', "\\ud800"),
        ('{"a\\u0000": 1}', "a\\x00"),
        ('{"a": 1,}', "body"),
        ("{", "body"),
        ("", "body"),
        ("\ufeff{}", "body"),
    ],
)
def test_a_value_that_cannot_be_kept_is_refused_by_its_path(text: str, field: str):
    with pytest.raises(InvalidInput) as refused:
        parse_json(text.encode())
    assert refused.value.field == field


def test_bytes_that_are_not_utf8_are_refused():
    with pytest.raises(InvalidInput) as refused:
        parse_json(b'{"a": "\xff"}')
    assert refused.value.field == "body"


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 5_000, 200_000])
def test_nesting_is_bounded(depth: int):
    with pytest.raises(InvalidInput, match="nested deeper"):
        parse_json(b"[" * depth + b"]" * depth)


def test_what_is_sound_comes_through_unchanged():
    text = '{"a": [1, 2.5, true, null, "é\\ud83d\\ude00"], "b": {"c": 9007199254740991, "d": -0.0}}'
    assert parse_json(text.encode()) == json.loads(text)


WRONG = [
    ({"name": 7}, "name"),
    ({"name": ["a"]}, "name"),
    ({"name": "Not A Name"}, "name"),
    ({"concurrency": True}, "concurrency"),
    ({"concurrency": "4"}, "concurrency"),
    ({"concurrency": 4.0}, "concurrency"),
    ({"concurrency": 0}, "concurrency"),
    ({"config": []}, "config"),
    ({"config": {"base_url": 1}}, "config.base_url"),
    ({"config": {"base_url": "http://h/v1", "extra": 1}}, "config.extra"),
    ({"kind": "no_such"}, "kind"),
    ({"prompt_price": -1}, "prompt_price"),
    ({"key_env": "sk-secret"}, "key_env"),
    ({"surprise": 1}, "surprise"),
    ({"name": "x\x00"}, "name"),
]


@pytest.mark.parametrize(("change", "field"), WRONG)
def test_a_wrong_field_of_a_body_is_named(administrator: Any, change: dict[str, Any], field: str):
    found = administrator.problem(400, "POST", "backends", {**BACKEND, **change})
    assert found["code"] == "invalid_input"
    assert found["field"] == field
    assert field in found["detail"]


def test_every_unknown_field_is_named(administrator: Any):
    found = administrator.problem(400, "POST", "tracks", {"name": "t", "purpose": "p", "x": 1, "y": 2})
    assert [error["field"] for error in found["facts"]["errors"]] == ["x", "y"]


@pytest.mark.parametrize("body", [b"[]", b"null", b'"text"', b"7"])
def test_a_body_that_is_no_object_is_refused(administrator: Any, body: bytes):
    assert administrator.problem(400, "POST", "tracks", raw=body)["field"] == "body"


@pytest.mark.parametrize("body", [b"", b"{}"])
def test_a_verb_without_input_takes_nothing_else(engineer: Any, house: Any, body: bytes):
    candidate = house.candidate()
    path = f"candidates/{candidate.pk}/retry_build"
    assert engineer.problem(409, "POST", path, raw=body)["code"] == "invalid_transition"
    assert engineer.problem(400, "POST", path, {"force": True})["field"] == "force"


def test_sampling_is_read_as_strictly_as_the_rest(engineer: Any, house: Any):
    body = {"suite": house.suite.digest, "backend": house.backend.name, "base": house.base.name}
    for sampling, field in (
        ({"temperature": "0"}, "sampling.temperature"),
        ({"temperature": False}, "sampling.temperature"),
        ({"max_tokens": 1.0}, "sampling.max_tokens"),
        ({"top_p": 1}, "sampling.top_p"),
    ):
        assert engineer.problem(400, "POST", "runs", {**body, "sampling": sampling})["field"] == field


def test_a_policy_document_names_what_is_wrong_by_its_path(administrator: Any, house: Any):
    document = {**house.policy.document, "samples": True}
    found = administrator.problem(400, "POST", "policies", {"track": house.track.name, "document": document})
    assert found["field"] == "document.samples"
