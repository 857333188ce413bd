from __future__ import annotations

from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandParser

from promotion.management.files import read_bytes
from promotion.management.people import PersonCommand
from rollouts.services import datasets


class Command(PersonCommand):
    help = "Register a JSONL file of chat rows as a dataset."

    def arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("file", type=Path)
        parser.add_argument("--sidecar", type=Path, help="the JSON that came with the file")
        parser.add_argument(
            "--source", default="", help="where the rows come from; left out, the file's name"
        )

    def run(self, by: User, *, name: str, file: Path, sidecar: Path | None, source: str, **_: Any) -> str:
        dataset = datasets.register(
            name=name,
            data=read_bytes(file),
            sidecar=datasets.sidecar_of(read_bytes(sidecar)) if sidecar else None,
            source=source or file.name,
            by=by,
        )
        says = f"{dataset} registered: {dataset.row_count} rows, {dataset.text_count} distinct prompts"
        if dataset.without_id:
            says += f", {dataset.without_id} without id"
        if dataset.declared_sha256 and dataset.declared_sha256 != dataset.artifact_id:
            says += f"; its sidecar declares another file ({dataset.declared_sha256[:12]})"
        return f"{says}; digest {dataset.digest}."
