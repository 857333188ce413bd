from __future__ import annotations

from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandError, CommandParser

from promotion.management.people import PersonCommand
from rollouts.services import transcripts


class Command(PersonCommand):
    help = "Store a recorded transcript (JSONL) for backends of kind scripted."

    def arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)

    def run(self, by: User, *, file: Path, **_: Any) -> str:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise CommandError(f"{file}: {error.strerror}") from error
        saved = transcripts.save(data=data, by=by)
        return f"Transcript saved: {saved.rows} rows, {saved.replies} replies, digest {saved.digest}."
