"""A recorded transcript: which requests get which answers, one row a line.

A row says which requests it is for: {"request_sha256": digest of the body}, or {"contains": text of the last user
message}, or neither: then it is for all. The first row in the file that is for a request decides. Its `replies` are
given in their order; the request after the last one gets a 404 that says so.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from rollouts.errors import InvalidInput
from rollouts.hashing import sha256_bytes
from rollouts.scoring.decision import NotStrictJson, parse_strict_json

MAX_TRANSCRIPT_BYTES = 64 << 20
MAX_DELAY_MS = 600_000
MAX_HEADER_CHARS = 8000
ROW_KEYS = frozenset(["request_sha256", "contains", "replies"])
BODY_KEYS = ("body", "body_base64", "text")
REPLY_KEYS = frozenset(["status", "headers", *BODY_KEYS, "delay_ms", "cut_after", "drop"])
DIGEST = re.compile(r"[0-9a-f]{64}")
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
# how the bytes go over the wire is the server's own business
FRAMING_HEADERS = frozenset(["content-length", "transfer-encoding", "connection"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """`cut_after`: the connection is closed after so many bytes of the body. `drop`: before any answer."""

    status: int = 200
    headers: Mapping[str, str]
    body: bytes
    delay_ms: int = 0
    cut_after: int | None = None
    drop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    line: int
    request_sha256: str | None
    contains: str | None
    replies: tuple[Reply, ...]


class Transcript:
    """The rows in the order of the file."""

    def __init__(self, rows: tuple[Row, ...]) -> None:
        self.rows = rows
        self._by_digest = {row.request_sha256: row for row in rows if row.request_sha256 is not None}
        self._by_text = [row for row in rows if row.request_sha256 is None]

    def row_for(self, body: bytes) -> Row | None:
        """The first row that is for this request."""
        exact = self._by_digest.get(sha256_bytes(body))
        said: str | None = None
        for row in self._by_text:
            if exact is not None and exact.line < row.line:
                break
            if row.contains is None:
                return row
            said = last_user_text(body) if said is None else said
            if row.contains in said:
                return row
        return exact


def last_user_text(body: bytes) -> str:
    """What the last user message of a request says; empty where there is none."""
    try:
        messages = json.loads(body)["messages"]
        content = next(message["content"] for message in reversed(messages) if message["role"] == "user")
        if isinstance(content, list):
            return "".join(part["text"] for part in content if part.get("type") == "text")
        return str(content)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError, StopIteration):
        return ""


def completion_of(text: str) -> bytes:
    """A plain answer as a chat completion. It has no usage: nobody counted tokens."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return json.dumps({"object": "chat.completion", "choices": [choice]}, ensure_ascii=False).encode()


def parse_transcript(data: bytes) -> Transcript:
    """Reads a whole transcript. Raises `InvalidInput` for the first fault, with line and key."""
    if len(data) > MAX_TRANSCRIPT_BYTES:
        raise InvalidInput("transcript", f"is {len(data)} bytes; split it below {MAX_TRANSCRIPT_BYTES}.")
    rows: list[Row] = []
    seen: dict[tuple[str | None, str | None], int] = {}
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        row = _row(number, line)
        key = (row.request_sha256, row.contains)
        first = seen.get((None, None), seen.get(key))
        if first is not None:
            _refuse(
                number,
                "",
                f"can never be reached: line {first} takes all that it is for; put it before, or leave it out.",
            )
        seen[key] = number
        rows.append(row)
    if not rows:
        raise InvalidInput("transcript", "holds no row; give one JSON object a line.")
    return Transcript(tuple(rows))


def _row(number: int, line: bytes) -> Row:
    try:
        value = parse_strict_json(line.decode())
    except UnicodeDecodeError as error:
        _refuse(number, "", f"is not UTF-8 at byte {error.start + 1}; save the file as UTF-8.")
    except NotStrictJson as error:
        _refuse(number, "", f"is not strict JSON ({error}); correct it.")
    if not isinstance(value, dict):
        _refuse(number, "", "is not a JSON object; give one a line.")
    _known(number, "", value, ROW_KEYS)
    digest, contains, replies = (value.get(key) for key in ("request_sha256", "contains", "replies"))
    if digest is not None and contains is not None:
        _refuse(number, "contains", "stands beside request_sha256; give only one of them.")
    if digest is not None and not (isinstance(digest, str) and DIGEST.fullmatch(digest)):
        _refuse(number, "request_sha256", "must be 64 hexadecimal digits in lower case.")
    if contains is not None and not (isinstance(contains, str) and contains):
        _refuse(
            number, "contains", "must be a text that is not empty; leave it out for a row for all requests."
        )
    if not isinstance(replies, list) or not replies:
        _refuse(number, "replies", "is missing or empty; give a list of replies.")
    return Row(
        line=number,
        request_sha256=digest,
        contains=contains,
        replies=tuple(_reply(number, f"replies[{index}]", reply) for index, reply in enumerate(replies)),
    )


def _reply(number: int, where: str, value: Any) -> Reply:
    if not isinstance(value, dict):
        _refuse(number, where, "is not an object; give status and body, or text.")
    _known(number, where, value, REPLY_KEYS)
    drop = value.get("drop", False)
    if not isinstance(drop, bool):
        _refuse(number, f"{where}.drop", "must be true or false.")
    if drop and (others := sorted(value.keys() - {"drop", "delay_ms"})):
        _refuse(
            number, f"{where}.{others[0]}", "stands beside drop, after which nothing is sent; leave it out."
        )
    body = _body(number, where, value)
    status = _whole(number, where, value, "status", default=200, least=200, most=599)
    if "text" in value and status != 200:
        _refuse(number, f"{where}.text", f"is an answer, but the status is {status}; use body for an error.")
    cut_after = None
    if value.get("cut_after") is not None:
        cut_after = _whole(number, where, value, "cut_after", default=0, least=0, most=len(body))
    return Reply(
        status=status,
        headers=_headers(number, where, value.get("headers", {})),
        body=body,
        delay_ms=_whole(number, where, value, "delay_ms", default=0, least=0, most=MAX_DELAY_MS),
        cut_after=cut_after,
        drop=drop,
    )


def _body(number: int, where: str, value: Mapping[str, Any]) -> bytes:
    given = [key for key in BODY_KEYS if key in value]
    if len(given) > 1:
        _refuse(
            number,
            f"{where}.{given[1]}",
            f"stands beside {given[0]}; give only one of {', '.join(BODY_KEYS)}.",
        )
    if not given:
        return b""
    key, text = given[0], value[given[0]]
    if not isinstance(text, str):
        _refuse(number, f"{where}.{key}", "must be a text.")
    if key == "text":
        return completion_of(text)
    if key == "body":
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        _refuse(number, f"{where}.{key}", "is not base64; correct it, or give the text as body.")


def _headers(number: int, where: str, value: Any) -> dict[str, str]:
    where = f"{where}.headers"
    if not isinstance(value, dict):
        _refuse(number, where, "must be an object of texts.")
    for name, text in value.items():
        if not HEADER_NAME.fullmatch(name):
            _refuse(number, where, f"{json.dumps(name)[:80]} cannot be the name of a header.")
        if name.lower() in FRAMING_HEADERS:
            _refuse(
                number,
                f"{where}.{name}",
                "is set by the server itself; to break an answer off use cut_after.",
            )
        if not isinstance(text, str) or not HEADER_VALUE.fullmatch(text):
            _refuse(number, f"{where}.{name}", "must be a text of printable ASCII on one line.")
    if sum(len(name) + len(text) for name, text in value.items()) > MAX_HEADER_CHARS:
        _refuse(number, where, f"are more than {MAX_HEADER_CHARS} characters; leave some out.")
    return dict(value)


def _whole(
    number: int, where: str, value: Mapping[str, Any], key: str, *, default: int, least: int, most: int
) -> int:
    found = value.get(key, default)
    if isinstance(found, bool) or not isinstance(found, int) or not least <= found <= most:
        _refuse(number, f"{where}.{key}", f"must be a whole number from {least} to {most}.")
    return found


def _known(number: int, where: str, value: Mapping[str, Any], known: frozenset[str]) -> None:
    if unknown := sorted(value.keys() - known):
        place = f"{where}.{unknown[0]}" if where else unknown[0]
        _refuse(number, place[:200], f"is not a key here. Known: {', '.join(sorted(known))}.")


def _refuse(number: int, field: str, message: str) -> NoReturn:
    raise InvalidInput(f"line {number}: {field}" if field else f"line {number}", message, line=number)
