"""Rules of the rows of function_call, rules and judge: what a case holds, and what is refused with its line and field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.errors import InvalidInput
from rollouts.hashing import sha256_json
from rollouts.suite_format import SCORERS, digest_of_cases, parse_suite
from tests.scoring.test_suite_format import parse as parse_decision
from tests.scoring.test_suite_format import row as decision_row

ABSENT = object()
TOOL = {
    "name": "mail.search",
    "description": "Searches.",
    "parameters": {
        "type": "object",
        "properties": {"query": {"type": "string"}},
        "required": ["query"],
        "additionalProperties": False,
    },
}
SEND = {"name": "send"}
RIGHT = {"name": "mail.search", "arguments": {"query": ["invoice", "the invoice"]}}
RESULTS = {"mail.search": [{"when": {"query": "invoice"}, "result": [1]}, {"error": "no"}]}
OWN: dict[str, dict[str, Any]] = {
    "function_call": {
        "tools": [TOOL, SEND],
        "expected_calls": [RIGHT],
        "tool_results": RESULTS,
        "max_turns": 2,
    },
    "rules": {
        "checks": [
            {"op": "contains", "arg": "sent"},
            {"op": "max_chars", "arg": "+80"},
            {"op": "no_refusal"},
        ],
        "tools": [TOOL, SEND],
        "tool_results": RESULTS,
        "max_turns": 32,
    },
    "judge": {"rubric": "Is kind.", "reference": "Dear Ada", "pass_score": 0.5},
}


def row(scorer: str, **changes: Any) -> dict[str, Any]:
    base = {
        "example_id": "case_1",
        "family": "mail",
        "messages": [{"role": "user", "content": "Find the invoice."}],
        "level": 3,
        **OWN[scorer],
    }
    return {key: value for key, value in {**base, **changes}.items() if value is not ABSENT}


def jsonl(*rows: Any) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in rows)


def content(scorer: str, **changes: Any) -> dict[str, Any]:
    return parse_suite(jsonl(row(scorer, **changes)), source="s", scorer=scorer).cases[0].content


def refusal(scorer: str, *rows: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        parse_suite(jsonl(*rows), source="suite.jsonl", scorer=scorer)
    return caught.value


@pytest.mark.parametrize("scorer", OWN)
def test_a_case_holds_what_all_have_and_what_its_scorer_needs(scorer):
    found = content(scorer)
    assert {key: found[key] for key in ("key", "family", "group", "messages", "tags")} == {
        "key": "case_1",
        "family": "mail",
        "group": "case_1",
        "messages": [{"role": "user", "content": "Find the invoice."}],
        "tags": {"level": 3},
    }
    own = {key: value for key, value in found.items() if key in OWN[scorer]}
    if scorer == "rules":
        assert own.pop("checks") == [
            {"op": "contains", "arg": "sent"},
            {"op": "max_chars", "arg": 80},
            {"op": "no_refusal"},
        ]
    assert own == {key: value for key, value in OWN[scorer].items() if key != "checks"}


@pytest.mark.parametrize(
    ("scorer", "left_out"),
    [
        ("function_call", ("tool_results", "max_turns")),
        ("rules", ("tools", "tool_results", "max_turns")),
        ("judge", ("reference", "pass_score")),
    ],
)
def test_what_is_optional_and_left_out_is_not_in_the_content(scorer, left_out):
    found = content(scorer, **dict.fromkeys(left_out, ABSENT))
    assert not found.keys() & set(left_out)


@pytest.mark.parametrize("scorer", OWN)
def test_the_digest_is_that_of_format_scorer_and_contents(scorer):
    suite = parse_suite(jsonl(row(scorer), row(scorer, example_id="case_2")), source="s", scorer=scorer)
    contents = [case.content for case in suite.cases]
    assert suite.scorer == scorer
    assert suite.digest == sha256_json({"format": 1, "scorer": scorer, "cases": contents})
    assert suite.digest == digest_of_cases(contents, scorer=scorer)
    assert suite.digest != digest_of_cases(contents)


def test_spellings_of_a_bound_give_one_digest():
    digests = {
        sha256_json(content("rules", checks=[{"op": "no_refusal"}, {"op": "min_chars", "arg": arg}]))
        for arg in (2, 2.0, "2", " 2 ", "+2")
    }
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("scorer", "changes", "expects"),
    [
        ("function_call", {}, True),
        ("function_call", {"expected_calls": []}, False),
        ("rules", {}, False),
        ("rules", {"checks": [{"op": "tool_called", "arg": "SEND"}]}, True),
        ("judge", {}, False),
    ],
)
def test_a_call_is_right_where_one_is_asked_for(scorer, changes, expects):
    suite = parse_suite(jsonl(row(scorer, **changes)), source="s", scorer=scorer)
    assert suite.cases[0].expects_call is expects
    assert parse_decision(decision_row()).cases[0].expects_call is True


def test_a_case_without_tools_may_ask_for_calls_of_tools_by_name_alone():
    check = {"op": "tool_called", "arg": "calendar.add"}
    script = {"calendar.add": [{"result": "added"}]}
    found = content("rules", checks=[check, check], tools=ABSENT, tool_results=script)
    assert found["checks"] == [check, check] and "tools" not in found


@pytest.mark.parametrize("scorer", [*SCORERS, "fancy"])
def test_the_scorer_is_one_of_four(scorer):
    if scorer in SCORERS:
        with pytest.raises(InvalidInput, match="no case"):
            parse_suite(b"", source="s", scorer=scorer)
    else:
        with pytest.raises(InvalidInput, match="use one of decision, function_call, rules, judge") as caught:
            parse_suite(b"", source="s", scorer=scorer)
        assert caught.value.field == "scorer"


def call(**arguments: Any) -> list[dict[str, Any]]:
    return [{"name": "mail.search", "arguments": arguments}]


def checks(*pairs: Any) -> dict[str, Any]:
    """Checks after one of outcome that is in order, so that only the first given is at fault."""
    made = [pair if isinstance(pair, dict) else {"op": pair[0], "arg": pair[1]} for pair in pairs]
    return {"checks": [{"op": "no_refusal"}, *made]}


ANSWERED = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
FAULTS = [
    # of every scorer
    ("judge", {"messages": ANSWERED}, "messages"),
    ("rules", {"messages": ANSWERED}, "messages"),
    ("function_call", {"messages": ANSWERED}, "messages"),
    ("judge", {"family": "x" * 101}, "family"),
    ("judge", {"tools": [TOOL]}, "tools"),
    ("judge", {"checks": []}, "checks"),
    ("rules", {"expected_calls": []}, "expected_calls"),
    ("rules", {"expected": {}}, "expected"),
    ("function_call", {"rubric": "x"}, "rubric"),
    ("function_call", {"decision": "call"}, "decision"),
    # tools
    ("function_call", {"tools": ABSENT}, "tools"),
    ("function_call", {"tools": ["mail.search"]}, "tools[0]"),
    ("function_call", {"tools": [{}]}, "tools[0].name"),
    ("function_call", {"tools": [{"name": "mail search"}]}, "tools[0].name"),
    ("function_call", {"tools": [{"name": "x" * 65}]}, "tools[0].name"),
    ("function_call", {"tools": [TOOL, {"name": "mail_search"}]}, "tools[1].name"),
    ("rules", {"tools": [TOOL, TOOL]}, "tools[1].name"),
    ("function_call", {"tools": [{**TOOL, "strict": True}]}, "tools[0]"),
    ("function_call", {"tools": [{"name": "a", "parameters": {"type": "array"}}]}, "tools[0].parameters"),
    ("function_call", {"tools": [{"name": "a", "parameters": {}}]}, "tools[0].parameters"),
    (
        "function_call",
        {"tools": [{"name": "a", "parameters": {"type": "object", "properties": {"b": {"pattern": "x"}}}}]},
        "tools[0].parameters",
    ),
    # the dialogue
    ("function_call", {"max_turns": 0}, "max_turns"),
    ("function_call", {"max_turns": 33}, "max_turns"),
    ("function_call", {"max_turns": True}, "max_turns"),
    ("function_call", {"max_turns": 2.0}, "max_turns"),
    ("rules", {"max_turns": "2"}, "max_turns"),
    ("rules", {"checks": [{"op": "tool_called", "arg": "send"}], "max_turns": 1}, "max_turns"),
    ("rules", {"tool_results": []}, "tool_results"),
    ("rules", {"tool_results": {"fly": [{"result": 1}]}}, "tool_results.fly"),
    ("rules", {"tool_results": {"send": [{"result": 1}]}, "tools": ABSENT}, "tool_results.send"),
    ("rules", {"tool_results": {"send": []}}, "tool_results.send"),
    ("rules", {"tool_results": {"send": {"result": 1}}}, "tool_results.send"),
    ("rules", {"tool_results": {**RESULTS, "mail_search": [{"result": 1}]}}, "tool_results.mail_search"),
    ("rules", {"tool_results": {"send": [{}]}}, "tool_results.send[0]"),
    ("rules", {"tool_results": {"send": [{"result": 1}, 3]}}, "tool_results.send[1]"),
    ("rules", {"tool_results": {"send": [{"result": 1, "error": "x"}]}}, "tool_results.send[0]"),
    ("rules", {"tool_results": {"send": [{"when": {}}]}}, "tool_results.send[0]"),
    ("rules", {"tool_results": {"send": [{"when": [], "result": 1}]}}, "tool_results.send[0].when"),
    ("rules", {"tool_results": {"send": [{"error": 1}]}}, "tool_results.send[0].error"),
    # expected calls
    ("function_call", {"expected_calls": ABSENT}, "expected_calls"),
    ("function_call", {"expected_calls": None}, "expected_calls"),
    ("function_call", {"expected_calls": {}}, "expected_calls"),
    ("function_call", {"expected_calls": [RIGHT] * 101}, "expected_calls"),
    ("function_call", {"expected_calls": ["send"]}, "expected_calls[0]"),
    ("function_call", {"expected_calls": [RIGHT, {"name": "send"}]}, "expected_calls[1]"),
    ("function_call", {"expected_calls": [{"name": "fly", "arguments": {}}]}, "expected_calls[0].name"),
    ("function_call", {"expected_calls": [{"name": ["send"], "arguments": {}}]}, "expected_calls[0].name"),
    ("function_call", {"expected_calls": [{"name": "send", "arguments": []}]}, "expected_calls[0].arguments"),
    ("function_call", {"expected_calls": call(query="invoice")}, "expected_calls[0].arguments.query"),
    ("function_call", {"expected_calls": call(query=[])}, "expected_calls[0].arguments.query"),
    ("function_call", {"expected_calls": call(query=[{"a": 1}])}, "expected_calls[0].arguments.query[0].a"),
    (
        "function_call",
        {"expected_calls": call(query=[[{"a": 1}]])},
        "expected_calls[0].arguments.query[0][0].a",
    ),
    ("function_call", {"expected_calls": call(query=["x"], page=[1])}, "expected_calls[0].arguments.page"),
    ("function_call", {"expected_calls": call()}, "expected_calls[0].arguments"),
    # checks
    ("rules", {"checks": ABSENT}, "checks"),
    ("rules", {"checks": []}, "checks"),
    ("rules", {"checks": {}}, "checks"),
    ("rules", checks(*[("contains", "x")] * 50), "checks"),
    ("rules", {"checks": [{"op": "min_chars", "arg": 5}, {"op": "section_present", "arg": "A"}]}, "checks"),
    ("rules", checks(("regex", "[a-z]{900}"), ("regex", "[a-z]{900}"), ("regex", "[a-z]{900}")), "checks"),
    ("rules", {"checks": ["contains"]}, "checks[0]"),
    ("rules", checks({"op": "contains", "arg": "x", "flags": "i"}), "checks[1]"),
    ("rules", checks({"arg": "x"}), "checks[1].op"),
    ("rules", checks(("contain", "x")), "checks[1].op"),
    ("rules", checks(("json_schema", "x")), "checks[1].op"),
    ("rules", checks((["contains"], "x")), "checks[1].op"),
    ("rules", checks({"op": "contains"}), "checks[1].arg"),
    ("rules", checks(("contains", None)), "checks[1].arg"),
    ("rules", checks(("not_contains", " ")), "checks[1].arg"),
    ("rules", checks(("exact", "")), "checks[1].arg"),
    ("rules", checks(("exact", "?!")), "checks[1].arg"),
    ("rules", checks(("section_present", "\n")), "checks[1].arg"),
    ("rules", checks(("section_contains", "a\nb")), "checks[1].arg"),
    ("rules", checks(("tool_called", 3)), "checks[1].arg"),
    ("rules", checks(("tool_called", "fly")), "checks[1].arg"),
    ("rules", {**checks(("tool_called", "fly away")), "tools": ABSENT}, "checks[1].arg"),
    ("rules", checks(("no_refusal", "x")), "checks[1].arg"),
    ("rules", checks(("regex", "foo(")), "checks[1].arg"),
    ("rules", checks(("regex", r"(?<=a)b")), "checks[1].arg"),
    ("rules", checks(("regex", r"(.)\1")), "checks[1].arg"),
    *(("rules", checks(("max_chars", arg)), "checks[1].arg") for arg in (True, 1.9, "many", -1, None, "5_0")),
    *(
        ("rules", checks(("max_chars", arg)), "checks[1].arg")
        for arg in ("1.0", "", "٣", "1" * 21, [1], 1e300)
    ),
    ("rules", checks(("min_chars", 0)), "checks[1].arg"),
    ("rules", checks(("min_chars", "-0")), "checks[1].arg"),
    # the judge
    ("judge", {"rubric": ABSENT}, "rubric"),
    ("judge", {"rubric": " "}, "rubric"),
    ("judge", {"rubric": ["x"]}, "rubric"),
    ("judge", {"reference": ""}, "reference"),
    ("judge", {"reference": 3}, "reference"),
    *(("judge", {"pass_score": score}, "pass_score") for score in (0, 1.1, -1, True, "0.8", [])),
]


@pytest.mark.parametrize(("scorer", "change", "field"), FAULTS)
def test_a_faulty_row_refuses_the_suite_names_line_and_field_and_says_what_to_do(scorer, change, field):
    error = refusal(scorer, row(scorer, example_id="good"), row(scorer, **change))
    assert error.field == f"line 2: {field}"
    assert error.facts == {"source": "suite.jsonl", "line": 2}
    assert error.message.isprintable()
    assert any(sign in error.message for sign in ("; ", " must ")), error.message


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"checks": [{"op": "max_chars", "arg": 5}]}, "add one of contains"),
        (checks(("regex", "foo(")), "RE2"),
        (checks(("regex", r"(?=a)b")), "look-around"),
        (checks(("tool_called", "fly")), "add it there"),
        (checks(("min_chars", 0)), "use 1 or more"),
    ],
)
def test_a_refusal_names_the_remedy(change, says):
    assert says in refusal("rules", row("rules", **change)).message


@pytest.mark.parametrize("scorer", OWN)
@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"not json", "strict JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"a": 1, "b": {"k": 1, "k": 2}}', '"k" is given twice'),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"a": "\\u0000"}', "NUL"),
        (b'{"a": 9007199254740993}', "2**53"),
        (b'{"a": "\xff"}', "not UTF-8 at byte"),
    ],
)
def test_a_bad_line_is_refused_whatever_the_scorer(scorer, line, says):
    with pytest.raises(InvalidInput) as caught:
        parse_suite(jsonl(row(scorer)) + line + b"\n", source="s", scorer=scorer)
    assert caught.value.field.startswith("line 2")
    assert says in caught.value.message


@pytest.mark.parametrize("scorer", OWN)
def test_a_key_used_twice_is_refused_whatever_the_scorer(scorer):
    assert refusal(scorer, row(scorer), row(scorer)).field == "line 2: example_id"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([(scorer, key) for scorer in OWN for key in row(scorer)]), values)
def test_any_value_under_any_key_is_read_or_refused_but_never_crashes(place, value):
    scorer, key = place
    try:
        case = parse_suite(jsonl(row(scorer, **{key: value})), source="s", scorer=scorer).cases[0]
    except InvalidInput as error:
        assert error.field.startswith("line 1")
    else:
        assert case.digest == sha256_json(case.content)


@given(
    st.sampled_from(
        ["contains", "exact", "regex", "max_chars", "section_present", "tool_called", "no_refusal"]
    ),
    values,
)
def test_any_argument_of_a_check_is_read_or_refused_but_never_crashes(op, arg):
    try:
        content("rules", **checks((op, arg)))
    except InvalidInput as error:
        assert error.field.startswith("line 1")
