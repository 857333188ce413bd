"""Chat completions as OpenAI, vLLM, llama.cpp and many others speak them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pydantic import field_validator

from rollouts.backends.base import Backend, Completion, Config, Opened, ProviderRequest, SubjectFiles, backend
from rollouts.failures import CallFailed


class OpenAICompatibleConfig(Config):
    """`base_url` ends before `/chat/completions`, for example `https://host/v1`."""

    base_url: str

    @field_validator("base_url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("must be an http or https address such as https://host/v1")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("must hold no password, query or fragment; name the key's variable in key_env")
        return value.rstrip("/")


@backend
class OpenAICompatible(Backend):
    kind = "openai_compatible"
    config_model: ClassVar[type[Config]] = OpenAICompatibleConfig

    @asynccontextmanager
    async def open(self, files: SubjectFiles) -> AsyncIterator[Opened]:
        assert isinstance(self.config, OpenAICompatibleConfig)
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        # Only the endpoint's word says which bytes answer; the gates know that from the missing digests.
        facts = {"server": "remote", "base_url": self.config.base_url, "model": files.remote_model}
        yield Opened(base_url=self.config.base_url, headers=headers, facts=facts)

    def request(
        self,
        *,
        messages: list[dict[str, str]],
        sampling: Mapping[str, Any],
        sample_index: int,
        remote_model: str,
    ) -> ProviderRequest:
        body: dict[str, Any] = {"messages": messages, **sampling}
        if remote_model:
            body["model"] = remote_model
        if sampling.get("temperature"):
            body["seed"] = int(sampling.get("seed", 0)) + sample_index
        raw = json.dumps(body, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
        return ProviderRequest(path="/chat/completions", body=raw, dialect="openai.chat")

    def read(self, body: bytes) -> Completion:
        return read_chat_completion(body)


def read_chat_completion(body: bytes) -> Completion:
    """Reads a chat completion. Raises `CallFailed("protocol", ...)`, which says what was found instead."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        start = body[:60].decode("utf-8", "replace")
        raise CallFailed(
            "protocol", f"The answer is not JSON; it begins {start!r}.", retryable=True
        ) from error
    if not isinstance(data, dict):
        raise CallFailed("protocol", f"The answer is JSON, but not an object: {type(data).__name__}.")
    if data.get("error"):
        raise CallFailed("protocol", f"A 200 that holds an error: {str(data['error'])[:300]}", retryable=True)
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise CallFailed("protocol", "The answer holds no choices.", retryable=True)
    message = choices[0].get("message")
    if not isinstance(message, dict):
        raise CallFailed("protocol", "The first choice holds no message.")
    text = message.get("content")
    if text is not None and not isinstance(text, str):
        raise CallFailed("protocol", f"The message's content is {type(text).__name__}, not text.")
    usage = data.get("usage")
    if not isinstance(usage, dict):
        usage = {}
    return Completion(
        text=text,
        finish_reason=_text_or_none(choices[0].get("finish_reason")),
        response_id=_text_or_none(data.get("id")),
        prompt_tokens=_count_or_none(usage.get("prompt_tokens")),
        completion_tokens=_count_or_none(usage.get("completion_tokens")),
    )


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _count_or_none(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None
