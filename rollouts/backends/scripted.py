"""Replays a recorded transcript: a server on loopback answers what was recorded, over the code path of real providers."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

from aiohttp import web
from pydantic import BaseModel, Field

from rollouts.backends.base import BackendUnavailable, Independence, Opened, SubjectFiles, backend
from rollouts.backends.chat import ChatBackend, ChatConfig
from rollouts.backends.transcript import Reply, Row, Transcript, parse_transcript
from rollouts.errors import InvalidInput
from rollouts.hashing import sha256_bytes

MAX_REQUEST_BYTES = 64 << 20
STOP_S = 0.1


class ScriptedConfig(ChatConfig):
    """`transcript_sha256` is a stored transcript. `send_model` false leaves the model out of requests, as a local
    model's run does: then rows that such a run exported match.
    """

    transcript_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    sampling: Independence = "unknown"
    send_model: bool = True


@backend
class Scripted(ChatBackend):
    """Each `open` begins at the first replies again, so each shard does: what a row gave is counted per server."""

    kind = "scripted"
    config_model: ClassVar[type[BaseModel]] = ScriptedConfig
    exclusive = True  # two servers at once would both give the first reply

    @property
    def scripted(self) -> ScriptedConfig:
        assert isinstance(self.config, ScriptedConfig)
        return self.config

    @property
    def transcript_sha256(self) -> str:
        return self.scripted.transcript_sha256

    def wire_model(self, remote_model: str) -> str:
        return remote_model if self.scripted.send_model else ""

    @asynccontextmanager
    async def open(self, files: SubjectFiles) -> AsyncIterator[Opened]:
        transcript = await asyncio.to_thread(self._load, files.transcript_path)
        key = secrets.token_urlsafe(32)
        app = web.Application(client_max_size=MAX_REQUEST_BYTES)
        app.router.add_post("/v1/chat/completions", _Replay(transcript, key).handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOP_S)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
            except OSError as error:
                raise BackendUnavailable(
                    "start_failed", f"The transcript cannot be served on loopback: {error}"
                ) from error
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
            facts = {
                "server": "scripted",
                "transcript_sha256": self.transcript_sha256,
                "model": files.remote_model,
            }
            yield Opened(url, {"Authorization": f"Bearer {key}"}, facts)
        finally:
            await runner.cleanup()

    def _load(self, path: str | None) -> Transcript:
        try:
            data = Path(path).read_bytes() if path is not None else None
        except OSError as error:
            raise BackendUnavailable(
                "file_missing", f"The transcript cannot be read: {error.strerror}"
            ) from error
        if data is None:
            raise BackendUnavailable(
                "file_missing", "The transcript is not there. Save it with save_transcript."
            )
        if sha256_bytes(data) != self.transcript_sha256:
            raise BackendUnavailable(
                "file_changed",
                f"The stored file {self.transcript_sha256} holds other bytes now. Restore it from a backup.",
            )
        try:
            return parse_transcript(data)
        except InvalidInput as error:
            raise BackendUnavailable("config", f"The transcript cannot be used. {error.message}") from error


class _Replay:
    """The server's one handler. It counts what each row gave; it runs on one loop, so nothing else counts meanwhile."""

    def __init__(self, transcript: Transcript, key: str) -> None:
        self._transcript = transcript
        self._authorization = f"Bearer {key}"
        self._given: Counter[int] = Counter()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not secrets.compare_digest(given, self._authorization.encode()):
            return _error(401, "This server answers only the run that started it.")
        body = await request.read()
        row = self._transcript.row_for(body)
        if row is None:
            return _error(404, f"No row of the transcript is for the request {sha256_bytes(body)}.")
        reply = self._next(row)
        if reply is None:
            return _error(
                404, f"The {len(row.replies)} replies of line {row.line} of the transcript are used up."
            )
        if reply.delay_ms:
            await asyncio.sleep(reply.delay_ms / 1000)
        return await _send(request, reply)

    def _next(self, row: Row) -> Reply | None:
        given = self._given[row.line]
        if given == len(row.replies):
            return None
        self._given[row.line] += 1
        return row.replies[given]


async def _send(request: web.Request, reply: Reply) -> web.StreamResponse:
    headers = {"Content-Type": "application/json"}
    if any(name.lower() == "content-type" for name in reply.headers):
        headers.clear()
    headers |= reply.headers
    if not reply.drop and reply.cut_after is None:
        return web.Response(body=reply.body, status=reply.status, headers=headers)
    response = web.StreamResponse(
        status=reply.status, headers={**headers, "Content-Length": str(len(reply.body))}
    )
    if not reply.drop:
        await response.prepare(request)
        await response.write(reply.body[: reply.cut_after])
    if request.transport is not None:
        request.transport.close()
    return response


def _error(status: int, message: str) -> web.Response:
    return web.Response(
        status=status, text=json.dumps({"error": {"message": message}}), content_type="application/json"
    )
