"""Reads a suite from JSONL and refuses it whole at the first thing that would make a score doubtful.

A row is a chat: `messages` (system, user, and as the last one the reference answer), `tools` that were shown,
`expected` proposal, `example_id`, `lineage_group_id`, `family`. What else a row holds becomes a tag.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from rollouts.errors import InvalidInput
from rollouts.hashing import canonical_bytes, sha256_bytes
from rollouts.scoring.decision import (
    JSON_WHITESPACE,
    MAX_SAFE_INTEGER,
    SHAPES,
    NotStrictJson,
    json_equal,
    parse_strict_json,
    schema_accepts,
    shape_problem,
)

FORMAT = 1
SCORER = "decision"
MAX_CASE_BYTES = 4 * 1024 * 1024
MAX_SUITE_BYTES = 256 * 1024 * 1024
MAX_NAME_CHARS = 200
ROLES = ("system", "user", "assistant")
TOOL_KEYS = frozenset({"name", "description", "parameters"})
UTF8_BOM = b"\xef\xbb\xbf"
# A line of the "Available tools" block in the seed system's prompts: "- read_file: reads a file".
TOOL_LINE = re.compile(r"- ([^\s:]+)(?::|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSpec:
    """One case. `messages` is what the model is sent: the reference answer is not among them.

    `content` is everything that shapes the prompt or the score, as JSON; `digest` is its SHA-256. `tools` are
    names in the order shown; `tool_schemas` maps them to the JSON schema of their arguments, None when the
    suite gives none.
    """

    key: str
    family: str
    group: str
    messages: tuple[dict[str, str], ...]
    tools: tuple[str, ...]
    tool_schemas: dict[str, dict[str, Any]] | None
    expected: dict[str, Any]
    tags: dict[str, Any]
    content: dict[str, Any]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedSuite:
    """A suite's cases in file order. `digest` is of content: line ends and key order do not change it."""

    source: str
    cases: tuple[CaseSpec, ...]
    digest: str


class _Line(NamedTuple):
    """Where a value stands, so that every refusal can say it."""

    source: str
    number: int

    def refuse(self, field: str, message: str) -> NoReturn:
        where = f"line {self.number}: {field}" if field else f"line {self.number}"
        raise InvalidInput(where, message, source=self.source, line=self.number)


class _Tools(NamedTuple):
    names: tuple[str, ...]
    schemas: dict[str, dict[str, Any]] | None
    # As the row gave them: descriptions and order shape the prompt.
    content: list[Any]


def parse_suite(data: bytes, *, source: str) -> ParsedSuite:
    """Reads a whole suite; `source` is the file's name, used in messages only.

    The digest is the SHA-256 of canonical {"format": 1, "scorer": "decision", "cases": [content, ...]}.
    Raises `InvalidInput` for the first fault, with the line and the key, for example "line 17: example_id".
    """
    if len(data) > MAX_SUITE_BYTES:
        raise InvalidInput(source, f"is {len(data)} bytes; split it below {MAX_SUITE_BYTES}.", source=source)
    if data.startswith(UTF8_BOM):
        raise InvalidInput(
            source, "starts with a byte order mark; save it as UTF-8 without BOM.", source=source
        )
    cases: list[CaseSpec] = []
    canonical: list[bytes] = []
    line_of_key: dict[str, int] = {}
    for at, row in _rows(data, source):
        case, case_bytes = _case(at, row)
        if case.key in line_of_key:
            at.refuse(
                "example_id",
                f"{_short(case.key)} is also that of line {line_of_key[case.key]}; give each case its own.",
            )
        line_of_key[case.key] = at.number
        cases.append(case)
        canonical.append(case_bytes)
    if not cases:
        raise InvalidInput(source, "holds no case; give one JSON object a line.", source=source)
    return ParsedSuite(source=source, cases=tuple(cases), digest=_suite_digest(canonical))


def digest_of_cases(contents: Iterable[Any]) -> str:
    """The digest a suite with these case contents, in this order, has: what was sealed can be proved again."""
    return _suite_digest([canonical_bytes(content) for content in contents])


def _suite_digest(cases: list[bytes]) -> str:
    # Canonical JSON sorts keys and adds no spaces, so the parts join without encoding every case again.
    head, tail = b'{"cases":[', b'],"format":%d,"scorer":"%s"}' % (FORMAT, SCORER.encode())
    return sha256_bytes(head + b",".join(cases) + tail)


def _rows(data: bytes, source: str) -> Iterator[tuple[_Line, dict[str, Any]]]:
    """Each line that is not blank, as a JSON object fit for storage."""
    offset = 0
    for number, raw in enumerate(io.BytesIO(data), start=1):
        at = _Line(source, number)
        if len(raw) > MAX_CASE_BYTES:
            at.refuse("", f"is {len(raw)} bytes; a case may have {MAX_CASE_BYTES}.")
        try:
            text = raw.decode().strip(JSON_WHITESPACE)
        except UnicodeDecodeError as error:
            at.refuse("", f"is not UTF-8 at byte {offset + error.start} of the file; save it as UTF-8.")
        offset += len(raw)
        if not text:
            continue
        try:
            row = parse_strict_json(text)
        except NotStrictJson as error:
            at.refuse("", f"is not strict JSON ({error}); write one JSON object a line.")
        if not isinstance(row, dict):
            at.refuse("", "is not a JSON object; write one object a line.")
        _check_storable(at, row)
        yield at, row


def _check_storable(at: _Line, row: dict[str, Any]) -> None:
    """Refuses what PostgreSQL or canonical JSON cannot hold."""
    left: list[tuple[str, Any]] = [("", row)]
    while left:
        path, value = left.pop()
        if isinstance(value, dict):
            for key, item in value.items():
                if "\0" in key:
                    at.refuse(path, f"has the key {_short(key)} with a NUL character; remove it.")
                left.append((f"{path}.{key}" if path else key, item))
        elif isinstance(value, list):
            left.extend((f"{path}[{index}]", item) for index, item in enumerate(value))
        elif isinstance(value, str) and "\0" in value:
            at.refuse(path, "holds a NUL character, which databases do not store; remove it.")
        elif isinstance(value, int) and abs(value) > MAX_SAFE_INTEGER:
            at.refuse(
                path, "is an integer beyond 2**53 - 1, which readers of JSON round; write it as a text."
            )


def _case(at: _Line, row: dict[str, Any]) -> tuple[CaseSpec, bytes]:
    key = _name(at, row, "example_id")
    family = _name(at, row, "family")
    group_field = next((name for name in ("lineage_group_id", "group_id") if row.get(name) is not None), None)
    group = _name(at, row, group_field) if group_field else key
    messages, reference = _messages(at, row.get("messages"))
    tools = _tools(at, row, messages)
    expected = _expected(at, row, reference)
    _check_expected_tool(at, expected, tools)
    used = {"example_id", "family", group_field, "messages", "tools", "expected", "decision"}
    tags = {name: value for name, value in row.items() if name not in used}
    content = {
        "key": key,
        "family": family,
        "group": group,
        "messages": messages,
        "tools": tools.content,
        "expected": expected,
        "tags": tags,
    }
    case_bytes = canonical_bytes(content)
    case = CaseSpec(
        key=key,
        family=family,
        group=group,
        messages=tuple(messages),
        tools=tools.names,
        tool_schemas=tools.schemas,
        expected=expected,
        tags=tags,
        content=content,
        digest=sha256_bytes(case_bytes),
    )
    return case, case_bytes


def _name(at: _Line, row: dict[str, Any], field: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        at.refuse(field, "is missing or not a text; give every case one.")
    if len(value) > MAX_NAME_CHARS:
        at.refuse(field, f"has {len(value)} characters; use at most {MAX_NAME_CHARS}.")
    return value


def _messages(at: _Line, value: Any) -> tuple[list[dict[str, str]], str | None]:
    """The messages to send, and the reference answer when the last one is the assistant's."""
    if not isinstance(value, list) or not value:
        at.refuse("messages", "is missing or empty; give a list of {role, content}.")
    for index, message in enumerate(value):
        field = f"messages[{index}]"
        if not isinstance(message, dict) or message.keys() != {"role", "content"}:
            at.refuse(field, "must be an object with exactly role and content.")
        role, content = message["role"], message["content"]
        if role not in ROLES:
            at.refuse(f"{field}.role", f"{_short(role)} is unknown; use one of {', '.join(ROLES)}.")
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
    return sent, value[-1]["content"] if answered else None


def _tools(at: _Line, row: dict[str, Any], messages: list[dict[str, str]]) -> _Tools:
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
            at.refuse(field, f"{_short(name)} is listed twice; list each tool once.")
        names.append(name)
        if isinstance(tool, dict):
            _check_tool(at, field, tool)
            if "parameters" in tool:
                schemas[name] = tool["parameters"]
    return _Tools(tuple(names), schemas or None, value)


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


def _check_tool(at: _Line, field: str, tool: dict[str, Any]) -> None:
    if unknown := sorted(tool.keys() - TOOL_KEYS):
        at.refuse(field, f"has the unknown key {_short(unknown[0])}; use name, description, parameters.")
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
        at.refuse(field, f"is not a JSON schema (2020-12): {_short(error.message)}; correct it.")
    except RecursionError:
        at.refuse(field, "is nested too deeply to be checked; make it flatter.")
    except Unresolvable as error:
        at.refuse(field, f"refers to {_short(error.ref)}, which is not in it; put it under $defs.")


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


def _expected(at: _Line, row: dict[str, Any], reference: str | None) -> dict[str, Any]:
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
            "decision", f"{_short(row['decision'])} is not the expected {expected['decision']}; correct one."
        )
    return expected


def _reference_proposal(at: _Line, reference: str) -> dict[str, Any]:
    field = "messages[-1].content"
    try:
        value = parse_strict_json(reference.strip(JSON_WHITESPACE))
    except NotStrictJson as error:
        at.refuse(field, f"the reference answer is not strict JSON ({error}); write the proposal alone.")
    _check_storable(at, {field: value})
    return _proposal(at, field, value)


def _proposal(at: _Line, field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        at.refuse(field, "must be a JSON object with a decision.")
    # Capture files write null for the parts that a decision has not.
    proposal = {key: item for key, item in value.items() if item is not None}
    decision = proposal.get("decision")
    if not isinstance(decision, str) or decision not in SHAPES:
        at.refuse(f"{field}.decision", f"{_short(decision)} is unknown; use one of {', '.join(SHAPES)}.")
    if problem := shape_problem(proposal):
        keys = ", ".join(sorted(SHAPES[decision]))
        at.refuse(field, f"{problem}; a {decision} has exactly the keys {keys}.")
    return proposal


def _check_expected_tool(at: _Line, expected: dict[str, Any], tools: _Tools) -> None:
    if expected["decision"] != "call":
        return
    tool = expected["tool"]
    if tool not in tools.names:
        at.refuse("expected.tool", f"{_short(tool)} is not among the tools shown; add it or expect no call.")
    schema = (tools.schemas or {}).get(tool)
    if schema is not None and not schema_accepts(schema, expected["arguments"]):
        at.refuse("expected.arguments", f"do not satisfy the schema of {_short(tool)}; correct one of them.")


def _short(value: Any) -> str:
    """A value as a message may quote it: on one line, printable, at most 80 characters."""
    return json.dumps(value)[:80]
