"""The dialect that most servers speak: chat completions. The kinds differ in where they send them and with which key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, JsonValue, field_validator

from rollouts.backends.base import (
    Backend,
    Completion,
    Config,
    Independence,
    ProviderRequest,
    request_bytes,
)
from rollouts.backends.chat_reading import read_chat_completion
from rollouts.errors import InvalidInput
from rollouts.hashing import canonical_bytes
from rollouts.scoring.tools import wire_name

MAX_EXTRA_BYTES = 16 << 10
# what a request says itself: a body that overrides it would measure something else than the run says
RESERVED_KEYS = frozenset(
    [
        *("messages", "model", "n", "seed", "temperature", "max_tokens", "max_completion_tokens"),
        *("tools", "tool_choice", "functions", "function_call", "stream", "stream_options"),
    ]
)


class ChatConfig(Config):
    """`sampling` says whether repeated requests are draws of their own: `ignored` where the endpoint answers a
    request the same way again whatever the seed, `unknown` where nobody knows.

    `extra_body` is merged into every request. `max_tokens_name` is what the endpoint calls the limit of an answer.
    """

    tool_calling: Literal["native", "none"] = "native"
    stream: bool = False
    sampling: Independence = "independent"
    max_tokens_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    extra_body: dict[str, JsonValue] = Field(default_factory=dict)

    @field_validator("extra_body")
    @classmethod
    def _adds_only(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(RESERVED_KEYS & value.keys()):
            raise ValueError(f"may not hold {taken[0]!r}: the run's own settings say it; leave it out")
        try:
            size = len(canonical_bytes(value))
        except (InvalidInput, RecursionError) as error:
            raise ValueError(
                "must be JSON that can be kept exactly: no NaN, no integer beyond 2^53 - 1, not nested deeply"
            ) from error
        if size > MAX_EXTRA_BYTES:
            raise ValueError(f"is {size} bytes; at most {MAX_EXTRA_BYTES} are taken")
        return value


class ChatBackend(Backend):
    """Base of the kinds that speak chat completions."""

    path: ClassVar[str] = "/chat/completions"

    @property
    def chat(self) -> ChatConfig:
        assert isinstance(self.config, ChatConfig)
        return self.config

    @property
    def independence(self) -> Independence:
        return self.chat.sampling

    @property
    def native_tools(self) -> bool:
        return self.chat.tool_calling == "native"

    def request_path(self) -> str:
        return self.path

    def wire_model(self, remote_model: str) -> str:
        """What a request names as `model`; empty where it names none."""
        return remote_model

    def request(
        self,
        *,
        messages: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any],
        sample_index: int,
        remote_model: str,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> ProviderRequest:
        assert not tools or self.native_tools, f"{self.kind} was given tools that it cannot send"
        chat = self.chat
        body: dict[str, Any] = {**chat.extra_body, "messages": list(messages), **sampling}
        if "max_tokens" in body:
            body[chat.max_tokens_name] = body.pop("max_tokens")
        if model := self.wire_model(remote_model):
            body["model"] = model
        if sampling.get("temperature"):
            body["seed"] = int(sampling.get("seed", 0)) + sample_index
        if tools:
            body["tools"] = [_function(tool) for tool in tools]
        if chat.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return ProviderRequest(path=self.request_path(), body=request_bytes(body), dialect="openai.chat")

    def read(self, body: bytes) -> Completion:
        return read_chat_completion(body, streamed=self.chat.stream)


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": wire_name(tool["name"]), "parameters": tool.get("parameters") or {"type": "object"}}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}
