from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandParser

from promotion.management.people import PersonCommand
from promotion.services import tracks


class Command(PersonCommand):
    help = "Create a track."

    def arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--purpose", required=True, help="a sentence: what its models are for")
        parser.add_argument(
            "--readers",
            action="append",
            default=[],
            metavar="GROUP",
            help="a group that may see it, besides auditors and administrators; left out: everybody with a role",
        )

    def run(self, by: User, *, name: str, purpose: str, readers: list[str], **_: Any) -> str:
        track = tracks.create(name=name, purpose=purpose, readers=readers, by=by)
        return (
            f"Track {track} created. Draft its policy next: manage.py draft_policy {track} policy.json --as …"
        )
