"""Transcripts are read strictly, and say which request gets which reply."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.backends.chat_reading import read_chat_completion
from rollouts.backends.transcript import MAX_TRANSCRIPT_BYTES, last_user_text, parse_transcript
from rollouts.errors import InvalidInput
from rollouts.hashing import sha256_bytes


def lines(*rows: Any) -> bytes:
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows).encode()


def row(*replies: Any, **key: str) -> dict[str, Any]:
    return {**key, "replies": list(replies) or [{"text": "x"}]}


def body(text: str, **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], **more}).encode()


def line_for(data: bytes, request: bytes) -> int | None:
    found = parse_transcript(data).row_for(request)
    return found.line if found is not None else None


def test_a_row_is_for_the_bytes_of_a_request_or_for_a_text_or_for_all() -> None:
    data = lines(row(request_sha256=sha256_bytes(body("a"))), row(contains="b"), row())

    assert [line_for(data, request) for request in (body("a"), body("xbx"), body("c"), b"junk")] == [
        1,
        2,
        3,
        3,
    ]


def test_the_first_row_in_the_file_that_is_for_a_request_decides() -> None:
    exact = row(request_sha256=sha256_bytes(body("a")))

    assert line_for(lines(row(contains="a"), exact), body("a")) == 1
    assert line_for(lines(exact, row(contains="a")), body("a")) == 1
    assert line_for(lines(row(contains="b"), exact), body("a")) == 2


def test_a_request_that_no_row_is_for_has_none() -> None:
    assert line_for(lines(row(contains="b")), body("a")) is None
    assert line_for(lines(row(contains="b")), b"\xff") is None


def test_what_the_last_user_message_says_decides_and_nothing_before_or_after_it() -> None:
    messages = [
        {"role": "user", "content": "first"},
        {"role": "user", "content": [{"type": "text", "text": "sec"}, {"type": "text", "text": "ond"}]},
        {"role": "assistant", "content": "third"},
    ]

    assert last_user_text(json.dumps({"messages": messages}).encode()) == "second"


@given(st.binary() | st.recursive(st.none() | st.text() | st.integers(), lambda v: st.lists(v) | st.dictionaries(
    st.sampled_from(["messages", "role", "content", "text", "type"]), v
)).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_a_request_of_any_bytes_says_a_text(request: bytes) -> None:
    assert isinstance(last_user_text(request), str)


def test_a_plain_text_is_a_whole_chat_completion_without_usage() -> None:
    reply = parse_transcript(lines(row({"text": "é"}))).rows[0].replies[0]
    done = read_chat_completion(reply.body)

    assert (reply.status, done.text, done.finish_reason, done.prompt_tokens) == (200, "é", "stop", None)


def test_bodies_are_kept_to_the_byte() -> None:
    replies = (
        parse_transcript(lines(row({"body": "é\r\n"}, {"body_base64": "/wA="}, {"status": 429})))
        .rows[0]
        .replies
    )

    assert [reply.body for reply in replies] == ["é\r\n".encode(), b"\xff\x00", b""]


def test_blank_lines_count_and_are_no_rows() -> None:
    data = b"\n\r\n" + lines(row(contains="a")) + b"\r\n\n"

    assert [found.line for found in parse_transcript(data).rows] == [3]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ("{", "line 2"),
        ("[]", "line 2"),
        ("NaN", "line 2"),
        ('{"replies": [], "replies": []}', "line 2"),
        ({}, "line 2: replies"),
        ({"replies": []}, "line 2: replies"),
        ({"replies": {}}, "line 2: replies"),
        ({"replies": [7]}, "line 2: replies[0]"),
        (row(colour="red"), "line 2: colour"),
        (row(request_sha256="abc"), "line 2: request_sha256"),
        (row(request_sha256="A" * 64), "line 2: request_sha256"),
        (row(contains=""), "line 2: contains"),
        (row(contains="x", request_sha256="0" * 64), "line 2: contains"),
        (row({"text": "x"}, {"colour": 1}), "line 2: replies[1].colour"),
        (row({"text": 7}), "line 2: replies[0].text"),
        (row({"text": "x", "body": "y"}), "line 2: replies[0].text"),
        (row({"text": "x", "status": 500}), "line 2: replies[0].text"),
        (row({"body_base64": "?"}), "line 2: replies[0].body_base64"),
        (row({"status": 99}), "line 2: replies[0].status"),
        (row({"status": 100}), "line 2: replies[0].status"),
        (row({"status": 600}), "line 2: replies[0].status"),
        (row({"status": True}), "line 2: replies[0].status"),
        (row({"status": "200"}), "line 2: replies[0].status"),
        (row({"delay_ms": -1}), "line 2: replies[0].delay_ms"),
        (row({"delay_ms": 1.5}), "line 2: replies[0].delay_ms"),
        (row({"delay_ms": 10**9}), "line 2: replies[0].delay_ms"),
        (row({"body": "ab", "cut_after": 3}), "line 2: replies[0].cut_after"),
        (row({"body": "ab", "cut_after": -1}), "line 2: replies[0].cut_after"),
        (row({"drop": 1}), "line 2: replies[0].drop"),
        (row({"drop": True, "status": 200}), "line 2: replies[0].status"),
        (row({"headers": []}), "line 2: replies[0].headers"),
        (row({"headers": {"a b": "x"}}), "line 2: replies[0].headers"),
        (row({"headers": {"A": 7}}), "line 2: replies[0].headers.A"),
        (row({"headers": {"A": "x\r\nB: y"}}), "line 2: replies[0].headers.A"),
        (row({"headers": {"Content-Length": "7"}}), "line 2: replies[0].headers.Content-Length"),
        (row({"headers": {"A": "x" * 9000}}), "line 2: replies[0].headers"),
        (row(contains="first"), "line 2"),
    ],
)
def test_a_wrong_row_is_refused_with_its_line_and_its_key(wrong: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_transcript(lines(row(contains="first"), wrong))

    assert refused.value.field == field
    assert refused.value.facts == {"line": 2}


@pytest.mark.parametrize("later", [row(), row(contains="a"), row(request_sha256="0" * 64)])
def test_a_row_that_can_never_be_reached_is_refused(later: Any) -> None:
    with pytest.raises(InvalidInput, match="line 2: can never"):
        parse_transcript(lines(row(), later))


@pytest.mark.parametrize("data", [b"", b"\n \n", b"\xff\n"])
def test_what_holds_no_row_is_no_transcript(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        parse_transcript(data)


def test_a_transcript_is_bounded() -> None:
    with pytest.raises(InvalidInput, match="split it"):
        parse_transcript(b" " * (MAX_TRANSCRIPT_BYTES + 1))
