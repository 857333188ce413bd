"""Child processes that end with the process that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(expected_parent: int | None = None) -> None:
    """Ask the kernel to send SIGKILL to this process when its parent ends (Linux; elsewhere it does nothing).

    `expected_parent` closes the race in which the parent ended before this call: then this process ends now.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if expected_parent is not None and os.getppid() != expected_parent:
        os._exit(1)


def peak_memory_bytes(pid: int) -> int | None:
    """The most memory that a process has held at once (VmHWM); None where the system does not say."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            line = next((line for line in status if line.startswith("VmHWM:")), None)
    except OSError:
        return None
    return int(line.split()[1]) * 1024 if line else None
