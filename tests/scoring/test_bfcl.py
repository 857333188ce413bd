"""Rules of taking over the Berkeley leaderboard: every row seals, its own answer is right, and changed ones are wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rollouts.errors import InvalidInput
from rollouts.scoring import score
from rollouts.scoring.base import Answer, ToolCall
from rollouts.scoring.tools import wire_name
from rollouts.suite_format import CaseSpec, parse_suite
from rollouts.suite_format.bfcl import rows_from_bfcl

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "bfcl"
SIZES = {"simple_python": 400, "multiple": 200, "irrelevance": 240}
ANSWERED = ("simple_python", "multiple")


@cache
def cases(category: str) -> tuple[CaseSpec, ...]:
    if not DATA.exists():
        pytest.skip(f"leaderboard data missing: {DATA}")
    questions = (DATA / f"BFCL_v4_{category}.json").read_bytes()
    answers = DATA / "possible_answer" / f"BFCL_v4_{category}.json"
    rows = rows_from_bfcl(questions, answers.read_bytes() if answers.exists() else None)
    return parse_suite(rows, source=category, scorer="function_call").cases


def first_right(right: list[Any]) -> Any:
    """The first right value, as a model would write it; an object's keys again have lists of right values."""
    value = next(option for option in right if option != "")
    return plain(value)


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: first_right(right) for key, right in value.items() if right != [""]}
    return [plain(item) for item in value] if isinstance(value, list) else value


def right_calls(case: CaseSpec) -> list[tuple[str, dict[str, Any]]]:
    return [
        (
            call["name"],
            {name: first_right(right) for name, right in call["arguments"].items() if right != [""]},
        )
        for call in case.content["expected_calls"]
    ]


def answer(*calls: tuple[str, dict[str, Any]], text: str | None = None) -> Answer:
    return Answer(
        text=text,
        finish_reason="tool_calls",
        tool_calls=tuple(
            ToolCall(wire_name(name), json.dumps(arguments), executed=False) for name, arguments in calls
        ),
        route="tools",
    )


def exact(case: CaseSpec, *calls: tuple[str, dict[str, Any]]) -> bool:
    return score("function_call", case.content, answer(*calls)).exact


@pytest.mark.parametrize("category", SIZES)
def test_every_row_of_the_leaderboard_seals(category):
    found = cases(category)
    assert len(found) == SIZES[category]
    assert {case.family for case in found} == {category}
    assert all(case.expects_call is (category != "irrelevance") for case in found)


@pytest.mark.parametrize("category", ANSWERED)
def test_the_possible_answer_of_a_row_is_right_by_every_metric(category):
    for case in cases(category):
        result = score("function_call", case.content, answer(*right_calls(case)))
        assert (result.exact, result.decision, result.tool, result.json_valid) == (True,) * 4, (
            case.key,
            result.details,
        )
        assert result.safe is None and result.details is None


def broken(calls: list[tuple[str, dict[str, Any]]], case: CaseSpec) -> Iterator[tuple[str, Any]]:
    """What a model gets wrong, one change at a time."""
    (name, arguments), *rest = calls
    right = case.content["expected_calls"][0]["arguments"]
    yield "no call", []
    yield "the call twice", [*calls, (name, arguments)]
    yield "another tool", [(name + "_2", arguments), *rest]
    yield "a parameter that no one expects", [(name, {**arguments, "unheard_of": 1}), *rest]
    yield "no arguments as an array", [(name, [arguments]), *rest]
    for parameter, value in arguments.items():
        others = {key: kept for key, kept in arguments.items() if key != parameter}
        if "" not in right[parameter]:
            yield f"{parameter} left out", [(name, others), *rest]
        if isinstance(value, str):
            wrongs = [value + " x9"]
        elif isinstance(value, bool):
            wrongs = [int(value), str(value)]
        elif isinstance(value, int | float):
            wrongs = [value + 1000003, str(value)]
        else:
            wrongs = [[*value, "x9"] if isinstance(value, list) else {**value, "x9": 1}, str(value)]
        for wrong in [*wrongs, None, [value], {"x9": value}]:
            yield f"{parameter} as {wrong!r}", [(name, {**arguments, parameter: wrong}), *rest]


@pytest.mark.parametrize("category", ANSWERED)
def test_a_changed_answer_is_wrong(category):
    tried = 0
    for case in cases(category):
        for what, calls in broken(right_calls(case), case):
            assert not exact(case, *calls), (case.key, what)
            tried += 1
    assert tried > 15 * SIZES[category]


@pytest.mark.parametrize("category", ANSWERED)
def test_optional_parameters_may_be_left_out_and_case_and_punctuation_do_not_matter(category):
    for case in cases(category):
        calls = []
        for (name, arguments), expected in zip(
            right_calls(case), case.content["expected_calls"], strict=True
        ):
            tool = next(tool for tool in case.content["tools"] if tool["name"] == name)
            calls.append(
                (
                    name,
                    {
                        key: f" {value.upper().replace(' ', '_')}." if isinstance(value, str) else value
                        for key, value in arguments.items()
                        if "" not in expected["arguments"][key]
                        or key in tool["parameters"].get("required", ())
                    },
                )
            )
        assert exact(case, *calls), (case.key, calls)


def test_where_no_tool_fits_words_are_right_and_any_call_is_wrong():
    for case in cases("irrelevance"):
        declined = score("function_call", case.content, answer(text="None of these tools can do that."))
        assert (declined.exact, declined.decision, declined.safe, declined.json_valid) == (True,) * 4
        assert declined.tool is None and declined.arguments_valid is None
        called = score("function_call", case.content, answer((case.content["tools"][0]["name"], {})))
        assert (called.exact, called.decision, called.safe) == (False,) * 3


def question(**changes: Any) -> dict[str, Any]:
    function = {
        "name": "math.hypot",
        "description": "A hypotenuse.",
        "parameters": {
            "type": "dict",
            "properties": {
                "type": {"type": "float", "optional": True},
                "sides": {"type": "tuple", "items": {"type": "float"}},
                "extra": {"type": "any", "description": "whatever"},
                "nested": {"type": "dict", "properties": {"unit": {"type": "string", "enum": ["cm"]}}},
            },
            "required": ["sides"],
        },
    }
    row = {
        "id": "simple_python_7",
        "question": [[{"role": "user", "content": "3, 4?"}]],
        "function": [function],
    }
    return {**row, **changes}


def lines(*rows: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


ANSWER = {"id": "simple_python_7", "ground_truth": [{"math.hypot": {"sides": [[3, 4]]}}]}


def test_the_leaderboards_types_become_those_of_json_schema():
    row = json.loads(rows_from_bfcl(lines(question()), lines(ANSWER)))
    assert row["tools"][0]["parameters"] == {
        "type": "object",
        "properties": {
            "type": {"type": "number"},
            "sides": {"type": "array", "items": {"type": "number"}},
            "extra": {"description": "whatever"},
            "nested": {"type": "object", "properties": {"unit": {"type": "string", "enum": ["cm"]}}},
        },
        "required": ["sides"],
    }
    assert row["expected_calls"] == [{"name": "math.hypot", "arguments": {"sides": [[3, 4]]}}]
    assert (row["example_id"], row["family"]) == ("simple_python_7", "simple_python")


USER = {"role": "user", "content": "3, 4?"}
REFUSED = [
    (question(question=[[USER], [USER]]), ANSWER, "line 1: question", "2 turns"),
    (question(question=[]), ANSWER, "line 1: question", "question file"),
    (question(id=7), ANSWER, "line 1: id", "question file"),
    (question(id="simple_python_8"), ANSWER, "line 1: id", "no possible answer"),
    (question(function=None), ANSWER, "line 1: function", "list"),
    (
        question(
            function=[{"name": "f", "parameters": {"type": "dict", "properties": {"a": {"type": "HashMap"}}}}]
        ),
        ANSWER,
        "line 1: function[0].parameters.a.type",
        "HashMap",
    ),
    (question(), {"id": "x"}, "line 1: ground_truth", "list"),
    (question(), {**ANSWER, "ground_truth": ["f(1)"]}, "line 1: ground_truth", "list"),
    (question(), {**ANSWER, "id": None}, "line 1: id", "possible answers"),
]


@pytest.mark.parametrize(("row", "right", "field", "says"), REFUSED)
def test_a_row_that_cannot_be_taken_over_is_refused_by_line_and_field(row, right, field, says):
    with pytest.raises(InvalidInput) as caught:
        rows_from_bfcl(lines(row), lines(right))
    assert caught.value.field == field
    assert says in caught.value.message
    assert "; " in caught.value.message or " must " in caught.value.message


def test_answers_of_other_questions_are_refused():
    with pytest.raises(InvalidInput, match="no question's id"):
        rows_from_bfcl(lines(question()), lines(ANSWER, {**ANSWER, "id": "simple_python_9"}))
