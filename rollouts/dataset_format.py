"""Reads training and evaluation data: JSONL of chat rows as trainers take them, with as little demanded as can be compared.

A row is {"messages": [{role, content}, ...]} or {"prompt": text or messages}, with an `example_id` and a
`lineage_group_id` if it has them. docs/datasets.md shows the format.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from rollouts.errors import InvalidInput
from rollouts.hashing import canonical_bytes
from rollouts.leakage import plain_tool
from rollouts.scoring.decision import JSON_WHITESPACE, NotStrictJson, parse_strict_json
from rollouts.suite_format.lines import MAX_CASE_BYTES, MAX_SUITE_BYTES, UTF8_BOM, Line, check_storable, short
from rollouts.suite_format.parts import MAX_NAME_CHARS

FORMAT = 1
MAX_DATASET_BYTES = MAX_SUITE_BYTES
ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class DatasetRow(NamedTuple):
    """What is read of a row. `text` is what its user says, `answer` what is learned; "" where the row has none."""

    line: int
    id: str | None
    group: str | None
    text: str
    answer: str
    # the `decision` that the row says it shows
    decision: str | None
    tools: list[Any]

    @property
    def name(self) -> str:
        return self.id if self.id is not None else f"line {self.line}"


def read_rows(data: bytes, source: str) -> Iterator[tuple[DatasetRow, bytes]]:
    """Each row with its canonical bytes. Raises `InvalidInput` for the first fault, with the line and the key."""
    for at, line in lines(data, source):
        if isinstance(line, InvalidInput):
            raise line
        yield row_of(at, line), canonical_bytes(line)


def lines(data: bytes, source: str) -> Iterator[tuple[Line, dict[str, Any] | InvalidInput]]:
    """Each line that is not blank: its JSON object, or why it cannot be used.

    Raises `InvalidInput` where the file as a whole cannot be read.
    """
    if len(data) > MAX_DATASET_BYTES:
        raise InvalidInput(
            source, f"is {len(data)} bytes; split it below {MAX_DATASET_BYTES}.", source=source
        )
    if data.startswith(UTF8_BOM):
        raise InvalidInput(
            source, "starts with a byte order mark; save it as UTF-8 without BOM.", source=source
        )
    for number, raw in enumerate(io.BytesIO(data), start=1):
        at = Line(source, number)
        try:
            found = _object(at, raw)
        except InvalidInput as refused:
            yield at, refused
        else:
            if found is not None:
                yield at, found


def _object(at: Line, raw: bytes) -> dict[str, Any] | None:
    if len(raw) > MAX_CASE_BYTES:
        at.refuse("", f"is {len(raw)} bytes; a row may have {MAX_CASE_BYTES}.")
    try:
        text = raw.decode().strip(JSON_WHITESPACE)
    except UnicodeDecodeError as error:
        at.refuse("", f"is not UTF-8 at its byte {error.start}; save the file as UTF-8.")
    if not text:
        return None
    try:
        row = parse_strict_json(text)
    except NotStrictJson as error:
        at.refuse("", f"is not strict JSON ({error}); write one JSON object a line.")
    if not isinstance(row, dict):
        at.refuse("", f"is not a JSON object but {_kind(row)}; write one object a line.")
    check_storable(at, row)
    return row


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def row_of(at: Line, row: Mapping[str, Any]) -> DatasetRow:
    """Raises `InvalidInput` where the row does not say what it asks, or says it in another form."""
    text, answer = _asked_and_answered(at, row)
    decision = row.get("decision")
    return DatasetRow(
        line=at.number,
        id=_identifier(at, row, ("example_id", "id")),
        group=_identifier(at, row, ("lineage_group_id", "group_id")),
        text=text,
        answer=answer,
        decision=decision if isinstance(decision, str) else None,
        tools=_tools(at, row.get("tools")),
    )


def _identifier(at: Line, row: Mapping[str, Any], fields: tuple[str, ...]) -> str | None:
    """The first of the fields that is given, a text or a whole number; None where none is."""
    for field in fields:
        value = row.get(field)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
            at.refuse(field, f"{short(value)} is no text and no whole number; give one, or leave it out.")
        if len(str(value)) > MAX_NAME_CHARS:
            at.refuse(field, f"has {len(str(value))} characters; use at most {MAX_NAME_CHARS}.")
        return str(value)
    return None


def _asked_and_answered(at: Line, row: Mapping[str, Any]) -> tuple[str, str]:
    if row.get("messages") is not None:
        messages = _messages(at, "messages", row["messages"])
        answers = [text for role, text in messages if role == "assistant"]
    elif isinstance(row.get("prompt"), str):
        messages = [("user", row["prompt"])]
        answers = _completion(at, row.get("completion"))
    elif row.get("prompt") is not None:
        messages = _messages(at, "prompt", row["prompt"])
        answers = _completion(at, row.get("completion"))
    else:
        at.refuse("messages", "is missing; give a list of {role, content}, or a prompt.")
    asked = "\n".join(text for role, text in messages if role == "user")
    if not asked.strip():
        at.refuse("messages", "has no user's message with text; what a row asks is what is compared.")
    return asked, answers[-1] if answers else ""


def _completion(at: Line, value: Any) -> list[str]:
    if value is None or isinstance(value, str):
        return [value] if value else []
    return [text for _, text in _messages(at, "completion", value)]


def _messages(at: Line, field: str, value: Any) -> list[tuple[str, str]]:
    if not isinstance(value, list) or not value:
        at.refuse(field, "is empty or no list; give a list of {role, content}.")
    return [_message(at, f"{field}[{index}]", message) for index, message in enumerate(value)]


def _message(at: Line, field: str, message: Any) -> tuple[str, str]:
    """The role and the text. A call instead of a text is its JSON; parts that are no text are left out."""
    if not isinstance(message, dict):
        at.refuse(field, "must be an object with role and content.")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        at.refuse(f"{field}.role", f"{short(role)} is unknown; use one of {', '.join(ROLES)}.")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return role, "\n".join(part for part in parts if isinstance(part, str))
    if content is None and role != "user":
        calls = message.get("tool_calls")
        return role, canonical_bytes(calls).decode() if calls else ""
    if not isinstance(content, str):
        at.refuse(f"{field}.content", f"{short(content)} is no text; write the message.")
    return role, content


def _tools(at: Line, value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        at.refuse("tools", "must be a list of names or of {name, description, parameters}.")
    for index, tool in enumerate(value):
        if not _is_named(tool):
            at.refuse(f"tools[{index}]", "has no name; give a name or {name, description, parameters}.")
    return value


def _is_named(tool: Any) -> bool:
    name = plain_tool(tool).get("name")
    return isinstance(name, str) and bool(name.strip())


class Digest:
    """The digest of rows in their order: the SHA-256 of canonical {"format": 1, "rows": [row, ...]}."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256(b'{"format":%d,"rows":[' % FORMAT)
        self._comma = b""

    def add(self, canonical: bytes) -> None:
        self._hash.update(self._comma + canonical)
        self._comma = b","

    def hexdigest(self) -> str:
        done = self._hash.copy()
        done.update(b"]}")
        return done.hexdigest()


def tools_of(document: Any) -> list[Any]:
    """The tools of a schema file: a list of them, {"tools": [...]}, or {"families": [{"tools": [...]}, ...]}.

    Raises `InvalidInput` where it is none of these, or one of the tools has no name.
    """
    found = _tool_lists(document)
    if not found:
        raise InvalidInput(
            "tool_schema",
            "holds no tools; give a list of {name, description, parameters}, or an object with tools.",
        )
    for index, tool in enumerate(found):
        if not _is_named(tool) or plain_tool(tool).keys() <= {"name"}:
            raise InvalidInput(
                f"tool_schema[{index}]", "has no name, or nothing else; give {name, description, parameters}."
            )
    return found


def _tool_lists(document: Any) -> list[Any]:
    if isinstance(document, list):
        return document
    if not isinstance(document, dict):
        return []
    if isinstance(document.get("tools"), list):
        tools: list[Any] = document["tools"]
        return tools
    families = document.get("families")
    parts: Iterable[Any] = families if isinstance(families, list) else ()
    return [
        tool
        for part in parts
        if isinstance(part, dict) and isinstance(part.get("tools"), list)
        for tool in part["tools"]
    ]
