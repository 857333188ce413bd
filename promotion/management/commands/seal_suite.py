from __future__ import annotations

from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandError, CommandParser

from promotion.management.people import PersonCommand
from rollouts.services import suites
from rollouts.suite_format import SCORERS
from rollouts.suite_format.bfcl import rows_from_bfcl


class Command(PersonCommand):
    help = "Seal the cases of a JSONL file as a suite."

    def arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("file", type=Path)
        parser.add_argument("--scorer", choices=SCORERS, default="decision")
        parser.add_argument(
            "--bfcl-answers",
            metavar="FILE|none",
            help="the file holds questions of the Berkeley leaderboard, and this one their possible answers; "
            "none: no call is right",
        )

    def run(self, by: User, *, name: str, file: Path, scorer: str, bfcl_answers: str | None, **_: Any) -> str:
        data = _read(file)
        if bfcl_answers is not None:
            if scorer != "function_call":
                raise CommandError("--bfcl-answers needs --scorer function_call.")
            data = rows_from_bfcl(data, None if bfcl_answers == "none" else _read(Path(bfcl_answers)))
        suite = suites.seal(name=name, data=data, by=by, source=file.name, scorer=scorer)
        return f"{suite} sealed: {suite.case_count} cases, scorer {suite.scorer}, digest {suite.digest}."


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from error
