"""What it costs to compare a dataset with a suite.

    python -m tests.benchmarks.overlaps --rows 20000 --cases 5000

Texts are drawn from a vocabulary in which few words are common and most are rare, from one template with forty fillings, and
behind one preamble of a thousand words, which is the worst that prompts usually do. Nothing is written.
"""

from __future__ import annotations

import argparse
import itertools
import random
import resource
import time
from collections.abc import Callable

from rollouts.leakage import Asked, asked, overlap_report

WORDS = [f"w{number}" for number in range(20_000)]
WEIGHTS = list(itertools.accumulate(1 / (number + 1) for number in range(len(WORDS))))


def drawn(draw: random.Random, least: int, most: int) -> str:
    return " ".join(draw.choices(WORDS, cum_weights=WEIGHTS, k=draw.randint(least, most)))


def shapes(draw: random.Random) -> dict[str, Callable[[], str]]:
    preamble = drawn(draw, 1000, 1000)
    filling = [f"filling{number}" for number in range(40)]
    template = "Please {} the {} in the {} for {} at {} now."
    return {
        "10 to 30 words": lambda: drawn(draw, 10, 30),
        "100 to 200 words": lambda: drawn(draw, 100, 200),
        "one template": lambda: template.format(*draw.choices(filling, k=5)),
        "one preamble": lambda: f"{preamble} {drawn(draw, 20, 20)}",
    }


def normalised_rows(number: int, text: Callable[[], str]) -> list[Asked]:
    return [asked(name=str(at), id=None, group=None, text=text()) for at in range(number)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--cases", type=int, default=5_000)
    options = parser.parse_args()
    print(f"{options.rows} rows with {options.cases} cases")
    for name, text in shapes(random.Random(1)).items():
        ours, theirs = normalised_rows(options.rows, text), normalised_rows(options.cases, text)
        started, cpu = time.perf_counter(), time.process_time()
        report = overlap_report(ours, theirs)
        print(
            f"{name:18} {time.perf_counter() - started:6.1f} s, {time.process_time() - cpu:6.1f} s of CPU, "
            f"{report['texts']} equal, {report['near']} near, "
            f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB so far"
        )


if __name__ == "__main__":
    main()
