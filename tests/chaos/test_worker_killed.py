"""kill -9 of a real worker in the middle of a run, twice, with the next one finishing it."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit, urlunsplit

import psutil
import pytest

from rollouts.hashing import sha256_bytes
from tests.engine.scripted import Provider, Reply, Seen, right

pytestmark = pytest.mark.chaos
ROOT = Path(__file__).resolve().parents[2]
CHAOS_DATABASE = "assay_chaos"
CHAOS_REDIS = "/15"
CASES = 120
WORKER = [
    "-m",
    "celery",
    "-A",
    "promotion",
    "worker",
    "-B",
    "--concurrency=2",
    "--without-gossip",
    "--without-mingle",
]


def _elsewhere(url: str, path: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=path))


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Var folder, database and broker of the test's own: embedded, or on the real servers that are named."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ASSAY_")}
    values = {
        **kept,
        "ASSAY_VAR": str(tmp_path / "var"),
        "ASSAY_LEASE_SECONDS": "3",
        "ASSAY_SWEEP_SECONDS": "1",
        "ASSAY_SHARD_SECONDS": "5",
        "PYTHONWARNINGS": "ignore",
    }
    broker = database = None
    if redis_url := os.environ.get("REDIS_URL"):
        import redis

        values["REDIS_URL"] = _elsewhere(redis_url, CHAOS_REDIS)
        broker = redis.Redis.from_url(values["REDIS_URL"])
        assert broker.dbsize() == 0, f"{values['REDIS_URL']} is in use; the chaos test needs it empty"
    if database_url := os.environ.get("DATABASE_URL"):
        import psycopg

        values["DATABASE_URL"] = _elsewhere(database_url, f"/{CHAOS_DATABASE}")
        database = psycopg.connect(database_url, autocommit=True)
        database.execute(f"DROP DATABASE IF EXISTS {CHAOS_DATABASE} WITH (FORCE)")
        database.execute(f"CREATE DATABASE {CHAOS_DATABASE}")
    try:
        run_python(values, "manage.py", "migrate", "--verbosity=0")
        yield values
    finally:
        if broker is not None:
            broker.flushdb()
            broker.close()
        if database is not None:
            database.execute(f"DROP DATABASE IF EXISTS {CHAOS_DATABASE} WITH (FORCE)")
            database.close()


def run_python(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def script(environment: dict[str, str], *arguments: str) -> Any:
    return json.loads(run_python(environment, "-m", "tests.chaos.plan_and_report", *arguments))


def state_of_the_run(environment: dict[str, str]) -> str:
    """Asked of the database itself: a process that starts Django takes seconds."""
    sql = "SELECT state FROM rollouts_evalrun"
    if "DATABASE_URL" in environment:
        import psycopg

        with psycopg.connect(environment["DATABASE_URL"]) as connection:
            return str(connection.execute(sql).fetchone()[0])
    connection = sqlite3.connect(Path(environment["ASSAY_VAR"]) / "assay.sqlite3", timeout=30)
    try:
        return str(connection.execute(sql).fetchone()[0])
    finally:
        connection.close()


def wait_until(condition: Callable[[], bool], what: str, *, timeout_s: float = 90) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not in {timeout_s} s"
        time.sleep(0.05)


class Worker:
    """A real worker with its pool and beat."""

    def __init__(self, environment: dict[str, str], log: IO[bytes]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *WORKER],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)

    def kill(self) -> None:
        """SIGKILL to the worker alone; its pool and beat must go by themselves."""
        family = psutil.Process(self._process.pid).children(recursive=True)
        assert family, "the worker has no pool"
        self._process.kill()
        self._process.wait(10)
        _, alive = psutil.wait_procs(family, timeout=10)
        assert alive == [], "processes outlived their worker"


def slow(seen: Seen) -> Reply:
    time.sleep(0.1)
    return right(seen)


def test_a_run_whose_worker_is_killed_twice_is_finished_by_the_next(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with Provider(slow).running() as provider, (tmp_path / "worker.log").open("ab") as log:
        script(environment, "plan", provider.url, str(CASES))
        for enough in (15, 55):
            with Worker(environment, log) as worker:
                provider.wait_for(enough, timeout_s=90)
                worker.kill()
        with Worker(environment, log):
            wait_until(lambda: state_of_the_run(environment) == "scored", "the run closed")
        found = script(environment, "report")

    assert found["counts"] == [CASES, CASES, 0, 0, 0]
    assert found["rollouts"] == {"scored": CASES}
    assert found["finished"] == {"1": CASES}  # no rollout was scored twice
    assert set(found["call_states"]) == {"answered", "lost"}
    assert 1 <= max(found["lost_workers"]) <= 2
    assert found["bad_event"] is None
    # each request that the provider saw has a row of its own, written before it was sent
    asked = Counter(sha256_bytes(seen.body) for seen in provider.seen)
    assert len(asked) == CASES
    assert all(found["calls"][digest] >= number for digest, number in asked.items())
