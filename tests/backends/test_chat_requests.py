"""What is sent to chat completion endpoints, and where to."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from rollouts.backends import make, parse_config
from rollouts.backends.base import Backend, BackendUnavailable, SubjectFiles
from rollouts.backends.chat import RESERVED_KEYS
from rollouts.errors import InvalidInput
from tests.backends.asking import QUESTION, TOOLS, answer, ask, provider, request_of

AZURE = {"endpoint": "https://name.openai.azure.com", "deployment": "gpt-4o", "api_version": "2024-10-21"}


def remote(url: str = "https://host/v1", key: str | None = None, **config: Any) -> Backend:
    return make("openai_compatible", {"base_url": url, **config}, lambda name: key, "ASSAY_KEY_A")


def body_of(backend: Backend, index: int = 0, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(request_of(backend, index, **more).body)
    return body


def refused(kind: str, config: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as error:
        parse_config(kind, config)
    return error.value


def test_a_plain_request_holds_what_the_run_says_and_nothing_else() -> None:
    assert body_of(remote(), temperature=0) == {
        "messages": QUESTION,
        "model": "m",
        "temperature": 0,
        "max_tokens": 64,
    }


def test_the_same_request_is_the_same_bytes_in_any_order_of_keys() -> None:
    backend = remote()
    turned = [{key: message[key] for key in reversed(message)} for message in QUESTION]

    assert request_of(backend).body == request_of(backend, messages=turned).body


def test_a_sample_has_its_own_seed_where_something_is_drawn() -> None:
    assert [body_of(remote(), index, seed=40)["seed"] for index in range(3)] == [40, 41, 42]
    assert "seed" not in body_of(remote(), 2, temperature=0)


def test_an_endpoint_that_calls_the_limit_by_another_name_gets_that_name() -> None:
    body = body_of(remote(max_tokens_name="max_completion_tokens"))

    assert body["max_completion_tokens"] == 64 and "max_tokens" not in body


def test_a_stream_is_asked_for_with_its_usage() -> None:
    body = body_of(remote(stream=True))

    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


def test_tools_go_as_functions_under_names_that_providers_take() -> None:
    assert body_of(remote(), tools=TOOLS)["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "files_read",
                "description": "Reads a file.",
                "parameters": {"type": "object"},
            },
        },
        {"type": "function", "function": {"name": "stop", "parameters": {"type": "object"}}},
    ]


def test_a_backend_without_tool_calling_sends_no_tools() -> None:
    backend = remote(tool_calling="none")

    assert not backend.native_tools
    with pytest.raises(AssertionError):
        request_of(backend, tools=TOOLS)


def test_a_dialogue_goes_on_with_the_message_that_came_and_the_results_of_its_calls() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "stop", "arguments": "{}"}}

    async def dialogue() -> dict[str, Any]:
        replies = {1: answer(None, tool_calls=[call], reasoning_content="hm"), 2: answer("done")}
        async with provider(replies.__getitem__) as seen, remote(seen.url).open(SubjectFiles()) as opened:
            backend = remote(seen.url)
            first = await ask(backend, opened, request_of(backend, tools=TOOLS))
            result = {"role": "tool", "tool_call_id": first.tool_calls[0].call_id, "content": "42"}
            messages = [*QUESTION, first.message, result]
            last = await ask(backend, opened, request_of(backend, tools=TOOLS, messages=messages))
            assert last.text == "done"
            return seen.bodies[1]

    assert asyncio.run(dialogue())["messages"] == [
        *QUESTION,
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]


def test_half_a_surrogate_pair_in_an_answer_does_not_stop_the_dialogue() -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "\ud800"}, {"role": "user", "content": "é"}]

    body = request_of(remote(), messages=messages).body

    assert json.loads(body)["messages"] == messages


def test_the_key_and_the_path_reach_the_endpoint_and_no_key_sends_no_header() -> None:
    async def asked(key: str | None) -> tuple[str, str | None]:
        async with provider() as seen:
            backend = remote(f"{seen.url}/v1", key)
            async with backend.open(SubjectFiles(remote_model="m")) as opened:
                assert (await ask(backend, opened, request_of(backend))).text == "answer 1"
                assert "secret" not in str(opened.facts)
        return seen.paths[0], seen.headers[0].get("Authorization")

    assert asyncio.run(asked("secret")) == ("/v1/chat/completions", "Bearer secret")
    assert asyncio.run(asked(None)) == ("/v1/chat/completions", None)


@pytest.mark.parametrize("sampling", ["independent", "ignored", "unknown"])
def test_how_an_endpoint_samples_is_what_its_configuration_says(sampling: str) -> None:
    assert remote(sampling=sampling).independence == sampling
    assert remote().independence == "independent"


# extra_body


def test_an_extra_body_is_merged_into_every_request() -> None:
    body = body_of(remote(extra_body={"top_p": 0.9, "chat_template_kwargs": {"enable_thinking": False}}))

    assert body["top_p"] == 0.9 and body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["messages"] == QUESTION


@pytest.mark.parametrize("key", sorted(RESERVED_KEYS))
def test_an_extra_body_cannot_override_what_the_run_says(key: str) -> None:
    error = refused("openai_compatible", {"base_url": "https://h/v1", "extra_body": {key: 1}})

    assert error.field == "config.extra_body"
    assert repr(key) in error.message


@pytest.mark.parametrize(
    "extra",
    [{"a": float("nan")}, {"a": 2**53}, {"a": "\ud800"}, {"a": "x" * 20_000}, {"a": {1}}, [], "x", None],
)
def test_an_extra_body_that_cannot_be_kept_exactly_is_refused(extra: Any) -> None:
    error = refused("openai_compatible", {"base_url": "https://h/v1", "extra_body": extra})

    assert error.field.startswith("config.extra_body")


def test_an_extra_body_that_is_nested_without_end_is_refused() -> None:
    nested: dict[str, Any] = {}
    for _ in range(3000):
        nested = {"a": nested}

    assert refused("openai_compatible", {"base_url": "https://h/v1", "extra_body": nested}).field.startswith(
        "config"
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tool_calling": "yes"}, "config.tool_calling"),
        ({"stream": "true"}, "config.stream"),
        ({"stream": 1}, "config.stream"),
        ({"sampling": "random"}, "config.sampling"),
        ({"max_tokens_name": "n"}, "config.max_tokens_name"),
        ({"base_url": "https://h:99999/v1"}, "config.base_url"),
        ({"base_url": "https://[::1/v1"}, "config.base_url"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_path(change: dict[str, Any], field: str) -> None:
    assert refused("openai_compatible", {"base_url": "https://h/v1", **change}).field == field


def test_a_refusal_does_not_repeat_a_password_in_an_address() -> None:
    error = refused("openai_compatible", {"base_url": "https://user:hunter2@host/v1"})

    assert "hunter2" not in error.message and "key_env" in error.message


# azure


def azure(key: str | None = "secret", **config: Any) -> Backend:
    return make("azure_openai", {**AZURE, **config}, lambda name: key, "ASSAY_KEY_AZURE")


def test_azure_is_asked_at_its_deployment_with_its_own_header() -> None:
    async def asked() -> Any:
        async with provider() as seen:
            backend = azure(endpoint=f"{seen.url}/")
            async with backend.open(SubjectFiles(remote_model="gpt-4o")) as opened:
                assert (await ask(backend, opened, request_of(backend, tools=TOOLS))).text == "answer 1"
                assert (opened.facts["deployment"], opened.facts["model"]) == ("gpt-4o", "gpt-4o")
                assert "secret" not in str(opened.facts)
        return seen

    seen = asyncio.run(asked())
    assert seen.paths == ["/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21"]
    assert seen.headers[0]["api-key"] == "secret" and "Authorization" not in seen.headers[0]
    assert "model" not in seen.bodies[0] and seen.bodies[0]["tools"]


@pytest.mark.parametrize(
    "endpoint",
    ["https://name.openai.azure.com", "http://127.0.0.1:8080", "http://localhost:1", "http://[::1]:1"],
)
def test_azure_is_reached_encrypted_or_on_this_machine(endpoint: str) -> None:
    assert azure(endpoint=endpoint).config is not None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"endpoint": "http://name.openai.azure.com"}, "config.endpoint"),
        ({"endpoint": "http://127.0.0.1.example.com"}, "config.endpoint"),
        ({"endpoint": "http://10.0.0.1"}, "config.endpoint"),
        ({"endpoint": "https://u:p@host"}, "config.endpoint"),
        ({"endpoint": "name.openai.azure.com"}, "config.endpoint"),
        ({"deployment": "../x"}, "config.deployment"),
        ({"deployment": ""}, "config.deployment"),
        ({"deployment": "a?b"}, "config.deployment"),
        ({"deployment": "a\n"}, "config.deployment"),
        ({"api_version": "latest"}, "config.api_version"),
        ({"api_version": "2024-10-21&x=1"}, "config.api_version"),
        ({"api_version": "2024-10-21\n"}, "config.api_version"),
    ],
)
def test_azure_s_wrong_settings_are_refused_by_their_path(change: dict[str, Any], field: str) -> None:
    assert refused("azure_openai", {**AZURE, **change}).field == field


@pytest.mark.parametrize("missing", sorted(AZURE))
def test_azure_has_no_defaults_for_where_it_is(missing: str) -> None:
    config = {name: value for name, value in AZURE.items() if name != missing}

    assert refused("azure_openai", config).field == f"config.{missing}"


def test_azure_without_its_key_asks_nothing() -> None:
    async def opened() -> None:
        async with azure(key=None).open(SubjectFiles()):
            raise AssertionError

    with pytest.raises(BackendUnavailable) as unavailable:
        asyncio.run(opened())
    assert unavailable.value.code == "no_key"
