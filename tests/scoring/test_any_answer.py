"""Rules for all scorers: no answer makes one raise, store what no database holds, or take long."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollouts.scoring import SCORER_METRICS, score
from rollouts.scoring.base import Answer, Score, ToolCall
from rollouts.scoring.marker import called_tools, only_denied
from rollouts.suite_format import SCORERS, parse_suite
from tests.scoring.test_suite_format import row as decision_row

TOOL = {
    "name": "mail.search",
    "parameters": {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "tags": {"type": "array", "items": {"type": ["string", "integer"]}, "uniqueItems": True},
            "inner": {"$ref": "#"},
        },
        "additionalProperties": False,
    },
}
CHECKS = [
    {"op": "contains", "arg": "x"},
    {"op": "not_contains", "arg": "y"},
    {"op": "exact", "arg": "the answer"},
    {"op": "regex", "arg": r"(a+)+$"},
    {"op": "regex", "arg": r"(?i)\bfoo\w*(bar|baz){1,9}"},
    {"op": "no_refusal"},
    {"op": "min_chars", "arg": 3},
    {"op": "max_chars", "arg": 300},
    {"op": "section_present", "arg": "Risks"},
    {"op": "section_contains", "arg": "Risks"},
    {"op": "tool_called", "arg": "mail.search"},
]
ROWS: dict[str, dict[str, Any]] = {
    "function_call": {
        "tools": [TOOL],
        "expected_calls": [
            {"name": "mail.search", "arguments": {"query": ["x", ""], "tags": [["a", 1]]}},
            {"name": "mail.search", "arguments": {"query": ["a"], "inner": [{"query": ["z"]}]}},
        ],
    },
    "rules": {"tools": [TOOL], "checks": CHECKS},
}


def content(scorer: str) -> dict[str, Any]:
    row = {
        "example_id": "c",
        "family": "f",
        "messages": [{"role": "user", "content": "x"}],
        **ROWS.get(scorer, {}),
    }
    if scorer == "decision":
        row = decision_row(tools=["set_volume", {"name": "play_song", "parameters": TOOL["parameters"]}])
    return parse_suite(json.dumps(row).encode(), source="s", scorer=scorer).cases[0].content


CONTENTS = {scorer: content(scorer) for scorer in ("decision", "function_call", "rules")}
texts = st.text(st.characters(), max_size=200) | st.sampled_from(
    [
        "",
        "\0",
        "\ud800",
        "{}",
        "# Risks",
        "> I cannot",
        '{"decision": "call", "tool": "play_song", "arguments": {}}',
    ]
)
arguments = texts | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["query", "tags", "inner", "z"]), inner, max_size=3)
    ),
    max_leaves=8,
).map(json.dumps)
answers = st.builds(
    Answer,
    text=st.none() | texts,
    finish_reason=st.sampled_from([None, "stop", "length", "tool_calls", "\0"]),
    tool_calls=st.lists(
        st.builds(
            ToolCall,
            name=st.sampled_from(["mail.search", "mail_search", "MAIL.SEARCH", ""]) | texts,
            arguments=arguments,
            executed=st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
    route=st.sampled_from(["text", "tools", "marker"]),
    reasoning_only=st.booleans(),
    turns_exhausted=st.booleans(),
)
METRICS = ("decision", "tool", "exact", "safe", "json_valid")


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, str):
        yield value


def test_every_scorer_names_its_metrics():
    assert tuple(SCORER_METRICS) == SCORERS
    assert all("exact" in metrics and set(metrics) <= set(METRICS) for metrics in SCORER_METRICS.values())


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([*CONTENTS]), answers)
def test_no_answer_makes_a_scorer_raise_or_give_what_cannot_be_stored(scorer, answer):
    result = score(scorer, CONTENTS[scorer], answer)
    assert isinstance(result, Score)
    assert len(result.answer_class) <= 20
    for metric in METRICS:
        value = getattr(result, metric)
        assert value in (None, True, False)
        assert value is None or metric in SCORER_METRICS[scorer]
    assert result.exact is not None
    assert result.score is None or 0 <= result.score <= 1
    json.dumps(result.details, ensure_ascii=False, allow_nan=False).encode()
    assert not any("\0" in text for text in strings(result.details))
    if answer.finish_reason == "length":
        assert result.answer_class == "truncated"
        assert not any(getattr(result, metric) for metric in METRICS)
    if result.exact and scorer == "function_call":
        assert (result.decision, result.json_valid) == (True, True)


@given(texts, st.lists(texts, max_size=3))
def test_no_text_and_no_names_make_the_marker_raise(text, names):
    for name in called_tools(text, names):
        assert name in names
        only_denied(text, name)


MEGABYTE = 1 << 20
HOSTILE = {
    "one letter": "a" * MEGABYTE,
    "one letter and an end": "a" * MEGABYTE + "!",
    "words": "foo bar baz " * (MEGABYTE // 12),
    "line breaks": "\n" * MEGABYTE,
    "headings": "# Risk\n" * (MEGABYTE // 7),
    "hashes": "#" * MEGABYTE,
    "stars": "**" * (MEGABYTE // 2),
    "quotes": "> 1. " * (MEGABYTE // 5),
    "digits": "1" * MEGABYTE,
    "blanks": " " * MEGABYTE + "x",
    "wide": "é" * (MEGABYTE // 2),
    "brackets": "[" * MEGABYTE,
    "objects": '{"query":' * (MEGABYTE // 9),
    "an object": json.dumps({"tags": [item for number in range(60_000) for item in (number, str(number))]}),
    "deep": '{"inner":' * 99 + "{}" + "}" * 99,
    "markers": "I will not TOOL_CALL: mail.search " * (MEGABYTE // 34),
    "open markers": "TOOL_CALL" + " " * MEGABYTE,
    "denials": "not " * (MEGABYTE // 4),
}
LIMIT_S = 3.0


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_an_answer_of_a_megabyte_is_scored_in_little_time(text):
    one = ToolCall("mail.search", text, executed=True)
    other = ToolCall("mail_search", '{"query": "x"}', executed=True)
    for scorer, found in CONTENTS.items():
        for route in ("tools", "marker"):
            started = time.process_time()
            score(scorer, found, Answer(text=text, tool_calls=(one, other), route=route))
            assert time.process_time() - started < LIMIT_S, scorer
    started = time.process_time()
    called_tools(text, [f"tool_{number}" for number in range(100)] + ["mail.search"])
    assert time.process_time() - started < LIMIT_S


def test_many_calls_are_scored_in_little_time():
    calls = tuple(ToolCall("mail_search", '{"query": "x", "tags": ["a", 1]}', True) for _ in range(10_000))
    for scorer, found in CONTENTS.items():
        started = time.process_time()
        score(scorer, found, Answer(text="x", tool_calls=calls, route="tools"))
        assert time.process_time() - started < LIMIT_S, scorer
