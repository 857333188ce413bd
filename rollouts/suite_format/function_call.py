"""Rows of the function_call scorer: `tools` and the `expected_calls`, an empty list where no call is right."""

from __future__ import annotations

from typing import Any

from rollouts.scoring.tools import wire_name
from rollouts.suite_format.lines import Line, short
from rollouts.suite_format.parts import Messages, Part, callable_tools, dialogue_of

KEYS = frozenset({"tools", "expected_calls", "tool_results", "max_turns"})
MAX_EXPECTED_CALLS = 100


def read(at: Line, row: dict[str, Any], messages: Messages) -> Part:
    tools = callable_tools(at, row.get("tools"))
    expected = row.get("expected_calls")
    if not isinstance(expected, list):
        at.refuse(
            "expected_calls",
            "is missing or no list; give a list of {name, arguments}, empty where no call is right.",
        )
    if len(expected) > MAX_EXPECTED_CALLS:
        at.refuse("expected_calls", f"has {len(expected)} calls; use at most {MAX_EXPECTED_CALLS}.")
    schemas = {wire_name(tool["name"]): tool.get("parameters", {}) for tool in tools}
    for index, call in enumerate(expected):
        _check_call(at, f"expected_calls[{index}]", call, schemas)
    content = {"tools": tools, "expected_calls": expected, **dialogue_of(at, row, tools)}
    return Part(content, KEYS, expects_call=bool(expected))


def _check_call(at: Line, field: str, call: Any, schemas: dict[str, dict[str, Any]]) -> None:
    if not isinstance(call, dict) or call.keys() != {"name", "arguments"}:
        at.refuse(field, "must be an object with exactly name and arguments.")
    name, arguments = call["name"], call["arguments"]
    if not isinstance(name, str) or wire_name(name) not in schemas:
        at.refuse(f"{field}.name", f"{short(name)} is not among the tools; add it or expect another call.")
    _check_values(at, f"{field}.arguments", arguments)
    schema = schemas[wire_name(name)]
    known = schema.get("properties", {})
    for parameter in arguments:
        if schema.get("additionalProperties") is False and parameter not in known:
            at.refuse(
                f"{field}.arguments.{parameter}", "is no parameter of the tool; add it there or remove it."
            )
    for parameter in schema.get("required", ()):
        if parameter not in arguments:
            at.refuse(
                f"{field}.arguments",
                f"has no {short(parameter)}, which the tool requires; give its right values.",
            )


def _check_values(at: Line, field: str, values: Any) -> None:
    """An object of parameters, each with its list of right values; an object among them is such an object again."""
    if not isinstance(values, dict):
        at.refuse(field, "must be an object of parameter to the list of its right values.")
    for name, right in values.items():
        if not isinstance(right, list) or not right:
            at.refuse(f"{field}.{name}", "must be a list of the right values, at least one.")
        _check_items(at, f"{field}.{name}", right)


def _check_items(at: Line, field: str, items: list[Any]) -> None:
    for index, item in enumerate(items):
        if isinstance(item, dict):
            _check_values(at, f"{field}[{index}]", item)
        elif isinstance(item, list):
            _check_items(at, f"{field}[{index}]", item)
