"""SIGKILL at each point of the publication: nothing or everything, and a second try finishes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.conf import settings
from django.db import connection

from promotion.models import Alias, Export, RegistryEntry
from promotion.services import registry
from rollouts.hashing import sha256_file
from rollouts.models import AuditEvent
from tests.factories import house

POINTS = [
    "before_the_copy",
    "inside_the_copy",
    "before_the_rename",
    "after_the_rename",
    "before_the_entry",
    "after_the_entry_before_the_alias",
    "before_the_audit_event",
]


def publish_and_die(candidate_id: int, point: str) -> int:
    """The exit code of a process that works on the test database and kills itself."""
    values = connection.settings_dict
    user = quote(values["USER"]) + (f":{quote(values['PASSWORD'])}" if values["PASSWORD"] else "")
    environment = {
        **os.environ,
        "DATABASE_URL": f"postgres://{user}@{values['HOST']}:{values['PORT'] or 5432}/{values['NAME']}",
        "DJANGO_SETTINGS_MODULE": "promotion.settings",
        "ASSAY_ARTIFACTS": str(settings.ARTIFACTS_DIR),
        "ASSAY_EXPORTS": str(settings.EXPORTS_DIR),
    }
    script = Path(__file__).with_name("publish_and_die.py")
    command = [sys.executable, str(script), str(candidate_id), point]
    environment["PYTHONPATH"] = str(settings.BASE_DIR)
    return subprocess.run(command, env=environment, check=False, timeout=60, capture_output=True).returncode


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_while_publishing_leaves_nothing_and_a_second_try_finishes(
    point: str, sent: list[Any]
) -> None:
    scene = house(champion=True)
    candidate = scene.approved()

    assert publish_and_die(candidate.pk, point) == -signal.SIGKILL
    assert not RegistryEntry.objects.filter(candidate=candidate).exists()
    assert not Export.objects.filter(entry__candidate=candidate).exists()
    assert Alias.objects.get(track=scene.track).entry == scene.champion

    entry = registry.publish(candidate.pk)

    assert entry is not None
    assert RegistryEntry.objects.filter(candidate=candidate).count() == 1
    assert Alias.objects.get(track=scene.track).entry == entry
    assert sha256_file(registry.export_path(candidate)) == candidate.gguf_id
    assert AuditEvent.objects.filter(action="candidate.promoted", subject_id=candidate.pk).count() == 1
    assert registry.publish(candidate.pk) is None
