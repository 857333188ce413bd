"""The loop that Assay is measured against: it builds a body, posts it, parses the answer, and stores nothing.

    python -m tests.benchmarks.bare URL TOTAL CONCURRENCY LOOP

Prints rollouts a second. LOOP is the class of the event loop, as `module.Name`: that which Assay's shards run on. The
client's settings are those of the shard runner, so what differs is Assay's own work.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from collections.abc import Callable

import aiohttp

from tests.benchmarks.house import SAMPLING, messages


async def bare_loop(url: str, total: int, concurrency: int) -> float:
    """Rollouts a second. Raises `aiohttp.ClientResponseError` for any answer but 200."""
    numbers = iter(range(total))

    async def worker(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            body = json.dumps({"model": "scripted", "messages": messages(number), **SAMPLING}).encode()
            async with session.post(f"{url}/chat/completions", data=body) as response:
                response.raise_for_status()
                answer = json.loads(await response.read())
                assert answer["choices"][0]["message"]["content"]

    start = time.perf_counter()
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        headers={"Content-Type": "application/json"},
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as session:
        await asyncio.gather(*(worker(session) for _ in range(concurrency)))
    return total / (time.perf_counter() - start)


def loop_class(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    module, _, attribute = name.rpartition(".")
    found: Callable[[], asyncio.AbstractEventLoop] = getattr(importlib.import_module(module), attribute)
    return found


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_class(sys.argv[4])) as runner:
        print(runner.run(bare_loop(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
