"""The lines of a suite's file: each a strict JSON object that databases and canonical JSON can hold."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from rollouts.errors import InvalidInput
from rollouts.scoring.decision import JSON_WHITESPACE, MAX_SAFE_INTEGER, NotStrictJson, parse_strict_json

MAX_CASE_BYTES = 4 * 1024 * 1024
MAX_SUITE_BYTES = 256 * 1024 * 1024
UTF8_BOM = b"\xef\xbb\xbf"


class Line(NamedTuple):
    """Where a value stands, so that every refusal can say it. Number 0: it stands in no file."""

    source: str
    number: int

    def refuse(self, field: str, message: str) -> NoReturn:
        if not self.number:
            raise InvalidInput(field, message)
        where = f"line {self.number}: {field}" if field else f"line {self.number}"
        raise InvalidInput(where, message, source=self.source, line=self.number)


def rows(data: bytes, source: str) -> Iterator[tuple[Line, dict[str, Any]]]:
    """Each line that is not blank, as a JSON object fit for storage. Raises `InvalidInput` with the line's number."""
    if len(data) > MAX_SUITE_BYTES:
        raise InvalidInput(source, f"is {len(data)} bytes; split it below {MAX_SUITE_BYTES}.", source=source)
    if data.startswith(UTF8_BOM):
        raise InvalidInput(
            source, "starts with a byte order mark; save it as UTF-8 without BOM.", source=source
        )
    offset = 0
    for number, raw in enumerate(io.BytesIO(data), start=1):
        at = Line(source, number)
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
        check_storable(at, row)
        yield at, row


def check_storable(at: Line, row: dict[str, Any]) -> None:
    """Refuses what PostgreSQL or canonical JSON cannot hold."""
    left: list[tuple[str, Any]] = [("", row)]
    while left:
        path, value = left.pop()
        if isinstance(value, dict):
            for key, item in value.items():
                if "\0" in key:
                    at.refuse(path, f"has the key {short(key)} with a NUL character; remove it.")
                left.append((f"{path}.{key}" if path else key, item))
        elif isinstance(value, list):
            left.extend((f"{path}[{index}]", item) for index, item in enumerate(value))
        elif isinstance(value, str) and "\0" in value:
            at.refuse(path, "holds a NUL character, which databases do not store; remove it.")
        elif isinstance(value, int) and abs(value) > MAX_SAFE_INTEGER:
            at.refuse(
                path, "is an integer beyond 2**53 - 1, which readers of JSON round; write it as a text."
            )


def short(value: Any) -> str:
    """A value as a message may quote it: on one line, printable, at most 80 characters."""
    return json.dumps(value)[:80]
