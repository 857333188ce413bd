"""A broker that is away, that delivers twice, and a worker that comes back after it was given up."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit, urlunsplit

import pytest

from rollouts.processes import die_with_parent
from tests.chaos.conftest import (
    ROOT,
    Crew,
    Installation,
    assert_nothing_lost_or_doubled,
    patient_provider,
    wait_until,
)
from tests.chaos.wire import Wire
from tests.engine.scripted import Reply, Seen, completion, right

pytestmark = [pytest.mark.chaos, pytest.mark.postgres, pytest.mark.redis]


@pytest.fixture
def wire(servers: Installation) -> Iterator[Wire]:
    """Between the installation and its Redis."""
    url = urlsplit(servers.environment["REDIS_URL"])
    with Wire(url.hostname or "127.0.0.1", url.port or 6379).laid() as laid:
        user = f"{url.netloc.rpartition('@')[0]}@" if "@" in url.netloc else ""
        through = url._replace(netloc=f"{user}127.0.0.1:{laid.port}")
        servers.environment["REDIS_URL"] = urlunsplit(through)
        yield laid


@contextmanager
def web_server(installation: Installation) -> Iterator[str]:
    """The address of a real web server of the installation."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    parent = os.getpid()
    with (installation.folder / "web.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "promotion.wsgi:application", "--bind", address],
            cwd=ROOT,
            env=installation.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=lambda: die_with_parent(parent),
        )
    try:
        wait_until(lambda: _answers(f"http://{address}/api/v1/runs"), "the web server answers", timeout_s=60)
        yield f"http://{address}/api/v1"
    finally:
        process.terminate()
        process.wait(15)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except HTTPError:
        return True  # that one must sign in is an answer, too
    except OSError:
        return False


def post_run(api: str, known: dict[str, str], *, key: str) -> tuple[int, Any, float]:
    """Status, body and seconds of an answer to POST /runs."""
    body = {"suite": known["suite"], "backend": known["backend"], "model": "scripted-model"}
    headers = {"Authorization": f"Token {known['token']}", "Idempotency-Key": key}
    headers["Content-Type"] = "application/json"
    request = urllib.request.Request(f"{api}/runs", json.dumps(body).encode(), headers)
    start = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response), time.monotonic() - start
    except HTTPError as error:
        return error.code, error.read(), time.monotonic() - start


@pytest.mark.parametrize("trouble", ["cut", "silence"])
def test_a_run_planned_over_the_api_while_the_broker_is_away_starts_when_it_is_back(
    servers: Installation, wire: Wire, trouble: str
) -> None:
    with patient_provider(right).running() as provider, Crew(servers, 1), web_server(servers) as api:
        known = servers.script("prepare", provider.url, 20, 4)
        getattr(wire, trouble)()
        time.sleep(2)  # the worker notices, too

        status, run, seconds = post_run(api, known, key="while-it-is-away")

        assert (status, servers.state()) == (202, "queued"), run
        assert seconds < 15
        assert provider.seen == []
        wire.restore()
        servers.wait_until_scored()
        found = servers.script("report")

    assert_nothing_lost_or_doubled(found, provider, planned=20)


def test_a_worker_goes_on_by_itself_each_time_that_its_broker_is_back(
    servers: Installation, wire: Wire
) -> None:
    with patient_provider(right).running() as provider, Crew(servers, 1) as crew:
        (worker,) = crew.workers
        for _ in range(4):
            wire.cut()
            time.sleep(0.5)
            wire.restore()
            done = worker.swept()
            wait_until(lambda: worker.swept() > done, "the worker sweeps again", timeout_s=30)  # noqa: B023
        servers.plan(provider, 20)
        servers.wait_until_scored()
        found = servers.script("report")

    assert_nothing_lost_or_doubled(found, provider, planned=20)


def test_messages_that_redis_delivers_again_while_they_are_worked_on_execute_nothing_twice(
    servers: Installation,
) -> None:
    planned = 360
    servers.environment["DJANGO_SETTINGS_MODULE"] = "tests.chaos.short_visibility"
    servers.environment["ASSAY_SHARD_SECONDS"] = "15"

    def answer(seen: Seen) -> Reply:
        time.sleep(0.4)
        return right(seen)

    with patient_provider(answer).running() as provider, Crew(servers, 1) as crew:
        servers.plan(provider, planned)
        provider.wait_for(1)
        time.sleep(6)  # its message is invisible for 5 s
        crew.join(1)
        servers.wait_until_scored()
        first, second = (worker.received() for worker in crew.workers)
        worked = {crew.place_of(pid) for pid in servers.pids_that_finished()}
        found = servers.script("report")

    assert set(first) & set(second), "Redis delivered no message twice"
    assert worked == {0, 1}
    assert_nothing_lost_or_doubled(found, provider, planned=planned)
    assert Counter(seen.nth for seen in provider.seen) == {1: planned}
    assert found["invocations"] == {"finished": planned}


def test_what_a_worker_brings_that_stood_still_beyond_its_lease_is_kept_and_never_scored(
    servers: Installation,
) -> None:
    planned = 8

    def answer(seen: Seen) -> Reply:
        return Reply(completion("too late"), hang=True) if seen.nth == 1 else right(seen)

    with patient_provider(answer).running() as provider:
        with servers.worker(beat=False) as slow:
            servers.plan(provider, planned, concurrency=planned)
            provider.wait_for(planned, timeout_s=60)
            slow.stop()
            with servers.worker():
                servers.wait_until_scored()
                scored = servers.ask("SELECT * FROM rollouts_rollout ORDER BY id")
                provider.release()
                slow.go_on()
                wait_until(
                    lambda: (
                        servers.ask("SELECT count(*) FROM rollouts_invocation WHERE state = 'late'")
                        == [planned]
                    ),
                    "late results are kept",
                    timeout_s=30,
                )
        found = servers.script("report")
        assert servers.ask("SELECT * FROM rollouts_rollout ORDER BY id") == scored

    assert_nothing_lost_or_doubled(found, provider, planned=planned)
    assert found["invocations"] == {"late": planned, "finished": planned}
    # the answers of both are there: what a provider said is a fact, whoever asked
    assert found["call_states"] == {"answered": 2 * planned}
