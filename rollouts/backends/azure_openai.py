"""Chat completions of a deployment on Azure OpenAI. The deployment is in the address, so requests name no model."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, field_validator

from rollouts.backends.base import BackendUnavailable, Opened, SubjectFiles, backend
from rollouts.backends.chat import ChatBackend, ChatConfig
from rollouts.backends.openai_compatible import checked_address


class AzureOpenAIConfig(ChatConfig):
    """`endpoint` is the resource, `https://NAME.openai.azure.com`; its key would be readable by all over plain http."""

    endpoint: str
    deployment: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    api_version: str = Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(-preview)?$")

    @field_validator("endpoint")
    @classmethod
    def _is_encrypted(cls, value: str) -> str:
        address = checked_address(value)
        parts = urlsplit(address)
        if parts.scheme != "https" and not _is_loopback(parts.hostname or ""):
            raise ValueError("must begin with https://, because the key is sent there")
        return address


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@backend
class AzureOpenAI(ChatBackend):
    kind = "azure_openai"
    config_model: ClassVar[type[BaseModel]] = AzureOpenAIConfig
    needs_key = True

    @property
    def azure(self) -> AzureOpenAIConfig:
        assert isinstance(self.config, AzureOpenAIConfig)
        return self.config

    def request_path(self) -> str:
        return f"/openai/deployments/{self.azure.deployment}/chat/completions?api-version={self.azure.api_version}"

    def wire_model(self, remote_model: str) -> str:
        return ""

    @asynccontextmanager
    async def open(self, files: SubjectFiles) -> AsyncIterator[Opened]:
        if not self.key:
            raise BackendUnavailable(
                "no_key",
                "The variable that key_env names is not set in the worker's environment. Set it, start again.",
            )
        facts = {
            "server": "azure",
            "endpoint": self.azure.endpoint,
            "deployment": self.azure.deployment,
            "api_version": self.azure.api_version,
            "model": files.remote_model,
        }
        yield Opened(base_url=self.azure.endpoint, headers={"api-key": self.key}, facts=facts)
