"""Runs Assay's own processes in the foreground: a worker with beat inside, and the web server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import IO

from django.conf import settings

from rollouts.processes import die_with_parent

MAX_RESTARTS = 5
STOP_TIMEOUT_S = 20

WORKER = [
    *(sys.executable, "-m", "celery", "-A", "promotion", "worker", "-B"),
    *(
        f"--concurrency={settings.WORKER_PROCESSES}",
        "--without-gossip",
        "--without-mingle",
        "--loglevel=INFO",
        "--hostname=assay@%h",
    ),
]


class Child:
    """A process that is started again when it ends by itself, and that ends with this one."""

    def __init__(self, name: str, command: Sequence[str], *, log: IO[bytes] | None = None) -> None:
        self.name = name
        self._command = list(command)
        self._log = log
        self._restarts = 0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        parent = os.getpid()
        return subprocess.Popen(
            self._command,
            cwd=settings.BASE_DIR,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT if self._log else None,
            preexec_fn=lambda: die_with_parent(parent),
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def keep_alive(self) -> bool:
        """True where it had ended and was started again. Raises `RuntimeError` where it keeps ending."""
        code = self._process.poll()
        if code is None:
            return False
        self._restarts += 1
        if self._restarts > MAX_RESTARTS:
            raise RuntimeError(
                f"The {self.name} ended {self._restarts} times, last with {code}. See its log."
            )
        time.sleep(1)
        self._process = self._start()
        return True

    def stop(self) -> None:
        """Ask it to finish what it does; after STOP_TIMEOUT_S, kill it: its work is picked up again later."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
