"""Real Celery processes in a place: started, waited for until they are ready, and stopped."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rollouts.processes import die_with_parent
from tests.benchmarks.house import ROOT

READY_TIMEOUT_S = 60
STOP_TIMEOUT_S = 20
# of `manage.py up` and of the documentation
WORKER = ["worker", "--without-gossip", "--without-mingle", "--loglevel=INFO"]


@contextmanager
def celery(environment: Mapping[str, str], name: str, *arguments: str, ready: str) -> Iterator[None]:
    """`celery -A promotion ARGUMENTS`, from when its log says `ready` until the block ends.

    Raises `SystemExit` with its log where it is not ready in READY_TIMEOUT_S.
    """
    log = Path(environment["ASSAY_VAR"]) / f"{name}.log"
    parent = os.getpid()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "promotion", *arguments],
            cwd=ROOT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: die_with_parent(parent),
        )
    try:
        wait_until(
            lambda: process.poll() is not None or ready in log.read_text(errors="replace"),
            f"{name} is ready",
            timeout_s=READY_TIMEOUT_S,
        )
        if process.poll() is not None:
            raise SystemExit(f"{name} ended with {process.poll()}:\n{log.read_text(errors='replace')}")
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(condition: Callable[[], bool], what: str, *, timeout_s: float, pause_s: float = 0.1) -> None:
    """Raises `SystemExit` where it does not come true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"Not in {timeout_s:.0f} s: {what}.")
        time.sleep(pause_s)
