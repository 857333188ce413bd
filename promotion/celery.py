"""The Celery application. A message only says "look now"; the database is the truth."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import beat_embedded_init, worker_process_init

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "promotion.settings")

app = Celery("assay")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@worker_process_init.connect
@beat_embedded_init.connect
def die_with_the_worker(**_: Any) -> None:
    """A worker killed by SIGKILL takes its pool, its beat and so its model servers with it."""
    from rollouts.processes import die_with_parent

    die_with_parent()
