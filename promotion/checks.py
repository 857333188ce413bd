"""System checks: combinations of settings that would lose work or let it in unseen."""

from __future__ import annotations

import os
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections


@register()
def visibility_outlasts_tasks(app_configs: Any, **_: Any) -> list[CheckMessage]:
    timeout = settings.CELERY_BROKER_TRANSPORT_OPTIONS.get("visibility_timeout")
    if timeout is not None and timeout <= settings.CELERY_TASK_TIME_LIMIT:
        return [
            Error(
                f"visibility_timeout ({timeout} s) is not above the longest task "
                f"({settings.CELERY_TASK_TIME_LIMIT} s): Redis would deliver running tasks a second time.",
                id="assay.E001",
            )
        ]
    return []


@register()
def shards_fit_their_limits(app_configs: Any, **_: Any) -> list[CheckMessage]:
    if settings.SHARD_SECONDS * 2 >= settings.CELERY_TASK_TIME_LIMIT:
        return [
            Error(
                "ASSAY_SHARD_SECONDS must be below half of the task time limit, so that a shard can finish what "
                "it has in flight.",
                id="assay.E002",
            )
        ]
    return []


@register()
def folders_can_be_written(app_configs: Any, **_: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    for name in ("ARTIFACTS_DIR", "EXPORTS_DIR"):
        path = getattr(settings, name)
        try:
            path.mkdir(parents=True, exist_ok=True)
            writable = os.access(path, os.W_OK)
        except OSError:
            writable = False
        if not writable:
            found.append(
                Error(f"{name} cannot be written. Give its owner write permission.", id="assay.E003")
            )
    return found


@register(Tags.security, deploy=True)
def production_is_distributed(app_configs: Any, **_: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if settings.PRODUCTION and settings.SQLITE:
        found.append(Warning("Production on SQLite: set DATABASE_URL to PostgreSQL.", id="assay.W001"))
    if settings.PRODUCTION and not settings.REDIS_URL:
        found.append(Warning("Production on the filesystem broker: set REDIS_URL.", id="assay.W002"))
    return found


@register(Tags.database)
def append_only_triggers_stand(app_configs: Any, databases: Any = None, **_: Any) -> list[CheckMessage]:
    from rollouts import append_only

    found: list[CheckMessage] = []
    for alias in databases or []:
        missing = append_only.missing(connections[alias])
        if missing:
            found.append(
                Error(
                    f"These append-only triggers are missing: {', '.join(missing)}. Run: python manage.py migrate",
                    id="assay.E004",
                )
            )
    return found
