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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, ClassVar

import aiohttp
from pydantic import Field

from rollouts.backends.base import BackendUnavailable, Config, Opened, SubjectFiles, backend
from rollouts.backends.openai_compatible import OpenAICompatible
from rollouts.hashing import sha256_file

START_TIMEOUT_S = 120
INSTALL = "Install it with: pip install 'assay[local]' (or pip install xllamacpp)"


class LlamaCppConfig(Config):
    """`parallel` is the number of slots, each with `context` tokens.

    One thread by default: llama.cpp's threads wait for each other by spinning, so beside any other load two of them
    are up to fifty times slower than one. Several runs at once use several cores without that.
    """

    context: int = Field(2048, ge=128, le=1 << 20)
    parallel: int = Field(1, ge=1, le=64)
    threads: int = Field(1, ge=1, le=256)


@backend
class LlamaCpp(OpenAICompatible):
    kind = "llama_cpp"
    config_model: ClassVar[type[Config]] = LlamaCppConfig
    exclusive = True
    serves_files = True

    @asynccontextmanager
    async def open(self, files: SubjectFiles) -> AsyncIterator[Opened]:
        facts = await asyncio.to_thread(self._check_files, files)
        key = secrets.token_urlsafe(32)
        with tempfile.TemporaryFile() as log:
            process = await self._spawn(files, key, log)
            try:
                url = await self._wait_ready(process, log)
                template = await _chat_template(url, key)
                facts["chat_template_sha256"] = hashlib.sha256(template.encode()).hexdigest()
                if facts["chat_template_sha256"] != files.chat_template_sha256:
                    raise BackendUnavailable(
                        "server_changed",
                        "The server uses another chat template than the base model was registered with.",
                    )
                yield Opened(f"{url}/v1", {"Authorization": f"Bearer {key}"}, facts)
            finally:
                await _stop(process)

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
            if path is not None and sha256_file(Path(path)) != expected:
                raise BackendUnavailable(
                    "file_changed",
                    f"The stored file {expected} holds other bytes now. Restore it from a backup.",
                )
        return {
            "server": "llama.cpp",
            "build": f"xllamacpp {version('xllamacpp')}",
            "base_sha256": files.base_sha256,
            "adapter_sha256": files.adapter_sha256,
            "config": self.config.model_dump(exclude={"threads"}),
        }

    async def _spawn(self, files: SubjectFiles, key: str, log: IO[bytes]) -> asyncio.subprocess.Process:
        assert isinstance(self.config, LlamaCppConfig)
        options = {
            "base": files.base_path,
            "adapter": files.adapter_path,
            "key": key,
            "context": self.config.context * self.config.parallel,
            "parallel": self.config.parallel,
            "threads": self.config.threads,
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


async def _chat_template(url: str, key: str) -> str:
    try:
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session,
            session.get(f"{url}/props", timeout=aiohttp.ClientTimeout(total=30)) as response,
        ):
            return str((await response.json())["chat_template"])
    except (aiohttp.ClientError, KeyError, ValueError, TimeoutError) as error:
        raise BackendUnavailable("start_failed", f"The model server gives no properties: {error}") from error


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        assert process.stdin is not None
        process.stdin.close()  # the child ends when its standard input does
        try:
            await asyncio.wait_for(process.wait(), 5)
        except TimeoutError:
            process.kill()
            await process.wait()
