"""Rules of simulated tools and of the text marker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollouts.scoring.marker import called_tools, only_denied
from rollouts.scoring.tools import simulated_result, wire_name

SCRIPT: dict[str, Any] = {
    "tools": [{"name": "mail.search"}, {"name": "send"}, {"name": "quiet"}],
    "tool_results": {
        "mail.search": [
            {"when": {"from": "ada", "page": 1}, "result": {"found": [1, 2]}},
            {"when": {"from": "ada"}, "result": "nothing more"},
            {"when": {"from": "bob"}, "error": "mailbox locked"},
        ],
        "send": [{"result": 1}, {"error": "sent before"}],
    },
}


def result(name: str, arguments: dict[str, Any] | None, nth: int = 0) -> tuple[str, bool]:
    return tuple(simulated_result(SCRIPT, name, arguments, nth))


def test_a_name_on_the_wire_has_no_dots():
    assert wire_name("math.sub.factorial") == "math_sub_factorial"


@pytest.mark.parametrize("name", ["mail.search", "mail_search"])
def test_the_entry_whose_arguments_are_among_the_given_ones_answers(name):
    assert result(name, {"from": "ada", "page": 1.0, "more": True}) == ('{"found": [1, 2]}', False)
    assert result(name, {"from": "ada", "page": True}) == ("nothing more", False)
    assert result(name, {"from": "bob"}) == ('{"error": "mailbox locked"}', True)


def test_entries_that_fit_are_taken_in_order_and_the_last_repeats():
    assert [result("send", {"to": "x"}, nth) for nth in range(3)] == [
        ("1", False),
        ('{"error": "sent before"}', True),
        ('{"error": "sent before"}', True),
    ]
    assert result("mail.search", {"from": "ada", "page": 1}, 1) == ("nothing more", False)
    assert result("mail.search", {"from": "ada"}, 0) == ("nothing more", False)


def test_a_tool_without_a_script_says_ok():
    assert result("quiet", {}) == ('{"status": "ok"}', False)


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("fly", {}, "no tool named fly"),
        ("Send", {}, "no tool named Send"),
        ("send", None, "not one JSON object"),
        ("mail.search", {"from": "eve"}, "no result for these arguments"),
    ],
)
def test_what_no_script_answers_is_an_error_the_model_can_read(name, arguments, says):
    text, failed = result(name, arguments)
    assert failed
    assert says in json.loads(text)["error"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("tool_call:search", True),
        ("TOOL_CALL : Search", True),
        ("TOOL_CALL:\n\n  search now", True),
        ("I will not TOOL_CALL: search", True),
        ("TOOL_CALL: search-web", True),
        ("`TOOL_CALL: search`", True),
        ("TOOL_CALL: search_web", False),
        ("TOOL_CALL: searching", False),
        ("xTOOL_CALL: search", False),
        ("**TOOL_CALL:** search", False),
        ("TOOL_CALL: ./search", False),
        ("TOOL_CALL search", False),
        ("search", False),
        ("", False),
    ],
)
def test_the_marker_names_a_tool_at_word_boundaries(text, wanted):
    assert called_tools(text, ["search"]) == (["search"] if wanted else [])


def test_markers_are_given_in_order_with_repeats_and_as_the_names_are_written():
    text = "TOOL_CALL: SEARCH\nTOOL_CALL: send\nTOOL_CALL: search"
    assert called_tools(text, ["send", "Search", "other"]) == ["Search", "send", "Search"]


def test_of_two_names_that_fit_the_longer_is_called():
    text = "TOOL_CALL: search-web, TOOL_CALL: search"
    assert called_tools(text, ["search", "search-web"]) == ["search-web", "search"]


def test_names_are_no_patterns():
    assert called_tools("TOOL_CALL: mathxhypot", ["math.hypot"]) == []
    assert called_tools("TOOL_CALL: math.hypot", ["math.hypot"]) == ["math.hypot"]
    assert called_tools("TOOL_CALL: run!", ["run!", "("]) == []
    assert called_tools("TOOL_CALL: search", []) == []


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("I will not TOOL_CALL: search", True),
        ("I won't TOOL_CALL: search", True),
        ("I don’t need to TOOL_CALL: search here", True),
        ("No need for TOOL_CALL: search", True),
        ("It was not there. TOOL_CALL: search", False),
        ("I will not wait.\nTOOL_CALL: search", False),
        ("TOOL_CALL: search, not send", False),
        ("I will not TOOL_CALL: search. Well:\nTOOL_CALL: search", False),
        ("I know it. TOOL_CALL: search", False),
        ("no marker here", False),
    ],
)
def test_a_sentence_that_denies_the_call_is_told(text, wanted):
    assert only_denied(text, "search") is wanted
