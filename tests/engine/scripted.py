"""A model provider on loopback that answers what a test says and remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from django.db import connections


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as the server saw it: the `nth` one for the case with this key."""

    number: int
    case: str
    nth: int
    body: bytes
    headers: dict[str, str]
    at: float

    @property
    def right_answer(self) -> str:
        return asked(self.body).split("|", 1)[1]


def asked(body: bytes) -> str:
    """What the last user message of a request says."""
    messages = json.loads(body)["messages"]
    return str(next(message["content"] for message in reversed(messages) if message["role"] == "user"))


@dataclass(frozen=True, slots=True)
class Reply:
    """After `cut_after` bytes the connection is closed; `hang` waits for `Provider.release` first."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    hang: bool = False


def completion(text: str | None, *, finish_reason: str = "stop", usage: Any = "known", **more: Any) -> bytes:
    document: dict[str, Any] = {
        "id": "resp-1",
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}],
        **more,
    }
    if usage == "known":
        usage = {"prompt_tokens": 11, "completion_tokens": 5}
    if usage is not None:
        document["usage"] = usage
    return json.dumps(document).encode()


def tool_calls(*calls: tuple[str, Any], usage: Any = "known") -> bytes:
    """An answer that calls tools: (name, arguments as an object or as the text the model wrote)."""
    wanted = [
        {
            "id": f"call-{number}",
            "type": "function",
            "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
        }
        for number, (name, given) in enumerate(calls)
    ]
    document = json.loads(completion(None, finish_reason="tool_calls", usage=usage))
    document["choices"][0]["message"]["tool_calls"] = wanted
    return json.dumps(document).encode()


def right(seen: Seen) -> Reply:
    return Reply(completion(seen.right_answer))


Answer = Callable[[Seen], Reply]


class Provider:
    """`answer` may be replaced at any time. It runs in a thread, so it may look into the database."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.seen: list[Seen] = []
        self.url = ""
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._gate = asyncio.Event()

    def release(self) -> None:
        """Let the replies that hang go on."""
        self._loop.call_soon_threadsafe(self._gate.set)

    def wait_for(self, number: int, *, timeout_s: float = 20) -> None:
        """Until the server has seen `number` requests."""
        deadline = time.monotonic() + timeout_s
        while len(self.seen) < number:
            assert time.monotonic() < deadline, f"{len(self.seen)} of {number} requests came"
            time.sleep(0.01)

    def requests_of(self, case: str) -> list[Seen]:
        return [seen for seen in self.seen if seen.case == case]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        with self._lock:
            case = asked(body).split("|", 1)[0]
            nth = len(self.requests_of(case)) + 1
            seen = Seen(len(self.seen) + 1, case, nth, body, dict(request.headers), time.monotonic())
            self.seen.append(seen)
        reply = await asyncio.to_thread(self._ask, seen)
        if reply.hang:
            await self._gate.wait()
        if reply.cut_after is None:
            return web.Response(body=reply.body, status=reply.status, headers=reply.headers)
        length = {"Content-Length": str(len(reply.body))}
        response = web.StreamResponse(status=reply.status, headers={**reply.headers, **length})
        await response.prepare(request)
        await response.write(reply.body[: reply.cut_after])
        assert request.transport is not None
        request.transport.close()
        return response

    def _ask(self, seen: Seen) -> Reply:
        try:
            return self.answer(seen)
        finally:
            connections.close_all()

    async def _serve(self, started: threading.Event) -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/chat/completions", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}/v1"
        self._end = asyncio.Event()
        started.set()
        await self._end.wait()
        self._gate.set()
        await runner.cleanup()

    @contextmanager
    def running(self) -> Iterator[Provider]:
        started = threading.Event()
        thread = threading.Thread(
            target=lambda: self._loop.run_until_complete(self._serve(started)), daemon=True
        )
        thread.start()
        assert started.wait(10)
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._end.set)
            thread.join(10)
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


def refusing_url() -> str:
    """An address at which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/v1"
