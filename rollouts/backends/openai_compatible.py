"""Chat completions at an address, as OpenAI, vLLM, llama.cpp and many others speak them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar
from urllib.parse import urlsplit

from pydantic import BaseModel, field_validator

from rollouts.backends.base import Opened, SubjectFiles, backend
from rollouts.backends.chat import ChatBackend, ChatConfig


def checked_address(value: str) -> str:
    """An address to send requests under, without its last slash. Raises `ValueError` with the remedy."""
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        raise ValueError("must be an http or https address such as https://host/v1") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("must be an http or https address such as https://host/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("must hold no password, query or fragment; name the key's variable in key_env")
    return value.rstrip("/")


class OpenAICompatibleConfig(ChatConfig):
    """`base_url` ends before `/chat/completions`, for example `https://host/v1`."""

    base_url: str

    @field_validator("base_url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        return checked_address(value)


@backend
class OpenAICompatible(ChatBackend):
    kind = "openai_compatible"
    config_model: ClassVar[type[BaseModel]] = OpenAICompatibleConfig

    @asynccontextmanager
    async def open(self, files: SubjectFiles) -> AsyncIterator[Opened]:
        assert isinstance(self.config, OpenAICompatibleConfig)
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        # Only the endpoint's word says which bytes answer; the gates know that from the missing digests.
        facts = {"server": "remote", "base_url": self.config.base_url, "model": files.remote_model}
        yield Opened(base_url=self.config.base_url, headers=headers, facts=facts)
