"""Memory of one worker over a long run, and what planning it costs.

    python -m tests.benchmarks.memory --rollouts 100000

One process works on shards of normal length one after another, as a Celery process does; its resident memory is read
every two seconds. Sealing, planning and working each have a process of their own, so that none hides another's memory.
SQLite, or PostgreSQL where DATABASE_URL names one.
"""

from __future__ import annotations

import argparse
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import psutil

from tests.benchmarks import provider
from tests.benchmarks.house import (
    House,
    machine,
    mebibytes,
    place,
    postgres_url,
    require_whole,
    table,
)


@dataclass(slots=True)
class Samples:
    """Resident memory of a process by time, read until the block ends."""

    pid: int
    every_s: float
    read: list[tuple[float, int]] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Samples:
        self._thread = threading.Thread(target=self._read_on, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        assert self._thread is not None
        self._ended.set()
        self._thread.join()

    def _read_on(self) -> None:
        process = psutil.Process(self.pid)
        while not self._ended.wait(self.every_s):
            self.read.append((time.monotonic(), process.memory_info().rss))

    def between(self, start: float, end: float) -> list[int]:
        return [size for at, size in self.read if start <= at <= end]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--delay-s", type=float, default=0.005)
    parser.add_argument("--shard-seconds", type=int, default=0, help="5 to 600; the default is Assay's own")
    parser.add_argument("--every-s", type=float, default=2.0)
    options = parser.parse_args()
    print(machine())
    settings = {"ASSAY_SHARD_SECONDS": str(options.shard_seconds)} if options.shard_seconds else {}
    with place(postgres=postgres_url(), **settings) as environment, provider.running(options.delay_s) as url:
        with House(environment) as house:
            database = house.ask("migrate")["database"]
            sealed = house.ask("seal", url=url, cases=options.rollouts, concurrency=options.concurrency)
        with House(environment) as house:
            planned = house.ask("plan", **sealed)
        print(
            f"{database}, {options.rollouts} rollouts, {options.concurrency} in flight, answers after "
            f"{options.delay_s * 1000:.0f} ms",
            end="\n\n",
        )
        with House(environment) as house:
            _work(house, planned, options)


def _work(house: House, planned: dict[str, Any], options: argparse.Namespace) -> None:
    before = house.ask("size_bytes")
    shards: list[tuple[float, float, dict[str, Any]]] = []
    done = 0
    with Samples(house.pid, options.every_s) as samples:
        while done < options.rollouts:
            start = time.monotonic()
            shard = house.ask("shard", run=planned["run"])
            shards.append((start, time.monotonic(), shard))
            done += shard["done"]
            if not shard["done"]:
                break
    require_whole(house.ask("facts", run=planned["run"]), options.rollouts)
    rows = [
        [
            str(number),
            str(shard["done"]),
            f"{shard['seconds']:.1f}",
            mebibytes(max([*samples.between(start, end), shard["resident_bytes"]])),
            mebibytes(shard["resident_bytes"]),
        ]
        for number, (start, end, shard) in enumerate(shards, 1)
    ]
    print(table(["shard", "rollouts", "seconds", "most memory", "memory at its end"], rows), end="\n\n")
    first, last = shards[0][2]["resident_bytes"], shards[-1][2]["resident_bytes"]
    later = [size for at, size in samples.read if at > shards[0][1]]
    seconds = sum(shard["seconds"] for _, _, shard in shards)
    growth = (house.ask("size_bytes") - before) / options.rollouts
    summary = [
        ["memory after the first shard", mebibytes(first)],
        ["memory at the end", mebibytes(last)],
        [
            "most growth after the first shard",
            mebibytes(max([0, *(size - first for size in [*later, last])])),
        ],
        ["seconds, rollouts a second", f"{seconds:.0f} s, {options.rollouts / seconds:.0f}"],
        ["database a rollout, without its plan", f"{growth:.0f} bytes"],
        ["planning", f"{planned['seconds']:.1f} s"],
        ["memory before planning", mebibytes(planned["resident_before_bytes"])],
        ["most memory while planning", mebibytes(planned["peak_bytes"])],
    ]
    print(table(["", ""], summary))


if __name__ == "__main__":
    main()
