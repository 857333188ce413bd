from __future__ import annotations

from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandError, CommandParser

from promotion.management.people import PersonCommand
from rollouts.services import suites


class Command(PersonCommand):
    help = "Seal the cases of a JSONL file as a suite."

    def arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("file", type=Path)

    def run(self, by: User, *, name: str, file: Path, **_: Any) -> str:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise CommandError(f"{file}: {error.strerror}") from error
        suite = suites.seal(name=name, data=data, by=by, source=file.name)
        return f"{suite} sealed: {suite.case_count} cases, digest {suite.digest}."
