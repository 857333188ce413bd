"""Rules of matching calls: names, parameters, values, parallel calls, and what each metric says."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from rollouts.scoring import score
from rollouts.scoring.base import Answer, ToolCall
from rollouts.scoring.function_call import _matching, call_problem
from rollouts.scoring.schemas import schema_accepts
from rollouts.suite_format import CaseSpec, parse_suite

GYM = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "gym"
BOOK = {
    "name": "book.table",
    "parameters": {
        "type": "object",
        "properties": {
            "place": {"type": "string"},
            "guests": {"type": "integer"},
            "deposit": {"type": "number"},
            "terrace": {"type": "boolean"},
            "days": {"type": "array", "items": {"type": "integer"}},
            "note": {"type": "string"},
            "who": {"type": "object", "properties": {"age": {"type": "integer"}}},
        },
        "required": ["place"],
        "additionalProperties": False,
    },
}
CANCEL = {"name": "cancel", "parameters": {"type": "object", "properties": {"id": {"type": "integer"}}}}


def case(*expected: dict[str, Any], tools: tuple[dict[str, Any], ...] = (BOOK, CANCEL)) -> dict[str, Any]:
    row = {
        "example_id": "c",
        "family": "f",
        "messages": [{"role": "user", "content": "Do it."}],
        "tools": list(tools),
        "expected_calls": list(expected),
    }
    data = json.dumps(row).encode()
    return parse_suite(data, source="s", scorer="function_call").cases[0].content


def booking(**right: list[Any]) -> dict[str, Any]:
    return {"name": "book.table", "arguments": {"place": ["Roma"], **right}}


def answer(*calls: tuple[str, Any], text: str | None = None, **changes: Any) -> Answer:
    written = tuple(
        ToolCall(name, value if isinstance(value, str) else json.dumps(value), executed=False)
        for name, value in calls
    )
    return Answer(text=text, tool_calls=written, route="tools", **changes)


def booked(right: dict[str, list[Any]], **arguments: Any) -> bool:
    """Whether a booking with these arguments is right by these right values."""
    result = score(
        "function_call", case(booking(**right)), answer(("book_table", {"place": "Roma", **arguments}))
    )
    assert result.tool is True and result.decision is True and result.json_valid is True
    return result.exact


def test_a_name_with_a_dot_is_the_name_on_the_wire():
    content = case(booking())
    for name in ("book.table", "book_table"):
        assert score("function_call", content, answer((name, {"place": "Roma"}))).exact
    assert not score("function_call", content, answer(("Book_table", {"place": "Roma"}))).exact


@pytest.mark.parametrize(
    ("right", "written", "wanted"),
    [
        ("San José, CA", "san josé ca", True),
        ("2023-12-01", "2023/12/01", True),
        ("x^2 * y", "X2y", True),
        ("'a'", '"a"', True),
        ("a\tb", "ab", False),
        ("Roma", "Rome", False),
        ("*", "/", False),
        ("*", " * ", True),
        ("1", 1, False),
        ("true", True, False),
    ],
)
def test_texts_are_compared_without_case_blanks_and_punctuation(right, written, wanted):
    assert booked({"note": [right]}, note=written) is wanted


@pytest.mark.parametrize(
    ("name", "right", "written", "wanted"),
    [
        ("guests", 2, 2, True),
        ("guests", 2, 3, False),
        ("guests", 2, 2.0, False),
        ("guests", 1, True, False),
        ("guests", 2, "2", False),
        ("guests", 2, None, False),
        ("deposit", 5, 5.0, True),
        ("deposit", 5.0, 5, True),
        ("deposit", 5.5, 5.5, True),
        ("deposit", 1.0, True, False),
        ("terrace", True, True, True),
        ("terrace", True, 1, False),
        ("terrace", True, "true", False),
        ("days", [1, 2], [1, 2], True),
        ("days", [1, 2], [2, 1], False),
        ("days", [1, 2], [1], False),
        ("days", [1, 2], [1, 2, 3], False),
        ("days", [1, 2], [1, 2.0], False),
        ("days", [1, 2], "1, 2", False),
        ("days", [[1], [2, 3]], [[1], [2, 3]], True),
        ("days", [[1], [2, 3]], [[1], [3, 2]], False),
        ("days", ["Mon day"], ["monday"], True),
        ("days", [{"from": [1, 2]}], [{"from": 2}], True),
        ("days", [{"from": [1, 2]}], [{"from": 3}], False),
    ],
)
def test_values_are_compared_by_their_kind(name, right, written, wanted):
    assert booked({name: [right]}, **{name: written}) is wanted


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ({"name": "Ada", "age": 36}, True),
        ({"name": "ada"}, True),
        ({"name": "Grace", "age": 36}, False),
        ({"age": 36}, False),
        ({"name": "Ada", "age": 36.0}, False),
        ({"name": "Ada", "born": 1815}, False),
        ("Ada", False),
    ],
)
def test_an_object_is_compared_key_by_key_each_with_its_right_values(written, wanted):
    assert booked({"who": [{"name": ["Ada"], "age": [36, ""]}]}, who=written) is wanted


def test_a_value_is_right_when_it_is_one_of_several():
    assert booked({"guests": [2, 4]}, guests=4)
    assert not booked({"guests": [2, 4]}, guests=3)


def test_an_empty_text_among_the_right_values_says_that_the_parameter_may_be_left_out():
    assert booked({"guests": [2, ""]})
    assert booked({"guests": [2, ""]}, guests=2)
    assert not booked({"guests": [2, ""]}, guests=3)
    assert not booked({"guests": [2, ""]}, guests="")
    assert booked({"note": ["", "hi"]}, note="")
    assert not booked({"guests": [2]})


def test_a_required_parameter_may_not_be_left_out_whatever_the_right_values_say():
    assert call_problem({}, {"place": ["Roma", ""]}, BOOK["parameters"]) == "place is required and missing"


def test_a_parameter_that_is_not_expected_is_wrong():
    assert not booked({}, note="hi")


def test_parallel_calls_are_right_in_any_order_and_one_to_one():
    content = case(*({"name": "cancel", "arguments": {"id": [number]}} for number in (1, 2, 3)))
    calls = [("cancel", {"id": number}) for number in (1, 2, 3)]
    for order in itertools.permutations(calls):
        assert score("function_call", content, answer(*order)).exact
    for wrong in (calls[:2], [*calls, calls[0]], [calls[0], calls[0], calls[1]]):
        assert not score("function_call", content, answer(*wrong)).exact


def test_a_call_that_two_expected_ones_would_take_goes_where_all_find_one():
    wide, narrow = {"id": [1, 2]}, {"id": [1]}
    for rights in ((wide, narrow), (narrow, wide)):
        content = case(*({"name": "cancel", "arguments": right} for right in rights))
        for order in ((1, 2), (2, 1)):
            assert score(
                "function_call", content, answer(*(("cancel", {"id": number}) for number in order))
            ).exact


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_matching_is_a_largest_one(size):
    for bits in itertools.product([False, True], repeat=min(size * size, 9)):
        fits = [[bits[(row * size + column) % len(bits)] for column in range(size)] for row in range(size)]
        best = max(
            sum(fits[row][column] for row, column in enumerate(order))
            for order in itertools.permutations(range(size))
        )
        found = _matching(fits)
        assert len(found) == best == len(set(found.values()))
        assert all(fits[row][column] for row, column in found.items())


@pytest.mark.parametrize(
    "written",
    ["", "{", "null", "[]", '"x"', "{'place': 'Roma'}", '{"place": "Roma", "place": "Roma"}', "{} {}"],
)
def test_arguments_that_are_no_strict_json_object_are_a_call_that_is_wrong(written):
    result = score("function_call", case(booking()), answer(("book_table", written)))
    assert (result.exact, result.json_valid, result.arguments_valid) == (False, False, False)
    assert (result.decision, result.tool) == (True, True)
    unsafe = score("function_call", case(), answer(("book_table", written)))
    assert (unsafe.safe, unsafe.decision, unsafe.exact) == (False, False, False)


def test_the_metrics_of_a_missing_a_wrong_and_a_right_call():
    content = case(booking())
    silent = score("function_call", content, answer(text="Which place?"))
    assert (silent.decision, silent.tool, silent.exact, silent.safe) == (False, False, False, None)
    assert (silent.json_valid, silent.arguments_valid) == (True, None)
    other = score("function_call", content, answer(("cancel", {"id": "x"})))
    assert (other.decision, other.tool, other.exact, other.arguments_valid) == (True, False, False, False)
    right = score("function_call", content, answer(("book_table", {"place": "roma"})))
    assert (right.decision, right.tool, right.exact, right.arguments_valid) == (True, True, True, True)
    assert right.answer_class == "ok" and right.details is None


def test_names_are_compared_as_a_multiset():
    content = case(booking(), {"name": "cancel", "arguments": {"id": [1]}})
    assert score("function_call", content, answer(("cancel", {}), ("book.table", {}))).tool is True
    assert score("function_call", content, answer(("cancel", {}), ("cancel", {}))).tool is False
    assert score("function_call", content, answer(("cancel", {}))).tool is False


def test_arguments_of_a_tool_that_was_not_shown_are_not_valid():
    assert score("function_call", case(booking()), answer(("fly", {}))).arguments_valid is False


@pytest.mark.parametrize(
    ("changes", "answer_class"),
    [
        ({"finish_reason": "length"}, "truncated"),
        ({"calls": ()}, "empty"),
        ({"calls": (), "reasoning_only": True}, "reasoning_only"),
    ],
)
def test_an_answer_cut_off_or_without_a_word_is_wrong_on_every_metric(changes, answer_class):
    calls = changes.pop("calls", (("book_table", {"place": "Roma"}),))
    expects = score("function_call", case(booking()), answer(*calls, **changes))
    assert expects.answer_class == answer_class
    assert (expects.exact, expects.decision, expects.tool, expects.json_valid) == (False,) * 4
    declines = score("function_call", case(), answer(*calls, **changes))
    assert (declines.exact, declines.decision, declines.safe, declines.json_valid) == (False,) * 4
    assert (expects.safe, declines.tool) == (None, None)


def test_turns_used_up_are_said_and_the_calls_still_count():
    result = score(
        "function_call", case(booking()), answer(("book.table", {"place": "Roma"}), turns_exhausted=True)
    )
    assert (result.answer_class, result.exact) == ("turns_exhausted", True)


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ((), "0 calls, and 1 are right"),
        ((("cancel", {}),), "book.table: cancel is called instead"),
        ((("book_table", "no"),), "not one strict JSON object"),
        ((("book_table", {"place": "Rome"}),), "place is Rome, which is not among the right values"),
        ((("book_table", {}),), "place is required and missing"),
        ((("book_table", {"place": "Roma", "note": 1}),), "note is not expected"),
    ],
)
def test_the_details_say_what_is_wrong(calls, says):
    details = score("function_call", case(booking()), answer(*calls, text="x")).details
    assert details is not None
    assert says in details["reason"]
    assert details["mismatches"][0] == details["reason"]


def test_details_stay_small_and_storable_whatever_was_called():
    calls = [(f"\0\ud800{number}" + "x" * 1000, {"y" * 1000: "z" * 1000}) for number in range(100)]
    details = score("function_call", case(booking()), answer(*calls)).details
    written = json.dumps(details, ensure_ascii=False).encode()
    assert len(written) < 5000 and b"\0" not in written


# schemas


def test_unique_items_are_checked_in_linear_time_and_by_json_s_equality():
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    mixed = [item for number in range(50_000) for item in (number, str(number))]
    assert schema_accepts(schema, {"a": mixed})
    assert not schema_accepts(schema, {"a": [*mixed, 7.0]})
    assert schema_accepts(schema, {"a": [1, True, "1", [1], {"a": 1}, [True], 0, False, None]})
    for twice in (1, "a", None, [1, {"b": 2}], {"a": [1], "b": 2}):
        assert not schema_accepts(schema, {"a": [twice, "between", twice]})


def test_a_schema_that_branches_at_every_level_is_given_up_and_not_accepted():
    branch = {"properties": {"x": {"$ref": "#"}}, "required": ["y"]}
    schema = {"anyOf": [branch, branch]}
    value: dict[str, Any] = {}
    for _ in range(60):
        value = {"x": value}
    assert not schema_accepts(schema, value)
    assert schema_accepts({"properties": {"x": {"$ref": "#"}}}, value)


# rows of another collection, whose expected calls have one right value a parameter


def gym_rows(name: str) -> list[dict[str, Any]]:
    file = GYM / name / "example.jsonl"
    if not file.exists():
        pytest.skip(f"data missing: {file}")
    return [json.loads(line) for line in file.read_text().splitlines()]


def only(value: Any) -> Any:
    """A plain value as one of the right ones: an object's keys have lists of right values."""
    if isinstance(value, dict):
        return {key: [only(item)] for key, item in value.items()}
    return [only(item) for item in value] if isinstance(value, list) else value


def converted(name: str) -> tuple[list[CaseSpec], list[list[tuple[str, dict[str, Any]]]]]:
    rows, calls = [], []
    for row in gym_rows(name):
        asked = row["responses_create_params"]
        right = row["expected_answers"] if "expected_answers" in row else row["ground_truth"]
        plain = [
            (
                call["name"],
                json.loads(call["arguments"]) if isinstance(call["arguments"], str) else call["arguments"],
            )
            for call in right
        ]
        tools = [{key: tool[key] for key in ("name", "description", "parameters")} for tool in asked["tools"]]
        rows.append(
            {
                "example_id": f"{name}-{row['id']}",
                "family": name,
                "messages": asked["input"],
                "tools": tools,
                "expected_calls": [{"name": name, "arguments": only(arguments)} for name, arguments in plain],
            }
        )
        calls.append(plain)
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    return list(parse_suite(data, source=name, scorer="function_call").cases), calls


@pytest.mark.parametrize("name", ["xlam_fc", "workplace_assistant"])
def test_rows_with_one_right_value_a_parameter_seal_and_match_in_any_order(name):
    cases, calls = converted(name)
    assert len(cases) == 5 and max(map(len, calls)) >= 2
    for found, right in zip(cases, calls, strict=True):
        for ordered in (right, right[::-1]):
            result = score("function_call", found.content, answer(*ordered))
            assert (result.exact, result.tool) == (True, True), result.details
        if not right:
            continue
        assert not score("function_call", found.content, answer(*right, right[0])).exact
        (first, arguments), *rest = right
        for key, value in arguments.items():
            changed = {**arguments, key: f"{value} and more"}
            assert not score("function_call", found.content, answer((first, changed), *rest)).exact
