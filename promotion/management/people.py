"""Commands act as a person: the same permission functions decide as on pages and in the API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser

from promotion.models import Track
from rollouts.errors import AssayError


class PersonCommand(BaseCommand):
    """A command with `--as NAME`. Subclasses write `run(by, **options)` and `arguments(parser)`."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--as", dest="person", required=True, metavar="NAME", help="the user who does this"
        )
        self.arguments(parser)

    def arguments(self, parser: CommandParser) -> None:
        raise NotImplementedError

    def run(self, by: User, **options: Any) -> str:
        """Does it and returns a sentence for the person at the terminal."""
        raise NotImplementedError

    def handle(self, *, person: str, **options: Any) -> None:
        by = User.objects.filter(username=person).first()
        if by is None:
            raise CommandError(
                f"--as: there is no user {person}. Make one with: manage.py create_user {person} --role …"
            )
        try:
            self.stdout.write(self.run(by, **options))
        except AssayError as error:
            raise CommandError(error.message) from error


def track_named(name: str) -> Track:
    track = Track.objects.filter(name=name).first()
    if track is None:
        known = ", ".join(Track.objects.values_list("name", flat=True)) or "none yet"
        raise CommandError(f"There is no track {name} (there are: {known}).")
    return track


def read_json(path: Path) -> Any:
    """A JSON file. Raises `CommandError` with the place of the fault."""
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(f"{path}: {error}") from error
