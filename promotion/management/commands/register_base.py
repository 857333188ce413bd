from __future__ import annotations

from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandParser

from promotion.management.people import PersonCommand
from promotion.services import bases


class Command(PersonCommand):
    help = "Register a base model's GGUF."

    def arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("file", type=Path)

    def run(self, by: User, *, name: str, file: Path, **_: Any) -> str:
        base = bases.register(name=name, file=file, by=by)
        return f"{base} registered: {base.architecture}, SHA-256 {base.artifact_id}."
