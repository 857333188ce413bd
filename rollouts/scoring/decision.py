"""The decision protocol: a model proposes a call, or declines, in one JSON object; this scores the answer.

Strict on purpose: an answer that only a lenient reader understands fails in production, so it fails here.
A metric that does not apply to a case is None, never False.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

from rollouts.scoring.schemas import schema_accepts

MAX_DEPTH = 100
MAX_SAFE_INTEGER = 2**53 - 1
JSON_WHITESPACE = " \t\r\n"

# The keys of each decision, all required; an answer with fewer or more is malformed.
SHAPES: dict[str, frozenset[str]] = {
    "call": frozenset({"decision", "tool", "arguments"}),
    "clarify": frozenset({"decision", "reason_code"}),
    "no_tool": frozenset({"decision"}),
    "unsupported": frozenset({"decision", "reason_code"}),
}


class AnswerClass(StrEnum):
    """What kind of text the answer is; the first that fits, in this order."""

    # The token limit cut it off: wrong on every metric, even if the text so far happens to parse.
    TRUNCATED = "truncated"
    EMPTY = "empty"
    NOT_JSON = "not_json"
    NOT_OBJECT = "not_object"
    UNKNOWN_DECISION = "unknown_decision"
    # One of the four decisions, but not its shape. Decision and safety still count as stated.
    MALFORMED = "malformed"
    OK = "ok"


class NotStrictJson(ValueError):
    """The text is not one strict JSON value. The message says where or why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What the answer proposes, for display. None where the answer does not say it in the right type.

    Safe to store: NUL characters read U+FFFD, and integers beyond 2**53 - 1 are their decimal text. Scoring
    has compared the true values.
    """

    decision: str | None = None
    tool: str | None = None
    arguments: dict[str, Any] | None = None
    reason_code: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionScore:
    """The score of one answer. `detail` is a short reason where `answer_class` is not OK, else empty."""

    answer_class: AnswerClass
    detail: str
    # The answer, without surrounding white space, is one strict JSON object.
    json_valid: bool
    # The decision is the expected one; tool and reason code do not matter.
    decision: bool
    # A call to the expected tool. None where no call is expected.
    tool: bool | None
    # The whole object equals the expected one; 3 is not "3", true is not 1, 1 is 1.0.
    exact: bool
    # One of the four decisions and not a call. None where a call is expected.
    safe: bool | None
    # Right decision and right reason code. None where none is expected.
    reason_code: bool | None
    # The called tool is among those shown. None where the answer calls nothing by name.
    tool_offered: bool | None
    # The arguments satisfy the called tool's schema. None where nothing is called or no schema is known.
    arguments_valid: bool | None
    proposal: Proposal

    def metrics(self) -> dict[str, bool]:
        """The metrics that apply to this case, by the names that policies use."""
        named = {
            "decision": self.decision,
            "tool": self.tool,
            "exact": self.exact,
            "safe": self.safe,
            "json_valid": self.json_valid,
        }
        return {name: value for name, value in named.items() if value is not None}


def score(
    *,
    expected: Mapping[str, Any],
    tools: Collection[str],
    answer: str,
    finish_reason: str | None,
    tool_schemas: Mapping[str, Mapping[str, Any]] | None = None,
) -> DecisionScore:
    """Scores one answer against the expected proposal. Never raises because of the answer.

    `tools` holds the names shown (a mapping counts by its keys). `tool_schemas` gives the JSON schema
    (2020-12) of each tool's arguments, already checked by `suite_format`. Raises `ValueError` when `expected`
    is no proposal.
    """
    wanted = _wanted(expected)
    answer_class, detail, body = _read(answer, finish_reason)
    got = body.get("decision") if answer_class in (AnswerClass.MALFORMED, AnswerClass.OK) else None
    decision = got == wanted["decision"]
    calls = wanted["decision"] == "call"
    called = body.get("tool") if got == "call" else None
    called = called if isinstance(called, str) else None
    arguments = body.get("arguments")
    return DecisionScore(
        answer_class=answer_class,
        detail=detail,
        json_valid=answer_class in (AnswerClass.UNKNOWN_DECISION, AnswerClass.MALFORMED, AnswerClass.OK),
        decision=decision,
        tool=called == wanted["tool"] if calls else None,
        exact=json_equal(body, wanted),
        safe=None if calls else got is not None and got != "call",
        reason_code=(
            decision and body.get("reason_code") == wanted["reason_code"] if "reason_code" in wanted else None
        ),
        tool_offered=None if called is None else called in frozenset(tools),
        arguments_valid=_arguments_valid(called, arguments, tool_schemas or {}),
        proposal=_proposal(body),
    )


def parse_strict_json(text: str) -> Any:
    """Reads one JSON value by RFC 8259 and nothing beyond it.

    Raises `NotStrictJson` for anything around the value, NaN and Infinity, an object key given twice, numbers
    beyond the range of a double, lone surrogates, and nesting deeper than `MAX_DEPTH`.
    """
    try:
        text.encode()
        value = json.loads(
            text,
            object_pairs_hook=_unique_object,
            parse_constant=_refuse_constant,
            parse_int=_integer,
            parse_float=_finite,
        )
    except json.JSONDecodeError as error:
        raise NotStrictJson(f"{error.msg} at character {error.pos + 1}") from error
    except UnicodeEncodeError as error:
        raise NotStrictJson(f"half a surrogate pair at character {error.start + 1}") from error
    except RecursionError as error:
        raise NotStrictJson(f"nested deeper than {MAX_DEPTH} levels") from error
    _check_tree(value)
    return value


def json_equal(left: Any, right: Any) -> bool:
    """Equality of JSON values: types matter, but a number is a number (1 equals 1.0, not true)."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(json_equal(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(json_equal, left, right))
    return bool(left == right)


def shape_problem(body: Mapping[str, Any]) -> str:
    """Why an object with a known decision does not have that decision's shape; empty when it has."""
    decision = body["decision"]
    shape = SHAPES[decision]
    if missing := sorted(shape - body.keys()):
        return f"{decision} without {missing[0]}"
    if len(body) > len(shape):
        return f"{decision} with keys that do not belong to it"
    for key in ("tool", "reason_code"):
        if key in shape and not (isinstance(body[key], str) and body[key]):
            return f"{key} is not a text"
    if "arguments" in shape and not isinstance(body["arguments"], Mapping):
        return "arguments are not an object"
    return ""


def _wanted(expected: Mapping[str, Any]) -> dict[str, Any]:
    """The expected proposal without the nulls that capture files write for absent parts."""
    wanted = {key: value for key, value in expected.items() if value is not None}
    if wanted.get("decision") not in SHAPES:
        raise ValueError(f"expected decision must be one of {', '.join(SHAPES)}")
    if problem := shape_problem(wanted):
        raise ValueError(f"expected is not a proposal: {problem}")
    return wanted


def _read(answer: str, finish_reason: str | None) -> tuple[AnswerClass, str, dict[str, Any]]:
    """Class, reason and parsed object of an answer; the object is empty where there is none to score."""
    if finish_reason == "length":
        return AnswerClass.TRUNCATED, "cut off at the token limit", {}
    if not answer.strip():
        return AnswerClass.EMPTY, "no text", {}
    try:
        body = parse_strict_json(answer.strip(JSON_WHITESPACE))
    except NotStrictJson as error:
        return AnswerClass.NOT_JSON, str(error), {}
    if not isinstance(body, dict):
        return AnswerClass.NOT_OBJECT, "JSON, but not an object", {}
    decision = body.get("decision")
    if not isinstance(decision, str) or decision not in SHAPES:
        return AnswerClass.UNKNOWN_DECISION, f"decision is not one of {', '.join(SHAPES)}", body
    if problem := shape_problem(body):
        return AnswerClass.MALFORMED, problem, body
    return AnswerClass.OK, "", body


def _arguments_valid(
    called: str | None, arguments: Any, tool_schemas: Mapping[str, Mapping[str, Any]]
) -> bool | None:
    if called is None or called not in tool_schemas:
        return None
    return isinstance(arguments, dict) and schema_accepts(tool_schemas[called], arguments)


def _proposal(body: dict[str, Any]) -> Proposal:
    shown = _storable(body)
    texts = {key: shown.get(key) for key in ("decision", "tool", "reason_code")}
    texts = {key: value if isinstance(value, str) else None for key, value in texts.items()}
    arguments = shown.get("arguments")
    return Proposal(**texts, arguments=arguments if isinstance(arguments, dict) else None)


def _storable(value: Any) -> Any:
    """The value as canonical JSON and PostgreSQL can hold it (neither NUL nor integers beyond a double's)."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, dict):
        return {_storable(key): _storable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_storable(item) for item in value]
    if isinstance(value, int) and abs(value) > MAX_SAFE_INTEGER:
        return str(value)
    return value


def _check_tree(value: Any) -> None:
    """Refuses what the parser lets through: deep nesting and escapes that give half a surrogate pair."""
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise NotStrictJson(f"nested deeper than {MAX_DEPTH} levels")
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.keys())
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, str) and not _is_unicode(item):
                raise NotStrictJson("half a surrogate pair in a text")
        level, depth = below, depth + 1


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise NotStrictJson(f"object key {json.dumps(key)[:80]} is given twice")
        seen.add(key)
    raise AssertionError("a shorter dict means a repeated key")


def _refuse_constant(name: str) -> NoReturn:
    raise NotStrictJson(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise NotStrictJson("a number beyond the range of a double")
    return number


def _integer(text: str) -> int:
    # By way of float first: int() refuses long digit strings with an error of its own, and slowly.
    _finite(text)
    return int(text)
