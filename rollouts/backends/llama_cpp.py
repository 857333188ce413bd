"""llama.cpp's own HTTP server (xllamacpp) in a supervised child process, for a base GGUF and an adapter GGUF."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import os
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, ClassVar, Literal, NamedTuple

import aiohttp
from pydantic import BaseModel, Field

from rollouts.backends.base import BackendUnavailable, Config, Opened, SubjectFiles, backend
from rollouts.backends.chat import ChatBackend, ChatConfig
from rollouts.hashing import sha256_file

START_TIMEOUT_S = 120
PROBE_TIMEOUT_S = 120
# The text goes on in countless ways, and nothing narrows the choice: equal texts mean equal random numbers.
PROBE = {
    "prompt": "Once upon a time",
    "n_predict": 8,
    "temperature": 1,
    "top_k": 0,
    "top_p": 1,
    "min_p": 0,
    "cache_prompt": False,
}
PROBE_SEEDS = (1, 1, 2)
# Larger files are hashed again after a shard only where size, time or inode changed.
HASH_AGAIN_BYTES = 1 << 30
INSTALL = "Install it with: pip install 'assay[local]' (or pip install xllamacpp)"


class LlamaCppConfig(Config):
    """`parallel` is the number of slots, each with `context` tokens.

    One thread by default: llama.cpp's threads wait for each other by spinning, so beside any other load two of them
    are up to fifty times slower than one. Several runs at once use several cores without that.

    `tool_calling`: most small models have a chat template without tools.
    """

    context: int = Field(2048, ge=128, le=1 << 20)
    parallel: int = Field(1, ge=1, le=64)
    threads: int = Field(1, ge=1, le=256)
    tool_calling: Literal["native", "none"] = "none"


class _Stat(NamedTuple):
    size: int
    mtime_ns: int
    inode: int


@backend
class LlamaCpp(ChatBackend):
    kind = "llama_cpp"
    config_model: ClassVar[type[BaseModel]] = LlamaCppConfig
    exclusive = True
    serves_files = True

    def __init__(self, config: BaseModel, *, key: str | None) -> None:
        super().__init__(config, key=key)
        self._chat = ChatConfig(tool_calling=self.llama.tool_calling)
        self._stats: dict[str, _Stat] = {}

    @property
    def llama(self) -> LlamaCppConfig:
        assert isinstance(self.config, LlamaCppConfig)
        return self.config

    @property
    def chat(self) -> ChatConfig:
        return self._chat

    @asynccontextmanager
    async def open(self, files: SubjectFiles) -> AsyncIterator[Opened]:
        facts = await asyncio.to_thread(self._check_files, files)
        key = secrets.token_urlsafe(32)
        with tempfile.TemporaryFile() as log:
            process = await self._spawn(files, key, log)
            try:
                url = await self._wait_ready(process, log)
                opened = Opened(f"{url}/v1", {"Authorization": f"Bearer {key}"})
                facts |= await self.probe(opened)
                if facts["chat_template_sha256"] != files.chat_template_sha256:
                    raise BackendUnavailable(
                        "server_changed",
                        "The server uses another chat template than the base model was registered with.",
                    )
                yield Opened(opened.base_url, opened.headers, facts, process.pid)
            finally:
                await _stop(process)

    async def facts_after(self, files: SubjectFiles, opened: Opened) -> Mapping[str, Any]:
        """Asks the server again, and looks whether the files still hold what it was started on."""
        digests = await asyncio.to_thread(self._digests_now, files)
        return {**opened.facts, **digests, **await self.probe(opened)}

    async def probe(self, opened: Opened) -> dict[str, Any]:
        """What the server says of itself, and whether its seeds do what seeds should. Raises `BackendUnavailable`.

        The texts stay out: another processor gives other ones. On the model of the demo it takes 0.8 s.
        """
        root = opened.base_url.removesuffix("/v1")
        timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
        try:
            async with aiohttp.ClientSession(headers=opened.headers, timeout=timeout) as session:
                async with session.get(f"{root}/props", raise_for_status=True) as response:
                    properties = await response.json()
                texts = [await _probe_text(session, root, seed) for seed in PROBE_SEEDS]
            template, build = str(properties["chat_template"]), properties.get("build_info")
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError) as error:
            raise BackendUnavailable(
                "server_gone", f"The model server does not answer: {type(error).__name__}: {error}"
            ) from error
        except (aiohttp.ClientError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise BackendUnavailable(
                "server_changed",
                f"What answers is no llama.cpp server that we started: {type(error).__name__}: {error}",
            ) from error
        return {
            "chat_template_sha256": hashlib.sha256(template.encode()).hexdigest(),
            "server_build": build if isinstance(build, str) else None,
            "same_seed_same_text": texts[0] == texts[1],
            "other_seed_other_text": texts[0] != texts[2],
        }

    def _check_files(self, files: SubjectFiles) -> dict[str, Any]:
        if importlib.util.find_spec("xllamacpp") is None:
            raise BackendUnavailable("not_installed", f"The local model server is not installed. {INSTALL}")
        if files.base_path is None:
            raise BackendUnavailable(
                "config", "llama_cpp serves registered base models; this subject is remote."
            )
        for path, expected in (
            (files.base_path, files.base_sha256),
            (files.adapter_path, files.adapter_sha256),
        ):
            if path is None:
                continue
            self._stats[path] = _stat(path)  # before the hash: a change while it is taken is seen as one
            if sha256_file(Path(path)) != expected:
                raise BackendUnavailable(
                    "file_changed",
                    f"The stored file {expected} holds other bytes now. Restore it from a backup.",
                )
        return {
            "server": "llama.cpp",
            "build": f"xllamacpp {version('xllamacpp')}",
            "base_sha256": files.base_sha256,
            "adapter_sha256": files.adapter_sha256,
            # without what has its default, so that a new option does not part new runs from old ones
            "config": {
                "context": self.llama.context,
                "parallel": self.llama.parallel,
                **({"tool_calling": "native"} if self.native_tools else {}),
            },
        }

    def _digests_now(self, files: SubjectFiles) -> dict[str, Any]:
        return {
            "base_sha256": self._digest_now(files.base_path, files.base_sha256),
            "adapter_sha256": self._digest_now(files.adapter_path, files.adapter_sha256),
        }

    def _digest_now(self, path: str | None, expected: str | None) -> str | None:
        """The digest of what the file holds now; None where it is gone."""
        if path is None:
            return None
        try:
            now = _stat(path)
            if now.size >= HASH_AGAIN_BYTES and now == self._stats.get(path):
                return expected
            return sha256_file(Path(path))
        except OSError:
            return None

    async def _spawn(self, files: SubjectFiles, key: str, log: IO[bytes]) -> asyncio.subprocess.Process:
        options = {
            "base": files.base_path,
            "adapter": files.adapter_path,
            "key": key,
            "context": self.llama.context * self.llama.parallel,
            "parallel": self.llama.parallel,
            "threads": self.llama.threads,
            "parent": os.getpid(),
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "rollouts.backends.llama_server",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            cwd=Path(__file__).resolve().parents[2],
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(options).encode() + b"\n")
        await process.stdin.drain()
        return process

    async def _wait_ready(self, process: asyncio.subprocess.Process, log: IO[bytes]) -> str:
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_S)
        except TimeoutError as error:
            raise BackendUnavailable(
                "start_timeout", f"The model server did not start in {START_TIMEOUT_S} s."
            ) from error
        if not line:
            await process.wait()
            raise BackendUnavailable(
                "start_failed",
                f"The model server ended with {process.returncode} while it loaded. It said: {_tail(log)}",
            )
        return str(json.loads(line)["url"])


def _tail(log: IO[bytes]) -> str:
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - 2000))
    lines = log.read().decode("utf-8", "replace").strip().splitlines()
    return " | ".join(line for line in lines if line.strip())[-1200:] or "nothing"


def _stat(path: str) -> _Stat:
    found = os.stat(path)
    return _Stat(found.st_size, found.st_mtime_ns, found.st_ino)


async def _probe_text(session: aiohttp.ClientSession, root: str, seed: int) -> str:
    async with session.post(
        f"{root}/completion", json={**PROBE, "seed": seed}, raise_for_status=True
    ) as response:
        return str((await response.json())["content"])


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        assert process.stdin is not None
        process.stdin.close()  # the child ends when its standard input does
        try:
            await asyncio.wait_for(process.wait(), 5)
        except TimeoutError:
            process.kill()
            await process.wait()
