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
        parser.add_argument("kind", help=f"one of: {', '.join(kinds())}")
        parser.add_argument(
            "--config", default="{}", help='JSON, for example \'{"base_url": "https://host/v1"}\''
        )
        parser.add_argument("--key-env", default="", help="the environment variable that holds the key")
        parser.add_argument("--concurrency", type=int, default=1)
        parser.add_argument("--timeout-s", type=int, default=120)
        parser.add_argument("--max-attempts", type=int, default=3)
        parser.add_argument("--requests-per-minute", type=int, help="over all workers; left out: no limit")
        for side in ("prompt", "completion"):
            parser.add_argument(f"--{side}-price", type=int, help="micro-dollars per million tokens")

    def run(self, by: User, *, name: str, kind: str, config: str, **options: Any) -> str:
        try:
            parsed = json.loads(config)
        except ValueError as error:
            raise CommandError(f"--config is not JSON: {error}") from error
        names = (
            *("key_env", "concurrency", "timeout_s", "max_attempts"),
            *("requests_per_minute", "prompt_price", "completion_price"),
        )
        values = {name: options[name] for name in names}
        saved = backends.save(name=name, kind=kind, config=parsed, by=by, **values)
        return f"{saved} saved, digest {saved.digest}."
