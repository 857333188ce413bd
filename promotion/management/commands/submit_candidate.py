from __future__ import annotations

from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandError, CommandParser

from promotion.export.peft_adapter import find_adapter_files
from promotion.management.people import PersonCommand, track_named
from promotion.services import candidates
from rollouts.models import BaseModel


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
        **_: Any,
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
        )
        return f"{candidate} submitted; a worker builds its GGUF. Then: manage.py evaluate {track} {name} --backend … --as …"
