"""What went wrong in a run, in groups with a sentence: on the demo's measured answers, and on answers made by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promotion import demo
from rollouts.clusters import EXAMPLES, MAX_GROUPS, Miss, clusters, pack, unpack
from rollouts.scoring import score
from rollouts.scoring.base import Answer, ToolCall

CALL = {"decision": "call", "tool": "book", "arguments": {"nights": 2, "city": "Oslo"}}
DECLINE = {"decision": "unsupported", "reason_code": "no_matching_tool"}
TOOLS = ["book", "cancel"]


def measured(round_name: str, suite: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Case and recorded answer of the demo data."""
    cases = {row["example_id"]: row for row in lines(f"suites/{suite}")}
    return ((cases[row["example_id"]], row) for row in lines(f"results/{round_name}.{suite}"))


def lines(name: str) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in (demo.DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def miss(
    content: Mapping[str, Any],
    answer: Answer,
    *,
    scorer: str = "decision",
    number: int = 1,
    prompt: str = "p",
) -> list[Miss]:
    """The answer as a miss; none where it is right."""
    found = score(scorer, content, answer)
    details = json.loads(json.dumps(found.details)) if found.details else None
    row = Miss(number, prompt, content, found.answer_class, answer.text, details, found.decision, found.tool)
    return [] if found.exact else [row]


def did(content: Mapping[str, Any], answer: Answer, *, scorer: str = "decision") -> str:
    total, [group] = clusters(scorer, miss(content, answer, scorer=scorer))
    assert (total, group.n, group.examples) == (1, 1, [1])
    return group.did


def said(text: Any, **more: Any) -> Answer:
    return Answer(text=text if isinstance(text, str) else json.dumps(text), finish_reason="stop", **more)


def test_the_demo_s_second_round_refuses_tools_that_were_offered() -> None:
    """Named tools of held-out families: the round learned "a tool is named, so refuse"."""
    misses = [
        row
        for number, (case, found) in enumerate(measured("r2", "generalization"))
        if case.get("explicit")
        for row in miss(
            case, Answer(text=found["raw_output"], finish_reason=found["finish_reason"]), number=number,
            prompt=case["messages"][1]["content"],
        )
    ]  # fmt: skip
    total, groups = clusters("decision", misses)
    first = groups[0]
    assert first.sentence(total).startswith(
        f"{first.n} of {total} misses answered unsupported for a tool that was offered"
    )
    assert (first.n, total) == (50, 62)
    assert first.prompts == first.n
    assert first.where == {"wrong": "decision"}
    assert len(first.examples) == EXAMPLES
    assert sum(group.n for group in groups) == total


@pytest.mark.parametrize("round_name", ["r1", "r2", "r3"])
@pytest.mark.parametrize("suite", ["regression", "generalization", "fabrication", "gauntlet", "smoke"])
def test_groups_add_up_to_the_misses_and_come_largest_first(round_name: str, suite: str) -> None:
    misses = [
        row
        for case, found in measured(round_name, suite)
        for row in miss(case, Answer(text=found["raw_output"], finish_reason=found["finish_reason"]))
    ]
    total, groups = clusters("decision", iter(misses))
    assert sum(group.n for group in groups) == total == len(misses)
    assert [group.n for group in groups] == sorted((group.n for group in groups), reverse=True)


@pytest.mark.parametrize(
    ("expected", "answer", "group"),
    [
        (CALL, said(DECLINE), "answered unsupported for a tool that was offered"),
        (CALL, said({"decision": "clarify", "reason_code": "x"}), "answered clarify for a tool that was offered"),
        (CALL, said({**CALL, "tool": "cancel"}), "called another offered tool"),
        (CALL, said({**CALL, "tool": "fly"}), "called a tool that was not offered"),
        (CALL, said({**CALL, "tool": 3}), "called nothing by name"),
        (CALL, said({**CALL, "arguments": {"nights": 3, "city": "Oslo"}}), "called the right tool with wrong arguments"),
        (CALL, said({"decision": "call", "tool": "book"}), "called the right tool in a malformed answer"),
        (DECLINE, said(CALL), "called an offered tool where unsupported was right"),
        (DECLINE, said({**CALL, "tool": "fly"}), "called a tool that was not offered where unsupported was right"),
        (DECLINE, said({"decision": "no_tool"}), "answered no_tool where unsupported was right"),
        (DECLINE, said({**DECLINE, "reason_code": "x"}), "answered unsupported rightly with another reason code"),
        (DECLINE, said({"decision": "maybe"}), "name a decision that does not exist"),
        (DECLINE, said("[]"), "are JSON, but not an object"),
        (DECLINE, said("certainly!"), "are not one JSON value"),
        (DECLINE, said("I can't help with that."), "refused in words"),
        (DECLINE, said(""), "said nothing"),
        (DECLINE, Answer(text="{", finish_reason="length"), "were cut off at the token limit"),
    ],
)  # fmt: skip
def test_each_way_to_miss_a_decision_has_its_group(
    expected: dict[str, Any], answer: Answer, group: str
) -> None:
    assert did({"expected": expected, "tools": TOOLS}, answer) == group


def test_the_argument_that_is_wrong_most_often_is_named() -> None:
    wrong = [
        {"nights": 3, "city": "Oslo"},
        {"nights": 2},
        {"nights": 4, "city": "Oslo"},
        {"nights": 1, "city": "x"},
    ]
    content = {"expected": CALL, "tools": TOOLS}
    misses = [row for given_ in wrong for row in miss(content, said({**CALL, "arguments": given_}))]
    total, [group] = clusters("decision", misses)
    assert group.sentence(total) == (
        '4 of 4 misses called the right tool with wrong arguments, most often "nights" wrong (3).'
    )


TOOL = {"name": "get.weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
OTHER = {"name": "get_time", "parameters": {}}
WEATHER = {"name": "get.weather", "arguments": {"city": ["Oslo"], "unit": ["c", ""]}}


def calls(*made: tuple[str, str]) -> Answer:
    return Answer(
        text=None,
        finish_reason="tool_calls",
        route="tools",
        tool_calls=tuple(ToolCall(name, arguments, False) for name, arguments in made),
    )


@pytest.mark.parametrize(
    ("expected", "answer", "group", "detail"),
    [
        ([WEATHER], said("It is sunny.", route="tools"), "called nothing where a call was right", "get.weather"),
        ([WEATHER], calls(("get_time", "{}")), "called another offered tool", "get_time for get.weather"),
        ([WEATHER], calls(("fly", "{}")), "called a tool that was not offered", "fly"),
        ([WEATHER], calls(("get_weather", '{"city": "Rome"}')), "called the right tool with wrong arguments", '"city" wrong'),
        ([WEATHER], calls(("get_weather", "{}")), "called the right tool with wrong arguments", '"city" missing'),
        ([WEATHER], calls(("get_weather", '{"city": "Oslo", "x": 1}')), "called the right tool with wrong arguments", '"x" not expected'),
        ([WEATHER], calls(("get_weather", "{")), "wrote arguments that are not JSON", "get.weather"),
        ([WEATHER], calls(("get_weather", '{"city": "Oslo"}'), ("get_time", "{}")), "made more calls than are right", "2 calls, and 1"),
        ([WEATHER, WEATHER], calls(("get_weather", '{"city": "Oslo"}')), "made fewer calls than are right", "1 calls, and 2"),
        ([], calls(("get_time", "{}")), "called an offered tool where no call was right", "get_time"),
        ([], calls(("fly", "{}")), "called a tool that was not offered where no call was right", "fly"),
        ([], said("", route="tools"), "said nothing", ""),
    ],
)  # fmt: skip
def test_each_way_to_miss_a_function_call_has_its_group(
    expected: list[Any], answer: Answer, group: str, detail: str
) -> None:
    content = {"expected_calls": expected, "tools": [TOOL, OTHER]}
    _, [found] = clusters("function_call", miss(content, answer, scorer="function_call"))
    assert (found.did, found.detail) == (group, detail)


def test_rules_are_grouped_by_the_checks_that_fail() -> None:
    content = {
        "checks": [
            {"op": "contains", "arg": "rain"},
            {"op": "max_chars", "arg": 5},
            {"op": "regex", "arg": "^x"},
        ]
    }
    answers = ["sun", "snow", "long and dry", "xrain"]
    misses = [row for text in answers for row in miss(content, said(text), scorer="rules")]
    total, groups = clusters("rules", misses)
    assert [group.sentence(total) for group in groups] == [
        "2 of 3 misses fail contains and regex, most often rain (2).",
        "1 of 3 misses fail contains, max_chars and 1 more kinds of check.",
    ]


def test_a_judge_s_misses_are_those_below_the_pass_score() -> None:
    row = Miss(1, "p", {"rubric": "r"}, "ok", "a poem", {"reason": "No rain."}, None, None)
    assert clusters("judge", [row])[1][0].did == "were graded below the pass score"


def test_prompts_are_counted_once_and_examples_are_few() -> None:
    content = {"expected": CALL, "tools": TOOLS}
    misses = [row for n in range(30) for row in miss(content, said(DECLINE), number=n, prompt=f"p{n % 3}")]
    _, [group] = clusters("decision", misses)
    assert (group.n, group.prompts, group.examples) == (30, 3, [0, 1, 2, 3, 4])


def test_without_a_miss_there_is_no_group() -> None:
    assert clusters("decision", []) == (0, [])


def test_the_number_of_groups_is_bounded() -> None:
    checks = [[{"op": f"op{n}", "passed": False}] for n in range(200)]
    misses = [Miss(n, "p", {}, "ok", "", {"checks": failed}, None, None) for n, failed in enumerate(checks)]
    total, groups = clusters("rules", misses)
    assert total == sum(group.n for group in groups) == 200
    assert len(groups) <= MAX_GROUPS + 1


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.sampled_from(["decision", "function_call", "rules", "judge"]),
    st.sampled_from(["ok", "malformed", "not_json", "truncated", "", "new"]),
    st.none() | st.text(max_size=20) | JUNK.map(json.dumps),
    st.none() | st.dictionaries(st.sampled_from(["mismatches", "checks", "reason"]), JUNK, max_size=3),
    st.sampled_from([CALL, DECLINE, {}]),
)
def test_whatever_was_answered_a_miss_has_a_group(
    scorer: str, answer_class: str, answer: str | None, details: Any, expected: Any
) -> None:
    content = {"expected": expected, "expected_calls": [], "tools": TOOLS}
    row = Miss(1, "p", content, answer_class, answer, details, False, False)
    total, groups = clusters(scorer, [row])
    assert total == sum(group.n for group in groups) == 1


@pytest.mark.parametrize("round_name", ["r1", "r2", "r3"])
def test_every_miss_is_a_member_of_one_group_and_a_group_has_as_many_as_it_counts(round_name: str) -> None:
    misses = [
        row
        for number, (case, found) in enumerate(measured(round_name, "generalization"))
        for row in miss(
            case, Answer(text=found["raw_output"], finish_reason=found["finish_reason"]), number=number * 7
        )
    ]
    _, groups = clusters("decision", misses)
    members = [unpack(group.members) for group in groups]
    assert [len(found) for found in members] == [group.n for group in groups]
    assert sorted(number for found in members for number in found) == [row.rollout_id for row in misses]
    for group, found in zip(groups, members, strict=True):
        assert found[:EXAMPLES] == group.examples


def test_what_is_of_rarer_kinds_is_known_by_its_members_too() -> None:
    checks = [[{"op": f"op{n}", "passed": False}] for n in range(200)]
    misses = [Miss(n, "p", {}, "ok", "", {"checks": failed}, None, None) for n, failed in enumerate(checks)]
    _, groups = clusters("rules", misses)
    rarer = next(group for group in groups if group.did == "are of rarer kinds")
    assert unpack(rarer.members) == list(range(MAX_GROUPS, 200))


@given(st.sets(st.integers(0, 2**62), max_size=200))
def test_packed_ids_are_the_ids(ids: set[int]) -> None:
    assert unpack(pack(ids)) == sorted(ids)


def test_the_members_of_a_long_run_stay_short_text() -> None:
    assert len(pack(range(1_000_000, 1_100_000))) < 1_000
    assert len(pack(range(1_000_000, 1_400_000, 3))) < 2_000
