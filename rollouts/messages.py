"""Messages to workers. They only say "look now": a lost one delays its work until the next sweep, and nothing else."""

from __future__ import annotations

import logging
from typing import Any

from celery import Task
from django.db import transaction
from kombu.exceptions import OperationalError

log = logging.getLogger(__name__)


def send_after_commit(task: Task, *args: Any, times: int = 1) -> None:
    """Send once the transaction is committed. A broker that is away is logged: what was asked for is in the database."""
    transaction.on_commit(lambda: _send(task, args, times))


def _send(task: Task, args: tuple[Any, ...], times: int) -> None:
    try:
        for _ in range(times):
            # no retries here: whoever waits for an answer must not wait for the broker, and a sweep sends again
            task.apply_async(args, retry=False)
    except OperationalError as error:
        log.warning("%s%s was not sent, the broker is away: %s", task.name, args, error)
