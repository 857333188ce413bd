"""Rules of the operators, one table each, and of what a case's checks come to."""

from __future__ import annotations

from typing import Any

import pytest

from rollouts.scoring import score
from rollouts.scoring.base import Answer, ToolCall
from rollouts.scoring.rules import MAX_PROGRAM_SIZE, compiled

LONG = "I cannot say yes or no, because " + "it depends on the case, " * 30


def passes(op: str, arg: Any, text: str | None, **changes: Any) -> bool:
    return outcome(op, arg, Answer(text=text, **changes))["passed"]


def outcome(op: str, arg: Any, answer: Answer) -> dict[str, Any]:
    check = {"op": op} if arg is None else {"op": op, "arg": arg}
    details = score("rules", {"checks": [check]}, answer).details
    assert details is not None
    assert details["checks"][0]["op"] == op and details["checks"][0]["arg"] == arg
    return details["checks"][0]


@pytest.mark.parametrize(
    ("arg", "text", "wanted"),
    [
        ("Paris", "it is PARIS.", True),
        ("paris", "Comparisons", True),
        ("Paris", "Rome", False),
        ("ÄRGER", "der ärger", True),
        ("a  b", "a b", False),
        (".", "no dots here", False),
    ],
)
def test_contains_and_its_opposite_do_not_look_at_case(arg, text, wanted):
    assert passes("contains", arg, text) is wanted
    assert passes("not_contains", arg, text) is not wanted


@pytest.mark.parametrize(
    ("arg", "text", "wanted"),
    [
        ("42", "The answer is 42.", True),
        ("42", "142", False),
        ("42", "421", False),
        ("42", "4 2", False),
        ("no", "I know", False),
        ("no", "No!", True),
        ("New York, NY", "in new-york (NY)", True),
        ("New York", "New Yorker", False),
        ("a_b", "a b", False),
        ("3.14", "about 3.14", True),
        ("Ärger", "viel ÄRGER", True),
        ("42", "", False),
    ],
)
def test_exact_finds_whole_words_without_case_and_punctuation(arg, text, wanted):
    assert passes("exact", arg, text) is wanted


@pytest.mark.parametrize(
    ("arg", "text", "wanted"),
    [
        ("Paris", "in Paris", True),
        ("Paris", "in paris", False),
        ("(?i)paris", "in PARIS", True),
        (r"^\d{4}-\d{2}-\d{2}$", "2023-12-01", True),
        (r"^\d+$", "line\n42", False),
        (r"(?m)^\d+$", "line\n42\nmore", True),
        ("^42$", "42\n", True),
        ("^42$", "42\n\n", False),
        ("^$", "", True),
        ("a.b", "a\nb", False),
        ("(?s)a.b", "a\nb", True),
        ("é", "café", True),
        ("^.{4}$", "café", True),
    ],
)
def test_a_regex_is_searched_anywhere_and_looks_at_case(arg, text, wanted):
    assert passes("regex", arg, text) is wanted


def test_a_regex_that_makes_others_hang_takes_no_time():
    for text in ("a" * 1_000_000, "a" * 1_000_000 + "!", "ab" * 500_000):
        assert passes("regex", r"(a+)+$", text) is (text[-1] == "a")
        assert not passes("regex", r"(a|a)*b\z" * 3 + "c", text)
        assert not passes("regex", r"(?:a?){200}[xyz]", text)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("foo(", "not understood"),
        (r"(a)\1", "not understood"),
        ("(?=a)", "not understood"),
        ("a{2000}", "not understood"),
        ("x" * 1001, "at most 1000"),
        ("[a-z]{1000}" * 3, f"at most {MAX_PROGRAM_SIZE}"),
    ],
)
def test_a_pattern_that_could_not_be_searched_in_linear_time_is_refused(pattern, says):
    with pytest.raises(ValueError, match=says):
        compiled(pattern)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", False),
        (None, False),
        (" \n", False),
        ("I cannot help with that.", False),
        ("i can't do it", False),
        ("I can’t do it", False),
        ("I'm unable to", False),
        ("I am unable to", False),
        ("Unable to complete this", False),
        ("Cannot complete", False),
        ("Sorry, I can't", False),
        ("Sorry, I cannot", False),
        ("No can do.", False),
        ("> I cannot help with that.", False),
        ("**I cannot** help", False),
        ("1. I cannot", False),
        ("2) - # _I cannot_", False),
        ("> " * 100 + "I cannot help", False),
        (">" * 100_000 + "I cannot help", False),
        ("Sorry, I can help", True),
        ("Sorry, but I will", True),
        ("Here it is. I cannot say more.", True),
        ("We cannot", True),
        (LONG, True),
        (LONG[:599], False),
        ("I cannot" + " " * 700, False),
    ],
)
def test_a_bare_refusal_is_told_from_an_explained_one(text, wanted):
    assert passes("no_refusal", None, text) is wanted


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [("", False, True), ("ab", False, True), ("abc", True, True), (" abc ", True, False)],
)
def test_characters_are_counted_as_they_stand(text, least, most):
    assert passes("min_chars", 3, text) is least
    assert passes("max_chars", 3, text) is most


@pytest.mark.parametrize(
    ("text", "present", "contained"),
    [
        ("## Key Risks", True, True),
        ("##Key Risks", True, False),
        ("### 1. key risks", True, True),
        ("### 1. Key Risks (x)", False, True),
        ("   # Key Risks", True, True),
        ("    # Key Risks", False, False),
        ("\t# Key Risks", False, False),
        ("####### Key Risks", False, False),
        ("intro\n# KEY RISKS \r\nbody", True, True),
        ("**Key Risks**", True, False),
        ("**1. Key Risks (x)**:", True, False),
        ("**Key Risks:**", True, False),
        ("**Key** Risks", False, False),
        ("Key Risks: many", True, False),
        ("The Key Risks: many", False, False),
        ("Key Risks\n---", False, False),
        ("> # Key Risks", False, False),
        ("#\tKey Risks", True, True),
        ("Key Risks", False, False),
        ("# Key\nRisks", False, False),
        ("", False, False),
    ],
)
def test_sections_are_headings_bold_lines_or_labels(text, present, contained):
    assert passes("section_present", "Key Risks", text) is present
    assert passes("section_contains", "Key Risks", text) is contained


def call(name: str, *, executed: bool) -> ToolCall:
    return ToolCall(name, "{}", executed)


@pytest.mark.parametrize(
    ("answer", "wanted", "problem"),
    [
        (Answer(text="x", route="tools", tool_calls=(call("Search", executed=True),)), True, None),
        (Answer(text="x", route="tools", tool_calls=(call("search", executed=False),)), False, "never ran"),
        (Answer(text="TOOL_CALL: search", route="tools"), False, "not called"),
        (Answer(text="x", route="tools", tool_calls=(call("other", executed=True),)), False, "not called"),
        (
            Answer(
                text="x",
                route="tools",
                tool_calls=(call("search", executed=False), call("search", executed=True)),
            ),
            True,
            None,
        ),
        (
            Answer(text="TOOL_CALL: search", route="marker", tool_calls=(call("search", executed=False),)),
            True,
            None,
        ),
        (
            Answer(
                text="I will not TOOL_CALL: search",
                route="marker",
                tool_calls=(call("search", executed=False),),
            ),
            True,
            "denies",
        ),
        (Answer(text="I searched.", route="marker"), False, "no marker"),
        (Answer(text="TOOL_CALL: search", route="text"), False, "not called"),
    ],
)
def test_on_the_tools_route_only_a_call_that_ran_counts_and_a_marker_is_a_claim(answer, wanted, problem):
    found = outcome("tool_called", "search", answer)
    assert found["passed"] is wanted
    assert (problem is None and "problem" not in found) or problem in found["problem"]


def test_a_tool_with_a_dot_is_found_under_its_name_on_the_wire():
    answer = Answer(text="x", route="tools", tool_calls=(call("math_hypot", executed=True),))
    assert outcome("tool_called", "math.hypot", answer)["passed"]


CONTENT = {
    "checks": [
        {"op": "contains", "arg": "done"},
        {"op": "tool_called", "arg": "search"},
        {"op": "tool_called", "arg": "search"},
        {"op": "max_chars", "arg": 100},
    ]
}
RAN = (call("search", executed=True),)


def test_the_task_is_done_when_every_check_passes():
    result = score("rules", CONTENT, Answer(text="Done.", route="tools", tool_calls=RAN))
    assert (result.answer_class, result.exact, result.score, result.tool) == ("ok", True, 1.0, True)
    assert (result.decision, result.safe, result.json_valid) == (None, None, None)


def test_a_share_of_the_checks_is_a_share_of_the_task():
    result = score("rules", CONTENT, Answer(text="Done.", route="tools"))
    assert (result.exact, result.score, result.tool) == (False, 0.5, False)
    assert [check["passed"] for check in result.details["checks"]] == [True, False, False, True]


def test_without_a_tool_check_the_tool_metric_does_not_apply():
    assert score("rules", {"checks": CONTENT["checks"][:1]}, Answer(text="Done.")).tool is None


@pytest.mark.parametrize(
    ("answer", "answer_class"),
    [
        (Answer(text="done", finish_reason="length", route="tools", tool_calls=RAN), "truncated"),
        (Answer(text=None, reasoning_only=True, route="tools"), "reasoning_only"),
        (Answer(text=" ", route="tools"), "empty"),
    ],
)
def test_an_answer_cut_off_or_without_a_word_is_wrong_whatever_the_checks_say(answer, answer_class):
    easy = {"checks": [{"op": "not_contains", "arg": "secret"}]}
    for content in (CONTENT, easy):
        result = score("rules", content, answer)
        assert (result.answer_class, result.exact, result.score) == (answer_class, False, 0.0)
        assert result.tool in (None, False)
        assert result.details["reason"]
    assert result.details["checks"][0]["passed"] is True


def test_turns_used_up_are_said_and_the_checks_still_decide():
    answer = Answer(text="Done.", route="tools", tool_calls=RAN, turns_exhausted=True)
    result = score("rules", CONTENT, answer)
    assert (result.answer_class, result.exact) == ("turns_exhausted", True)


def test_a_call_without_a_word_is_not_an_empty_answer():
    result = score("rules", CONTENT, Answer(text=None, route="tools", tool_calls=RAN))
    assert (result.answer_class, result.exact, result.tool) == ("ok", False, True)
