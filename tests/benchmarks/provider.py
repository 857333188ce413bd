"""A scripted provider: answers every chat completion after a fixed delay. Prints its port and serves until killed.

Each answer has an id of its own, as real ones have, so that no two of them are equal bytes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

START, END = (
    json.dumps(
        {
            "id": "chatcmpl-NUMBER",
            "object": "chat.completion",
            "created": 1767225600,
            "model": "scripted",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": '{"decision":"no_tool"}'},
                }
            ],
            "usage": {"prompt_tokens": 120, "completion_tokens": 8, "total_tokens": 128},
        }
    )
    .encode()
    .split(b"NUMBER")
)


@contextmanager
def running(delay_s: float) -> Iterator[str]:
    """The base URL of a provider in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.provider", str(delay_s)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.kill()
        process.wait()


async def main(delay_s: float) -> None:
    numbers = itertools.count()

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(delay_s)
        return web.Response(body=b"%b%d%b" % (START, next(numbers), END), content_type="application/json")

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
