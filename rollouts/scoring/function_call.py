"""Function calling: the calls a model wrote against those that are right, by the public rules of the Berkeley leaderboard.

A parameter has a list of right values. In it "" says that the parameter may be left out, and an object maps each of its
keys to such a list again. Texts are compared without case, spaces and the punctuation ,./-_*^ and with ' as ". An integer
is right where a float is, not the other way round; true is not 1.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rollouts.scoring.base import Answer, Score
from rollouts.scoring.classes import kind_of
from rollouts.scoring.decision import NotStrictJson, json_equal, parse_strict_json
from rollouts.scoring.schemas import schema_accepts
from rollouts.scoring.tools import wire_name

MAX_MISMATCHES = 20
IGNORED = re.compile(r"[ ,./\-_*^]")


class _Call(NamedTuple):
    """`name` as on the wire; `arguments` is None where the model's text is not one strict JSON object."""

    name: str
    arguments: dict[str, Any] | None


def score(content: Mapping[str, Any], answer: Answer) -> Score:
    """Scores the calls of an answer. Never raises because of it.

    `tool`, `decision` and `safe` go by the calls' names; arguments that are no strict JSON object make only `exact`,
    `json_valid` and `arguments_valid` wrong: a call that fails to parse was still tried.
    """
    expected: Sequence[Mapping[str, Any]] = content["expected_calls"]
    schemas = {wire_name(tool["name"]): tool.get("parameters", {}) for tool in content["tools"]}
    kind = kind_of(answer)
    if not kind.usable:
        return Score(
            answer_class=kind.answer_class,
            exact=False,
            json_valid=False,
            decision=False,
            tool=False if expected else None,
            safe=None if expected else False,
            details={"reason": kind.reason},
        )
    calls = [_Call(wire_name(call.name), _object(call.arguments)) for call in answer.tool_calls]
    names = Counter(call.name for call in calls)
    wanted = Counter(wire_name(call["name"]) for call in expected)
    mismatches = _mismatches(calls, expected, schemas) if expected or calls else []
    return Score(
        answer_class=kind.answer_class,
        exact=not mismatches,
        json_valid=all(call.arguments is not None for call in calls),
        decision=bool(calls) == bool(expected),
        tool=names == wanted if expected else None,
        safe=None if expected else not calls,
        arguments_valid=all(_valid(call, schemas) for call in calls) if calls else None,
        details={"reason": mismatches[0], "mismatches": mismatches} if mismatches else None,
    )


def call_problem(
    arguments: Mapping[str, Any], right: Mapping[str, Sequence[Any]], schema: Mapping[str, Any]
) -> str:
    """Why these arguments are not among the right ones; empty when they are. `schema` is their tool's."""
    parts = _mapping(schema.get("properties"))
    required = schema.get("required", ())
    for name in required if isinstance(required, list) else ():
        if name not in arguments:
            return f"{_short(name)} is required and missing"
    for name, value in arguments.items():
        if name not in right:
            return f"{_short(name)} is not expected"
        if not _among(value, right[name], _mapping(parts.get(name))):
            return f"{_short(name)} is {_short(value)}, which is not among the right values"
    for name, values in right.items():
        if name not in arguments and "" not in values:
            return f"{_short(name)} is missing"
    return ""


def _mismatches(
    calls: Sequence[_Call], expected: Sequence[Mapping[str, Any]], schemas: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """What keeps the calls from being the expected ones, in any order, one to one; empty when nothing does."""
    if len(calls) != len(expected):
        found = [f"{len(calls)} calls, and {len(expected)} are right"]
        extra = Counter(call.name for call in calls)
        extra.subtract(wire_name(call["name"]) for call in expected)
        found += [f"{_short(name)} is called {n} times too often" for name, n in extra.items() if n > 0]
        found += [f"{_short(name)} is called {-n} times too seldom" for name, n in extra.items() if n < 0]
        return found[:MAX_MISMATCHES]
    problems = [[_problem(call, right, schemas) for call in calls] for right in expected]
    partner = _matching([[not problem for problem in row] for row in problems])
    free = [index for index in range(len(calls)) if index not in partner.values()]
    found = []
    for index, right in enumerate(expected):
        if index not in partner:
            # the free call of that name is the one that was meant, if there is one
            same = [call for call in free if calls[call].name == wire_name(right["name"])]
            why = problems[index][(same or free)[0]] if free else "is not called"
            found.append(f"{_short(right['name'])}: {why}")
    return found[:MAX_MISMATCHES]


def _problem(call: _Call, right: Mapping[str, Any], schemas: Mapping[str, Mapping[str, Any]]) -> str:
    name = wire_name(right["name"])
    if call.name != name:
        return f"{_short(call.name)} is called instead"
    if call.arguments is None:
        return "the arguments are not one strict JSON object"
    return call_problem(call.arguments, right["arguments"], schemas.get(name, {}))


def _matching(fits: Sequence[Sequence[bool]]) -> dict[int, int]:
    """A largest one-to-one matching of rows to columns that fit, by augmenting paths."""
    row_of: dict[int, int] = {}

    def placed(row: int, seen: set[int]) -> bool:
        for column, fit in enumerate(fits[row]):
            if fit and column not in seen:
                seen.add(column)
                if column not in row_of or placed(row_of[column], seen):
                    row_of[column] = row
                    return True
        return False

    for row in range(len(fits)):
        placed(row, set())
    return {row: column for column, row in row_of.items()}


def _among(value: Any, right: Sequence[Any], schema: Mapping[str, Any]) -> bool:
    # "" says "may be left out"; as a value it is right only where a text may stand
    return any(
        _fits(value, option, schema)
        for option in right
        if option != "" or _declared(schema) in (None, "string")
    )


def _fits(value: Any, option: Any, schema: Mapping[str, Any]) -> bool:
    if isinstance(option, Mapping):
        return isinstance(value, Mapping) and not call_problem(value, option, schema)
    if isinstance(option, list):
        items = _mapping(schema.get("items"))
        return (
            isinstance(value, list)
            and len(value) == len(option)
            and all(_fits(item, wanted, items) for item, wanted in zip(value, option, strict=True))
        )
    if isinstance(option, str):
        return isinstance(value, str) and _same_text(value, option)
    if isinstance(value, float) and isinstance(option, int) and _declared(schema) == "integer":
        return False
    return json_equal(value, option)


def _same_text(left: str, right: str) -> bool:
    ours, theirs = _plain(left), _plain(right)
    # "*" and "/" both read as nothing; they are compared as they are
    return ours == theirs if ours or theirs else left.strip() == right.strip()


def _plain(text: str) -> str:
    return IGNORED.sub("", text).lower().replace("'", '"')


def _declared(schema: Mapping[str, Any]) -> str | None:
    """The one type that the schema declares, None where it declares none or several."""
    declared = schema.get("type")
    return declared if isinstance(declared, str) else None


def _valid(call: _Call, schemas: Mapping[str, Mapping[str, Any]]) -> bool:
    return (
        call.arguments is not None
        and call.name in schemas
        and schema_accepts(schemas[call.name], call.arguments)
    )


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = parse_strict_json(text)
    except NotStrictJson:
        return None
    return value if isinstance(value, dict) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _short(value: Any) -> str:
    """A value for a person, on one line, at most 80 characters; only ASCII, so that every database stores it."""
    if isinstance(value, str) and value.isascii() and value.isprintable() and len(value) <= 80:
        return value
    return json.dumps(value)[:80]
