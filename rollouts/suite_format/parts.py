"""What the rows of every scorer have in common: names, messages, tools."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from rollouts.scoring.tools import wire_name
from rollouts.suite_format.lines import Line, short

MAX_NAME_CHARS = 200
MAX_FAMILY_CHARS = 100
MAX_TURNS = 32
ROLES = ("system", "user", "assistant")
TOOL_KEYS = frozenset({"name", "description", "parameters"})
# what providers take as a function's name
SENDABLE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Part(NamedTuple):
    """What a scorer's reader makes of a row, beside what all rows have.

    `content` joins the case's content; `used` are the row's keys that are no tags; `expects_call`: a call is right.
    """

    content: dict[str, Any]
    used: frozenset[str]
    expects_call: bool


class Messages(NamedTuple):
    """What is sent, and the reference answer when the last message is the assistant's."""

    sent: list[dict[str, str]]
    answer: str | None


def name_of(at: Line, row: dict[str, Any], field: str, most: int = MAX_NAME_CHARS) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        at.refuse(field, "is missing or not a text; give every case one.")
    if len(value) > most:
        at.refuse(field, f"has {len(value)} characters; use at most {most}.")
    return value


def text_of(at: Line, field: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        at.refuse(field, "is missing, empty or not a text; write it.")
    return value


def messages_of(at: Line, value: Any) -> Messages:
    if not isinstance(value, list) or not value:
        at.refuse("messages", "is missing or empty; give a list of {role, content}.")
    for index, message in enumerate(value):
        field = f"messages[{index}]"
        if not isinstance(message, dict) or message.keys() != {"role", "content"}:
            at.refuse(field, "must be an object with exactly role and content.")
        role, content = message["role"], message["content"]
        if role not in ROLES:
            at.refuse(f"{field}.role", f"{short(role)} is unknown; use one of {', '.join(ROLES)}.")
        if role == "system" and index > 0:
            at.refuse(f"{field}.role", "a system message can only be the first.")
        if not isinstance(content, str) or not content.strip():
            at.refuse(f"{field}.content", "is empty or not a text; write the message.")
    answered = value[-1]["role"] == "assistant"
    sent = value[:-1] if answered else value
    if not sent or sent[-1]["role"] != "user":
        at.refuse(
            "messages", "has no user message to answer; the last one but the reference answer must be it."
        )
    return Messages(sent, value[-1]["content"] if answered else None)


def callable_tools(at: Line, value: Any) -> list[dict[str, Any]]:
    """Tools that a provider can be sent: described, with names it takes, no two of which it would confuse."""
    if not isinstance(value, list):
        at.refuse("tools", "is missing or no list; give a list of {name, description, parameters}.")
    seen: set[str] = set()
    for index, tool in enumerate(value):
        field = f"tools[{index}]"
        if not isinstance(tool, dict):
            at.refuse(field, "must be an object {name, description, parameters}.")
        wire = sendable(at, f"{field}.name", tool.get("name"))
        if wire in seen:
            at.refuse(
                f"{field}.name",
                f"{short(tool['name'])} is sent as {wire}, as another is; rename one of them.",
            )
        seen.add(wire)
        check_tool(at, field, tool)
        if "parameters" in tool and tool["parameters"].get("type") != "object":
            at.refuse(f"{field}.parameters", 'must be the schema of an object; add "type": "object".')
    return value


def sendable(at: Line, field: str, name: Any) -> str:
    """The tool's name as it is sent."""
    if not isinstance(name, str) or not SENDABLE_NAME.fullmatch(wire_name(name)):
        at.refuse(field, f"{short(name)} cannot be sent; use 1 to 64 of A-Z, a-z, 0-9, _ - and the dot.")
    return wire_name(name)


def dialogue_of(at: Line, row: dict[str, Any], tools: list[dict[str, Any]]) -> dict[str, Any]:
    """`tool_results` and `max_turns`, where the row has them."""
    content: dict[str, Any] = {}
    turns = row.get("max_turns")
    if turns is not None:
        if isinstance(turns, bool) or not isinstance(turns, int) or not 1 <= turns <= MAX_TURNS:
            at.refuse("max_turns", f"{short(turns)} must be a whole number from 1 to {MAX_TURNS}.")
        content["max_turns"] = turns
    results = row.get("tool_results")
    if results is not None:
        if not isinstance(results, dict):
            at.refuse("tool_results", "must be an object of tool name to a list of results.")
        _check_results(at, results, tools)
        content["tool_results"] = results
    return content


def _check_results(at: Line, results: dict[str, Any], tools: list[dict[str, Any]]) -> None:
    known = {wire_name(tool["name"]) for tool in tools}
    seen: set[str] = set()
    for name, script in results.items():
        field, wire = f"tool_results.{name}", wire_name(name)
        if wire not in known:
            at.refuse(field, "is not among the tools; add it to tools or remove its results.")
        if wire in seen:
            at.refuse(field, "has results under another spelling too; join them.")
        seen.add(wire)
        if not isinstance(script, list) or not script:
            at.refuse(field, "must be a list of results, at least one.")
        for index, entry in enumerate(script):
            _check_result(at, f"{field}[{index}]", entry)


def _check_result(at: Line, field: str, entry: Any) -> None:
    if not isinstance(entry, dict) or entry.keys() - {"when"} not in ({"result"}, {"error"}):
        at.refuse(field, "must be {result} or {error}, with a when or without.")
    if not isinstance(entry.get("when", {}), dict):
        at.refuse(f"{field}.when", "must be an object of arguments.")
    if not isinstance(entry.get("error", ""), str):
        at.refuse(f"{field}.error", "must be a text; other values go under result.")


def check_tool(at: Line, field: str, tool: dict[str, Any]) -> None:
    if unknown := sorted(tool.keys() - TOOL_KEYS):
        at.refuse(field, f"has the unknown key {short(unknown[0])}; use name, description, parameters.")
    if not isinstance(tool.get("description", ""), str):
        at.refuse(f"{field}.description", "must be a text.")
    if "parameters" not in tool:
        return
    field, schema = f"{field}.parameters", tool["parameters"]
    if not isinstance(schema, dict):
        at.refuse(field, "must be a JSON schema object.")
    try:
        Draft202012Validator.check_schema(schema)
        resolver = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
        for reference in _references(schema):
            resolver.lookup(reference)
        if _has_pattern(schema):
            at.refuse(
                field, "uses pattern or patternProperties, which can hang a worker; use enum or format."
            )
    except SchemaError as error:
        at.refuse(field, f"is not a JSON schema (2020-12): {short(error.message)}; correct it.")
    except RecursionError:
        at.refuse(field, "is nested too deeply to be checked; make it flatter.")
    except Unresolvable as error:
        at.refuse(field, f"refers to {short(error.ref)}, which is not in it; put it under $defs.")


def _has_pattern(schema: Any) -> bool:
    """Whether a regular expression stands anywhere in a schema: Python's engine can take for ever on some answers."""
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            if isinstance(value.get("pattern"), str) or isinstance(value.get("patternProperties"), dict):
                return True
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
    return False


def _references(schema: Any) -> Iterator[str]:
    """Every reference in a schema, so that none is met unresolved while answers are scored."""
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            # An $id would move the base of the references below it; nothing here has an address to move to.
            if isinstance(value.get("$id"), str):
                raise Unresolvable(ref=value["$id"])
            for key in ("$ref", "$dynamicRef"):
                if isinstance(value.get(key), str):
                    if not value[key].startswith("#"):
                        raise Unresolvable(ref=value[key])
                    yield value[key]
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
