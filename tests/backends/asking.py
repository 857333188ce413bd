"""Asks a backend as a shard does: real HTTP on loopback, and what a status means."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from rollouts.backends.base import Backend, Completion, Opened, ProviderRequest
from rollouts.failures import CallFailed

TOOLS = [
    {"name": "files.read", "description": "Reads a file.", "parameters": {"type": "object"}},
    {"name": "stop", "description": "", "parameters": {}},
]
QUESTION = [{"role": "system", "content": "Decide."}, {"role": "user", "content": "What now?"}]


@dataclass(slots=True)
class Seen:
    """What a provider on loopback was asked."""

    url: str = ""
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)


def answer(text: str | None, **message: Any) -> bytes:
    """A chat completion with a finish reason and usage."""
    return json.dumps(
        {
            "id": "r1",
            "choices": [
                {"message": {"role": "assistant", "content": text, **message}, "finish_reason": "stop"}
            ],
            "usage": {"prompt_tokens": 11, "completion_tokens": 5},
        }
    ).encode()


@asynccontextmanager
async def provider(
    reply: Callable[[int], bytes] = lambda number: answer(f"answer {number}"),
) -> AsyncIterator[Seen]:
    """A provider that answers the nth request (from 1) with `reply(n)`, whatever the path."""
    seen = Seen()

    async def handle(request: web.Request) -> web.Response:
        seen.paths.append(request.path_qs)
        seen.headers.append(dict(request.headers))
        seen.bodies.append(await request.json())
        return web.Response(body=reply(len(seen.bodies)))

    app = web.Application()
    app.router.add_post("/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    seen.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield seen
    finally:
        await runner.cleanup()


def request_of(
    backend: Backend,
    index: int = 0,
    *,
    tools: Any = None,
    temperature: float = 1,
    model: str = "m",
    **more: Any,
) -> ProviderRequest:
    return backend.request(
        messages=more.pop("messages", QUESTION),
        sampling={"temperature": temperature, "max_tokens": 64, **more},
        sample_index=index,
        remote_model=model,
        tools=tools,
    )


async def send(opened: Opened, request: ProviderRequest) -> tuple[int, bytes]:
    async with (
        aiohttp.ClientSession(headers={"Content-Type": "application/json", **opened.headers}) as session,
        session.post(opened.base_url + request.path, data=request.body) as response,
    ):
        return response.status, await response.read()


async def ask(backend: Backend, opened: Opened, request: ProviderRequest) -> Completion:
    """Raises `CallFailed` for another status than 200, and as the backend."""
    if not backend.speaks_http:
        return backend.read(await backend.call(request))
    status, body = await send(opened, request)
    if status != 200:
        raise CallFailed("bad_request", f"HTTP {status}: {body.decode()}")
    return backend.read(body)
