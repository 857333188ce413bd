"""Publishes a candidate in a process of its own and kills itself with SIGKILL at the named point."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(candidate_id: int, point: str) -> None:
    import django

    django.setup()
    from promotion.services import registry
    from rollouts import audit, store

    points: dict[str, tuple[Any, str]] = {
        "before_the_copy": (registry, "_write_export"),
        "inside_the_copy": (os, "fsync"),
        "before_the_rename": (os, "replace"),
        "after_the_rename": (store, "sync_folder"),
        "before_the_entry": (registry, "_promote"),
        "after_the_entry_before_the_alias": (registry, "_move_alias"),
        "before_the_audit_event": (audit, "record"),
    }
    module, name = points[point]
    replacement: Callable[..., Any] = die
    if point == "before_the_audit_event":
        real = audit.record
        replacement = lambda action, **kw: die() if action == "candidate.promoted" else real(action, **kw)  # noqa: E731
    setattr(module, name, replacement)
    registry.publish(candidate_id)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
