"""Rows of the rules scorer: `checks` of the answer, each {op, arg}, at least one of them of outcome."""

from __future__ import annotations

import re
from typing import Any

from rollouts.scoring.decision import MAX_SAFE_INTEGER
from rollouts.scoring.rules import (
    LENGTH_OPS,
    MAX_PROGRAM_SIZE,
    OPS,
    OUTCOME_OPS,
    SECTION_OPS,
    compiled,
    words,
)
from rollouts.scoring.tools import wire_name
from rollouts.suite_format.lines import Line, short
from rollouts.suite_format.parts import Messages, Part, callable_tools, dialogue_of, sendable

KEYS = frozenset({"checks", "tools", "tool_results", "max_turns"})
MAX_CHECKS = 50
WHOLE_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,20}\s*")


def read(at: Line, row: dict[str, Any], messages: Messages) -> Part:
    tools = callable_tools(at, row["tools"]) if row.get("tools") is not None else []
    checks = row.get("checks")
    if not isinstance(checks, list) or not checks:
        at.refuse("checks", "is missing or empty; give a list of {op, arg}.")
    if len(checks) > MAX_CHECKS:
        at.refuse("checks", f"has {len(checks)} checks; use at most {MAX_CHECKS}.")
    read_checks = [_check(at, f"checks[{index}]", check) for index, check in enumerate(checks)]
    if not any(check["op"] in OUTCOME_OPS for check in read_checks):
        at.refuse(
            "checks",
            "look only at the answer's form, which a wrong answer has as well; "
            f"add one of {', '.join(OUTCOME_OPS)}.",
        )
    steps = sum(compiled(check["arg"]).programsize for check in read_checks if check["op"] == "regex")
    if steps > MAX_PROGRAM_SIZE:
        at.refuse("checks", f"hold patterns of {steps} steps in all; at most {MAX_PROGRAM_SIZE} are taken.")
    wanted = _wanted_tools(at, read_checks, tools)
    dialogue = dialogue_of(at, row, tools or [{"name": name} for name in wanted])
    if wanted and dialogue.get("max_turns") == 1:
        at.refuse(
            "max_turns", "1 leaves no turn to run a tool in, and tool_called asks for one; use 2 or more."
        )
    content = {"checks": read_checks, **({"tools": tools} if tools else {}), **dialogue}
    return Part(content, KEYS, expects_call=bool(wanted))


def _wanted_tools(at: Line, checks: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[str]:
    """The tools that checks want called. A case without tools shows these, by name alone."""
    known = {wire_name(tool["name"]).casefold() for tool in tools}
    wanted = []
    for index, check in enumerate(checks):
        if check["op"] == "tool_called":
            wire = sendable(at, f"checks[{index}].arg", check["arg"])
            if tools and wire.casefold() not in known:
                at.refuse(
                    f"checks[{index}].arg", f"{short(check['arg'])} is not among the tools; add it there."
                )
            wanted.append(check["arg"])
    return wanted


def _check(at: Line, field: str, check: Any) -> dict[str, Any]:
    """The check with its argument in its one spelling. Refuses what could never be checked, or never fail."""
    if not isinstance(check, dict) or check.keys() - {"op", "arg"}:
        at.refuse(field, "must be an object with op and arg, and nothing else.")
    op, arg = check.get("op"), check.get("arg")
    if not isinstance(op, str) or op not in OPS:
        at.refuse(f"{field}.op", f"{short(op)} is unknown; use one of {', '.join(OPS)}.")
    if op == "no_refusal":
        if arg not in (None, ""):
            at.refuse(f"{field}.arg", "no_refusal takes none; remove it.")
        return {"op": op}
    if op in LENGTH_OPS:
        return {"op": op, "arg": _bound(at, f"{field}.arg", op, arg)}
    if not isinstance(arg, str) or not arg.strip():
        at.refuse(f"{field}.arg", f"{short(arg)} is no text or a blank one; write what {op} looks for.")
    if op == "exact" and not words(arg):
        at.refuse(f"{field}.arg", f"{short(arg)} holds no word; compare signs with contains.")
    if op in SECTION_OPS and "\n" in arg:
        at.refuse(f"{field}.arg", "has several lines, and a heading has one; write the heading's text.")
    if op == "regex":
        try:
            compiled(arg)
        except ValueError as error:
            at.refuse(
                f"{field}.arg",
                f"the pattern {short(str(error))[1:-1]}; "
                "write it for RE2, which has neither look-around nor back-references.",
            )
    return {"op": op, "arg": arg}


def _bound(at: Line, field: str, op: str, arg: Any) -> int:
    """A number of characters: a whole number, 2.0, or digits in a text."""
    if isinstance(arg, str):
        whole = WHOLE_NUMBER.fullmatch(arg) is not None
    else:
        whole = isinstance(arg, int | float) and not isinstance(arg, bool) and float(arg).is_integer()
    value = int(arg) if whole else -1
    if not 0 <= value <= MAX_SAFE_INTEGER:
        at.refuse(field, f"{short(arg)} must be a whole number of characters.")
    if op == "min_chars" and value == 0:
        at.refuse(field, "0 lets every answer pass; use 1 or more.")
    return value
