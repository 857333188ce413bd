from __future__ import annotations

import json
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandError, CommandParser

from promotion.management.people import PersonCommand
from rollouts.backends import kinds
from rollouts.services import backends


class Command(PersonCommand):
    help = "Save a backend; a change makes a new revision."

    def arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("kind", choices=kinds())
        parser.add_argument(
            "--config", default="{}", help='JSON, for example \'{"base_url": "https://host/v1"}\''
        )
        parser.add_argument("--key-env", default="", help="the environment variable that holds the key")
        parser.add_argument("--concurrency", type=int, default=1)
        parser.add_argument("--timeout-s", type=int, default=120)
        parser.add_argument("--max-attempts", type=int, default=3)

    def run(self, by: User, *, name: str, kind: str, config: str, **options: Any) -> str:
        try:
            parsed = json.loads(config)
        except ValueError as error:
            raise CommandError(f"--config is not JSON: {error}") from error
        limits = {key: options[key] for key in ("key_env", "concurrency", "timeout_s", "max_attempts")}
        saved = backends.save(name=name, kind=kind, config=parsed, by=by, **limits)
        return f"{saved} saved, digest {saved.digest}."
