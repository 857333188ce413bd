"""Backends from other packages: each entry point of the group `assay.backends` is the kind `plugin:<its name>`.

A plug-in answers by itself, without HTTP of ours: `attempt(messages, sampling)` and, if it can,
`attempt_with_tools(messages, tools, sampling)`, plain or async. What it was asked and what it returned are captured like
any other call.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import importlib.metadata
import inspect
import json
import logging
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, cast, get_args

import pydantic
from pydantic import BaseModel

from rollouts.backends.base import (
    PLUGIN_PREFIX,
    Backend,
    BackendUnavailable,
    Completion,
    Config,
    Independence,
    Installed,
    Opened,
    ProviderRequest,
    RequestedCall,
    SubjectFiles,
    request_bytes,
)
from rollouts.backends.chat_reading import assistant_message, count_or_none
from rollouts.errors import InvalidInput
from rollouts.failures import MASKING_KINDS, CallFailed

log = logging.getLogger(__name__)
GROUP = "assay.backends"
DIALECT = "plugin"
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,32}")  # with its prefix it fits the column
ATTEMPT, ATTEMPT_WITH_TOOLS = "attempt", "attempt_with_tools"
SAMPLE_INDEX, MODEL, KEY = "sample_index", "model", "key"
INDEPENDENCE: tuple[Independence, ...] = get_args(Independence)
ANSWER_KEYS = frozenset(
    ["text", "finish_reason", "prompt_tokens", "completion_tokens", "tool_calls", "reasoning"]
)
MAX_ANSWER_BYTES = 16 << 20
CLOSE_TIMEOUT_S = 10
BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class NotUsable(Exception):
    """The plug-in does not keep to the contract; the text says in what."""


class NoConfig(Config):
    """A plug-in without `config_model` takes no configuration."""


@dataclass(frozen=True, slots=True)
class Route:
    """How one method of a plug-in is called.

    `takes_index`: a parameter receives `sample_index`, or it takes every keyword. `index_always`: that parameter has
    no default, so sample 0 is passed too. `takes_model`: a parameter is named `model`.
    """

    takes_index: bool
    index_always: bool
    takes_model: bool
    is_async: bool

    def keywords(self, *, sample_index: int, model: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.takes_index and (sample_index or self.index_always):
            found[SAMPLE_INDEX] = sample_index
        if self.takes_model:
            found[MODEL] = model
        return found


@dataclass(frozen=True, slots=True)
class Shape:
    """What a plug-in has: its methods, and what it declares as `samples`."""

    routes: Mapping[str, Route]
    declared: Independence | None

    @property
    def independence(self) -> Independence:
        """As declared; else every method that may be called must take the sample index."""
        if self.declared is not None:
            return self.declared
        return "independent" if all(route.takes_index for route in self.routes.values()) else "unknown"


@dataclass(frozen=True, slots=True)
class Spec:
    """An entry point that loaded. `shape` is None for a factory: it is known from what the factory makes."""

    factory: Callable[..., Any]
    config_parameter: inspect.Parameter | None
    takes_key: bool
    shape: Shape | None
    facts: Mapping[str, Any]


@functools.cache
def installed() -> Installed:
    """Loads every plug-in, once a process. One that fails does not stop the others."""
    entries = importlib.metadata.entry_points(group=GROUP)
    count = Counter(entry.name for entry in entries)
    found = Installed({}, {})
    for entry in entries:
        kind = PLUGIN_PREFIX + entry.name
        try:
            if not NAME.fullmatch(entry.name):
                raise NotUsable(
                    "its name must be 1 to 33 of a-z, 0-9, _, - and ., with a letter or digit first"
                )
            if count[entry.name] > 1:
                raise NotUsable(
                    f"{count[entry.name]} packages install a plug-in of this name; keep one of them"
                )
            found.kinds[kind] = _kind(kind, entry)
        except NotUsable as error:
            found.errors[kind] = f"{error}."
        except (Exception, SystemExit) as error:
            found.errors[kind] = f"{entry.value} cannot be loaded: {type(error).__name__}: {error}"[:500]
    return found


def _kind(kind: str, entry: importlib.metadata.EntryPoint) -> type[Backend]:
    made = entry.load()
    if not callable(made):
        raise NotUsable(f"{entry.value} is {type(made).__name__}, not a class or a factory")
    model = getattr(made, "config_model", None)
    if model is not None and not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise NotUsable("its config_model is not a pydantic model")
    parameters = _parameters(made, follow_wrapped=True) or {}
    spec = Spec(
        factory=made,
        config_parameter=_config_parameter(parameters),
        takes_key=KEY in parameters and parameters[KEY].kind in BY_KEYWORD,
        shape=_shape(made) if isinstance(made, type) else None,
        facts={
            "server": "plugin",
            "plugin": entry.name,
            "package": f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else None,
        },
    )
    if model is not None and spec.config_parameter is None:
        raise NotUsable("it declares a config_model, and its constructor takes no config")
    values = {"kind": kind, "config_model": model or NoConfig, "spec": spec}
    return cast(type[Backend], type("Plugin", (PluginBackend,), values))


class PluginBackend(Backend):
    """Base of the kinds that are made of plug-ins. The plug-in itself is made when it is first needed.

    Where a factory makes it, `native_tools` and `independence` need it: they raise `InvalidInput` where that fails.
    """

    speaks_http = False
    spec: ClassVar[Spec]

    def __init__(self, config: BaseModel, *, key: str | None) -> None:
        super().__init__(config, key=key)
        self._lock = threading.Lock()
        self._made: tuple[Any, Shape] | None = None

    @classmethod
    def parse(cls, config: Any) -> BaseModel:
        try:
            if isinstance(config, dict):
                # as JSON, because it is stored as JSON: a model may take a date, which JSON writes as a text
                return cls.config_model.model_validate_json(json.dumps(config))
            return cls.config_model.model_validate(config)
        except pydantic.ValidationError:
            raise
        except Exception as error:
            raise ValueError(f"{cls.kind} cannot read it: {type(error).__name__}: {error}"[:300]) from error

    @classmethod
    def stored(cls, config: BaseModel) -> dict[str, Any]:
        try:
            found = config.model_dump(mode="json", by_alias=True)
            cls.config_model.model_validate_json(json.dumps(found))
        except Exception as error:
            raise ValueError(f"{cls.kind} cannot read again what it would store: {error}"[:300]) from error
        return found

    def _plugin_and_shape(self) -> tuple[Any, Shape]:
        """Raises `BackendUnavailable` where the plug-in cannot be made."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def _make(self) -> tuple[Any, Shape]:
        try:
            plugin = self._call_factory()
            return plugin, self.spec.shape or _shape(plugin, self.spec.factory)
        except NotUsable as error:
            raise BackendUnavailable("plugin", f"{self.kind} cannot be used: {error}.") from error
        except (Exception, SystemExit) as error:
            raise BackendUnavailable(
                "plugin", f"{self.kind} cannot be made: {type(error).__name__}: {error}"[:500]
            ) from error

    def _call_factory(self) -> Any:
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        parameter = self.spec.config_parameter
        if parameter is not None:
            config: Any = {} if isinstance(self.config, NoConfig) else self.config
            if parameter.kind in BY_KEYWORD:
                keywords[parameter.name] = config
            else:
                positional.append(config)
        if self.spec.takes_key:
            keywords[KEY] = self.key
        return self.spec.factory(*positional, **keywords)

    @property
    def shape(self) -> Shape:
        if self.spec.shape is not None:
            return self.spec.shape
        try:
            return self._plugin_and_shape()[1]
        except BackendUnavailable as error:
            raise InvalidInput("backend", error.message) from error

    @property
    def native_tools(self) -> bool:
        return ATTEMPT_WITH_TOOLS in self.shape.routes

    @property
    def independence(self) -> Independence:
        return self.shape.independence

    @asynccontextmanager
    async def open(self, files: SubjectFiles) -> AsyncIterator[Opened]:
        plugin, _ = await in_thread(self._plugin_and_shape)
        try:
            yield Opened(base_url="", facts={**self.spec.facts, "model": files.remote_model})
        finally:
            if callable(close := getattr(plugin, "close", None)):
                try:
                    closing = _answer_of(close, inspect.iscoroutinefunction(close))
                    await asyncio.wait_for(closing, CLOSE_TIMEOUT_S)
                except Exception:  # what it answered is kept all the same
                    log.exception("closing %s failed", self.kind)

    def request(
        self,
        *,
        messages: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any],
        sample_index: int,
        remote_model: str,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> ProviderRequest:
        assert not tools or self.native_tools, f"{self.kind} was given tools that it cannot take"
        document: dict[str, Any] = {
            "messages": list(messages),
            "sampling": dict(sampling),
            "sample_index": sample_index,
            "model": remote_model,
        }
        if tools:
            document["tools"] = list(tools)
        return ProviderRequest(path="", body=request_bytes(document), dialect=DIALECT)

    async def call(self, request: ProviderRequest) -> bytes:
        asked = json.loads(request.body)
        with_tools = "tools" in asked
        name = ATTEMPT_WITH_TOOLS if with_tools else ATTEMPT
        arguments = [asked["messages"], *([asked["tools"]] if with_tools else []), asked["sampling"]]
        try:
            plugin, shape = self._plugin_and_shape()
            route, method = shape.routes[name], getattr(plugin, name)
            keywords = route.keywords(sample_index=asked["sample_index"], model=asked["model"])
            answer = await _answer_of(lambda: method(*arguments, **keywords), route.is_async)
        except CallFailed as failed:
            if failed.kind in MASKING_KINDS:
                raise
            # the other kinds are not for a provider to say
            raise CallFailed("harness", f"{self.kind}: {failed.message}") from failed
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise CallFailed("harness", f"{self.kind} cancelled itself.") from error
        except (Exception, SystemExit) as error:
            raise CallFailed("harness", f"{self.kind}: {type(error).__name__}: {error}"[:500]) from error
        return _body_of(answer)

    def read(self, body: bytes) -> Completion:
        return read_answer(body)


# calling


async def in_thread(work: Callable[[], Any]) -> Any:
    """Runs it in a thread of its own: a daemon, because work that hangs must not keep the worker from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, Exception | None]] = loop.create_future()
    context = contextvars.copy_context()

    def finish(result: Any, error: Exception | None) -> None:
        if not done.done():  # else it was cancelled, and nobody waits any more
            done.set_result((result, error))

    def run() -> None:
        result: Any = None
        error: Exception | None = None
        try:
            result = context.run(work)
        except Exception as raised:
            error = raised
        except BaseException as raised:  # such as SystemExit: it ends neither this process nor its loop
            error = RuntimeError(f"{type(raised).__name__}: {raised}")
        try:
            loop.call_soon_threadsafe(finish, result, error)
        except RuntimeError:  # the loop was closed meanwhile
            return

    threading.Thread(target=run, name="assay-plugin", daemon=True).start()
    result, error = await done
    if error is not None:
        raise error
    return result


async def _answer_of(call: Callable[[], Any], is_async: bool) -> Any:
    """Async functions on the loop, all others in a thread; what those return to be awaited, on the loop again."""
    answer = call() if is_async else await in_thread(call)
    return await answer if inspect.isawaitable(answer) else answer


# signatures


def _shape(owner: Any, factory: Any = None) -> Shape:
    """Of a class or of an instance. Raises `NotUsable` where it has no `attempt`, or declares nonsense."""
    if not callable(getattr(owner, ATTEMPT, None)):
        raise NotUsable(f"it has no method {ATTEMPT}(messages, sampling)")
    names = [name for name in (ATTEMPT, ATTEMPT_WITH_TOOLS) if callable(getattr(owner, name, None))]
    declared = getattr(owner, "samples", None) or getattr(factory, "samples", None)
    if declared is not None and declared not in INDEPENDENCE:
        raise NotUsable(f"its samples is {declared!r:.40}, not one of {', '.join(INDEPENDENCE)}")
    return Shape({name: _route(getattr(owner, name)) for name in names}, declared)


def _route(function: Any) -> Route:
    layers = _layers(function)
    named = [parameters[SAMPLE_INDEX] for parameters in layers if parameters and SAMPLE_INDEX in parameters]
    return Route(
        takes_index=_accepts(layers, SAMPLE_INDEX, every_keyword_will_do=True),
        index_always=any(parameter.default is inspect.Parameter.empty for parameter in named),
        takes_model=_accepts(layers, MODEL, every_keyword_will_do=False),
        is_async=inspect.iscoroutinefunction(function),
    )


_Parameters = Mapping[str, inspect.Parameter]


def _layers(function: Any) -> list[_Parameters | None]:
    """The parameters of a function and of what it wraps, from the outside in; None where they cannot be known."""
    found = [_parameters(function)]
    while (function := getattr(function, "__wrapped__", None)) is not None and len(found) < 20:
        found.append(_parameters(function))
    return found


def _parameters(function: Any, *, follow_wrapped: bool = False) -> _Parameters | None:
    try:
        return inspect.signature(function, follow_wrapped=follow_wrapped).parameters
    except (ValueError, TypeError):
        return None


def _accepts(layers: Sequence[_Parameters | None], name: str, *, every_keyword_will_do: bool) -> bool:
    """Whether a keyword may be passed: every layer must take it, and the inner ones get what the outer hand on."""
    for number, parameters in enumerate(layers):
        if parameters is None:
            return False
        if name in parameters and parameters[name].kind in BY_KEYWORD:
            continue
        takes_all = any(found.kind is inspect.Parameter.VAR_KEYWORD for found in parameters.values())
        hands_on = number < len(layers) - 1
        if not takes_all or not (hands_on or every_keyword_will_do):
            return False
    return True


def _config_parameter(parameters: _Parameters) -> inspect.Parameter | None:
    """The one that takes the configuration: `config`, or else the first that must be given."""
    if "config" in parameters:
        return parameters["config"]
    for parameter in parameters.values():
        must = parameter.kind in BY_POSITION and parameter.default is inspect.Parameter.empty
        if must and parameter.name != KEY:
            return parameter
    return None


# answers


def _body_of(answer: Any) -> bytes:
    """What the plug-in returned, as it is captured. Raises `CallFailed("protocol")` where it can be no answer."""
    if isinstance(answer, str):
        answer = {"text": answer}
    if not isinstance(answer, Mapping):
        raise CallFailed("protocol", f"The plug-in returned {type(answer).__name__}, not a text or a dict.")
    try:
        body = json.dumps(dict(answer), allow_nan=False, sort_keys=True).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise CallFailed("protocol", f"The plug-in returned what JSON cannot hold: {error}"[:300]) from error
    if len(body) > MAX_ANSWER_BYTES:
        raise CallFailed("protocol", f"The plug-in's answer is larger than {MAX_ANSWER_BYTES >> 20} MiB.")
    return body


def read_answer(body: bytes) -> Completion:
    """Reads a captured answer of a plug-in. Raises `CallFailed("protocol")`, whatever the bytes are."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CallFailed("protocol", "The plug-in's answer is not JSON.") from error
    if not isinstance(answer, dict):
        raise CallFailed("protocol", f"The plug-in's answer is {type(answer).__name__}, not an object.")
    if unknown := sorted(answer.keys() - ANSWER_KEYS):
        _wrong(f"has the key {unknown[0]!r:.80}; known are {', '.join(sorted(ANSWER_KEYS))}")
    for key in ("text", "finish_reason", "reasoning"):
        if not isinstance(answer.get(key), str | None):
            _wrong(f"has {type(answer[key]).__name__} as {key}, not a text")
    for key in ("prompt_tokens", "completion_tokens"):
        if answer.get(key) is not None and count_or_none(answer[key]) is None:
            _wrong(f"has no whole number as {key}; leave out what is not known")
    entries = answer.get("tool_calls")
    if not isinstance(entries, list | None):
        _wrong(f"has {type(entries).__name__} as tool_calls, not a list")
    calls = tuple(_call(entry, number) for number, entry in enumerate(entries or ()))
    return Completion(
        text=answer.get("text"),
        finish_reason=answer.get("finish_reason"),
        response_id=None,
        prompt_tokens=answer.get("prompt_tokens"),
        completion_tokens=answer.get("completion_tokens"),
        tool_calls=calls,
        reasoning=answer.get("reasoning") or None,
        message=assistant_message(answer.get("text"), calls),
    )


def _call(entry: Any, number: int) -> RequestedCall:
    if not isinstance(entry, dict) or entry.keys() - {"id", "name", "arguments"}:
        _wrong(f"has a tool call {number} that is not {{name, arguments}}")
    name, arguments, call_id = entry.get("name"), entry.get("arguments", ""), entry.get("id")
    if not isinstance(name, str) or not name:
        _wrong(f"has a tool call {number} without a name")
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments, sort_keys=True)
    if not isinstance(arguments, str):
        _wrong(f"has {type(arguments).__name__} as arguments of tool call {number}, not a text or a dict")
    return RequestedCall(
        call_id if isinstance(call_id, str) and call_id else f"call_{number}", name, arguments
    )


def _wrong(what: str) -> NoReturn:
    raise CallFailed("protocol", f"The plug-in's answer {what}.")
