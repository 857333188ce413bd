"""What a backend is: it builds one provider request, and reads one provider answer. It never scores and never retries."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from rollouts.errors import InvalidInput
from rollouts.hashing import canonical_bytes

# unknown: nothing proves that repeats are draws of their own, so they give no spread and no extra n
Independence = Literal["independent", "ignored", "unknown"]
# the value of an environment variable that may be read, None for any other
KeyOf = Callable[[str], str | None]


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
    """A backend that is ready: where to send requests, with which headers, and what answers there.

    `pid` is the process of a local server, whose memory is measured; None for a remote one.
    """

    base_url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class SubjectFiles:
    """The files a local server loads; all None for a remote model, which `remote_model` names.

    `transcript_path` is the stored file of `Backend.transcript_sha256`.
    """

    base_path: str | None = None
    base_sha256: str | None = None
    adapter_path: str | None = None
    adapter_sha256: str | None = None
    chat_template_sha256: str | None = None
    remote_model: str = ""
    transcript_path: str | None = None


class Config(BaseModel):
    """Base of every kind's configuration: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PartConfig(Config):
    """A backend inside another one's configuration. `model` is what its endpoint calls the model."""

    kind: str
    config: dict[str, Any] = Field(default_factory=dict)
    key_env: str = ""
    model: str = Field("", max_length=200)


class Backend:
    """Base of the kinds. Instances are made per shard from the stored revision, by `make`.

    Ask an instance, not its class, what it can: one that wraps another answers for what it wraps.
    """

    kind: ClassVar[str]
    config_model: ClassVar[type[BaseModel]]
    # a local server must not be started twice for one run
    exclusive: bool = False
    # True: it serves files we name by digest, so an eval run proves which bytes were measured
    serves_files: bool = False
    # True: requests go over HTTP to what `open` gave; False: `call` answers them itself (plug-ins)
    speaks_http: bool = True
    # True: it cannot be saved without the name of a key's variable
    needs_key: ClassVar[bool] = False

    def __init__(self, config: BaseModel, *, key: str | None) -> None:
        self.config = config
        self.key = key

    @classmethod
    def parse(cls, config: Any) -> BaseModel:
        """Raises pydantic's `ValidationError`, or `ValueError`."""
        return cls.config_model.model_validate(config)

    @classmethod
    def stored(cls, config: BaseModel) -> dict[str, Any]:
        """The configuration as JSON, with every default, as a revision keeps it. Raises `ValueError`."""
        return config.model_dump(mode="json")

    @classmethod
    def parts(cls, config: BaseModel) -> Mapping[str, PartConfig]:
        """The backends inside this configuration, by their path in it."""
        return {}

    @classmethod
    def made(cls, config: BaseModel, *, key_of: KeyOf, key_env: str) -> Backend:
        return cls(config, key=key_of(key_env) if key_env else None)

    def open(self, files: SubjectFiles) -> AbstractAsyncContextManager[Opened]:
        """Raises `BackendUnavailable`."""
        raise NotImplementedError

    async def facts_after(self, files: SubjectFiles, opened: Opened) -> Mapping[str, Any]:
        """What answers there now, after the last request: the same as `opened.facts`, or something was exchanged.

        Raises `BackendUnavailable` where nothing answers any more.
        """
        return opened.facts

    @property
    def transcript_sha256(self) -> str | None:
        """The recorded transcript that it replays, to be given to `open` as a file."""
        return None

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


class Installed(NamedTuple):
    """Plug-ins: the kinds that load, and of the others why they do not."""

    kinds: dict[str, type[Backend]]
    errors: dict[str, str]


_KINDS: dict[str, type[Backend]] = {}
PLUGIN_PREFIX = "plugin:"
MAX_PATH_CHARS = 200


def backend(cls: type[Backend]) -> type[Backend]:
    """Registers a kind."""
    _KINDS[cls.kind] = cls
    return cls


def kind_named(kind: str) -> type[Backend]:
    """Raises `InvalidInput` for an unknown kind, naming those there are, and for a plug-in that does not load."""
    if kind in _KINDS:
        return _KINDS[kind]
    found = _plugins()
    if kind in found.kinds:
        return found.kinds[kind]
    if kind in found.errors:
        raise InvalidInput("kind", f"{kind} is installed and cannot be used: {found.errors[kind]}")
    raise InvalidInput("kind", f"{kind!r:.80} is not a backend kind. Use one of: {', '.join(kinds())}.")


def kinds() -> list[str]:
    """Every kind that can be used, plug-ins included."""
    return sorted([*_KINDS, *_plugins().kinds])


def _plugins() -> Installed:
    from rollouts.backends import plugins  # which imports this module

    return plugins.installed()


def parse_config(kind: str, config: Any, *, path: str = "config") -> BaseModel:
    """Raises `InvalidInput` with the path of the first wrong key."""
    try:
        return kind_named(kind).parse(config)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join([path, *(str(part) for part in first["loc"])])[:MAX_PATH_CHARS]
        # a sentence of our own validators says what is wrong, and the value may hold a password
        got = "" if first["type"] == "value_error" else f" (got {_short(first.get('input'))})"
        raise InvalidInput(where, first["msg"].removeprefix("Value error, ") + got) from error
    except ValueError as error:
        raise InvalidInput(path, str(error)) from error


def stored_config(kind: str, config: BaseModel, *, path: str = "config") -> dict[str, Any]:
    """What a revision keeps of a configuration. Raises `InvalidInput` where JSON cannot hold it exactly."""
    try:
        found = kind_named(kind).stored(config)
        canonical_bytes(found)
    except (ValueError, RecursionError, InvalidInput) as error:
        raise InvalidInput(path, str(error)[:300]) from error
    return found


def _short(value: Any) -> str:
    try:
        return repr(str(value)[:80])
    except RecursionError:
        return "a value that is nested too deeply to be shown"


def make(kind: str, config: Any, key_of: KeyOf, key_env: str = "") -> Backend:
    """An instance from a stored configuration, with the backends inside it. Raises as `parse_config`."""
    return kind_named(kind).made(parse_config(kind, config), key_of=key_of, key_env=key_env)


def request_bytes(document: Mapping[str, Any]) -> bytes:
    """A request body: the same document gives the same bytes. Half a surrogate pair, as a model may write one, is escaped."""

    def dumped(ensure_ascii: bool) -> bytes:
        return json.dumps(
            document, ensure_ascii=ensure_ascii, separators=(",", ":"), sort_keys=True, default=dict
        ).encode()

    try:
        return dumped(ensure_ascii=False)
    except UnicodeEncodeError:
        return dumped(ensure_ascii=True)
