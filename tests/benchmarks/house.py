"""What the benchmarks share: places of their own, an Assay process that does as it is told, and Markdown tables.

Nothing here imports Django: the parent measures, and `tests.benchmarks.inside` runs Assay in a process of its own.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from rollouts.processes import die_with_parent

ROOT = Path(__file__).resolve().parents[2]
REDIS_DATABASE = "/14"
PROMPT = "You decide how to handle a request. Reply with one JSON object. " * 8
SAMPLING = {"temperature": 0, "max_tokens": 80}


def messages(number: int) -> list[dict[str, str]]:
    """The request of case `number`: the same for Assay, for the bare loop and for the peer."""
    return [{"role": "system", "content": PROMPT}, {"role": "user", "content": f"Request number {number}."}]


# places


@contextmanager
def place(*, postgres: str = "", redis: str = "", **settings: str) -> Iterator[dict[str, str]]:
    """The environment of an Assay of its own: a new var folder, and a new database and an empty Redis database
    on the servers that are named. What is set outside does not reach it.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ASSAY_") and name not in {"DATABASE_URL", "REDIS_URL"}
    }
    var = tempfile.mkdtemp(prefix="assay-bench-")
    environment = {
        **kept,
        "DJANGO_SETTINGS_MODULE": "promotion.settings",
        "PYTHONPATH": str(ROOT),
        "ASSAY_VAR": var,
        "ASSAY_LOG": "WARNING",
        **settings,
    }
    try:
        with _database(postgres) as database_url, _broker(redis) as redis_url:
            yield {**environment, **database_url, **redis_url}
    finally:
        shutil.rmtree(var, ignore_errors=True)


def postgres_url() -> str:
    """DATABASE_URL where it names PostgreSQL, else nothing."""
    url = os.environ.get("DATABASE_URL", "")
    return url if url.startswith("postgres") else ""


@contextmanager
def _database(url: str) -> Iterator[dict[str, str]]:
    if not url:
        yield {}
        return
    import psycopg

    name = f"assay_bench_{os.getpid()}"
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        server.execute(f"CREATE DATABASE {name}")
    try:
        yield {"DATABASE_URL": _elsewhere(url, f"/{name}")}
    finally:
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@contextmanager
def _broker(url: str) -> Iterator[dict[str, str]]:
    if not url:
        yield {}
        return
    import redis

    own = _elsewhere(url, REDIS_DATABASE)
    with redis.Redis.from_url(own) as broker:
        if broker.dbsize():
            raise SystemExit(
                f"Redis database {REDIS_DATABASE[1:]} is in use. The benchmark needs it empty, and empties it at its end."
            )
        try:
            yield {"REDIS_URL": own}
        finally:
            broker.flushdb()


def _elsewhere(url: str, path: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=path))


# the Assay process


class Warm(NamedTuple):
    database: str  # name and version
    loop: str  # class of the event loop that shards run on


class House:
    """A process of Assay's code in one place. Each method is a function of `tests.benchmarks.inside`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        parent = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.inside"],
            cwd=ROOT,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: die_with_parent(parent),
        )

    def __enter__(self) -> House:
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, verb: str, **arguments: Any) -> Any:
        """Raises `SystemExit` where the process ended instead of answering; its error is on the screen then."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([verb, arguments]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"Assay ended with {self._process.wait()} when asked to {verb}.")
        return json.loads(line)

    def warm_up(self, *, url: str, concurrency: int) -> Warm:
        """The tables, and a first, short run: connections and prepared code."""
        database = self.ask("migrate")["database"]
        rollouts = 4 * concurrency
        run = self.plan(url=url, rollouts=rollouts, concurrency=concurrency)["run"]
        return Warm(database, self.work(run, rollouts)["loop"])

    def plan(self, *, url: str, rollouts: int, concurrency: int) -> dict[str, Any]:
        """A new run of `rollouts` cases against the provider at `url`: its id, and what planning cost."""
        sealed = self.ask("seal", url=url, cases=rollouts, concurrency=concurrency)
        return dict(self.ask("plan", **sealed))

    def work(self, run: int, rollouts: int) -> dict[str, Any]:
        """Works on shards one after another until the run is closed: rollouts a second, the
        loop they ran on, and the process's highest memory.

        Raises `SystemExit` where not every rollout was scored and captured: then nothing was measured.
        """
        done, seconds = 0, 0.0
        while done < rollouts:
            shard = self.ask("shard", run=run)
            done, seconds = done + shard["done"], seconds + shard["seconds"]
            if not shard["done"]:
                break
        require_whole(self.ask("facts", run=run), rollouts)
        return {"rate": done / seconds, "loop": shard["loop"], "peak_bytes": shard["peak_bytes"]}


def require_whole(facts: Mapping[str, Any], rollouts: int) -> None:
    """Raises `SystemExit` where a run did not score and capture every rollout."""
    expected = {"state": "scored", "scored": rollouts, "answered": rollouts, "responses": rollouts}
    found = {name: facts[name] for name in expected}
    if found != expected:
        raise SystemExit(f"The run is not whole, so its rate means nothing: {found}, expected {expected}.")


def bare_rate(*, url: str, rollouts: int, concurrency: int, loop: str) -> float:
    """Rollouts a second of the loop that stores nothing, in a process of its own, on the same kind of event loop."""
    command = [
        *(sys.executable, "-m", "tests.benchmarks.bare"),
        *(url, str(rollouts), str(concurrency), loop),
    ]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout)


# what is printed


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [list(head), ["---"] * len(head), *map(list, rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def middle(values: Sequence[float], form: str = ".0f") -> str:
    """Median and, of several values, the range: `1150 (1120 to 1180)`."""
    text = format(statistics.median(values), form)
    if len(values) > 1:
        text += f" ({min(values):{form}} to {max(values):{form}})"
    return text


def machine() -> str:
    """One line on what the numbers were measured on. Load is that of the minute before."""
    load = os.getloadavg()[0]
    cores = len(os.sched_getaffinity(0))
    libraries = ", ".join(f"{name} {version(name)}" for name in ("Django", "aiohttp", "celery"))
    line = f"{_processor()}, {cores} cores; Python {platform.python_version()}, {libraries}; load before {load:.1f}"
    return line + (" (busy: measure again on a quiet machine)" if load > cores / 4 else "")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def mebibytes(size_bytes: float) -> str:
    return f"{size_bytes / (1 << 20):.0f} MiB"
