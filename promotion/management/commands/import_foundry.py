from __future__ import annotations

from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser

from promotion.importers.foundry_faults import FAULTS, STANDINGS
from promotion.services import imports
from rollouts.errors import AssayError


class Command(BaseCommand):
    help = (
        "Read a foundry's registry, round configs, dataset sidecars and tool schemas, and keep them as one record: "
        "what they do not prove stays recorded, not verified."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path, help="a checkout, or a folder with PROMOTION_REGISTRY.json")
        parser.add_argument("--track", help="only the promotions and rounds of this track of theirs")
        parser.add_argument("--by", "--as", dest="person", metavar="NAME", help="the user who does this")

    def handle(self, *, folder: Path, track: str | None, person: str | None, **_: Any) -> None:
        by = User.objects.filter(username=person).first() if person else None
        if person and by is None:
            raise CommandError(f"--by: there is no user {person}.")
        try:
            found = imports.import_foundry(folder=folder, by=by, track=track)
        except imports.Unreadable as error:
            lines = "\n".join(f"  {finding}" for finding in error.findings)
            raise CommandError(f"{folder} cannot be imported; nothing was kept:\n{lines}") from error
        except AssayError as error:
            raise CommandError(error.message) from error
        self._report(found)

    def _report(self, found: imports.Imported) -> None:
        write = self.stdout.write
        counts = imports.counts_of(found.record)
        write(", ".join(f"{counts[key]} {key}" for key in counts if key != "tracks"))
        for entry in found.record["promotions"]:
            passed = sum(bool(check["passed"]) for check in entry["checks"])
            gated = (
                f"{passed} of {len(entry['checks'])} checks recorded as passed"
                if entry["checks"]
                else "no checks"
            )
            write(f"{entry['round']}, {entry['promoted_at']}: {gated}")
            for fault in entry["faults"]:
                write(f"  {fault['id']}: {FAULTS[fault['id']]}")
            for check in entry["checks"]:
                ids = ", ".join(fault["id"] for fault in check["faults"])
                write(f"  {check['name']}: {STANDINGS[check['standing']]}{f' [{ids}]' if ids else ''}")
        state = "kept" if found.new else "known already, nothing added"
        write(f"Record {found.digest} {state}. See /imports/{found.digest}/")
