"""Backends from other packages: called as they were written, once a sample, and labelled by what they can prove."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.backends import kind_named, kinds, make, parse_config
from rollouts.backends.base import (
    Backend,
    BackendUnavailable,
    Completion,
    RequestedCall,
    SubjectFiles,
    stored_config,
)
from rollouts.backends.plugins import read_answer
from rollouts.errors import InvalidInput
from rollouts.failures import CallFailed
from tests.backends.asking import QUESTION, TOOLS, ask, request_of
from tests.backends.conftest import Install

# Each class keeps what it was called with, so that a test sees the very arguments.
SIGNATURES = """
import functools

CALLS = []

def kept(*positional, **keywords):
    CALLS.append((positional, keywords))
    return f"answer {len(CALLS)}"

class Legacy:
    def attempt(self, messages, sampling):
        return kept(messages, sampling)
    def attempt_with_tools(self, messages, tools, sampling):
        return kept(messages, tools, sampling)

class WithDefault:
    def attempt(self, messages, sampling, sample_index=0):
        return kept(messages, sampling, sample_index=sample_index)
    def attempt_with_tools(self, messages, tools, sampling, sample_index=None):
        return kept(messages, tools, sampling, sample_index=sample_index)

class KeywordOnly:
    def attempt(self, messages, sampling, *, sample_index="none given"):
        return kept(messages, sampling, sample_index=sample_index)

class MustBeGiven:
    def attempt(self, messages, sampling, *, sample_index):
        return kept(messages, sampling, sample_index=sample_index)

class EveryKeyword:
    def attempt(self, messages, sampling, **keywords):
        return kept(messages, sampling, **keywords)

class OtherName:
    def attempt(self, messages, sampling, sample_id=0):
        return kept(messages, sampling, sample_id=sample_id)

class OnlyByPosition:
    def attempt(self, messages, sampling, sample_index=0, /):
        return kept(messages, sampling, sample_index)

class OneRouteWithout:
    def attempt(self, messages, sampling, sample_index=0):
        return kept(messages, sampling, sample_index=sample_index)
    def attempt_with_tools(self, messages, tools, sampling):
        return kept(messages, tools, sampling)

class Model:
    def attempt(self, messages, sampling, *, model):
        return kept(messages, sampling, model=model)

class Static:
    @staticmethod
    def attempt(messages, sampling, sample_index=0):
        return kept(messages, sampling, sample_index=sample_index)

class Async:
    async def attempt(self, messages, sampling, sample_index=0):
        return kept(messages, sampling, sample_index=sample_index)

def wrapped(function):
    @functools.wraps(function)
    def outer(*positional, **keywords):
        return function(*positional, **keywords)
    return outer

class Wrapped:
    @wrapped
    def attempt(self, messages, sampling):
        return kept(messages, sampling)

class WrappedWithIndex:
    @wrapped
    def attempt(self, messages, sampling, sample_index=0):
        return kept(messages, sampling, sample_index=sample_index)

class Narrowed:
    def attempt(self, messages, sampling):
        return kept(messages, sampling)
    attempt.__wrapped__ = WithDefault.attempt

class Declared(Legacy):
    samples = "independent"

class Ignores(WithDefault):
    samples = "ignored"

def factory():
    return WithDefault()

def declared_factory():
    return Legacy()
declared_factory.samples = "independent"
"""
CLASSES = [
    *("Legacy", "WithDefault", "KeywordOnly", "MustBeGiven", "EveryKeyword", "OtherName", "OnlyByPosition"),
    *(
        "OneRouteWithout",
        "Model",
        "Static",
        "Async",
        "Wrapped",
        "WrappedWithIndex",
        "Narrowed",
        "Declared",
        "Ignores",
    ),
    *("factory", "declared_factory"),
]


@pytest.fixture
def signatures(install: Install) -> None:
    install(SIGNATURES, **{name.lower(): name for name in CLASSES})


def plugin(name: str, config: Any = None, key: str | None = None) -> Backend:
    return make(f"plugin:{name}", {} if config is None else config, lambda env: key, "ASSAY_KEY_A")


def answers(backend: Backend, *requests: Any) -> list[Completion]:
    async def work() -> list[Completion]:
        async with backend.open(SubjectFiles(remote_model="m")) as opened:
            return [await ask(backend, opened, request) for request in requests]

    return asyncio.run(work())


def failure(backend: Backend) -> CallFailed:
    with pytest.raises(CallFailed) as failed:
        answers(backend, request_of(backend))
    return failed.value


def calls_of(name: str, *, tools: Any = None) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The calls that samples 0, 2 and 1 come to, made through capture and back."""
    import helpers_code

    backend = plugin(name)
    done = answers(backend, *(request_of(backend, index, tools=tools, temperature=1) for index in (0, 2, 1)))
    assert [completion.text for completion in done] == ["answer 1", "answer 2", "answer 3"]
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = helpers_code.CALLS
    sampling = {"temperature": 1, "max_tokens": 64}
    assert all(given[0] == QUESTION and sampling in given for given, _ in calls)
    return calls


# the sample index


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("withdefault", [{"sample_index": 0}, {"sample_index": 2}, {"sample_index": 1}]),
        ("keywordonly", [{"sample_index": "none given"}, {"sample_index": 2}, {"sample_index": 1}]),
        ("mustbegiven", [{"sample_index": 0}, {"sample_index": 2}, {"sample_index": 1}]),
        ("everykeyword", [{}, {"sample_index": 2}, {"sample_index": 1}]),
        ("static", [{"sample_index": 0}, {"sample_index": 2}, {"sample_index": 1}]),
        ("async", [{"sample_index": 0}, {"sample_index": 2}, {"sample_index": 1}]),
        ("wrappedwithindex", [{"sample_index": 0}, {"sample_index": 2}, {"sample_index": 1}]),
        ("factory", [{"sample_index": 0}, {"sample_index": 2}, {"sample_index": 1}]),
    ],
)
def test_a_method_that_can_take_the_sample_index_gets_it_and_is_independent(
    signatures: None, name: str, given: list[Any]
) -> None:
    assert [keywords for _, keywords in calls_of(name)] == given
    assert plugin(name).independence == "independent"


@pytest.mark.parametrize("name", ["legacy", "othername", "onlybyposition", "wrapped", "narrowed"])
def test_a_method_that_cannot_is_called_with_its_own_arguments_once_a_sample_and_proves_nothing(
    signatures: None, name: str
) -> None:
    calls = calls_of(name)

    assert len(calls) == 3
    assert all("sample_index" not in keywords for _, keywords in calls)
    assert plugin(name).independence == "unknown"


def test_the_tools_route_is_looked_at_for_itself(signatures: None) -> None:
    assert calls_of("withdefault", tools=TOOLS) == [
        ((QUESTION, TOOLS, {"temperature": 1, "max_tokens": 64}), {"sample_index": index})
        for index in (None, 2, 1)
    ]


def test_a_tools_route_without_the_sample_index_is_called_as_it_was_written(signatures: None) -> None:
    assert [keywords for _, keywords in calls_of("oneroutewithout", tools=TOOLS)] == [{}, {}, {}]


def test_the_weakest_route_that_can_be_used_says_whether_samples_are_independent(signatures: None) -> None:
    assert plugin("oneroutewithout").independence == "unknown"


@pytest.mark.parametrize(
    ("name", "independence"),
    [("declared", "independent"), ("ignores", "ignored"), ("declared_factory", "independent")],
)
def test_what_a_plug_in_declares_of_its_samples_holds(signatures: None, name: str, independence: str) -> None:
    assert plugin(name).independence == independence


def test_a_declaration_does_not_change_how_it_is_called(signatures: None) -> None:
    assert [keywords for _, keywords in calls_of("declared")] == [{}, {}, {}]


def test_a_model_reaches_only_who_asks_for_it_by_name(signatures: None) -> None:
    assert [keywords for _, keywords in calls_of("model")] == [{"model": "m"}] * 3


def test_without_a_method_for_tools_the_route_is_the_marker(signatures: None) -> None:
    backend = plugin("keywordonly")

    assert not backend.native_tools and plugin("legacy").native_tools
    with pytest.raises(AssertionError):
        request_of(backend, tools=TOOLS)


def test_what_is_captured_of_a_request_tells_samples_apart(signatures: None) -> None:
    backend = plugin("legacy")
    request = request_of(backend, 2, tools=TOOLS)

    assert (request.dialect, request.path) == ("plugin", "")
    assert json.loads(request.body) == {
        "messages": QUESTION,
        "tools": TOOLS,
        "sampling": {"temperature": 1, "max_tokens": 64},
        "sample_index": 2,
        "model": "m",
    }
    assert (
        request.body == request_of(backend, 2, tools=TOOLS).body != request_of(backend, 1, tools=TOOLS).body
    )


# loading

LOADING = """
class Good:
    def attempt(self, messages, sampling):
        return "good"
class NoAttempt:
    pass
class Nonsense(Good):
    samples = "sometimes"
class NoModel(Good):
    config_model = dict
number = 7
"""


def test_plug_ins_that_do_not_load_are_named_with_the_reason_and_stop_no_other(install: Install) -> None:
    install(
        LOADING,
        good="Good",
        none="NoAttempt",
        nonsense="Nonsense",
        nomodel="NoModel",
        number="number",
        gone="Gone",
    )
    install("raise RuntimeError('at import')", package="broken", broken="Anything")
    install("raise SystemExit(3)", package="leaving", leaving="Anything")

    assert [kind for kind in kinds() if kind.startswith("plugin:")] == ["plugin:good"]
    for name, reason in (
        ("none", "it has no method attempt"),
        ("nonsense", "not one of independent, ignored, unknown"),
        ("nomodel", "not a pydantic model"),
        ("number", "is int, not a class or a factory"),
        ("gone", "has no attribute 'Gone'"),
        ("broken", "RuntimeError: at import"),
        ("leaving", "SystemExit: 3"),
    ):
        with pytest.raises(InvalidInput) as refused:
            kind_named(f"plugin:{name}")
        assert refused.value.field == "kind" and reason in refused.value.message


def test_an_unknown_kind_names_the_plug_ins_too(install: Install) -> None:
    install(LOADING, good="Good")

    with pytest.raises(InvalidInput, match=r"Use one of: .*plugin:good"):
        kind_named("plugin:other")


def test_two_packages_with_one_name_are_both_refused(install: Install) -> None:
    install(LOADING, good="Good")
    install(LOADING, package="again", good="Good")

    with pytest.raises(InvalidInput, match="2 packages"):
        kind_named("plugin:good")


@pytest.mark.parametrize("name", ["x" * 34, "Upper", "_x"])
def test_a_name_that_does_not_fit_is_refused(install: Install, name: str) -> None:
    install(LOADING, **{name: "Good"})

    with pytest.raises(InvalidInput, match="its name must be"):
        kind_named(f"plugin:{name}")


def test_a_kind_s_name_fits_its_column() -> None:
    assert len("plugin:" + "x" * 33) == 40


# configuration

CONFIGURED = """
import datetime
import pydantic

class Settings(pydantic.BaseModel, extra="forbid"):
    url: str
    since: datetime.date = datetime.date(2025, 1, 1)
    @pydantic.field_validator("url")
    @classmethod
    def known(cls, value):
        if value == "crash":
            raise RuntimeError("boom")
        return value

class Configured:
    config_model = Settings
    def __init__(self, config, *, key):
        self.config, self.key = config, key
    def attempt(self, messages, sampling):
        return f"{self.config.url} {self.config.since.year} {self.key}"

class First(Configured):
    def __init__(self, settings):
        super().__init__(settings, key="own")

class Plain:
    def __init__(self, config):
        self.config = config
    def attempt(self, messages, sampling):
        return repr(self.config)

class TakesNone:
    config_model = Settings
    def attempt(self, messages, sampling):
        return ""

class Fails:
    def __init__(self):
        raise OSError("no GPU")
    def attempt(self, messages, sampling):
        return ""

def fails():
    return 7
"""


def test_a_plug_in_gets_its_configuration_and_its_key(install: Install) -> None:
    install(CONFIGURED, configured="Configured", first="First", plain="Plain")
    config = {"url": "u", "since": "2024-02-03"}

    for name, text in (("configured", "u 2024 secret"), ("first", "u 2024 own")):
        backend = plugin(name, config, key="secret")
        assert answers(backend, request_of(backend))[0].text == text
    backend = plugin("plain")
    assert answers(backend, request_of(backend))[0].text == "{}"


def test_a_plug_in_s_configuration_is_kept_as_json_with_its_defaults(install: Install) -> None:
    install(CONFIGURED, configured="Configured")
    parsed = parse_config("plugin:configured", {"url": "u"})

    assert stored_config("plugin:configured", parsed) == {"url": "u", "since": "2025-01-01"}


@pytest.mark.parametrize(
    ("name", "config", "field"),
    [
        ("configured", {}, "config.url"),
        ("configured", {"url": "u", "colour": 1}, "config.colour"),
        ("configured", {"url": "u", "since": "soon"}, "config.since"),
        ("configured", {"url": "crash"}, "config"),
        ("configured", [], "config"),
        ("plain", {"url": "u"}, "config.url"),
    ],
)
def test_a_plug_in_s_wrong_configuration_is_refused_by_its_path(
    install: Install, name: str, config: Any, field: str
) -> None:
    install(CONFIGURED, configured="Configured", plain="Plain")

    with pytest.raises(InvalidInput) as refused:
        parse_config(f"plugin:{name}", config)
    assert refused.value.field == field


def test_a_configuration_that_nothing_takes_is_a_mistake_of_the_plug_in(install: Install) -> None:
    install(CONFIGURED, takesnone="TakesNone")

    with pytest.raises(InvalidInput, match="its constructor takes no config"):
        kind_named("plugin:takesnone")


@pytest.mark.parametrize(("name", "said"), [("fails", "OSError: no GPU"), ("made", "no method attempt")])
def test_a_plug_in_that_cannot_be_made_is_not_there(install: Install, name: str, said: str) -> None:
    install(CONFIGURED, fails="Fails", made="fails")

    with pytest.raises(BackendUnavailable, match=said):
        answers(plugin(name))


def test_what_a_factory_s_plug_in_can_is_not_known_where_it_cannot_be_made(install: Install) -> None:
    install(CONFIGURED, made="fails")

    with pytest.raises(InvalidInput, match="no method attempt") as refused:
        _ = plugin("made").native_tools
    assert refused.value.field == "backend"


def test_the_example_of_the_documentation_works(install: Install) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "backends.md").read_text()
    install(text.split("```python\n")[1].split("```")[0], echo="Echo")
    backend = plugin("echo", key="secret")

    plain, called = answers(backend, request_of(backend, 2), request_of(backend, tools=TOOLS))
    assert plain.text == "What now? (2)"
    assert called.tool_calls == (RequestedCall("call_0", "files.read", '{"of": "m"}'),)
    assert backend.independence == "independent"


# answers and failures

ANSWERING = """
import asyncio, os, threading, time
from rollouts.failures import CallFailed

class Answering:
    value = None
    def attempt(self, messages, sampling):
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value

class AsyncAnswering(Answering):
    async def attempt(self, messages, sampling):
        await asyncio.sleep(0)
        return Answering.attempt(self, messages, sampling)

class Later:
    def attempt(self, messages, sampling):
        async def later():
            return "later"
        return later()

class Slow:
    closed = []
    def attempt(self, messages, sampling):
        time.sleep(0.2)
        return threading.current_thread().name
    async def close(self):
        self.closed.append(True)
        raise RuntimeError("no matter")

class Hangs:
    released = threading.Event()
    def attempt(self, messages, sampling):
        self.released.wait(20)
        return "too late"
class HangsAsync:
    async def attempt(self, messages, sampling):
        await asyncio.sleep(20)
"""


@pytest.fixture(params=["answering", "asyncanswering"])
def answering(request: pytest.FixtureRequest, install: Install) -> Any:
    """answering(value) is a backend whose plug-in returns or raises it, plain or async."""
    install(ANSWERING, answering="Answering", asyncanswering="AsyncAnswering")

    def make_it(value: Any) -> Backend:
        kind_named(f"plugin:{request.param}")
        import helpers_code

        helpers_code.Answering.value = value
        return plugin(request.param)

    return make_it


def test_a_text_is_an_answer_and_a_dict_may_say_more(answering: Any) -> None:
    backend = answering("hello")
    assert answers(backend, request_of(backend)) == [
        Completion("hello", None, None, None, None, message={"role": "assistant", "content": "hello"})
    ]

    backend = answering(
        {
            "text": None,
            "finish_reason": "tool_calls",
            "prompt_tokens": 11,
            "completion_tokens": 0,
            "reasoning": "hm",
            "tool_calls": [
                {"name": "stop", "arguments": {"b": 1, "a": "é"}},
                {"name": "stop", "arguments": "{", "id": "x"},
            ],
        }
    )
    (done,) = answers(backend, request_of(backend))
    assert (done.text, done.finish_reason, done.prompt_tokens, done.completion_tokens) == (
        None,
        "tool_calls",
        11,
        0,
    )
    assert done.reasoning == "hm"
    assert [call.call_id for call in done.tool_calls] == ["call_0", "x"]
    assert json.loads(done.tool_calls[0].arguments) == {"a": "é", "b": 1}
    assert done.tool_calls[1] == RequestedCall("x", "stop", "{")
    assert done.message["tool_calls"][1]["function"] == {"name": "stop", "arguments": "{"}


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        b"bytes",
        ["text"],
        object(),
        {"text": object()},
        {"text": float("nan")},
        {"text": 7},
        {"answer": "x"},
        {"text": "x", "prompt_tokens": 1.5},
        {"text": "x", "completion_tokens": -1},
        {"text": "x", "tool_calls": "stop"},
        {"text": "x", "tool_calls": {}},
        {"text": "x", "tool_calls": ["stop"]},
        {"text": "x", "tool_calls": [{"arguments": "{}"}]},
        {"text": "x", "tool_calls": [{"name": "stop", "arguments": 7}]},
        {"text": "x", "tool_calls": [{"name": "stop", "function": {}}]},
        {"text": "x", "reasoning": ["x"]},
    ],
    ids=repr,
)
def test_what_is_no_answer_is_a_protocol_failure(answering: Any, value: Any) -> None:
    failed = failure(answering(value))

    assert (failed.kind, failed.retryable) == ("protocol", False)


def test_an_answer_is_bounded(answering: Any) -> None:
    assert "larger than 16 MiB" in failure(answering("x" * (17 << 20))).message


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("boom"),
        KeyError("boom"),
        TimeoutError("boom"),
        StopIteration(),
        SystemExit("boom"),
        OSError("boom"),
    ],
    ids=repr,
)
def test_an_exception_of_a_plug_in_is_a_failure_of_the_harness_and_not_tried_again(
    answering: Any, error: BaseException
) -> None:
    failed = failure(answering(error))

    assert (failed.kind, failed.retryable) == ("harness", False)
    assert "boom" in failed.message or "StopIteration" in failed.message


def test_a_plug_in_that_cancels_itself_has_failed(answering: Any) -> None:
    assert failure(answering(asyncio.CancelledError())).kind == "harness"


def test_a_plug_in_may_say_how_its_provider_failed_but_not_how_ours_did(answering: Any) -> None:
    failed = failure(answering(CallFailed("rate_limit", "slow down", retryable=True, retry_after_s=2)))
    assert (failed.kind, failed.retryable, failed.retry_after_s) == ("rate_limit", True, 2)
    assert failure(answering(CallFailed("scorer", "ours"))).kind == "harness"


def test_what_a_plain_method_returns_may_be_awaited(install: Install) -> None:
    install(ANSWERING, later="Later")
    backend = plugin("later")

    assert answers(backend, request_of(backend))[0].text == "later"


def test_plain_methods_run_side_by_side_off_the_loop(install: Install) -> None:
    install(ANSWERING, slow="Slow")
    backend = plugin("slow")

    async def work() -> tuple[list[Completion], float]:
        start = time.perf_counter()
        async with backend.open(SubjectFiles()) as opened:
            done = await asyncio.gather(*(ask(backend, opened, request_of(backend, i)) for i in range(20)))
        return done, time.perf_counter() - start

    done, took = asyncio.run(work())
    assert took < 2  # one after the other they take 4 s
    assert threading.current_thread().name not in {completion.text for completion in done}


def test_a_plug_in_is_closed_after_its_shard_and_a_failure_there_loses_no_answer(install: Install) -> None:
    install(ANSWERING, slow="Slow")
    backend = plugin("slow")

    assert answers(backend, request_of(backend))
    import helpers_code

    assert helpers_code.Slow.closed == [True]


@pytest.mark.parametrize("name", ["hangs", "hangsasync"])
def test_a_plug_in_that_hangs_is_left_when_its_time_is_up(install: Install, name: str) -> None:
    install(ANSWERING, hangs="Hangs", hangsasync="HangsAsync")
    backend = plugin(name)

    async def work() -> None:
        async with backend.open(SubjectFiles()):
            await asyncio.wait_for(backend.call(request_of(backend)), 0.1)

    start = time.perf_counter()
    with pytest.raises(TimeoutError):
        asyncio.run(work())
    assert time.perf_counter() - start < 5
    if name == "hangs":
        import helpers_code

        helpers_code.Hangs.released.set()


def test_the_facts_name_the_package_and_its_version(signatures: None) -> None:
    async def facts() -> Any:
        async with plugin("legacy").open(SubjectFiles(remote_model="m")) as opened:
            return opened.facts

    assert asyncio.run(facts()) == {
        "server": "plugin",
        "plugin": "legacy",
        "package": "helpers 1.2",
        "model": "m",
    }


@given(st.binary() | st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(
        st.sampled_from(["text", "tool_calls", "name", "arguments", "id", "prompt_tokens", "reasoning"]), v, max_size=4
    ),
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_no_captured_bytes_raise_anything_but_a_protocol_failure(body: bytes) -> None:
    try:
        assert isinstance(read_answer(body), Completion)
    except CallFailed as failed:
        assert failed.kind == "protocol"
