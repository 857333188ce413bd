"""Rules of reading a suite: what it gives, what changes its digest, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.errors import InvalidInput
from rollouts.hashing import sha256_json
from rollouts.suite_format import digest_of_cases, lines, parse_suite, parts

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "toolcaller-smollm2"
SIZES = {"regression": 200, "generalization": 150, "fabrication": 160, "gauntlet": 200, "smoke": 24}
DIGESTS = {
    "regression": "29ed0caf06189fb236d4702bed4596f831388006598e131e365d54132bb395a7",
    "fabrication": "1c28fbfed7ec2772c7f25d278bebde45916a89d802b478ef8f3a70139bce29a0",
    "smoke": "aab893c8e61c870615be154aee7ed6777da62c653f98353ba4769dd905f02bd6",
}
CALL = {"decision": "call", "tool": "set_volume", "arguments": {"level": 3}}
SCHEMA = {"type": "object", "properties": {"level": {"type": "integer"}}, "additionalProperties": False}
ABSENT = object()


def row(**changes) -> dict:
    base = {
        "example_id": "case_1",
        "lineage_group_id": "group_1",
        "family": "music",
        "decision": "call",
        "messages": [
            {"role": "system", "content": "You decide."},
            {"role": "user", "content": "Volume 3, please."},
            {"role": "assistant", "content": json.dumps(CALL)},
        ],
        "tools": ["set_volume", "play_song"],
        "expected": CALL,
        "explicit": True,
    }
    return {key: value for key, value in {**base, **changes}.items() if value is not ABSENT}


def chat(*contents: tuple[str, str]) -> list[dict]:
    return [{"role": role, "content": content} for role, content in contents]


def parse(*rows):
    return parse_suite(jsonl(*rows), source="suite.jsonl")


def jsonl(*rows) -> bytes:
    return "".join(json.dumps(item) + "\n" for item in rows).encode()


def refusal(data: bytes) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        parse_suite(data, source="suite.jsonl")
    return caught.value


def test_a_row_gives_a_case_without_its_reference_answer():
    case = parse(row()).cases[0]
    assert (case.key, case.group, case.family) == ("case_1", "group_1", "music")
    assert [message["role"] for message in case.content["messages"]] == ["system", "user"]
    assert case.content["tools"] == ["set_volume", "play_song"]
    assert case.content["expected"] == CALL
    assert case.content["tags"] == {"explicit": True}
    assert case.expects_call
    assert case.digest == sha256_json(case.content)
    assert "assistant" not in json.dumps(case.content)


def test_the_suite_digest_is_that_of_format_scorer_and_contents_in_file_order():
    first, second = row(), row(example_id="case_2")
    suite = parse(first, second)
    contents = [case.content for case in suite.cases]
    assert suite.digest == sha256_json({"format": 1, "scorer": "decision", "cases": contents})
    assert parse(second, first).digest != suite.digest


def test_the_digest_of_a_decision_suite_is_what_it_always_was():
    second = row(
        example_id="case_2", tools=[{"name": "set_volume", "parameters": {"type": "object"}}, "play_song"]
    )
    digest = "330a8b7525a5bf22b115a9101800513ebf15c3cb5a15b9520b9e4761ae0d05fd"
    suite = parse(row(), second)
    assert suite.digest == digest
    assert digest_of_cases([case.content for case in suite.cases]) == digest


@pytest.mark.parametrize(("suite", "digest"), DIGESTS.items())
def test_the_demo_suites_have_the_digests_they_always_had(suite, digest):
    if not DATA.exists():
        pytest.skip(f"demo data missing: {DATA}")
    data = (DATA / "suites" / f"{suite}.jsonl").read_bytes()
    assert parse_suite(data, source=suite).digest == digest


def test_line_ends_blank_lines_and_key_order_do_not_change_the_digest():
    plain = jsonl(row(), row(example_id="case_2"))
    reversed_keys = jsonl(*(dict(reversed(r.items())) for r in (row(), row(example_id="case_2"))))
    digest = parse_suite(plain, source="a").digest
    for other in (plain.replace(b"\n", b"\r\n"), plain.replace(b"\n", b"\n\n \n"), plain[:-1], reversed_keys):
        assert parse_suite(other, source="b").digest == digest


@pytest.mark.parametrize(
    "change",
    [
        {"example_id": "other"},
        {"family": "other"},
        {"lineage_group_id": "other"},
        {"tools": ["play_song", "set_volume"]},
        {"tools": [{"name": "set_volume"}, "play_song"]},
        {"explicit": False},
        {"messages": chat(("user", "Volume 3, please."))},
        {"expected": {**CALL, "arguments": {"level": "3"}}, "messages": row()["messages"][:2]},
    ],
)
def test_anything_that_shapes_prompt_score_or_grouping_changes_the_digest(change):
    assert parse(row(**change)).digest != parse(row()).digest


def test_the_expected_proposal_may_come_from_the_assistant_message_alone():
    assert parse(row(expected=ABSENT)).digest == parse(row()).digest
    assert parse(row(expected=ABSENT, decision=ABSENT)).cases[0].content["expected"] == CALL


def test_the_group_falls_back_to_group_id_and_then_to_the_key():
    assert parse(row(lineage_group_id=ABSENT, group_id="g7")).cases[0].group == "g7"
    assert parse(row(lineage_group_id=ABSENT)).cases[0].group == "case_1"


def test_tools_given_as_objects_keep_their_schemas_and_descriptions():
    tool = {"name": "set_volume", "description": "loudness", "parameters": SCHEMA}
    case = parse(row(tools=[tool, "play_song"])).cases[0]
    assert case.content["tools"] == [tool, "play_song"]


def test_a_foundry_row_without_tools_has_those_of_its_prompt():
    system = (
        "You propose.\n\nRole: chat\n\nAvailable tools:\n- read_file: reads - a file\n"
        "    - path (string, required): where\n- ask_user: asks\n    (no parameters)\n\nRules:\n"
        "- never: invent"
    )
    answer = '{"decision": "unsupported", "reason_code": "no_matching_tool"}'
    case = parse(
        row(
            messages=chat(("system", system), ("user", "Fly."), ("assistant", answer)),
            tools=ABSENT,
            expected=ABSENT,
            decision="unsupported",
            lineage_group_id=ABSENT,
            group_id=ABSENT,
            role="chat",
        )
    ).cases[0]
    assert case.content["tools"] == ["read_file", "ask_user"]
    assert case.content["tags"] == {"explicit": True, "role": "chat"}
    assert not case.expects_call


@pytest.mark.parametrize("suite", SIZES)
def test_the_demo_suites_are_read_whole(suite):
    if not DATA.exists():
        pytest.skip(f"demo data missing: {DATA}")
    parsed = parse_suite((DATA / "suites" / f"{suite}.jsonl").read_bytes(), source=suite)
    assert len(parsed.cases) == SIZES[suite]
    assert len({case.digest for case in parsed.cases}) == SIZES[suite]


def test_the_rows_that_name_their_tool_can_be_picked_by_line():
    if not DATA.exists():
        pytest.skip(f"demo data missing: {DATA}")
    data = (DATA / "suites" / "generalization.jsonl").read_bytes()
    named = b"".join(line for line in data.splitlines(keepends=True) if json.loads(line)["explicit"])
    parsed = parse_suite(named, source="named_tools")
    assert len(parsed.cases) == 75
    assert all(case.content["tags"]["explicit"] is True for case in parsed.cases)
    whole = {case.key: case.digest for case in parse_suite(data, source="generalization").cases}
    assert all(whole[case.key] == case.digest for case in parsed.cases)


USER = ("user", "Volume 3, please.")
NUL_SCHEMA = {"name": "t", "parameters": {"type": 12}}
FAULTS = [
    ({"example_id": ABSENT}, "example_id"),
    ({"example_id": ""}, "example_id"),
    ({"example_id": 7}, "example_id"),
    ({"example_id": "x" * 201}, "example_id"),
    ({"family": ABSENT}, "family"),
    ({"family": None}, "family"),
    ({"family": "x" * 101}, "family"),
    ({"lineage_group_id": 3}, "lineage_group_id"),
    ({"messages": ABSENT}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": ["hello"]}, "messages[0]"),
    ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages[0]"),
    ({"messages": chat(("tool", "x"))}, "messages[0].role"),
    ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
    ({"messages": chat(USER, ("system", "x"))}, "messages[1].role"),
    ({"messages": chat(("user", " \n"))}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": chat(("system", "x"))}, "messages"),
    ({"messages": chat(("assistant", json.dumps(CALL)))}, "messages"),
    ({"messages": chat(USER, ("assistant", "I will call it."))}, "messages[-1].content"),
    (
        {"messages": chat(USER, ("assistant", '{"decision":"call","decision":"call"}'))},
        "messages[-1].content",
    ),
    ({"messages": chat(USER, ("assistant", '{"decision":"no_tool"}'))}, "expected"),
    ({"messages": chat(USER), "expected": ABSENT}, "expected"),
    ({"expected": "call"}, "expected"),
    ({"expected": {}}, "expected.decision"),
    ({"expected": {"decision": "maybe"}}, "expected.decision"),
    ({"expected": {"decision": "call", "arguments": {}}}, "expected"),
    ({"expected": {"decision": "call", "tool": "set_volume"}}, "expected"),
    ({"expected": {"decision": "clarify"}}, "expected"),
    ({"expected": {"decision": "no_tool", "tool": "set_volume"}}, "expected"),
    ({"decision": "no_tool"}, "decision"),
    ({"tools": ABSENT}, "tools"),
    ({"tools": "set_volume"}, "tools"),
    ({"tools": ["play_song"]}, "expected.tool"),
    ({"tools": []}, "expected.tool"),
    ({"tools": ["set_volume", 3]}, "tools[1]"),
    ({"tools": ["set_volume", "set_volume"]}, "tools[1]"),
    ({"tools": [{"name": "set_volume", "strict": True}]}, "tools[0]"),
    ({"tools": [{"name": "set_volume", "description": 3}]}, "tools[0].description"),
    ({"tools": [{"name": "set_volume", "parameters": []}]}, "tools[0].parameters"),
    ({"tools": ["set_volume", NUL_SCHEMA]}, "tools[1].parameters"),
    (
        {"tools": ["set_volume", {"name": "t", "parameters": {"$ref": "https://example.com/s"}}]},
        "tools[1].parameters",
    ),
    ({"tools": ["set_volume", {"name": "t", "parameters": {"$ref": "#/$defs/no"}}]}, "tools[1].parameters"),
    ({"tools": ["set_volume", {"name": "t", "parameters": {"$id": "https://a.b/c"}}]}, "tools[1].parameters"),
    ({"tools": ["set_volume", {"name": "t", "parameters": {"pattern": "("}}]}, "tools[1].parameters"),
    (
        {"tools": [{"name": "set_volume", "parameters": {"properties": {"level": {"type": "string"}}}}]},
        "expected.arguments",
    ),
    ({"note": "a\0b"}, "note"),
    ({"note": {"a": ["x", "\0"]}}, "note.a[1]"),
    ({"note": {"a\0": 1}}, "note"),
    ({"note": 2**53}, "note"),
    ({"note": [-(2**53)]}, "note[0]"),
    (
        {"messages": chat(USER, ("assistant", '{"decision":"clarify","reason_code":"\\u0000"}'))},
        "messages[-1].content.reason_code",
    ),
]


@pytest.mark.parametrize(("change", "field"), FAULTS)
def test_a_faulty_row_refuses_the_suite_and_names_line_and_field(change, field):
    error = refusal(jsonl(row(example_id="good"), row(**change)))
    assert error.field == f"line 2: {field}"
    assert error.facts == {"source": "suite.jsonl", "line": 2}
    assert error.message.isprintable()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"example_id": "x"', "strict JSON"),
        (b"not json", "strict JSON"),
        (b"[1]", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b'{"a": 1, "b": {"k": 1, "k": 2}}', '"k" is given twice'),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": Infinity}', "Infinity"),
        (b'{"a": 1e999}', "range of a double"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"\\udfff": 1}', "surrogate"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8 at byte"),
        (b'{"a": "\x00"}', "strict JSON"),
        (b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested"),
    ],
)
def test_a_line_that_is_no_strict_json_object_is_refused_with_its_number(line, says):
    error = refusal(jsonl(row()) + b"\n" + line + b"\n")
    assert error.field == "line 3"
    assert says in error.message


def test_invalid_utf8_is_located_by_its_byte_in_the_file():
    good = jsonl(row())
    assert f"byte {len(good) + 3} of the file" in refusal(good + b'{"a\xff": 1}').message


def test_a_key_used_twice_names_both_lines():
    error = refusal(jsonl(row(), row(example_id="case_2"), row()))
    assert error.field == "line 3: example_id"
    assert "line 1" in error.message


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no case"),
        (b"\n \n\r\n", "no case"),
        (b"\xef\xbb\xbf" + jsonl(row()), "byte order mark"),
    ],
)
def test_a_file_without_cases_or_with_a_byte_order_mark_is_refused(data, says):
    error = refusal(data)
    assert error.field == "suite.jsonl"
    assert says in error.message


def test_a_case_beyond_the_size_limit_is_refused_and_one_at_it_is_not(monkeypatch):
    data = jsonl(row())
    monkeypatch.setattr(lines, "MAX_CASE_BYTES", len(data))
    assert len(parse_suite(data, source="s").cases) == 1
    monkeypatch.setattr(lines, "MAX_CASE_BYTES", len(data) - 1)
    assert refusal(data).field == "line 1"


def test_a_suite_beyond_the_size_limit_is_refused(monkeypatch):
    data = jsonl(row())
    monkeypatch.setattr(lines, "MAX_SUITE_BYTES", len(data) - 1)
    assert "split it" in refusal(data).message


def test_a_schema_that_exhausts_the_stack_while_checked_is_refused(monkeypatch):
    def exhaust(schema):
        raise RecursionError

    monkeypatch.setattr(parts.Draft202012Validator, "check_schema", exhaust)
    error = refusal(jsonl(row(tools=["set_volume", {"name": "t", "parameters": {}}])))
    assert error.field == "line 1: tools[1].parameters"


def test_every_refusal_says_what_to_do():
    for change, _ in FAULTS:
        message = refusal(jsonl(row(**change))).message
        assert any(sign in message for sign in ("; ", " must ", " can only ")), message


@given(
    st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))
)
def test_bytes_that_are_no_suite_are_always_refused_with_invalid_input(data):
    refusal(data)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([*row()]), values)
def test_any_value_under_any_key_is_read_or_refused_but_never_crashes(key, value):
    data = jsonl(row(**{key: value}))
    try:
        case = parse_suite(data, source="s").cases[0]
    except InvalidInput as error:
        assert error.field.startswith("line 1")
    else:
        assert case.digest == sha256_json(case.content)
