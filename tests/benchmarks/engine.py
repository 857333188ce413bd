"""Eval throughput of one worker beside a bare aiohttp loop that stores nothing: same provider, same minute.

    python -m tests.benchmarks.engine --rollouts 4000

Prints rollouts a second, their ratio, and how the database grew. Uses DATABASE_URL, or SQLite in a folder of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp

PROMPT = "You decide how to handle a request. Reply with one JSON object. " * 8


@contextmanager
def provider(delay_s: float) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.provider", str(delay_s)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.kill()
        process.wait()


async def bare_loop(url: str, total: int, concurrency: int) -> float:
    """Rollouts a second of a loop that builds a request, posts it and parses the answer."""
    numbers = iter(range(total))

    async def worker(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            body = json.dumps({"messages": messages(number), "temperature": 0, "max_tokens": 80}).encode()
            async with session.post(f"{url}/chat/completions", data=body) as response:
                json.loads(await response.read())

    start = time.perf_counter()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(worker(session) for _ in range(concurrency)))
    return total / (time.perf_counter() - start)


def messages(number: int) -> list[dict[str, str]]:
    return [{"role": "system", "content": PROMPT}, {"role": "user", "content": f"Request number {number}."}]


def make_run(url: str, total: int, concurrency: int) -> int:
    from django.contrib.auth.models import Group, User

    from promotion.services import people
    from rollouts.services import backends, runs, subjects, suites

    people.ensure_roles()
    name = f"bench-{time.time_ns()}"
    user = User.objects.create(username=name)
    user.groups.add(Group.objects.get(name="engineer"))
    rows = (
        {
            "example_id": f"{name}-{number}",
            "family": "bench",
            "messages": messages(number),
            "tools": ["play_song"],
            "expected": {"decision": "no_tool"},
        }
        for number in range(total)
    )
    suite = suites.seal(name=name, data="\n".join(map(json.dumps, rows)).encode(), by=user)
    backend = backends.save(
        name=name, kind="openai_compatible", config={"base_url": url}, by=user, concurrency=concurrency
    )
    subject = subjects.remote_subject(
        model=name, backend_name=backend.name, sampling={"temperature": 0, "max_tokens": 80}
    )
    start = time.perf_counter()
    run = runs.plan(subject=subject, suite=suite, backend=backend, by=user)
    print(f"planned {total} rollouts in {time.perf_counter() - start:.2f} s")
    return run.pk


def database_bytes() -> int:
    from django.conf import settings
    from django.db import connection

    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_database_size(current_database())")
            return int(cursor.fetchone()[0])
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return os.path.getsize(settings.DATABASES["default"]["NAME"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollouts", type=int, default=4000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--delay-s", type=float, default=0.05)
    options = parser.parse_args()
    os.environ.setdefault("ASSAY_VAR", tempfile.mkdtemp(prefix="assay-bench-"))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "promotion.settings")
    os.environ["ASSAY_SHARD_SECONDS"] = "600"
    import django

    django.setup()
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connection

    settings.SHARD_SECONDS = 100_000
    call_command("migrate", verbosity=0)
    from rollouts.services import runs

    with provider(options.delay_s) as url:
        run_id = make_run(url, options.rollouts, options.concurrency)
        before = database_bytes()
        bare = asyncio.run(bare_loop(url, options.rollouts, options.concurrency))
        start = time.perf_counter()
        done = runs.work_shard(run_id)
        ours = done / (time.perf_counter() - start)
        bare = (bare + asyncio.run(bare_loop(url, options.rollouts, options.concurrency))) / 2
    growth = (database_bytes() - before) / options.rollouts
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"database {connection.vendor}, {options.concurrency} in flight, answers after {options.delay_s * 1000:.0f} ms"
    )
    print(f"bare aiohttp loop {bare:8.0f} rollouts/s")
    print(f"Assay, one worker {ours:8.0f} rollouts/s = {ours / bare:.0%} of it")
    print(f"database growth {growth:.0f} bytes a rollout; peak memory {peak:.0f} MiB")


if __name__ == "__main__":
    main()
