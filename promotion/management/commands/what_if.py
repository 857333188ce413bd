from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from promotion import whatif
from promotion.management.people import read_json, track_named
from rollouts.errors import AssayError


class Command(BaseCommand):
    help = "Say what another policy would have said of a track's past candidates. Writes nothing."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("track")
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            "--policy", type=int, metavar="VERSION", help="left out: the draft, else the one in force"
        )
        which.add_argument("--file", type=Path, help="a policy document (JSON), lockable or not")

    def handle(self, *, track: str, policy: int | None, file: Path | None, **_: Any) -> None:
        found = track_named(track)
        try:
            if file is not None:
                replay = whatif.replay(found, read_json(file))
            else:
                replay = whatif.replay_policy(found, policy)
        except AssayError as error:
            raise CommandError(error.message) from error
        self._report(replay)

    def _report(self, replay: whatif.Replay) -> None:
        write = self.stdout.write
        name = f"policy {replay.version}" if replay.version else "the document"
        write(f"{replay.track} under {name} ({replay.digest[:12]}): {len(replay.rows)} candidates")
        for row in replay.rows:
            by = f"under policy {row.policy_version}" if row.policy_version else "no policy"
            write(
                f"{row.candidate.name}: {row.now or 'no verdict'} {by}, {row.then or 'unknown'} then. {row.why_not}".rstrip()
            )
            for difference in row.differences:
                where = f" on {difference.suite}" if difference.suite else ""
                turn = f"{difference.now or 'not asked'} -> {difference.then or 'not asked'}"
                write(f"  {difference.gate}{where}: {turn}. {difference.reason}")
        write(
            f"{replay.same} the same, {replay.opened} would open, {replay.closed} would close, "
            f"{replay.unknown} cannot be told."
        )
