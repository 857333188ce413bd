"""Rows of the decision scorer: `tools` that were shown and the `expected` proposal, or a reference answer that gives it."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from rollouts.scoring.decision import (
    JSON_WHITESPACE,
    SHAPES,
    NotStrictJson,
    json_equal,
    parse_strict_json,
    shape_problem,
)
from rollouts.scoring.schemas import schema_accepts
from rollouts.suite_format.lines import Line, check_storable, short
from rollouts.suite_format.parts import Messages, Part, check_tool

# A line of the "Available tools" block in the seed system's prompts: "- read_file: reads a file".
TOOL_LINE = re.compile(r"- ([^\s:]+)(?::|$)")


class _Tools(NamedTuple):
    names: list[str]
    schemas: dict[str, dict[str, Any]]
    # As the row gave them: descriptions and order shape the prompt.
    content: list[Any]


def read(at: Line, row: dict[str, Any], messages: Messages) -> Part:
    tools = _tools(at, row, messages.sent)
    expected = _expected(at, row, messages.answer)
    _check_expected_tool(at, expected, tools)
    return Part(
        content={"tools": tools.content, "expected": expected},
        used=frozenset({"tools", "expected", "decision"}),
        expects_call=expected["decision"] == "call",
    )


def _tools(at: Line, row: dict[str, Any], messages: list[dict[str, str]]) -> _Tools:
    value = row.get("tools")
    if value is None:
        value = _tools_in_prompt(messages)
    if value is None:
        at.refuse("tools", "is missing, and the system message has no list of tools; name the tools shown.")
    if not isinstance(value, list):
        at.refuse("tools", "must be a list of names or of {name, description, parameters}.")
    names: list[str] = []
    schemas: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate(value):
        field = f"tools[{index}]"
        name = tool.get("name") if isinstance(tool, dict) else tool
        if not isinstance(name, str) or not name.strip():
            at.refuse(field, "has no name; give a name or {name, description, parameters}.")
        if name in names:
            at.refuse(field, f"{short(name)} is listed twice; list each tool once.")
        names.append(name)
        if isinstance(tool, dict):
            check_tool(at, field, tool)
            if "parameters" in tool:
                schemas[name] = tool["parameters"]
    return _Tools(names, schemas, value)


def _tools_in_prompt(messages: list[dict[str, str]]) -> list[str] | None:
    """The names in the "Available tools" block of the seed system's prompts; None without such a block."""
    lines = messages[0]["content"].splitlines() if messages[0]["role"] == "system" else []
    starts = [index for index, line in enumerate(lines) if line.lower().startswith("available tools")]
    if not starts:
        return None
    names = []
    for line in lines[starts[0] + 1 :]:
        if match := TOOL_LINE.match(line):
            names.append(match[1])
        elif not line.startswith(" ") and (line or names):
            break
    return names


def _expected(at: Line, row: dict[str, Any], reference: str | None) -> dict[str, Any]:
    """The expected proposal from `expected`, from the reference answer, or from both if they agree."""
    answer = None if reference is None else _reference_proposal(at, reference)
    given = row.get("expected")
    if given is None and answer is None:
        at.refuse("expected", "is missing, and no assistant message answers; give one of them.")
    expected = answer if given is None else _proposal(at, "expected", given)
    assert expected is not None
    if answer is not None and not json_equal(answer, expected):
        at.refuse("expected", "is not what the assistant message says; correct one of them.")
    if "decision" in row and row["decision"] != expected["decision"]:
        at.refuse(
            "decision", f"{short(row['decision'])} is not the expected {expected['decision']}; correct one."
        )
    return expected


def _reference_proposal(at: Line, reference: str) -> dict[str, Any]:
    field = "messages[-1].content"
    try:
        value = parse_strict_json(reference.strip(JSON_WHITESPACE))
    except NotStrictJson as error:
        at.refuse(field, f"the reference answer is not strict JSON ({error}); write the proposal alone.")
    check_storable(at, {field: value})
    return _proposal(at, field, value)


def _proposal(at: Line, field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        at.refuse(field, "must be a JSON object with a decision.")
    # Capture files write null for the parts that a decision has not.
    proposal = {key: item for key, item in value.items() if item is not None}
    decision = proposal.get("decision")
    if not isinstance(decision, str) or decision not in SHAPES:
        at.refuse(f"{field}.decision", f"{short(decision)} is unknown; use one of {', '.join(SHAPES)}.")
    if problem := shape_problem(proposal):
        keys = ", ".join(sorted(SHAPES[decision]))
        at.refuse(field, f"{problem}; a {decision} has exactly the keys {keys}.")
    return proposal


def _check_expected_tool(at: Line, expected: dict[str, Any], tools: _Tools) -> None:
    if expected["decision"] != "call":
        return
    tool = expected["tool"]
    if tool not in tools.names:
        at.refuse("expected.tool", f"{short(tool)} is not among the tools shown; add it or expect no call.")
    schema = tools.schemas.get(tool)
    if schema is not None and not schema_accepts(schema, expected["arguments"]):
        at.refuse("expected.arguments", f"do not satisfy the schema of {short(tool)}; correct one of them.")
