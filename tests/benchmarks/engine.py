"""Eval throughput of one worker beside a bare aiohttp loop that stores nothing, and beside Inspect AI.

    python -m tests.benchmarks.engine --rollouts 6000 --repetitions 3

One provider, one machine, one go. Assay runs on SQLite, and on PostgreSQL where DATABASE_URL names one, with the
settings it ships with. Each measurement stands between two of the bare loop, and its share is of their mean, so that a
machine which gets slower or faster meanwhile does not decide it. Printed are medians, with the range.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from tests.benchmarks import inspect_peer, provider
from tests.benchmarks.house import House, Warm, bare_rate, machine, middle, place, postgres_url, table


@dataclass(slots=True)
class Entry:
    """Something that is measured: `prepare` is not timed, what it gives goes to `measure`, which says the rate."""

    name: str
    prepare: Callable[[], Any]
    measure: Callable[[Any], float]
    assay: bool
    rates: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Assay:
    """Assay on one database, and what else is learnt about it."""

    house: House
    url: str
    rollouts: int
    concurrency: int
    warm: Warm
    plan_s: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    size_before: int = 0
    worked: int = 0

    def plan(self) -> int:
        planned = self.house.plan(url=self.url, rollouts=self.rollouts, concurrency=self.concurrency)
        self.plan_s.append(planned["seconds"])
        self.size_before = self.house.ask("size_bytes")
        return int(planned["run"])

    def work(self, run: int) -> float:
        worked = self.house.work(run, self.rollouts)
        self.peak_bytes = worked["peak_bytes"]
        return float(worked["rate"])

    def growth(self) -> float:
        """Bytes a rollout of the last run, without its plan."""
        return float((self.house.ask("size_bytes") - self.size_before) / self.rollouts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=6000)
    parser.add_argument("--inspect-samples", type=int, default=1000, help="fewer, because it is slow")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--delay-s", type=float, default=0.05)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    print(machine())
    print(f"{options.concurrency} in flight, answers after {options.delay_s * 1000:.0f} ms", end="\n\n")
    with ExitStack() as stack:
        url = stack.enter_context(provider.running(options.delay_s))
        houses = []
        for postgres in dict.fromkeys(["", postgres_url()]):
            environment = stack.enter_context(place(postgres=postgres))
            house = stack.enter_context(House(environment))
            warm = house.warm_up(url=url, concurrency=options.concurrency)
            houses.append(Assay(house, url, options.rollouts, options.concurrency, warm))
        loop = houses[0].warm.loop
        entries = [Entry(f"Assay, {one.warm.database}", one.plan, one.work, assay=True) for one in houses]
        if reason := inspect_peer.missing():
            print(reason, end="\n\n")
        else:
            entries += _inspect_entries(url, options)

        def bare() -> float:
            return bare_rate(url=url, rollouts=options.rollouts, concurrency=options.concurrency, loop=loop)

        bares = [bare()]
        for _ in range(options.repetitions):
            for entry in entries:
                prepared = entry.prepare()
                entry.rates.append(entry.measure(prepared))
                bares.append(bare())
                entry.shares.append(entry.rates[-1] / statistics.mean(bares[-2:]))
        _report(entries, bares)
        for one in houses:
            print(
                f"\n{one.warm.database}: planned {options.rollouts} rollouts in {statistics.median(one.plan_s):.2f} s "
                f"(not in the rate); {one.growth():.0f} bytes of database a rollout; peak memory "
                f"{one.peak_bytes / (1 << 20):.0f} MiB; event loop {one.warm.loop}"
            )


def _inspect_entries(url: str, options: argparse.Namespace) -> list[Entry]:
    def entry(name: str, settings: dict[str, Any]) -> Entry:
        def measure(_: None) -> float:
            found = inspect_peer.measure(
                url=url, samples=options.inspect_samples, concurrency=options.concurrency, settings=settings
            )
            return float(found["rate"])

        return Entry(f"Inspect AI, {name}", lambda: None, measure, assay=False)

    return [entry(name, settings) for name, settings in inspect_peer.CONFIGURATIONS.items()]


def _report(entries: list[Entry], bares: list[float]) -> None:
    peers = [entry for entry in entries if not entry.assay]
    rows = [["bare aiohttp loop, stores nothing", middle(bares), "", *([""] * len(peers))]]
    for entry in entries:
        share = middle([100 * share for share in entry.shares], ".0f" if entry.assay else ".1f")
        # of shares, because those are free of the machine's drift
        times = [
            f"{statistics.median(entry.shares) / statistics.median(peer.shares):.1f}" if entry.assay else ""
            for peer in peers
        ]
        rows.append([entry.name, middle(entry.rates, ".0f" if entry.assay else ".1f"), share, *times])
    head = ["", "rollouts/s", "% of bare", *(f"times {peer.name}" for peer in peers)]
    print(table(head, rows))


if __name__ == "__main__":
    main()
