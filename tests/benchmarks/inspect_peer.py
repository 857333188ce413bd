"""Inspect AI on the same scripted provider, in a virtualenv of its own.

    python -m tests.benchmarks.inspect_peer --setup      # makes the virtualenv
    python -m tests.benchmarks.inspect_peer --samples 1000

The virtualenv is ASSAY_INSPECT_VENV, or `bench/inspect-venv` in ASSAY_VAR. Without it there is nothing to measure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks import provider
from tests.benchmarks.house import ROOT, machine, messages, middle, table

# Everything else is the same: `.eval` log on disk (its fastest format), as many connections as Assay, one scorer.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    # events go to a local database as they happen, so that a killed evaluation can be recovered
    "default settings": {},
    # what can be turned off is off; a sample is on disk when the log's buffer is written
    "fastest settings": {"log_realtime": False, "score_display": False, "ctl_server": False},
}


def folder() -> Path:
    var = Path(os.environ.get("ASSAY_VAR") or ROOT / "var")
    return Path(os.environ.get("ASSAY_INSPECT_VENV") or var / "bench" / "inspect-venv").expanduser().resolve()


def missing() -> str | None:
    """Why Inspect cannot be measured, with the remedy; None where it can."""
    if (folder() / "bin" / "python").is_file():
        return None
    return (
        f"Inspect AI is left out: there is no virtualenv at {folder()}. Make it with "
        "`python -m tests.benchmarks.inspect_peer --setup`, or name one in ASSAY_INSPECT_VENV."
    )


def set_up() -> None:
    """Makes the virtualenv and installs Inspect AI and its client into it from the configured index."""
    python = str(folder() / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", str(folder())], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "inspect-ai", "openai"], check=True)
    subprocess.run(
        [python, "-c", "import inspect_ai; print('Inspect AI', inspect_ai.__version__)"], check=True
    )


def measure(*, url: str, samples: int, concurrency: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Samples a second of one evaluation without its imports, bytes of log a sample, and the version."""
    with tempfile.TemporaryDirectory(prefix="inspect-") as place:
        dataset = Path(place) / "dataset.jsonl"
        dataset.write_text("".join(json.dumps(messages(number)) + "\n" for number in range(samples)))
        done = subprocess.run(
            [
                *(str(folder() / "bin" / "python"), str(Path(__file__).with_name("inspect_script.py"))),
                *(url, str(dataset), str(concurrency), json.dumps(settings)),
            ],
            cwd=place,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise SystemExit(f"Inspect AI ended with {done.returncode}.")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--setup", action="store_true")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--delay-s", type=float, default=0.05)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    if options.setup:
        set_up()
        return
    if reason := missing():
        raise SystemExit(reason)
    print(machine(), end="\n\n")
    rows = []
    with provider.running(options.delay_s) as url:
        for name, settings in CONFIGURATIONS.items():
            found = [
                measure(url=url, samples=options.samples, concurrency=options.concurrency, settings=settings)
                for _ in range(options.repetitions)
            ]
            rates = middle([one["rate"] for one in found], ".1f")
            rows.append([f"Inspect AI {found[0]['version']}, {name}", rates, f"{found[0]['log_bytes']:.0f}"])
    print(table(["", "samples/s", "bytes of log a sample"], rows))


if __name__ == "__main__":
    main()
