"""Judges an evidence bundle again from the file alone: no database is opened."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from promotion import bundle as bundles
from promotion.bundle import Regated
from promotion.management.people import read_json
from promotion.management.tables import markdown_table
from rollouts.errors import AssayError


class Command(BaseCommand):
    help = __doc__
    requires_system_checks = []  # some of them ask the database

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("bundle", type=Path, help="as export_evidence writes it, or an evidence document")
        parser.add_argument(
            "--at", type=_time, help="judge expiry as of this time, such as 2026-08-04T19:52:18Z"
        )
        parser.add_argument(
            "--expect", choices=["stored"], help="fail where the bundle's own outcomes are others"
        )
        parser.add_argument("--json", action="store_true", dest="as_json", help="for programs")

    def handle(
        self, *, bundle: Path, at: datetime | None, expect: str | None, as_json: bool, **_: Any
    ) -> None:
        try:
            regated = bundles.regate(read_json(bundle), at)
        except AssayError as error:
            raise CommandError(f"{bundle}: {error.message}") from error
        if expect and not regated.stored:
            raise CommandError(f"{bundle}: holds no outcomes to compare with.")
        self.stdout.write(_json(regated) if as_json else _text(regated))
        if expect and regated.differences:
            raise CommandError(f"Not as stored: {'; '.join(regated.differences)}.")


def _json(regated: Regated) -> str:
    return json.dumps(bundles.as_json(regated), indent=1, ensure_ascii=False)


def _text(regated: Regated) -> str:
    rows = [(j.gate, j.suite or "", str(j.outcome.outcome), j.outcome.reason) for j in regated.gates]
    if regated.signatures is not None:
        rows.append(("the signatures", "", str(regated.signatures.outcome), regated.signatures.reason))
    blocked = regated.blocked_by
    verdict = f"Blocked by: {'; '.join(blocked)}" if blocked else "Nothing blocks it."
    if regated.signatures is None:
        verdict += " The file holds no signatures."
    return "\n\n".join(
        [
            f"Evidence {regated.digest}, judged as of {regated.at:%Y-%m-%dT%H:%M:%SZ}.",
            markdown_table(["gate", "suite", "outcome", "reason"], rows),
            verdict,
        ]
    )


def _time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 2026-08-04T19:52:18Z") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
