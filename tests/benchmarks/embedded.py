"""Throughput of the embedded default: SQLite, the filesystem broker and one real worker with beat inside.

    python -m tests.benchmarks.embedded --rollouts 6000

It runs with one process, like the bare loop beside it, and with as many as ASSAY_WORKERS gives by default. The rate is
from the run's first claim to its last result.
"""

from __future__ import annotations

import argparse
import os
import statistics
from contextlib import ExitStack
from typing import NamedTuple

from tests.benchmarks import provider
from tests.benchmarks.house import House, bare_rate, machine, middle, place, require_whole, table
from tests.benchmarks.workers import WORKER, celery, wait_until


class Measured(NamedTuple):
    rate: float  # rollouts a second
    planned_to_last_s: float
    by_worker: list[int]  # rollouts of each process


def measure(processes: int, *, url: str, rollouts: int, concurrency: int) -> Measured:
    """One run on a new installation whose worker is ready when it is planned."""
    with ExitStack() as stack:
        environment = stack.enter_context(place(ASSAY_WORKERS=str(processes)))
        house = stack.enter_context(House(environment))
        house.ask("migrate")
        command = [*WORKER, "-B", f"--concurrency={processes}", "--hostname=assay@%h"]
        stack.enter_context(celery(environment, "worker", *command, ready=" ready."))
        run = house.plan(url=url, rollouts=rollouts, concurrency=concurrency)["run"]
        wait_until(
            lambda: house.ask("state", run=run) in {"scored", "failed", "cancelled"},
            f"run {run} is over",
            timeout_s=300,
            pause_s=0.25,
        )
        facts = house.ask("facts", run=run)
    require_whole(facts, rollouts)
    return Measured(rollouts / facts["working_s"], facts["planned_to_last_s"], facts["by_worker"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=6000)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, max(1, min(4, os.cpu_count() or 1))])
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--delay-s", type=float, default=0.05)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    print(machine())
    print(
        f"SQLite and the filesystem broker, {options.rollouts} rollouts, {options.concurrency} in flight a shard, "
        f"answers after {options.delay_s * 1000:.0f} ms",
        end="\n\n",
    )
    rows = []
    with provider.running(options.delay_s) as url:
        numbers = {"url": url, "rollouts": options.rollouts, "concurrency": options.concurrency}
        with place() as environment, House(environment) as house:
            loop = house.warm_up(url=url, concurrency=options.concurrency).loop
        bares = [bare_rate(**numbers, loop=loop)]
        for processes in dict.fromkeys(options.processes):
            found, shares = [], []
            for _ in range(options.repetitions):
                found.append(measure(processes, **numbers))
                bares.append(bare_rate(**numbers, loop=loop))
                shares.append(100 * found[-1].rate / statistics.mean(bares[-2:]))
            rows.append(
                [
                    f"celery worker -B, {processes} process{'es' if processes > 1 else ''}",
                    middle([each.rate for each in found]),
                    middle(shares),
                    f"{middle([each.planned_to_last_s for each in found], '.1f')} s",
                    " + ".join(map(str, found[-1].by_worker)),
                ]
            )
    rows.insert(0, ["bare aiohttp loop, stores nothing", middle(bares), "", "", ""])
    print(table(["", "rollouts/s", "% of bare", "plan to last result", "rollouts by process"], rows))


if __name__ == "__main__":
    main()
