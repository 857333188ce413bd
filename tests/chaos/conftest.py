"""An installation of a test's own: var folder, database, broker, real workers, and what is found in the end."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psutil
import pytest

from rollouts.hashing import sha256_bytes
from rollouts.processes import die_with_parent
from tests.engine.scripted import Answer, Provider

ROOT = Path(__file__).resolve().parents[2]
CHAOS_DATABASE, CHAOS_TEMPLATE = "assay_chaos", "assay_chaos_template"
CHAOS_REDIS = "/15"
AT_ONCE = 64  # answers that the provider thinks about at the same time


class Installation:
    """Assay with its own var folder. Without addresses it is the embedded one: SQLite and the filesystem broker."""

    def __init__(self, folder: Path, *, database_url: str = "", redis_url: str = "") -> None:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("ASSAY_") and name not in ("DATABASE_URL", "REDIS_URL")
        }
        self.folder = folder
        self.environment = {
            **kept,
            "ASSAY_VAR": str(folder / "var"),
            "ASSAY_LEASE_SECONDS": "3",
            "ASSAY_SWEEP_SECONDS": "1",
            "ASSAY_SHARD_SECONDS": "5",
            "PYTHONWARNINGS": "ignore",
        }
        if database_url:
            self.environment["DATABASE_URL"] = database_url
        if redis_url:
            self.environment["REDIS_URL"] = redis_url
        self._database: Any = None
        self._numbers = itertools.count(1)

    def python(self, *arguments: str) -> str:
        """What a Python process under the installation's settings printed."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def script(self, verb: str, *arguments: Any) -> Any:
        return json.loads(self.python("-m", "tests.chaos.plan_and_report", verb, *map(str, arguments)))

    def plan(self, provider: Provider, cases: int, *, concurrency: int = 4) -> int:
        """The id of a run of `cases` rollouts that was planned and sent to the broker."""
        return int(self.script("plan", provider.url, cases, concurrency)["run"])

    def send(self, run_id: int, times: int) -> None:
        """Messages to look at a run, more than the services send. On Redis."""
        from kombu import Connection

        from rollouts.tasks import work_shard

        with Connection(self.environment["REDIS_URL"]) as connection:
            for _ in range(times):
                work_shard.apply_async((run_id,), connection=connection)

    def ask(self, sql: str) -> list[Any]:
        """Rows as the database has them now; the first column alone where there is no other.

        Asked of the database itself: a process that starts Django takes seconds.
        """
        if self._database is None:
            if "DATABASE_URL" in self.environment:
                import psycopg

                self._database = psycopg.connect(self.environment["DATABASE_URL"], autocommit=True)
            else:
                path = Path(self.environment["ASSAY_VAR"]) / "assay.sqlite3"
                self._database = sqlite3.connect(path, timeout=30, isolation_level=None)
        rows = self._database.execute(sql).fetchall()
        return [row[0] if len(row) == 1 else row for row in rows]

    def state(self) -> str:
        """Of the one run there is."""
        return str(self.ask("SELECT state FROM rollouts_evalrun")[0])

    def pids_at_work(self) -> list[int]:
        """Processes, living or dead, that hold a claim."""
        workers = self.ask("SELECT worker FROM rollouts_claim WHERE ended_at IS NULL ORDER BY id")
        return [pid_of(worker) for worker in workers]

    def pids_that_finished(self) -> set[int]:
        """Processes that have finished an invocation."""
        workers = self.ask(
            "SELECT DISTINCT c.worker FROM rollouts_claim c "
            "JOIN rollouts_invocation i ON i.claim_id = c.id WHERE i.state = 'finished'"
        )
        return {pid_of(worker) for worker in workers}

    def worker(self, *, beat: bool = True, processes: int = 1) -> Worker:
        return Worker(self, next(self._numbers), beat=beat, processes=processes)

    def wait_until_scored(self, *, timeout_s: float = 90) -> None:
        """Until the run is closed and no claim is open; the claim of a killed worker outlives its run by a lease."""
        wait_until(lambda: self.state() == "scored", "the run closed", timeout_s=timeout_s)
        wait_until(lambda: self.pids_at_work() == [], "every claim ended", timeout_s=15)

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def pid_of(worker: str) -> int:
    """A claim's worker is host:pid."""
    return int(worker.rsplit(":", 1)[1])


def _elsewhere(url: str, path: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=path))


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Installation]:
    """SQLite and the filesystem broker."""
    made = Installation(tmp_path)
    made.python("manage.py", "migrate", "--verbosity=0")
    yield made
    made.close()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A connection to the PostgreSQL of DATABASE_URL, where CHAOS_TEMPLATE is migrated."""
    import psycopg

    url = os.environ["DATABASE_URL"]
    with psycopg.connect(url, autocommit=True) as connection:
        _drop(connection, CHAOS_TEMPLATE)
        connection.execute(f"CREATE DATABASE {CHAOS_TEMPLATE}")
        template = Installation(
            tmp_path_factory.mktemp("template"), database_url=_elsewhere(url, f"/{CHAOS_TEMPLATE}")
        )
        template.python("manage.py", "migrate", "--verbosity=0")
        yield connection
        _drop(connection, CHAOS_TEMPLATE)


def _drop(connection: Any, database: str) -> None:
    connection.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")


@pytest.fixture
def servers(tmp_path: Path, postgres: Any) -> Iterator[Installation]:
    """PostgreSQL and Redis, as DATABASE_URL and REDIS_URL name them: a database of its own on each."""
    import redis

    made = Installation(
        tmp_path,
        database_url=_elsewhere(os.environ["DATABASE_URL"], f"/{CHAOS_DATABASE}"),
        redis_url=_elsewhere(os.environ["REDIS_URL"], CHAOS_REDIS),
    )
    broker = redis.Redis.from_url(made.environment["REDIS_URL"])
    assert broker.dbsize() == 0, (
        f"{made.environment['REDIS_URL']} is in use. Chaos tests flush it: wait for who uses it, or, "
        "where a test was killed, empty it with redis-cli -n 15 flushdb."
    )
    _drop(postgres, CHAOS_DATABASE)
    postgres.execute(f"CREATE DATABASE {CHAOS_DATABASE} TEMPLATE {CHAOS_TEMPLATE}")
    try:
        yield made
    finally:
        made.close()
        broker.flushdb()
        broker.close()
        _drop(postgres, CHAOS_DATABASE)


class Worker:
    """A real worker in a process group of its own, with its pool and (where asked) beat."""

    def __init__(self, installation: Installation, number: int, *, beat: bool, processes: int) -> None:
        self.beat = beat
        self.log = installation.folder / f"worker-{number}.log"
        self._restarted = False
        parent = os.getpid()

        def of_its_own() -> None:
            os.setsid()
            die_with_parent(parent)

        command = ["-m", "celery", "-A", "promotion", "worker", f"--concurrency={processes}"]
        command += ["--without-gossip", "--without-mingle", "--loglevel=INFO", f"--hostname=w{number}@%h"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command, *(["-B"] if beat else [])],
                cwd=ROOT,
                env=installation.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=of_its_own,
            )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: Any) -> None:
        self.end()

    def end(self) -> None:
        """Ask it to finish what it does, as a supervisor would; after a while, kill it."""
        if self._process.poll() is not None:
            return
        self.go_on()
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)

    def wait_until_ready(self) -> Worker:
        wait_until(lambda: " ready." in self.text(), f"the worker of {self.log.name} is ready", timeout_s=60)
        return self

    def text(self) -> str:
        """Its log up to now."""
        return self.log.read_text(errors="replace")

    def received(self) -> list[str]:
        """The ids of the shard messages that it received, in order; one delivered again is there again."""
        return re.findall(r"Task rollouts\.tasks\.work_shard\[([0-9a-f-]+)\] received", self.text())

    def swept(self) -> int:
        """How many sweeps it has done."""
        return len(re.findall(r"Task rollouts\.tasks\.sweep\[[0-9a-f-]+\] succeeded", self.text()))

    def family(self) -> list[psutil.Process]:
        """Its pool and beat, as far as they live."""
        return [one for one in psutil.Process(self._process.pid).children(recursive=True) if _lives(one)]

    def pids(self) -> set[int]:
        """Of its pool and beat."""
        return {process.pid for process in self.family()}

    def kill(self) -> None:
        """SIGKILL to the worker alone; its pool and beat must go by themselves."""
        family = self.family()
        self._process.kill()
        self._process.wait(10)
        _, alive = psutil.wait_procs(family, timeout=10)
        assert alive == [], "processes outlived their worker"

    def stop(self) -> None:
        """SIGSTOP: worker and pool stand still, as on a machine that was suspended."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Crew:
    """Workers of one process each, the first with beat; who is killed is replaced at once."""

    def __init__(self, installation: Installation, number: int) -> None:
        self._installation = installation
        self.workers = [installation.worker(beat=place == 0) for place in range(number)]

    def __enter__(self) -> Crew:
        for worker in self.workers:
            worker.wait_until_ready()
        return self

    def __exit__(self, *_: Any) -> None:
        with ThreadPoolExecutor(len(self.workers)) as pool:
            list(pool.map(Worker.end, self.workers))

    def join(self, number: int) -> None:
        """More workers, without waiting until they are ready."""
        self.workers += [self._installation.worker(beat=False) for _ in range(number)]

    def pids(self) -> set[int]:
        return set().union(*(worker.pids() for worker in self.workers))

    def place_of(self, pid: int) -> int:
        """Of the worker to which a process belongs."""
        return next(place for place, worker in enumerate(self.workers) if pid in worker.pids())

    def kill(self, place: int) -> None:
        worker = self.workers[place]
        worker.kill()
        self.workers[place] = self._installation.worker(beat=worker.beat)


def patient_provider(answer: Answer) -> Provider:
    """A provider on which many answers may wait at once, each in a thread."""
    provider = Provider(answer)
    provider._loop.set_default_executor(ThreadPoolExecutor(AT_ONCE))
    return provider


def wait_until(condition: Callable[[], bool], what: str, *, timeout_s: float = 90) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not in {timeout_s} s"
        time.sleep(0.05)


def assert_nothing_lost_or_doubled(found: dict[str, Any], provider: Provider, *, planned: int) -> None:
    """`found` is the report of a run in which in the end every rollout was scored."""
    assert found["state"] == "scored"
    assert found["counts"] == [planned, planned, 0, 0, 0]
    assert found["rollouts"] == {"scored": planned}
    assert found["right"] == planned
    assert found["finished"] == {"1": planned}  # each rollout has one invocation that finished
    assert found["open"] == {"claims": 0, "invocations": 0, "calls": 0}
    assert found["bad_event"] is None
    assert found["closed"] == 1 + found["reopened"]  # each close happened once
    # each request that the provider saw has a row of its own, written before it was sent
    asked = Counter(sha256_bytes(seen.body) for seen in provider.seen)
    assert len(asked) == planned
    missing = {digest: number for digest, number in asked.items() if found["calls"].get(digest, 0) < number}
    assert missing == {}
    # and no row says that an answer came to a request that nobody saw
    invented = {d: number for d, number in found["answered"].items() if number > asked[d]}
    assert invented == {}
