"""A dual backend is its target in everything that is measured, and gives out its generator for the rest."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rollouts.backends import make, parse_config
from rollouts.backends.base import Backend, BackendUnavailable, SubjectFiles
from rollouts.backends.dual import Dual
from rollouts.errors import InvalidInput
from rollouts.hashing import sha256_bytes
from tests.backends.asking import TOOLS, ask, provider, request_of
from tests.backends.conftest import Install

REMOTE = {"kind": "openai_compatible", "config": {"base_url": "https://host/v1"}}
LOCAL = {"kind": "llama_cpp", "config": {"tool_calling": "native"}}
KEYS = {"ASSAY_KEY_T": "target's", "ASSAY_KEY_G": "generator's"}


def dual(target: Any = REMOTE, generator: Any = REMOTE) -> Dual:
    made = make("dual", {"target": target, "generator": generator}, KEYS.get)
    assert isinstance(made, Dual)
    return made


def alone(part: Any) -> Backend:
    return make(part["kind"], part["config"], KEYS.get)


@pytest.mark.parametrize("target", [REMOTE, LOCAL], ids=["remote", "local"])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["marker", "native"])
@pytest.mark.parametrize("index", [0, 2])
def test_the_target_gets_the_very_request_with_its_sample_index(target: Any, tools: Any, index: int) -> None:
    assert request_of(dual(target), index, tools=tools) == request_of(alone(target), index, tools=tools)


@pytest.mark.parametrize("target", [REMOTE, LOCAL], ids=["remote", "local"])
def test_it_can_what_its_target_can(target: Any) -> None:
    for name in (
        "exclusive",
        "serves_files",
        "speaks_http",
        "native_tools",
        "independence",
        "transcript_sha256",
    ):
        assert getattr(dual(target, LOCAL), name) == getattr(alone(target), name), name


def test_it_says_of_samples_what_its_target_says() -> None:
    ignores = {"kind": "openai_compatible", "config": {"base_url": "https://host/v1", "sampling": "ignored"}}

    assert (dual(ignores).independence, dual(REMOTE, ignores).independence) == ("ignored", "independent")


def test_it_names_its_target_s_transcript() -> None:
    digest = sha256_bytes(b"x")
    recorded = {"kind": "scripted", "config": {"transcript_sha256": digest}}

    assert dual(recorded).transcript_sha256 == digest
    assert dual(REMOTE, recorded).transcript_sha256 is None


def test_each_part_is_asked_with_its_own_key() -> None:
    async def work() -> list[str]:
        async with provider() as one, provider() as other:
            both = dual(
                {"kind": "openai_compatible", "config": {"base_url": one.url}, "key_env": "ASSAY_KEY_T"},
                {
                    "kind": "openai_compatible",
                    "config": {"base_url": other.url},
                    "key_env": "ASSAY_KEY_G",
                    "model": "judge-1",
                },
            )
            async with both.open(SubjectFiles(remote_model="m")) as opened:
                assert (await ask(both, opened, request_of(both, 2))).text == "answer 1"
                assert opened.facts["base_url"] == one.url
                assert await both.facts_after(SubjectFiles(remote_model="m"), opened) == opened.facts
            judge, model = both.generator
            async with judge.open(SubjectFiles(remote_model=model)) as opened:
                await ask(judge, opened, request_of(judge, model=model))
            assert (one.bodies[0]["model"], other.bodies[0]["model"]) == ("m", "judge-1")
            return [one.headers[0]["Authorization"], other.headers[0]["Authorization"]]

    assert asyncio.run(work()) == ["Bearer target's", "Bearer generator's"]


def test_a_plug_in_as_the_target_answers_itself(install: Install) -> None:
    install(
        "class P:\n    def attempt(self, messages, sampling, sample_index=0):\n        return f'sample {sample_index}'\n",
        p="P",
    )
    both = dual({"kind": "plugin:p"})

    async def work() -> str | None:
        async with both.open(SubjectFiles()) as opened:
            return (await ask(both, opened, request_of(both, 3))).text

    assert not both.speaks_http
    assert asyncio.run(work()) == "sample 3"


def test_a_target_that_names_its_model_serves_no_other() -> None:
    both = dual({**REMOTE, "model": "m"})

    async def opened(model: str) -> Any:
        async with both.open(SubjectFiles(remote_model=model)) as found:
            return found.facts["model"]

    assert asyncio.run(opened("m")) == "m"
    with pytest.raises(BackendUnavailable, match="asks for 'other'"):
        asyncio.run(opened("other"))


def test_a_part_is_kept_with_its_defaults() -> None:
    config = parse_config("dual", {"target": LOCAL, "generator": REMOTE})

    assert config.model_dump()["target"]["config"]["context"] == 2048


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"target": None}, "config.target"),
        ({"target": {}}, "config.target.kind"),
        ({"target": {**REMOTE, "colour": 1}}, "config.target.colour"),
        ({"target": {"kind": "carrier_pigeon"}}, "config.target.kind"),
        ({"target": {"kind": "openai_compatible"}}, "config.target.config.base_url"),
        ({"generator": {"kind": "llama_cpp", "config": {"threads": 0}}}, "config.generator.config.threads"),
        (
            {"generator": {"kind": "dual", "config": {"target": REMOTE, "generator": REMOTE}}},
            "config.generator.kind",
        ),
        ({"target": {"kind": "dual"}}, "config.target.kind"),
        ({"generator": {**REMOTE, "model": "m" * 201}}, "config.generator.model"),
        ({"judge": REMOTE}, "config.judge"),
    ],
)
def test_a_wrong_part_is_refused_by_its_path(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_config("dual", {"target": REMOTE, "generator": REMOTE, **change})
    assert refused.value.field == field
