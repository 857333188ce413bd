"""Keeps what an import read: one canonical document in the artifact store, and one event in the audit chain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet

from promotion import permissions
from promotion.gates import parse_params
from promotion.importers import foundry
from promotion.importers.fields import Finding
from promotion.importers.foundry_policy import open_places
from promotion.services import policies
from rollouts import audit, store
from rollouts.errors import Conflict, InvalidInput, NotFound
from rollouts.hashing import canonical_bytes, sha256_bytes
from rollouts.models import Artifact, AuditEvent

IMPORTED = "foundry.imported"
SOME_DIGEST = "0" * 64


class Unreadable(InvalidInput):
    """The files cannot be imported. `findings` holds everything that is wrong, each with file and field."""

    def __init__(self, folder: Path, findings: list[Finding]) -> None:
        super().__init__(
            "folder",
            f"{folder} cannot be imported; nothing was kept. {findings[0]}"
            + (f" And {len(findings) - 1} more." if len(findings) > 1 else ""),
            findings=[list(finding) for finding in findings],
        )
        self.findings = findings


@dataclass(frozen=True, slots=True)
class Imported:
    """A stored record. `new` is False where these files were imported before."""

    digest: str
    record: dict[str, Any]
    new: bool
    event: AuditEvent


def import_foundry(*, folder: Path, by: User | None = None, track: str | None = None) -> Imported:
    """Read the folder and keep its record under its digest. Raises `Unreadable`; then nothing is kept.

    The same files give the same digest and no second event. Without `by` the shell's operator acts.
    """
    if by is not None:
        permissions.require_can_register(by)
    reading = foundry.read(folder, track)
    if reading.record is None:
        raise Unreadable(folder, reading.findings)
    data = canonical_bytes(reading.record)
    digest = sha256_bytes(data)
    with transaction.atomic():
        store.put([data])
        # two imports at once: the second waits here, and then finds the event
        artifact = Artifact.objects.select_for_update().get(sha256=digest)
        event = _event_of(digest)
        if event is not None:
            return Imported(digest, reading.record, False, event)
        event = audit.record(
            IMPORTED, subject=artifact, actor=by or "system:import_foundry", **counts_of(reading.record)
        )
    return Imported(digest, reading.record, True, event)


def counts_of(record: dict[str, Any]) -> dict[str, Any]:
    """What stands in the event: how much of each kind, and the tracks by name."""
    checks = [check for entry in record["promotions"] for check in entry["checks"]]
    parts = [*record["promotions"], *record["rounds"], *record["datasets"], *checks]
    return {
        "tracks": record["tracks"],
        "files": len(record["files"]),
        "promotions": len(record["promotions"]),
        "checks": len(checks),
        "rounds": len(record["rounds"]),
        "datasets": len(record["datasets"]),
        "schemas": len(record["schemas"]),
        "faults": sum(len(part["faults"]) for part in parts),
    }


def imports() -> QuerySet[AuditEvent]:
    """The events of imports; each one's subject is the record's digest."""
    return AuditEvent.objects.filter(action=IMPORTED)


def _event_of(digest: str) -> AuditEvent | None:
    return imports().filter(subject_type=Artifact._meta.label, subject_id=digest).first()


def imported(digest: str) -> Imported:
    """A stored record. Raises `NotFound` for other artifacts too, and `Conflict` where its bytes were changed."""
    event = _event_of(digest)
    if event is None:
        raise NotFound("There is no such import.")
    data = store.path_of(digest).read_bytes()
    if sha256_bytes(data) != digest:
        raise Conflict(f"The stored import {digest[:12]} holds other bytes than its digest says.")
    return Imported(digest, json.loads(data), False, event)


def why_not_lockable(document: dict[str, Any]) -> list[str]:
    """Why an imported draft cannot be locked as it stands: what it leaves open, and what no policy may say."""
    return [*open_places(document), *_refused_values(document)] or policies.unlockable_reasons(document)


def _refused_values(document: dict[str, Any]) -> Iterator[str]:
    """Values of entries that say all their gate asks for, whatever suite a mark stands for."""
    for index, entry in enumerate(document["gates"]):
        if None in entry.values():
            continue
        settled = {key: SOME_DIGEST if key == "suite" else value for key, value in entry.items()}
        try:
            parse_params(settled, f"gates.{index}")
        except InvalidInput as error:
            yield f"{error.message} ({entry['gate']})"
