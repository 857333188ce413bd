from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandError, CommandParser

from promotion.management.people import PersonCommand, track_named
from promotion.services import policies


class Command(PersonCommand):
    help = "Lock a track's draft policy: results come after the rules."

    def arguments(self, parser: CommandParser) -> None:
        parser.add_argument("track")

    def run(self, by: User, *, track: str, **_: Any) -> str:
        draft = track_named(track).policies.filter(locked_at__isnull=True).first()
        if draft is None:
            raise CommandError(
                f"{track} has no draft. Save one first: manage.py draft_policy {track} policy.json --as …"
            )
        policy = policies.lock(policy_id=draft.pk, by=by)
        return f"Policy {policy.version} of {track} locked, digest {policy.digest}."
