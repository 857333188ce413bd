"""Every kind that there is takes a sample index on both routes: with tools, and without."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from rollouts.backends import kinds, make
from rollouts.backends.base import Backend, SubjectFiles
from rollouts.hashing import sha256_bytes
from tests.backends.asking import TOOLS, answer, ask, provider, request_of
from tests.backends.conftest import Install

PLUGIN = """
CALLS = []
class Legacy:
    def attempt(self, messages, sampling):
        CALLS.append("attempt")
        return f"answer {len(CALLS)}"
    def attempt_with_tools(self, messages, tools, sampling):
        CALLS.append("attempt_with_tools")
        return f"answer {len(CALLS)}"
"""
TRANSCRIPT = json.dumps({"replies": [{"body": answer(f"answer {n}").decode()} for n in (1, 2, 3)]}).encode()


def configs(url: str) -> dict[str, Any]:
    """A configuration of each kind; remote ones at `url`."""
    remote = {"kind": "openai_compatible", "config": {"base_url": url}}
    return {
        "openai_compatible": remote["config"],
        "azure_openai": {"endpoint": url, "deployment": "d", "api_version": "2024-10-21"},
        "llama_cpp": {"tool_calling": "native"},
        "scripted": {"transcript_sha256": sha256_bytes(TRANSCRIPT)},
        "dual": {"target": remote, "generator": remote},
        "plugin:legacy": {},
    }


KINDS = list(configs(""))


@pytest.fixture(autouse=True)
def legacy(install: Install) -> None:
    install(PLUGIN, legacy="Legacy")


def backend_of(kind: str, url: str = "http://127.0.0.1:9/v1") -> Backend:
    return make(kind, configs(url)[kind], lambda name: "key", "ASSAY_KEY_A")


def test_no_kind_is_forgotten_here() -> None:
    assert sorted(KINDS) == kinds()


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["marker", "native"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_sample_s_request_is_its_own_and_the_same_each_time(kind: str, tools: Any) -> None:
    backend = backend_of(kind)
    bodies = [request_of(backend, index, tools=tools).body for index in (0, 1, 2, 0, 1)]

    assert len(set(bodies)) == 3
    assert bodies[:2] == bodies[3:]


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["marker", "native"])
@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "llama_cpp"])  # test_llama_cpp asks that
def test_each_sample_is_a_call_of_its_own(kind: str, temperature: int, tools: Any, tmp_path: Any) -> None:
    transcript = tmp_path / "transcript.jsonl"
    transcript.write_bytes(TRANSCRIPT)
    files = SubjectFiles(remote_model="m", transcript_path=str(transcript))

    async def work() -> list[str | None]:
        async with provider() as seen:
            backend = backend_of(kind, seen.url)
            async with backend.open(files) as opened:
                requests = [
                    request_of(backend, index, tools=tools, temperature=temperature) for index in range(3)
                ]
                return [(await ask(backend, opened, request)).text for request in requests]

    assert asyncio.run(work()) == ["answer 1", "answer 2", "answer 3"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_what_its_repeats_prove(kind: str) -> None:
    proven: Mapping[str, str] = {"scripted": "unknown", "plugin:legacy": "unknown"}

    assert backend_of(kind).independence == proven.get(kind, "independent")
