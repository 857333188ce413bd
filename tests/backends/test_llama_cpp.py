"""llama.cpp's server is asked what it is when it opens and again after the shard."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from promotion.export.base_header import read_base_header
from rollouts.backends import llama_cpp, make, parse_config
from rollouts.backends.base import BackendUnavailable, Opened, SubjectFiles
from rollouts.backends.llama_cpp import LlamaCpp
from rollouts.errors import InvalidInput
from rollouts.hashing import sha256_bytes, sha256_file
from tests.backends.asking import QUESTION, TOOLS, ask, request_of
from tests.conftest import base_gguf


def local(**config: Any) -> LlamaCpp:
    made = make("llama_cpp", config, lambda name: None)
    assert isinstance(made, LlamaCpp)
    return made


@pytest.fixture
def files() -> SubjectFiles:
    file = base_gguf()
    assert file is not None
    template = str(read_base_header(file).chat_template)
    return SubjectFiles(
        base_path=str(file),
        base_sha256=sha256_file(file),
        chat_template_sha256=hashlib.sha256(template.encode()).hexdigest(),
    )


@pytest.mark.llama
def test_its_seeds_are_tried_and_the_facts_are_the_same_before_and_after_the_shard(
    files: SubjectFiles,
) -> None:
    backend = local(tool_calling="native")

    async def work() -> Any:
        async with backend.open(files) as opened:
            texts = [
                (await ask(backend, opened, request_of(backend, index, tools=TOOLS, model=""))).text
                for index in (0, 0, 1)
            ]
            start = time.perf_counter()
            after = await backend.facts_after(files, opened)
            return dict(opened.facts), dict(after), texts, time.perf_counter() - start

    facts, after, texts, took = asyncio.run(work())
    assert facts == after
    assert (facts["same_seed_same_text"], facts["other_seed_other_text"]) == (True, True)
    assert texts[0] == texts[1] != texts[2]
    assert isinstance(facts["server_build"], str)
    assert facts["config"] == {"context": 2048, "parallel": 1, "tool_calling": "native"}
    assert str(Path(str(files.base_path)).parent) not in str(facts)
    assert took < 20  # about 1 s where nothing else runs


@pytest.mark.llama
def test_a_server_that_is_gone_after_the_shard_proves_nothing(files: SubjectFiles) -> None:
    backend = local()

    async def work() -> None:
        async with backend.open(files) as opened:
            pass
        await backend.facts_after(files, opened)

    with pytest.raises(BackendUnavailable) as unavailable:
        asyncio.run(work())
    assert unavailable.value.code == "server_gone"


def test_a_new_option_does_not_part_new_runs_from_old_ones(files_of_mine: SubjectFiles) -> None:
    assert local()._check_files(files_of_mine)["config"] == {"context": 2048, "parallel": 1}


def test_another_server_at_the_same_address_is_not_one_that_is_gone() -> None:
    async def work(opened: Opened) -> Any:
        return await local().probe(Opened(opened.base_url.replace("/v1", "/other/v1")))

    with pytest.raises(BackendUnavailable) as unavailable:
        probed(work=work)
    assert unavailable.value.code == "server_changed"


# a server that is not what it was, stood in for: llama.cpp itself does not misbehave on demand


@pytest.fixture
def files_of_mine(tmp_path: Path) -> SubjectFiles:
    base, adapter = tmp_path / "base.gguf", tmp_path / "adapter.gguf"
    base.write_bytes(b"GGUF base")
    adapter.write_bytes(b"GGUF adapter")
    return SubjectFiles(
        base_path=str(base),
        base_sha256=sha256_bytes(b"GGUF base"),
        adapter_path=str(adapter),
        adapter_sha256=sha256_bytes(b"GGUF adapter"),
        chat_template_sha256=sha256_bytes(b"template"),
    )


def server(text_of: Callable[[int], str], properties: Any) -> web.Application:
    async def props(request: web.Request) -> web.Response:
        return web.json_response(properties)

    async def completion(request: web.Request) -> web.Response:
        asked = await request.json()
        assert (asked["temperature"], asked["cache_prompt"], asked["n_predict"]) == (1, False, 8)
        return web.json_response({"content": text_of(asked["seed"])})

    app = web.Application()
    app.router.add_get("/props", props)
    app.router.add_post("/completion", completion)
    return app


PROPERTIES = {"chat_template": "template", "build_info": "b1-abc", "model_path": "/secret/path"}


def probed(text_of: Callable[[int], str] = str, properties: Any = PROPERTIES, work: Any = None) -> Any:
    async def inside() -> Any:
        runner = web.AppRunner(server(text_of, properties), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            opened = Opened(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", {}, {"server": "llama.cpp"})
            return await (work(opened) if work else local().probe(opened))
        finally:
            await runner.cleanup()

    return asyncio.run(inside())


def test_what_seeds_do_is_measured() -> None:
    calls: list[int] = []
    facts = probed()
    assert facts == {
        "chat_template_sha256": sha256_bytes(b"template"),
        "server_build": "b1-abc",
        "same_seed_same_text": True,
        "other_seed_other_text": True,
    }
    assert probed(lambda seed: "always this")["other_seed_other_text"] is False

    def never_the_same(seed: int) -> str:
        calls.append(seed)
        return str(len(calls))

    assert probed(never_the_same)["same_seed_same_text"] is False


@pytest.mark.parametrize("properties", [[], {}, None, {"build_info": "b1"}])
def test_a_server_without_properties_is_not_the_one_that_was_started(properties: Any) -> None:
    with pytest.raises(BackendUnavailable) as unavailable:
        probed(properties=properties)
    assert unavailable.value.code == "server_changed"


def test_a_server_that_gives_no_build_is_unknown_in_that() -> None:
    assert probed(properties={"chat_template": "template"})["server_build"] is None


def facts_after(files: SubjectFiles, change: Callable[[], None]) -> Any:
    async def work(opened: Opened) -> Any:
        backend = local()
        pinned = {**backend._check_files(files), **await backend.probe(opened)}
        change()
        return pinned, dict(await backend.facts_after(files, Opened(opened.base_url, {}, pinned)))

    return probed(work=work)


def test_nothing_changed_is_no_other_fact(files_of_mine: SubjectFiles) -> None:
    pinned, after = facts_after(files_of_mine, lambda: None)

    assert pinned == after


@pytest.mark.parametrize("which", ["base", "adapter"])
@pytest.mark.parametrize("limit", [1 << 30, 1], ids=["small", "large"])
def test_a_file_that_was_exchanged_under_the_server_is_another_fact(
    files_of_mine: SubjectFiles, which: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_cpp, "HASH_AGAIN_BYTES", limit)
    path = Path(str(getattr(files_of_mine, f"{which}_path")))

    pinned, after = facts_after(files_of_mine, lambda: path.write_bytes(b"GGUF other"))

    assert {name for name in pinned if pinned[name] != after[name]} == {f"{which}_sha256"}
    assert after[f"{which}_sha256"] == sha256_bytes(b"GGUF other")


def test_a_small_file_is_read_again_even_where_its_time_was_put_back(files_of_mine: SubjectFiles) -> None:
    path = Path(str(files_of_mine.base_path))

    def exchange() -> None:
        before = path.stat()
        path.write_bytes(b"GGUF b@se")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    pinned, after = facts_after(files_of_mine, exchange)

    assert pinned["base_sha256"] != after["base_sha256"]


def test_a_large_file_that_nobody_touched_is_not_read_again(
    files_of_mine: SubjectFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_cpp, "HASH_AGAIN_BYTES", 1)

    def no_more_reading() -> None:
        monkeypatch.setattr(llama_cpp, "sha256_file", None)

    pinned, after = facts_after(files_of_mine, no_more_reading)

    assert pinned == after


def test_a_file_that_is_gone_is_another_fact(files_of_mine: SubjectFiles) -> None:
    _, after = facts_after(files_of_mine, lambda: os.unlink(str(files_of_mine.base_path)))

    assert after["base_sha256"] is None


# configuration


def test_tool_calling_is_off_unless_it_is_asked_for() -> None:
    assert not local().native_tools
    assert request_of(local(tool_calling="native"), tools=TOOLS, messages=QUESTION).body


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"tool_calling": "maybe"}, "config.tool_calling"),
        ({"stream": True}, "config.stream"),
        ({"extra_body": {}}, "config.extra_body"),
    ],
)
def test_a_setting_that_it_has_not_is_refused(config: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_config("llama_cpp", config)
    assert refused.value.field == field
