"""Twenty SIGKILLs, doubled and dropped messages and a flushed broker in one run: every rollout counts once.

The seed of the random choices is printed; CHAOS_SEED repeats them.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter

import pytest
import redis

from rollouts.tasks import work_shard
from tests.chaos.conftest import (
    Crew,
    Installation,
    assert_nothing_lost_or_doubled,
    patient_provider,
    pid_of,
    wait_until,
)
from tests.engine.scripted import Reply, Seen, right

pytestmark = [pytest.mark.chaos, pytest.mark.postgres, pytest.mark.redis]
CASES = 2000
KILLS = 20
WORKERS = 4
MAX_LOST_WORKERS = 3
POISON = "named-call-0"  # whoever works on it is killed, until it has cost three workers
POISON_NOW = (
    "SELECT r.state, c.worker FROM rollouts_rollout r LEFT JOIN rollouts_claim c ON c.id = r.claim_id "
    f"JOIN rollouts_case k ON k.id = r.case_id WHERE k.key = '{POISON}'"
)


class Mischief:
    """Doubles, drops and flushes the messages of one run."""

    def __init__(self, installation: Installation, run_id: int, chance: random.Random) -> None:
        self._installation, self._run_id, self._chance = installation, run_id, chance
        self._queue = work_shard.app.amqp.router.route({}, work_shard.name)["queue"].name
        self._broker = redis.Redis.from_url(installation.environment["REDIS_URL"])
        self.done: Counter[str] = Counter()

    def __enter__(self) -> Mischief:
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.close()

    def double(self) -> None:
        times = self._chance.randint(0, 4)
        self._installation.send(self._run_id, times)
        self.done["doubled"] += times

    def drop(self) -> None:
        for _ in range(self._chance.randint(0, 4)):
            end = self._chance.choice([self._broker.lpop, self._broker.rpop])
            self.done["dropped"] += end(self._queue) is not None

    def flush(self) -> None:
        self._broker.flushdb()
        self.done["flushed"] += 1


class Killer:
    """Kills who works on the poison, or else a worker, most often a busy one.

    Now and then only the process of its pool is killed, as it happens where memory is full.
    """

    def __init__(self, installation: Installation, crew: Crew, chance: random.Random) -> None:
        self._installation, self._crew, self._chance = installation, crew, chance
        self.done: Counter[str] = Counter()

    def strike(self) -> None:
        alive = self._crew.pids()
        busy = [pid for pid in self._installation.pids_at_work() if pid in alive]
        pid = self._poisoned()
        if pid in alive:
            self.done["at the poison"] += 1
        else:
            at_work = busy and self._chance.random() < 0.8
            pid = self._chance.choice(busy if at_work else sorted(alive))
        if pid in busy and self._chance.random() < 0.25:
            os.kill(pid, signal.SIGKILL)
            self.done["pool processes"] += 1
        else:
            self._crew.kill(self._crew.place_of(pid))
            self.done["workers"] += 1

    def _poisoned(self) -> int:
        """The process, dead or alive, that works on the poison; 0 where it is queued or given up."""
        state, worker = self._installation.ask(POISON_NOW)[0]
        return pid_of(worker) if state == "running" else 0

    def wait_for_the_poison(self, kills_left: int) -> None:
        """Where every kill that is left is needed for it. What has lost workers comes last, so this may take a while."""

        def ready() -> bool:
            given_up = self._installation.ask(POISON_NOW)[0][0] == "unscored"
            return given_up or self._poisoned() in self._crew.pids()

        if MAX_LOST_WORKERS - self.done["at the poison"] >= kills_left:
            wait_until(ready, "the poison is at work", timeout_s=90)


def answer(seen: Seen) -> Reply:
    time.sleep(0.4)
    return Reply(right(seen).body, hang=seen.case == POISON)


def test_twenty_kills_and_a_broker_that_loses_and_doubles_leave_every_rollout_counted_once(
    servers: Installation,
) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(10**6))
    print(f"CHAOS_SEED={seed}")
    chance = random.Random(seed)
    with patient_provider(answer).running() as provider, Crew(servers, WORKERS) as crew:
        run_id = servers.plan(provider, CASES)
        killer = Killer(servers, crew, chance)
        with Mischief(servers, run_id, chance) as mischief:
            for kills_left in range(KILLS, 0, -1):
                mischief.double()
                # so many requests that the run outlives its kills, however long a kill takes here
                gap = max(0, CASES - len(provider.seen)) // (kills_left + 4)
                provider.wait_for(len(provider.seen) + chance.randint(0, gap), timeout_s=60)
                mischief.drop()
                if kills_left == KILLS // 2:
                    mischief.flush()
                time.sleep(chance.uniform(0, 0.4))
                killer.wait_for_the_poison(kills_left)
                killer.strike()
        servers.wait_until_scored()
        killed = servers.script("report")
        # what three workers were lost on is shown as that, and can be run again
        provider.answer = right
        servers.script("run_again")
        servers.wait_until_scored()
    found = servers.script("report")
    print(
        dict(killer.done), dict(mischief.done), killed["unscored"], found["call_states"], found["lost_claims"]
    )

    assert killer.done["workers"] + killer.done["pool processes"] == KILLS
    assert min(mischief.done[what] for what in ("doubled", "dropped", "flushed")) > 0

    poisoned = len(killed["unscored"])
    assert killed["state"] == "scored"
    assert killed["counts"] == [CASES, CASES - poisoned, 0, poisoned, 0]
    assert killed["finished"] == {"1": CASES - poisoned}
    assert [POISON, "worker_lost", MAX_LOST_WORKERS] in killed["unscored"]
    assert {kind for _, kind, _ in killed["unscored"]} == {"worker_lost"}
    assert [lost for lost in killed["lost_workers"] if lost >= MAX_LOST_WORKERS] == [
        MAX_LOST_WORKERS
    ] * poisoned

    assert_nothing_lost_or_doubled(found, provider, planned=CASES)
    assert found["reopened"] == 1
    assert found["lost_claims"] >= KILLS / 2  # most were hit at work
    assert found["call_states"]["lost"] > 0
    assert set(found["call_states"]) == {"answered", "lost"}
