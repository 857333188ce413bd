"""Several workers on one run: each rollout is one worker's, and every worker gets some."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from tests.chaos.conftest import (
    Crew,
    Installation,
    assert_nothing_lost_or_doubled,
    patient_provider,
    wait_until,
)
from tests.engine.scripted import Provider, Reply, Seen, right

pytestmark = [pytest.mark.chaos, pytest.mark.postgres, pytest.mark.redis]


def after_a_while(seen: Seen) -> Reply:
    time.sleep(0.25)
    return right(seen)


def assert_asked_once(found: dict[str, Any], provider: Provider, *, planned: int) -> None:
    """Where no worker was lost the provider saw each request once, and each has one row."""
    assert_nothing_lost_or_doubled(found, provider, planned=planned)
    assert Counter(seen.nth for seen in provider.seen) == {1: planned}
    assert found["call_states"] == {"answered": planned}
    assert found["invocations"] == {"finished": planned}


def test_two_workers_share_a_run_and_no_rollout_is_executed_twice(servers: Installation) -> None:
    planned = 300
    with patient_provider(after_a_while).running() as provider, Crew(servers, 2) as crew:
        servers.plan(provider, planned)
        servers.wait_until_scored()
        worked = {crew.place_of(pid) for pid in servers.pids_that_finished()}
        found = servers.script("report")

    assert worked == {0, 1}
    assert_asked_once(found, provider, planned=planned)


def test_two_workers_that_join_in_the_middle_take_their_part(servers: Installation) -> None:
    planned = 480
    with patient_provider(after_a_while).running() as provider, Crew(servers, 2) as crew:
        servers.plan(provider, planned)
        provider.wait_for(40)
        crew.join(2)
        servers.wait_until_scored()
        worked = {crew.place_of(pid) for pid in servers.pids_that_finished()}
        found = servers.script("report")

    assert worked == {0, 1, 2, 3}
    assert_asked_once(found, provider, planned=planned)


def slowly(seen: Seen) -> Reply:
    time.sleep(0.5)
    return right(seen)


QUEUED = "SELECT count(*) FROM rollouts_rollout WHERE state = 'queued'"


def test_a_run_keeps_all_its_workers_busy_however_often_one_is_killed(servers: Installation) -> None:
    """Each kill costs a message, which is not delivered again for an hour."""
    planned = 1200
    with patient_provider(slowly).running() as provider, Crew(servers, 2) as crew:
        servers.plan(provider, planned)
        for _ in range(4):
            wait_until(
                lambda: all(worker.pids() & set(servers.pids_at_work()) for worker in crew.workers),
                "both workers work",
                timeout_s=30,
            )
            crew.kill(1)
        queued = servers.ask(QUEUED)[0]

    assert queued > planned / 4, "there was nothing left to do"


def test_what_a_killed_worker_held_comes_back_while_all_others_are_busy(servers: Installation) -> None:
    """However many messages wait before the one that says to look for lost work."""
    planned = 800
    with patient_provider(slowly).running() as provider, Crew(servers, 2) as crew:
        servers.send(servers.plan(provider, planned), 20)
        provider.wait_for(20)
        (pid,) = set(servers.pids_at_work()) & crew.workers[1].pids()
        crew.kill(1)
        # its lease is 3 s, a shard of the others takes 5 s
        wait_until(lambda: pid not in servers.pids_at_work(), "the lost work came back", timeout_s=15)
        queued = servers.ask(QUEUED)[0]

    assert queued > planned / 4, "the others had nothing left to do"
