"""Several people or workers at once, each in a thread with a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connections


def in_threads(*functions: Callable[[], Any]) -> list[Any]:
    """Call all at the same moment; results, or the exceptions themselves, in order."""
    start = threading.Barrier(len(functions))

    def call(function: Callable[[], Any]) -> Any:
        try:
            start.wait(10)
            return function()
        except Exception as error:
            return error
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(call, functions))
