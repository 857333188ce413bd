"""The turns of one rollout, on three routes. Pure: the same code runs a rollout and replays its captured answers.

text: one question, one answer. tools: the provider's own tool calling, several turns against simulated tools. marker: one
answer in which `TOOL_CALL: name` says what would be called, for backends without tool calling.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollouts.backends.base import Backend, Completion, ProviderRequest
from rollouts.scoring.base import Answer, Route, ToolCall
from rollouts.scoring.decision import NotStrictJson, parse_strict_json
from rollouts.scoring.marker import called_tools
from rollouts.scoring.tools import simulated_result, wire_name

# part of every attempt key: raise it when the engine asks the same case in other words
TEMPLATE_VERSION = 1
MAX_TURNS = 8
MARKER_INSTRUCTION = "To call a tool, write a line `TOOL_CALL: name` with one of these names: {names}."


@dataclass(frozen=True, slots=True)
class Asker:
    """What all rollouts of a run share: whom they ask, and how."""

    backend: Backend
    sampling: Mapping[str, Any]
    remote_model: str
    scorer: str

    def route(self, content: Mapping[str, Any]) -> Route:
        """How a case is asked. Raises `ValueError` where the backend cannot be asked it at all."""
        if self.scorer == "function_call":
            if not self.backend.native_tools:
                raise ValueError("needs a backend with native tool calling")
            return "tools"
        if self.scorer == "rules" and wanted_tools(content):
            return "tools" if self.backend.native_tools else "marker"
        return "text"

    def request(
        self,
        messages: Sequence[Mapping[str, Any]],
        sample_index: int,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> ProviderRequest:
        return self.backend.request(
            messages=messages,
            sampling=self.sampling,
            sample_index=sample_index,
            remote_model=self.remote_model,
            tools=tools,
        )


def wanted_tools(content: Mapping[str, Any]) -> list[str]:
    """The tools that a case's rule checks want called, each once, in order."""
    checks = content.get("checks", ())
    return list(dict.fromkeys(check["arg"] for check in checks if check["op"] == "tool_called"))


def offered_tools(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools that the tools route shows: the case's, and those that its checks want, each once."""
    tools = [
        dict(tool) if isinstance(tool, Mapping) else {"name": tool} for tool in content.get("tools") or ()
    ]
    names = {tool["name"].casefold() for tool in tools}
    return tools + [{"name": name} for name in wanted_tools(content) if name.casefold() not in names]


class Dialogue:
    """`open` gives the first request, `take` an answer's next one or None at the end; then `answer` is complete."""

    __slots__ = (
        "_asker",
        "_calls",
        "_last",
        "_max_turns",
        "_messages",
        "_nth",
        "_start",
        "_tools",
        "_turns_left",
        "content",
    )

    def __init__(self, asker: Asker, content: Mapping[str, Any], sample_index: int) -> None:
        self._asker = asker
        self.content = content
        self._start = (asker.route(content), sample_index)
        self._messages: list[Mapping[str, Any]] = content["messages"]
        self._tools: list[dict[str, Any]] | None = None
        self._max_turns = self._turns_left = 1
        self._calls: list[ToolCall] = []
        self._nth: Counter[str] = Counter()
        self._last: Completion | None = None
        if self.route == "tools":
            self._tools = offered_tools(content)
            self._max_turns = content.get("max_turns", 1 if asker.scorer == "function_call" else MAX_TURNS)
            self._turns_left = self._max_turns
        elif self.route == "marker":
            names = ", ".join(tool["name"] for tool in offered_tools(content))
            self._messages = _instructed(self._messages, MARKER_INSTRUCTION.format(names=names))

    @property
    def route(self) -> Route:
        return self._start[0]

    def open(self) -> ProviderRequest:
        return self._asker.request(self._messages, self._start[1], self._tools)

    def read(self, body: bytes) -> Completion:
        """Reads an answer's body. Raises `CallFailed`."""
        return self._asker.backend.read(body)

    def take(self, completion: Completion) -> ProviderRequest | None:
        """Takes a step's answer; its tool calls are carried out while turns are left."""
        self._last = completion
        self._turns_left -= 1
        if self.route == "marker":
            names = [tool["name"] for tool in offered_tools(self.content)]
            self._calls += [ToolCall(name, "", False) for name in called_tools(completion.text or "", names)]
            return None
        if self.route == "text" or not completion.tool_calls:
            return None
        if not self._turns_left:
            self._calls += [ToolCall(call.name, call.arguments, False) for call in completion.tool_calls]
            return None
        results = [
            self._carried_out(call.call_id, call.name, call.arguments) for call in completion.tool_calls
        ]
        self._messages = [*self._messages, completion.message, *results]
        return self.open()

    def _carried_out(self, call_id: str, name: str, arguments: str) -> dict[str, Any]:
        parsed = _object_or_none(arguments)
        offered = {wire_name(tool["name"]): tool["name"] for tool in self._tools or ()}
        known = offered.get(wire_name(name))
        text, _ = simulated_result(
            {**self.content, "tools": self._tools}, known or name, parsed, self._nth[name]
        )
        self._nth[name] += 1
        self._calls.append(ToolCall(name, arguments, known is not None and parsed is not None))
        return {"role": "tool", "tool_call_id": call_id, "content": text}

    @property
    def answer(self) -> Answer:
        last = self._last
        assert last is not None, "no answer was taken yet"
        silent = not (last.text or "").strip() and not last.tool_calls
        return Answer(
            text=last.text,
            finish_reason=last.finish_reason,
            tool_calls=tuple(self._calls),
            route=self.route,
            reasoning_only=silent and bool((last.reasoning or "").strip()),
            # a case of one turn asks for the calls alone: nothing was cut short
            turns_exhausted=self.route == "tools" and bool(last.tool_calls) and self._max_turns > 1,
        )


def _object_or_none(arguments: str) -> dict[str, Any] | None:
    try:
        value = parse_strict_json(arguments)
    except NotStrictJson:
        return None
    return value if isinstance(value, dict) else None


def _instructed(messages: list[Mapping[str, Any]], instruction: str) -> list[Mapping[str, Any]]:
    """The messages with an instruction at the end of the system message, or as a new one."""
    first = messages[0]
    if first["role"] == "system":
        return [{"role": "system", "content": f"{first['content']}\n\n{instruction}"}, *messages[1:]]
    return [{"role": "system", "content": instruction}, *messages]


def prompt_of(content: Mapping[str, Any]) -> bytes:
    """What of a case shapes its requests and the tools' results, as bytes; what only shapes scores is left out."""
    shaping = {name: content.get(name) for name in ("key", "messages", "tools", "tool_results", "max_turns")}
    return json.dumps([shaping, wanted_tools(content)], sort_keys=True, separators=(",", ":")).encode()
