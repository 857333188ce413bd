from __future__ import annotations

from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandError, CommandParser

from promotion.management.files import read_bytes
from promotion.management.people import PersonCommand, track_named
from promotion.preflight import ERROR
from promotion.services import preflights
from rollouts.services import datasets
from rollouts.text import split_unseen


class Command(PersonCommand):
    help = (
        "Check training data, its sidecar and a draft policy. Ends with an error where something cannot pass."
    )

    def arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--train", required=True, metavar="FILE|DATASET", help="a JSONL file, or a dataset"
        )
        parser.add_argument(
            "--eval", required=True, metavar="FILE|DATASET", help="a JSONL file, or a dataset"
        )
        parser.add_argument("--policy", type=Path, help="a draft (JSON)")
        parser.add_argument("--sidecar", type=Path, help="the JSON of both files; datasets have their own")
        parser.add_argument("--config", type=Path, help="a round's configuration (JSON): status and gates")
        parser.add_argument("--tool-schema", type=Path, help="the tool schemas (JSON) of the runtime")
        parser.add_argument("--track", help="whose champion the policy would compare with")

    def run(self, by: User, *, train: str, track: str | None, **options: Any) -> str:
        found = preflights.run(
            by=by,
            train=_data(train),
            evaluation=_data(options["eval"]),
            track=track_named(track) if track else None,
            **{
                name: read_bytes(options[name]) if options[name] else None
                for name in ("policy", "sidecar", "config", "tool_schema")
            },
        )
        told = "\n".join(
            f"{finding.severity:7}  {finding.code}  {finding.where}: {finding.text}\n         {finding.remedy}"
            for finding in found
        )
        told = "".join(piece for piece, _ in split_unseen(told))  # names of rows are foreign text
        errors = sum(finding.severity == ERROR for finding in found)
        if errors:
            raise CommandError(f"{told}\nNO GO: {errors} errors in {len(found)} findings.")
        return f"{told}\nGO, with {len(found)} warnings." if found else "GO: nothing was found."


def _data(reference: str) -> preflights.Data:
    """A file where there is one of this name, else a registered dataset."""
    path = Path(reference)
    return read_bytes(path) if path.is_file() else datasets.named(reference)
