from __future__ import annotations

from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandParser

from promotion.management.people import PersonCommand, read_json, track_named
from promotion.services import policies


class Command(PersonCommand):
    help = "Validate a policy document (JSON) and save it as the track's draft."

    def arguments(self, parser: CommandParser) -> None:
        parser.add_argument("track")
        parser.add_argument("file", type=Path)

    def run(self, by: User, *, track: str, file: Path, **_: Any) -> str:
        policy = policies.draft(track=track_named(track), document=read_json(file), by=by)
        return f"Draft of policy {policy.version} saved, digest {policy.digest}. Lock it: manage.py lock_policy {track} --as …"
