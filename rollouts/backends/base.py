"""What a backend is: it builds one provider request, and reads one provider answer. It never scores and never retries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pydantic
from pydantic import BaseModel, ConfigDict

from rollouts.errors import InvalidInput

# unknown: nothing proves that repeats are draws of their own, so they give no spread and no extra n
Independence = Literal["independent", "ignored", "unknown"]


class BackendUnavailable(Exception):
    """Nothing can be asked at all: the server does not start, or is not what the run was planned on."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """`body` is sent as it stands; `path` is relative to the backend's base URL."""

    path: str
    body: bytes
    dialect: str


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A native tool call as the provider gave it. `arguments` is the model's text, parsed by nobody yet."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Completion:
    """A usable answer. Unknown numbers are None, never 0. `text` is None where the model gave no text at all.

    `reasoning` is the thinking that the provider shows apart from the text, or None. `message` is the assistant's
    message as the next request of the same dialogue must repeat it.
    """

    text: str | None
    finish_reason: str | None
    response_id: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    tool_calls: tuple[RequestedCall, ...] = ()
    reasoning: str | None = None
    message: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Opened:
    """A backend that is ready: where to send requests, with which headers, and what answers there."""

    base_url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubjectFiles:
    """The files a local server loads; all None for a remote model, which `remote_model` names."""

    base_path: str | None = None
    base_sha256: str | None = None
    adapter_path: str | None = None
    adapter_sha256: str | None = None
    chat_template_sha256: str | None = None
    remote_model: str = ""


class Config(BaseModel):
    """Base of every kind's configuration: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Backend:
    """Base of the kinds. Instances are made per shard from the stored revision."""

    kind: ClassVar[str]
    config_model: ClassVar[type[Config]]
    # a local server must not be started twice for one run
    exclusive: ClassVar[bool] = False
    # True: it serves files we name by digest, so an eval run proves which bytes were measured
    serves_files: ClassVar[bool] = False
    # True: requests go over HTTP to what `open` gave; False: `call` answers them itself (plug-ins)
    speaks_http: ClassVar[bool] = True

    def __init__(self, config: Config, *, key: str | None) -> None:
        self.config = config
        self.key = key

    def open(self, files: SubjectFiles) -> AbstractAsyncContextManager[Opened]:
        """Raises `BackendUnavailable`."""
        raise NotImplementedError

    @property
    def independence(self) -> Independence:
        """Whether sample i of a case is a draw of its own."""
        return "independent"

    @property
    def native_tools(self) -> bool:
        """Whether requests may carry `tools` and answers `tool_calls`."""
        return False

    def request(
        self,
        *,
        messages: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any],
        sample_index: int,
        remote_model: str,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> ProviderRequest:
        """`tools` are {name, description, parameters}; only where `native_tools` is true.

        Messages are {role, content}; after native tool calls also `Completion.message` as it stands, and
        {role: "tool", tool_call_id, content} for each call's result.
        """
        raise NotImplementedError

    async def call(self, request: ProviderRequest) -> bytes:
        """Answers a request itself; only where `speaks_http` is false. Raises `CallFailed`."""
        raise NotImplementedError

    def read(self, body: bytes) -> Completion:
        """Reads the body of a 200. Raises `CallFailed("protocol", ...)`."""
        raise NotImplementedError


_KINDS: dict[str, type[Backend]] = {}


def backend(cls: type[Backend]) -> type[Backend]:
    """Registers a kind."""
    _KINDS[cls.kind] = cls
    return cls


def kind_named(kind: str) -> type[Backend]:
    """Raises `InvalidInput` for an unknown kind, naming those there are."""
    if kind not in _KINDS:
        raise InvalidInput(
            "kind", f"{kind!r} is not a backend kind. Use one of: {', '.join(sorted(_KINDS))}."
        )
    return _KINDS[kind]


def kinds() -> list[str]:
    return sorted(_KINDS)


def parse_config(kind: str, config: Any) -> Config:
    """Raises `InvalidInput` with the path of the first wrong key."""
    try:
        return kind_named(kind).config_model.model_validate(config)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        path = ".".join(["config", *(str(part) for part in first["loc"])])
        raise InvalidInput(path, f"{first['msg']} (got {str(first.get('input'))[:80]!r})") from error
