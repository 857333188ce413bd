"""Files that commands read."""

from __future__ import annotations

from pathlib import Path

from django.core.management.base import CommandError


def read_bytes(path: Path) -> bytes:
    """Raises `CommandError` naming the file and why it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error
