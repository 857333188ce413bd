"""Rows of the Berkeley Function Calling Leaderboard as rows of the function_call scorer."""

from __future__ import annotations

import json
import re
from typing import Any

from rollouts.errors import InvalidInput
from rollouts.suite_format.lines import Line, rows, short

# the leaderboard's names of types; None says that any value will do
TYPES: dict[str, str | None] = {
    "dict": "object",
    "float": "number",
    "tuple": "array",
    "list": "array",
    "bool": "boolean",
    "int": "integer",
    "str": "string",
    "any": None,
    **{name: name for name in ("object", "number", "array", "boolean", "integer", "string", "null")},
}
# of a schema in the leaderboard's rows, but of no JSON schema
DROPPED_KEYS = frozenset({"optional"})
NUMBERED = re.compile(r"(.+?)_[0-9]+(?:-[0-9]+)*")


def rows_from_bfcl(questions: bytes, answers: bytes | None) -> bytes:
    """JSONL for `parse_suite(..., scorer="function_call")` from a file of the leaderboard and its possible answers.

    `answers` None says that no call is right in any row, as in the irrelevance files. A row's family is its id without
    the number. Raises `InvalidInput` with the line of what cannot be taken over: dialogues of several questions, types
    that JSON schema has not, questions without answer and answers without question.
    """
    right = None if answers is None else _answers(answers)
    made = []
    for at, row in rows(questions, "questions"):
        key = row.get("id")
        if not isinstance(key, str):
            at.refuse("id", "is missing or not a text; give the leaderboard's question file.")
        if right is not None and key not in right:
            at.refuse("id", f"{short(key)} has no possible answer; give the answers of the same category.")
        made.append(
            {
                "example_id": key,
                "family": named[1] if (named := NUMBERED.fullmatch(key)) else key,
                "messages": _messages(at, row.get("question")),
                "tools": _tools(at, row.get("function")),
                "expected_calls": [] if right is None else right.pop(key),
            }
        )
    if right:
        raise InvalidInput(
            "answers",
            f"{short(next(iter(right)))} is no question's id; give the answers of the same category.",
        )
    return b"".join(json.dumps(row).encode() + b"\n" for row in made)


def _answers(data: bytes) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for at, row in rows(data, "answers"):
        key, calls = row.get("id"), row.get("ground_truth")
        if not isinstance(key, str) or key in found:
            at.refuse("id", "is missing or given twice; give the leaderboard's file of possible answers.")
        if not isinstance(calls, list) or not all(
            isinstance(call, dict) and len(call) == 1 for call in calls
        ):
            at.refuse("ground_truth", "must be a list of {function: {parameter: [values]}}.")
        found[key] = [{"name": name, "arguments": values} for call in calls for name, values in call.items()]
    return found


def _messages(at: Line, question: Any) -> Any:
    if not isinstance(question, list) or not question:
        at.refuse("question", "is missing or empty; give the leaderboard's question file.")
    if len(question) != 1:
        at.refuse("question", f"has {len(question)} turns of the user; only rows of one can be taken over.")
    return question[0]


def _tools(at: Line, functions: Any) -> list[dict[str, Any]]:
    if not isinstance(functions, list) or not all(isinstance(function, dict) for function in functions):
        at.refuse("function", "must be a list of {name, description, parameters}.")
    return [
        {
            name: _schema(at, f"function[{index}].parameters", value) if name == "parameters" else value
            for name, value in function.items()
            if name in ("name", "description", "parameters")
        }
        for index, function in enumerate(functions)
    ]


def _schema(at: Line, field: str, value: Any) -> Any:
    """A schema with JSON schema's types; values that are no schema are left for `parse_suite` to refuse."""
    if not isinstance(value, dict):
        return value
    schema: dict[str, Any] = {}
    for key, part in value.items():
        if key == "type":
            if not isinstance(part, str) or part not in TYPES:
                at.refuse(
                    f"{field}.type", f"{short(part)} is no type that JSON schema has; rows of Python have."
                )
            if TYPES[part] is not None:
                schema[key] = TYPES[part]
        elif key == "properties" and isinstance(part, dict):
            schema[key] = {name: _schema(at, f"{field}.{name}", below) for name, below in part.items()}
        elif key in ("items", "additionalProperties"):
            schema[key] = _schema(at, f"{field}.{key}", part)
        elif key not in DROPPED_KEYS:
            schema[key] = part
    return schema
