"""How a run gets faster with workers: 1, 2 and 4 real Celery workers and one beat, on PostgreSQL and Redis.

    DATABASE_URL=postgres://... REDIS_URL=redis://... python -m tests.benchmarks.scaling --rollouts 2048

Each run has cases of its own and is planned when its workers are ready. Its time is from its first claim to its last
result; the time from the plan is printed beside it. The database is made for the purpose and dropped; of Redis,
database 14 is used, which must be empty.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import chain
from typing import Any

from tests.benchmarks import provider
from tests.benchmarks.house import House, machine, middle, place, postgres_url, require_whole, table
from tests.benchmarks.workers import WORKER, celery, wait_until


def run_with(
    workers: int, *, house: House, environment: Mapping[str, str], url: str, rollouts: int, concurrency: int
) -> dict[str, Any]:
    """One run on so many workers; what the database says of it."""
    with ExitStack() as stack:
        for number in range(1, workers + 1):
            name = f"worker{number}"
            command = [*WORKER, "--concurrency=1", f"--hostname={name}@%h"]
            stack.enter_context(celery(environment, name, *command, ready=" ready."))
        schedule = f"--schedule={environment['ASSAY_VAR']}/beat-schedule"
        stack.enter_context(
            celery(environment, "beat", "beat", "--loglevel=INFO", schedule, ready="beat: Starting...")
        )
        run = house.plan(url=url, rollouts=rollouts, concurrency=concurrency)["run"]
        wait_until(
            lambda: house.ask("state", run=run) in {"scored", "failed", "cancelled"},
            f"run {run} is over",
            timeout_s=300,
        )
        return dict(house.ask("facts", run=run))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=64 * 4 * 8)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--concurrency", type=int, default=64, help="of the backend: calls in flight a shard")
    parser.add_argument("--delay-s", type=float, default=1.0)
    parser.add_argument("--repetitions", type=int, default=1)
    options = parser.parse_args()
    postgres, redis = postgres_url(), os.environ.get("REDIS_URL", "")
    if not postgres or not redis:
        raise SystemExit("Name the servers: DATABASE_URL=postgres://... REDIS_URL=redis://...")
    print(machine())
    found: dict[int, list[dict[str, Any]]] = {workers: [] for workers in options.workers}
    with ExitStack() as stack:
        url = stack.enter_context(provider.running(options.delay_s))
        environment = stack.enter_context(place(postgres=postgres, redis=redis))
        house = stack.enter_context(House(environment))
        database = house.ask("migrate")["database"]
        for _ in range(options.repetitions):
            for workers, facts in found.items():
                facts.append(
                    run_with(
                        workers,
                        house=house,
                        environment=environment,
                        url=url,
                        rollouts=options.rollouts,
                        concurrency=options.concurrency,
                    )
                )
    print(
        f"{database} and Redis, {options.rollouts} rollouts, {options.concurrency} in flight a worker, answers after "
        f"{options.delay_s:g} s",
        end="\n\n",
    )
    _report(found, options)
    for each in chain.from_iterable(found.values()):
        require_whole(each, options.rollouts)


def _report(found: Mapping[int, list[dict[str, Any]]], options: argparse.Namespace) -> None:
    one = statistics.median(facts["working_s"] for facts in found[min(found)])
    rows = []
    for workers, facts in found.items():
        working = [each["working_s"] for each in facts]
        least_s = -(-options.rollouts // (workers * options.concurrency)) * options.delay_s
        rows.append(
            [
                str(workers),
                f"{middle(working, '.1f')} s",
                f"{one / statistics.median(working):.2f}",
                f"{least_s:.1f} s",
                f"{middle([each['planned_to_last_s'] for each in facts], '.1f')} s",
                " + ".join(map(str, facts[-1]["by_worker"])),
                *(
                    str(sum(each[name] for each in facts))
                    for name in ("finished_twice", "lost_calls", "lost_claims")
                ),
            ]
        )
    head = [
        "workers",
        "first claim to last result",
        f"times {min(found)} worker",
        "least possible",
        "plan to last result",
        "rollouts by worker",
        "finished twice",
        "lost calls",
        "lost claims",
    ]
    print(table(head, rows))


if __name__ == "__main__":
    main()
