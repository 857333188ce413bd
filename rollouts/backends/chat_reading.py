"""Reads chat completions, whole or as an event stream. Whatever bytes come, only `CallFailed` is raised."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from rollouts.backends.base import Completion, RequestedCall
from rollouts.failures import CallFailed

UTF8_BOM = b"\xef\xbb\xbf"
# how a stream begins: a field of an event, or a comment
STREAM_START = re.compile(rb"\s*(?::|data:|event:|id:|retry:)")
LINE = re.compile(rb"([^\r\n]*)(\r\n|\r|\n|\Z)")
EVENT_FIELDS = (b"data", b"event", b"id", b"retry")
# where providers put the thinking that they show apart from the text
REASONING_KEYS = ("reasoning_content", "reasoning")
MAX_COUNT = 2**31
MAX_NAME_CHARS = 1000


def read_chat_completion(body: bytes, *, streamed: bool = False) -> Completion:
    """Reads the body of a 200, all of it at once.

    `streamed`: a stream was asked for, so an empty body is one that broke off. Which of the two came is seen in the
    body itself, because there are servers that answer whole to a wish for a stream.
    """
    body = body.removeprefix(UTF8_BOM)
    first = body[:1000].lstrip()[:1]
    if STREAM_START.match(body) or (streamed and first not in (b"{", b"[")):
        return _read_stream(body)
    data = _parsed(body, "The answer")
    if not isinstance(data, dict):
        raise CallFailed("protocol", f"The answer is JSON, but not an object: {type(data).__name__}.")
    if data.get("error"):
        raise CallFailed("protocol", f"A 200 that holds an error: {_said(data['error'])}", retryable=True)
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise CallFailed("protocol", "The answer holds no choices.", retryable=True)
    message = choices[0].get("message")
    if not isinstance(message, dict):
        raise CallFailed("protocol", "The first choice holds no message.")
    key, reasoning = _reasoning(message)
    return _completion(
        text=_text(message),
        entries=_list_of_calls(message.get("tool_calls")),
        reasoning_key=key,
        reasoning=reasoning,
        finish_reason=choices[0].get("finish_reason"),
        response_id=data.get("id"),
        usage=data.get("usage"),
    )


def _completion(
    *,
    text: str | None,
    entries: list[Any],
    reasoning_key: str,
    reasoning: str | None,
    finish_reason: Any,
    response_id: Any,
    usage: Any,
) -> Completion:
    calls = tuple(_call(entry, number) for number, entry in enumerate(entries))
    message = assistant_message(text, calls)
    if calls and reasoning:
        # some providers refuse to go on from their tool calls without the thinking that led to them
        message[reasoning_key] = reasoning
    if not isinstance(usage, dict):
        usage = {}
    return Completion(
        text=text,
        finish_reason=_text_or_none(finish_reason),
        response_id=_text_or_none(response_id),
        prompt_tokens=count_or_none(usage.get("prompt_tokens")),
        completion_tokens=count_or_none(usage.get("completion_tokens")),
        tool_calls=calls,
        reasoning=reasoning,
        message=message,
    )


def assistant_message(text: str | None, calls: tuple[RequestedCall, ...]) -> dict[str, Any]:
    """The assistant's turn as the next request of the dialogue repeats it."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ]
    return message


def count_or_none(value: Any) -> int | None:
    """A number of tokens; what cannot be one is unknown, never 0."""
    return (
        value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_COUNT else None
    )


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _parsed(data: bytes, what: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        found = f"is not JSON; it begins {_start(data)}" if data.strip() else "is empty"
        raise CallFailed("protocol", f"{what} {found}.", retryable=True) from error


def _start(data: bytes) -> str:
    return repr(data[:60].decode("utf-8", "replace"))


def _said(error: Any) -> str:
    """A provider's error object in one line of at most 300 characters."""
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return str(error["message"][:300])
    try:
        return json.dumps(error)[:300]
    except RecursionError:
        return "an object that is nested too deeply to be shown"


def _text(message: Mapping[str, Any]) -> str | None:
    """The text of a message or of a delta, None where it has none. A refusal in words is the model's text."""
    content = message.get("content")
    if content is None:
        return _text_or_none(message.get("refusal"))
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise CallFailed("protocol", f"The message's content is {type(content).__name__}, not text.")
    texts = [_part(part) for part in content]
    said = [text for text in texts if text is not None]
    return "".join(said) if said else None


def _part(part: Any) -> str | None:
    """The text of a part of a content, None where it is a part of another type."""
    if isinstance(part, dict) and isinstance(part.get("type"), str):
        if part["type"] != "text":
            return None
        if isinstance(part.get("text"), str):
            return str(part["text"])
    raise CallFailed("protocol", "A part of the message's content has no type, or no text where it should.")


def _reasoning(message: Mapping[str, Any]) -> tuple[str, str | None]:
    """The key under which the thinking came, and the thinking; None where there is none."""
    for key in REASONING_KEYS:
        if isinstance(message.get(key), str) and message[key]:
            return key, message[key]
    return REASONING_KEYS[0], None


def _list_of_calls(value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        _malformed(f"tool_calls is {type(value).__name__}, not a list")
    return value


def _call(entry: Any, number: int) -> RequestedCall:
    if not isinstance(entry, dict):
        _malformed(f"tool call {number} is {type(entry).__name__}, not an object")
    if entry.get("type") not in (None, "function"):
        _malformed(f"tool call {number} is not of type function")
    function = entry.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        _malformed(f"tool call {number} names no function")
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        _malformed(f"the arguments of tool call {number} are {type(arguments).__name__}, not text")
    call_id = entry.get("id")
    if not isinstance(call_id, str) or not call_id:
        call_id = f"call_{number}"  # its result must name it
    return RequestedCall(call_id, function["name"], arguments or "")


def _malformed(what: str) -> NoReturn:
    raise CallFailed("protocol", f"The tool calls cannot be read: {what}.")


# streams


class _Event(NamedTuple):
    """`whole` is False where the stream ended inside it."""

    name: bytes
    data: bytes
    whole: bool


def _events(body: bytes) -> Iterator[_Event]:
    """The events of a stream. Raises `CallFailed` for a line that belongs to none."""
    name, data = b"", list[bytes]()
    for found in LINE.finditer(body):
        line, end = found.groups()
        if not line:
            if end and (data or name):
                yield _Event(name, b"\n".join(data), True)
                name, data = b"", []
            continue
        key, colon, value = line.partition(b":")
        if key in EVENT_FIELDS and colon:
            value = value.removeprefix(b" ")
            if key == b"data":
                data.append(value)
            elif key == b"event":
                name = value
        elif line[:1] == b":":
            continue  # a comment keeps the connection alive
        elif end or not any(known.startswith(key) for known in EVENT_FIELDS):
            raise CallFailed(
                "protocol", f"The stream holds a line that is no event: {_start(line)}.", retryable=True
            )
    if data or name:
        yield _Event(name, b"\n".join(data), False)


@dataclass(slots=True)
class _PartialCall:
    call_id: str | None = None
    type: Any = None
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    def entry(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.call_id, "type": self.type, "function": function}


@dataclass(slots=True)
class _Assembled:
    """The answer as far as its stream has come."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    reasoning_key: str = REASONING_KEYS[0]
    calls: dict[int, _PartialCall] = field(default_factory=dict)
    last_index: int = -1
    finish_reason: str | None = None
    response_id: str | None = None
    usage: Any = None
    has_choices: bool = False

    def take(self, chunk: Any) -> None:
        if not isinstance(chunk, dict):
            raise CallFailed(
                "protocol", f"An event of the stream is JSON, but not an object: {type(chunk).__name__}."
            )
        if chunk.get("error"):
            raise CallFailed("server", f"An error in the stream: {_said(chunk['error'])}", retryable=True)
        if self.response_id is None:
            self.response_id = _text_or_none(chunk.get("id"))
        if isinstance(chunk.get("usage"), dict):
            self.usage = chunk["usage"]
        choices = chunk.get("choices")
        if choices is not None and not isinstance(choices, list):
            raise CallFailed("protocol", f"The choices of an event are {type(choices).__name__}, not a list.")
        for choice in choices or ():
            if not isinstance(choice, dict):
                raise CallFailed("protocol", "A choice in the stream is not an object.")
            if choice.get("index") in (None, 0):  # one answer is asked for
                self._take_choice(choice)

    def _take_choice(self, choice: Mapping[str, Any]) -> None:
        self.has_choices = True
        self.finish_reason = _text_or_none(choice.get("finish_reason")) or self.finish_reason
        delta = choice.get("delta")
        if delta is None:
            return
        if not isinstance(delta, dict):
            raise CallFailed("protocol", f"A delta in the stream is {type(delta).__name__}, not an object.")
        text = _text(delta)
        if text is not None:
            self.text.append(text)
        key, reasoning = _reasoning(delta)
        if reasoning is not None:
            self.reasoning_key = key
            self.reasoning.append(reasoning)
        for part in _list_of_calls(delta.get("tool_calls")):
            self._take_call(part)

    def _take_call(self, part: Any) -> None:
        if not isinstance(part, dict):
            _malformed(f"a part of a tool call is {type(part).__name__}, not an object")
        index = self._index(part)
        self.last_index = max(self.last_index, index)
        call = self.calls.setdefault(index, _PartialCall())
        if isinstance(part.get("id"), str) and not call.call_id:
            call.call_id = part["id"]
        if "type" in part:
            call.type = part["type"]
        function = part.get("function")
        if function is None:
            return
        if not isinstance(function, dict):
            _malformed(f"a function is {type(function).__name__}, not an object")
        for key in ("name", "arguments"):
            value = function.get(key)
            if value is None:
                continue
            if not isinstance(value, str):
                _malformed(f"a function's {key} is {type(value).__name__}, not text")
            # arguments come in pieces; a name comes once, or again with every piece
            if key == "arguments":
                call.arguments.append(value)
            elif value != call.name:
                call.name += value
                if len(call.name) > MAX_NAME_CHARS:
                    _malformed(f"a function's name is longer than {MAX_NAME_CHARS} characters")

    def _index(self, part: Mapping[str, Any]) -> int:
        index = part.get("index")
        if isinstance(index, int) and not isinstance(index, bool):
            return index
        if index is not None:
            _malformed(f"the index of a tool call is {type(index).__name__}, not a number")
        # without an index, what brings an id begins a call
        return self.last_index + 1 if part.get("id") or not self.calls else self.last_index

    def completion(self) -> Completion:
        return _completion(
            text="".join(self.text) if self.text else None,
            entries=[self.calls[index].entry() for index in sorted(self.calls)],
            reasoning_key=self.reasoning_key,
            reasoning="".join(self.reasoning) or None,
            finish_reason=self.finish_reason,
            response_id=self.response_id,
            usage=self.usage,
        )


def _read_stream(body: bytes) -> Completion:
    """Puts a stream together. It is whole with its `[DONE]` or with a finish reason; else it broke off."""
    answer = _Assembled()
    done = False
    for event in _events(body):
        if event.name == b"error":
            raise CallFailed("server", f"An error in the stream: {_start(event.data)}", retryable=True)
        if event.data.strip() == b"[DONE]":
            done = True
            break
        if not event.data:
            continue
        try:
            chunk = _parsed(event.data, "An event of the stream")
        except CallFailed:
            if event.whole:
                raise
            break  # cut inside this event
        answer.take(chunk)
    if not done and answer.finish_reason is None:
        raise CallFailed(
            "truncated_stream", "The stream ended without a finish reason and without [DONE].", retryable=True
        )
    if not answer.has_choices:
        raise CallFailed("protocol", "The stream holds no choices.", retryable=True)
    return answer.completion()
