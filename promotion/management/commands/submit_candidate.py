from __future__ import annotations

from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandError, CommandParser

from promotion.export.peft_adapter import find_adapter_files
from promotion.management.files import read_bytes
from promotion.management.people import PersonCommand, track_named
from promotion.services import candidates
from promotion.services.candidate_datasets import tool_schema_digest
from rollouts.models import BaseModel
from rollouts.services import datasets


class Command(PersonCommand):
    help = "Submit a PEFT LoRA adapter as a candidate. A worker builds its GGUF."

    def arguments(self, parser: CommandParser) -> None:
        parser.add_argument("track")
        parser.add_argument("name")
        parser.add_argument(
            "folder", type=Path, help="with adapter_config.json and adapter_model.safetensors"
        )
        parser.add_argument("--base", required=True, help="a registered base model")
        parser.add_argument("--outtype", choices=candidates.OUTTYPES, default="f16")
        parser.add_argument(
            "--baseline", action="store_true", help="propose it as the track's ungated first champion"
        )
        for role, what in (("train", "trained on"), ("eval", "watched with while it was trained")):
            parser.add_argument(
                f"--{role}",
                action="append",
                default=[],
                metavar="DATASET",
                help=f"a registered dataset that it was {what}: digest, name or name:version; may be given again",
            )
        parser.add_argument("--tool-schema", type=Path, help="the tool schemas (JSON) that its runtime shows")

    def run(
        self,
        by: User,
        *,
        track: str,
        name: str,
        folder: Path,
        base: str,
        outtype: str,
        baseline: bool,
        tool_schema: Path | None,
        **options: Any,
    ) -> str:
        registered = BaseModel.objects.filter(name=base).first()
        if registered is None:
            raise CommandError(f"--base: no base model is registered as {base}.")
        config, weights = find_adapter_files(folder)
        candidate = candidates.submit(
            track=track_named(track),
            name=name,
            base=registered,
            adapter_config=config,
            adapter_weights=weights,
            by=by,
            outtype=outtype,
            baseline=baseline,
            datasets=[
                {"digest": datasets.named(reference).digest, "role": role}
                for role in ("train", "eval")
                for reference in options[role]
            ],
            tool_schema_sha256=tool_schema_digest(read_bytes(tool_schema)) if tool_schema else "",
        )
        return f"{candidate} submitted; a worker builds its GGUF. Then: manage.py evaluate {track} {name} --backend … --as …"
