"""A rollout's trajectory as a list of events, read from its captured model calls. Pure.

An event is one message that the model was sent, or one thing that it did: thought, said, called. A tool's result is what
the next request carries. Whatever the bytes are, nothing is raised: what cannot be read becomes an event that says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rollouts.backends.base import Completion
from rollouts.backends.chat_reading import read_chat_completion
from rollouts.backends.plugins import DIALECT, read_answer
from rollouts.failures import CallFailed
from rollouts.scoring.decision import NotStrictJson, parse_strict_json

# a longer body is not read for the trajectory; its beginning and its download stand with its call
READ_BYTES = 8 << 20
# a longer text is compared as text, not as JSON
JSON_CHARS = 200_000


@dataclass(frozen=True, slots=True)
class Event:
    """`kind` is message, result, failed, thought, said, call or unread.

    `who` is a message's role, a tool's name, or how a call failed. `text` is what was written; of a call its arguments, as
    the model wrote them. `finish` is why an answer ended, on its last event.
    """

    kind: str
    text: str
    who: str = ""
    turn: int = 0
    finish: str = ""

    @property
    def same_as(self) -> tuple[str, str, Any]:
        """What is compared with another side's event: calls by the value of their arguments, not by how they are written."""
        if self.kind != "call":
            return self.kind, self.who, self.text
        value = self.value
        return self.kind, self.who, self.text if value is None else json.dumps(value, sort_keys=True)

    @property
    def value(self) -> Any:
        """The text as one strict JSON value; None where it is none, or null."""
        if self.kind not in ("call", "said") or len(self.text) > JSON_CHARS:
            return None
        try:
            return parse_strict_json(self.text.strip())
        except NotStrictJson:
            return None


def sent(body: bytes | None, turn: int, *, opening: bool) -> Iterator[Event]:
    """What a request sent: all its messages where it opens the dialogue, else what came after the model's last turn."""
    if body is None:
        return
    if len(body) > READ_BYTES:
        yield Event("unread", f"The request has {len(body):,} bytes, and is not read here.", turn=turn)
        return
    messages = _messages(body)
    names: dict[str, str] = {}
    if not opening:
        last = next((at for at in range(len(messages) - 1, -1, -1) if _role(messages[at]) == "assistant"), -1)
        names = _called(messages[last]) if last >= 0 else {}
        messages = messages[last + 1 :]
    for message in messages:
        role, text = _role(message), _text(message.get("content"))
        if role == "tool":
            yield Event("result", text, names.get(str(message.get("tool_call_id")), ""), turn)
        else:
            yield Event("message", text, role or "message", turn)


def done(body: bytes | None, dialect: str, turn: int) -> Iterator[Event]:
    """What the model did in an answer, in the order in which it is read: thinking, text, calls."""
    if body is None:
        return
    if len(body) > READ_BYTES:
        yield Event("unread", f"The answer has {len(body):,} bytes, and is not read here.", turn=turn)
        return
    try:
        completion = read_answer(body) if dialect == DIALECT else read_chat_completion(body)
    except CallFailed as error:
        yield Event("unread", error.message, turn=turn)
        return
    events = list(_acts(completion, turn))
    if not events:
        yield Event("said", "", turn=turn, finish=completion.finish_reason or "")
        return
    yield from events[:-1]
    last = events[-1]
    yield Event(last.kind, last.text, last.who, turn, completion.finish_reason or "")


def _acts(completion: Completion, turn: int) -> Iterator[Event]:
    if completion.reasoning:
        yield Event("thought", completion.reasoning, turn=turn)
    if completion.text:
        yield Event("said", completion.text, turn=turn)
    for call in completion.tool_calls:
        yield Event("call", call.arguments, call.name, turn)


def _messages(body: bytes) -> list[Mapping[str, Any]]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return []
    found = document.get("messages") if isinstance(document, dict) else None
    return [message for message in found if isinstance(message, dict)] if isinstance(found, list) else []


def _role(message: Mapping[str, Any]) -> str:
    role = message.get("role")
    return role if isinstance(role, str) else ""


def _called(message: Mapping[str, Any]) -> dict[str, str]:
    """The names of the tools that a turn called, by the calls' ids."""
    calls = message.get("tool_calls")
    found = {}
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            found[str(call.get("id"))] = str(function.get("name"))
    return found


def _text(content: Any) -> str:
    if content is None:
        return ""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
