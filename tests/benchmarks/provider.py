"""A scripted provider: answers every chat completion after a fixed delay. Prints its port and serves until killed."""

from __future__ import annotations

import asyncio
import json
import sys

from aiohttp import web

ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": '{"decision":"no_tool"}'},
            }
        ],
        "usage": {"prompt_tokens": 120, "completion_tokens": 8},
    }
).encode()


async def main(delay_s: float) -> None:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(delay_s)
        return web.Response(body=ANSWER, content_type="application/json")

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    print(site._server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
