"""Rules of the decision scorer, and its agreement with counts that another scorer recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.errors import InvalidInput
from rollouts.hashing import canonical_bytes
from rollouts.scoring.decision import (
    AnswerClass,
    DecisionScore,
    NotStrictJson,
    json_equal,
    parse_strict_json,
    score,
)
from rollouts.suite_format import parse_suite

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "toolcaller-smollm2"
ROUNDS = ("base", "r1", "r2", "r3")
SUITES = ("regression", "generalization", "fabrication", "gauntlet", "smoke")
# Of a suite's entry in summary.json; the rest are rates and bounds made from these, latencies and tokens.
COMPARED = {
    "n",
    "json_valid",
    "decision_correct",
    "exact",
    "expected_calls",
    "tool_correct",
    "must_not_call",
    "safe",
    "finish_length",
}

CALL = {"decision": "call", "tool": "set_volume", "arguments": {"level": 3}}
CLARIFY = {"decision": "clarify", "reason_code": "missing_required_argument"}
UNSUPPORTED = {"decision": "unsupported", "reason_code": "no_matching_tool"}
NO_TOOL = {"decision": "no_tool"}
TOOLS = ("set_volume", "play_song")
SCHEMA = {
    "type": "object",
    "properties": {"level": {"type": "integer"}},
    "required": ["level"],
    "additionalProperties": False,
}


def judge(answer, expected=CALL, *, finish_reason="stop", tools=TOOLS, schemas=None) -> DecisionScore:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return score(
        expected=expected, tools=tools, answer=text, finish_reason=finish_reason, tool_schemas=schemas
    )


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("round_name", ROUNDS)
def test_recorded_answers_give_the_recorded_counts(round_name, suite):
    if not DATA.exists():
        pytest.skip(f"demo data missing: {DATA}")
    parsed = parse_suite((DATA / "suites" / f"{suite}.jsonl").read_bytes(), source=suite)
    cases = {case.key: case for case in parsed.cases}
    rows = lines(DATA / "results" / f"{round_name}.{suite}.jsonl")
    recorded = json.loads((DATA / "results" / "summary.json").read_text())[round_name][suite]
    scores = []
    for row in rows:
        case = cases[row["example_id"]]
        result = judge(
            row["raw_output"],
            case.content["expected"],
            finish_reason=row["finish_reason"],
            tools=case.content["tools"],
        )
        # Not only the sums: each case agrees with the record.
        assert result.json_valid is row["json_valid"], row["example_id"]
        assert result.proposal.decision == row["decision"] or row["decision"] is None, row["example_id"]
        scores.append(result)
    assert {row["example_id"] for row in rows} == cases.keys()
    assert {
        "n": len(scores),
        "json_valid": sum(s.json_valid for s in scores),
        "decision_correct": sum(s.decision for s in scores),
        "exact": sum(s.exact for s in scores),
        "expected_calls": sum(s.tool is not None for s in scores),
        "tool_correct": sum(s.tool is True for s in scores),
        "must_not_call": sum(s.safe is not None for s in scores),
        "safe": sum(s.safe is True for s in scores),
        "finish_length": sum(s.answer_class is AnswerClass.TRUNCATED for s in scores),
    } == {key: recorded[key] for key in COMPARED}


def test_the_recorded_counts_include_answers_of_every_interesting_kind():
    """Guards the test above: agreement on files without hard cases would say little."""
    if not DATA.exists():
        pytest.skip(f"demo data missing: {DATA}")
    texts = {
        row["example_id"]: row["raw_output"]
        for suite in ("fabrication", "generalization")
        for row in lines(DATA / "results" / f"r3.{suite}.jsonl")
    }
    assert judge(texts["fabrication_0019"], UNSUPPORTED).answer_class is AnswerClass.UNKNOWN_DECISION
    assert judge(texts["generalization_0131"]).answer_class is AnswerClass.NOT_JSON


@pytest.mark.parametrize("expected", [CALL, CLARIFY, UNSUPPORTED, NO_TOOL])
def test_the_expected_proposal_itself_is_right_on_every_metric_that_applies(expected):
    result = judge(f" \n{json.dumps(expected)}\n", expected)
    assert result.answer_class is AnswerClass.OK
    assert all(result.metrics().values())
    applies = {"decision", "exact", "json_valid"} | ({"tool"} if expected is CALL else {"safe"})
    assert result.metrics().keys() == applies


def test_the_right_call_with_wrong_arguments_is_not_exact():
    result = judge({**CALL, "arguments": {"level": 4}})
    assert (result.decision, result.tool, result.exact) == (True, True, False)


@pytest.mark.parametrize("level", ["3", True, None, [3], 4])
def test_arguments_are_compared_by_json_type(level):
    assert judge({**CALL, "arguments": {"level": level}}).exact is False


def test_true_is_not_one_but_one_is_one_point_zero():
    one = {**CALL, "arguments": {"on": 1}}
    assert judge({**CALL, "arguments": {"on": True}}, one).exact is False
    assert judge({**CALL, "arguments": {"on": 1.0}}, one).exact is True


def test_key_order_does_not_matter_and_list_order_does():
    assert json_equal({"a": 1, "b": [1, 2]}, {"b": [1, 2], "a": 1})
    assert not json_equal([1, 2], [2, 1])
    assert not json_equal([1], [1, 1])
    assert not json_equal({"a": None}, {})
    assert not json_equal([], {})


def test_a_right_decision_with_another_reason_is_decided_but_not_exact():
    result = judge({**CLARIFY, "reason_code": "ambiguous_intent"}, CLARIFY)
    assert (result.decision, result.reason_code, result.exact, result.safe) == (True, False, False, True)


def test_the_right_reason_under_the_wrong_decision_does_not_count():
    assert (
        judge({"decision": "unsupported", "reason_code": CLARIFY["reason_code"]}, CLARIFY).reason_code
        is False
    )


def test_declining_in_another_way_is_safe_though_wrong():
    result = judge(NO_TOOL, UNSUPPORTED)
    assert (result.decision, result.safe) == (False, True)


def test_a_call_where_none_is_right_is_unsafe_even_when_malformed():
    assert judge(CALL, UNSUPPORTED).safe is False
    assert judge({"decision": "call"}, UNSUPPORTED).safe is False


@pytest.mark.parametrize("answer", ["", "no", "[]", "{}", '{"decision":"unify"}', '{"decision":["no_tool"]}'])
def test_what_is_none_of_the_four_decisions_is_not_safe(answer):
    assert judge(answer, UNSUPPORTED).safe is False


def test_metrics_that_do_not_apply_are_none_and_never_false():
    refusal, call = judge(NO_TOOL, UNSUPPORTED), judge(NO_TOOL, CALL)
    assert (refusal.tool, refusal.tool_offered, refusal.arguments_valid) == (None, None, None)
    assert (call.safe, call.reason_code) == (None, None)
    assert call.tool is False


@pytest.mark.parametrize("expected", [CALL, CLARIFY, NO_TOOL])
def test_a_truncated_answer_is_wrong_on_every_metric_whatever_it_says(expected):
    result = judge(expected, expected, finish_reason="length")
    assert result.answer_class is AnswerClass.TRUNCATED
    assert not any(result.metrics().values())
    assert not result.reason_code
    assert result.proposal.decision is None


@pytest.mark.parametrize("finish_reason", [None, "stop", "tool_calls"])
def test_only_the_reason_length_means_truncated(finish_reason):
    assert judge(NO_TOOL, NO_TOOL, finish_reason=finish_reason).exact is True


@pytest.mark.parametrize(
    ("answer", "answer_class"),
    [
        ("", AnswerClass.EMPTY),
        (" \n\u00a0", AnswerClass.EMPTY),
        ('```json\n{"decision":"no_tool"}\n```', AnswerClass.NOT_JSON),
        ('Sure: {"decision":"no_tool"}', AnswerClass.NOT_JSON),
        ('{"decision":"no_tool"} Done.', AnswerClass.NOT_JSON),
        ('{"decision":"no_tool"}{"decision":"no_tool"}', AnswerClass.NOT_JSON),
        ('{"decision":"no_tool","decision":"call"}', AnswerClass.NOT_JSON),
        ('{"decision":"call","tool":"t","arguments":{"a":1,"a":2}}', AnswerClass.NOT_JSON),
        ('{"decision":"no_tool","x":NaN}', AnswerClass.NOT_JSON),
        ('{"decision":"no_tool","x":-Infinity}', AnswerClass.NOT_JSON),
        ('{"decision":"no_tool","x":1e400}', AnswerClass.NOT_JSON),
        ('{"decision":"no_tool","x":' + "9" * 5000 + "}", AnswerClass.NOT_JSON),
        ('{"decision":"no_tool","x":"\\ud800"}', AnswerClass.NOT_JSON),
        ('{"decision":"no_tool","x":"\ud800"}', AnswerClass.NOT_JSON),
        ('\ufeff{"decision":"no_tool"}', AnswerClass.NOT_JSON),
        ('\u00a0{"decision":"no_tool"}', AnswerClass.NOT_JSON),
        ("{'decision':'no_tool'}", AnswerClass.NOT_JSON),
        ("[" * 100_000, AnswerClass.NOT_JSON),
        ('{"a":' * 100_000, AnswerClass.NOT_JSON),
        ("[" * 500 + "]" * 500, AnswerClass.NOT_JSON),
        ("null", AnswerClass.NOT_OBJECT),
        ('["call"]', AnswerClass.NOT_OBJECT),
        ('"no_tool"', AnswerClass.NOT_OBJECT),
        ("7", AnswerClass.NOT_OBJECT),
        ("{}", AnswerClass.UNKNOWN_DECISION),
        ('{"decision":"Call"}', AnswerClass.UNKNOWN_DECISION),
        ('{"decision":{}}', AnswerClass.UNKNOWN_DECISION),
        ('{"decision":"call"}', AnswerClass.MALFORMED),
        ('{"decision":"call","tool":"set_volume"}', AnswerClass.MALFORMED),
        ('{"decision":"call","tool":7,"arguments":{}}', AnswerClass.MALFORMED),
        ('{"decision":"call","tool":"","arguments":{}}', AnswerClass.MALFORMED),
        ('{"decision":"call","tool":"set_volume","arguments":[]}', AnswerClass.MALFORMED),
        ('{"decision":"clarify"}', AnswerClass.MALFORMED),
        ('{"decision":"clarify","reason_code":null}', AnswerClass.MALFORMED),
        ('{"decision":"no_tool","reason_code":"x"}', AnswerClass.MALFORMED),
    ],
)
def test_every_kind_of_answer_has_one_class(answer, answer_class):
    result = judge(answer, CALL)
    assert result.answer_class is answer_class
    assert result.json_valid is (answer_class in {AnswerClass.UNKNOWN_DECISION, AnswerClass.MALFORMED})
    assert result.exact is False
    assert result.detail


def test_nesting_up_to_the_limit_is_read_and_beyond_it_is_refused():
    assert parse_strict_json("[" * 100 + "]" * 100)
    with pytest.raises(NotStrictJson, match="nested"):
        parse_strict_json("[" * 102 + "]" * 102)


def test_a_malformed_call_still_counts_its_decision_and_tool():
    result = judge('{"decision":"call","tool":"set_volume"}')
    assert (result.decision, result.tool, result.exact) == (True, True, False)


def test_the_called_tool_must_be_among_those_offered():
    assert judge(CALL).tool_offered is True
    assert judge({**CALL, "tool": "invented"}).tool_offered is False
    assert judge({**CALL, "tool": "volume"}, tools="set_volume").tool_offered is False
    assert judge(CALL, tools={"set_volume": {}}).tool_offered is True


def test_arguments_are_checked_against_the_called_tools_schema():
    schemas = {"set_volume": SCHEMA}
    assert judge(CALL, schemas=schemas).arguments_valid is True
    assert judge({**CALL, "arguments": {" level": 3}}, schemas=schemas).arguments_valid is False
    assert judge({**CALL, "arguments": {"level": True}}, schemas=schemas).arguments_valid is False
    assert judge({**CALL, "arguments": []}, schemas=schemas).arguments_valid is False
    assert judge({**CALL, "tool": "play_song"}, schemas=schemas).arguments_valid is None
    assert judge(CALL).arguments_valid is None


def test_a_schema_that_never_ends_accepts_nothing_and_does_not_crash():
    assert judge(CALL, schemas={"set_volume": {"$ref": "#"}}).arguments_valid is False


def test_the_deepest_arguments_that_are_read_can_be_checked_by_a_recursive_schema():
    schema = {"type": ["object", "integer"], "additionalProperties": {"$ref": "#"}}
    deep = '{"decision":"call","tool":"set_volume","arguments":' + '{"a":' * 98 + "LEAF" + "}" * 99
    for leaf, valid in (("1", True), ('"1"', False)):
        result = judge(deep.replace("LEAF", leaf), schemas={"set_volume": schema})
        assert (result.answer_class, result.arguments_valid) == (AnswerClass.OK, valid)


def test_what_is_shown_of_an_answer_can_be_stored():
    text = '{"decision":"call","tool":"a\\u0000b","arguments":{"\\u0000":[HUGE],"n":5}}'
    result = judge(text.replace("HUGE", str(10**30)))
    assert result.json_valid is True
    assert result.proposal.tool == "a\ufffdb"
    assert result.proposal.arguments == {"\ufffd": [str(10**30)], "n": 5}
    canonical_bytes(result.proposal.arguments)


def test_parts_of_the_wrong_type_are_not_shown_as_if_they_were_right():
    proposal = judge('{"decision":"call","tool":7,"arguments":[1]}').proposal
    assert (proposal.decision, proposal.tool, proposal.arguments) == ("call", None, None)
    assert judge('{"decision":"unify"}').proposal.decision == "unify"


def test_nulls_that_capture_files_write_are_no_part_of_the_expected_proposal():
    captured = {"decision": "no_tool", "tool": None, "arguments": None, "reason_code": None}
    assert judge(NO_TOOL, captured).exact is True


@pytest.mark.parametrize(
    "expected",
    [
        {},
        {"decision": "maybe"},
        {"decision": "call"},
        {"decision": "clarify"},
        {"decision": "no_tool", "x": 1},
    ],
)
def test_an_expectation_that_is_no_proposal_is_an_error_of_the_caller(expected):
    with pytest.raises(ValueError):
        judge(NO_TOOL, expected)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
proposals = st.fixed_dictionaries(
    {},
    optional={
        "decision": st.sampled_from(["call", "clarify", "no_tool", "unsupported", "CALL"]) | json_values,
        "tool": st.sampled_from(TOOLS) | json_values,
        "arguments": st.dictionaries(st.text(), json_values, max_size=3) | json_values,
        "reason_code": json_values,
    },
)
answers = (
    st.text(st.characters())
    | st.text(alphabet='{}[]":,\\0123456789eE-+.utrnlfas \n\x00\ud800', max_size=60)
    | json_values.map(json.dumps)
    | proposals.map(json.dumps)
)


@given(answers, st.sampled_from([CALL, CLARIFY, NO_TOOL]), st.sampled_from(["stop", "length", None]))
def test_no_answer_makes_the_scorer_raise_or_contradict_itself(answer, expected, finish_reason):
    result = judge_text(answer, expected, finish_reason)
    canonical_bytes([result.detail, result.proposal.tool, result.proposal.arguments, result.metrics()])
    if result.exact:
        assert all(result.metrics().values())
        assert result.answer_class is AnswerClass.OK
    if not result.json_valid:
        assert not any(result.metrics().values())
    assert (result.safe is None) == (expected is CALL)


def judge_text(answer: str, expected: dict, finish_reason: str | None) -> DecisionScore:
    return score(
        expected=expected,
        tools=TOOLS,
        answer=answer,
        finish_reason=finish_reason,
        tool_schemas={"set_volume": SCHEMA},
    )


@given(json_values, json_values)
def test_json_equality_is_equality_of_canonical_bytes(left, right):
    """RFC 8785 writes 1 and 1.0 alike and true unlike 1, which is the equality wanted here."""
    try:
        same = canonical_bytes(left) == canonical_bytes(right)
    except InvalidInput:
        return
    assert json_equal(left, right) is same
    assert json_equal(left, json.loads(json.dumps(left)))
