"""Base models: a GGUF file becomes a registered one."""

from __future__ import annotations

from pathlib import Path

from django.contrib.auth.models import User

from promotion import permissions
from promotion.export.base_header import read_base_header
from rollouts import store
from rollouts.errors import InvalidInput
from rollouts.models import BaseModel
from rollouts.services import subjects


def register(*, name: str, file: Path, by: User) -> BaseModel:
    """Reads the header, stores a copy of the file, and writes the row. Raises `InvalidInput` with what is wrong."""
    permissions.require_can_register(by)
    if not file.is_file():
        raise InvalidInput("file", f"{file.name} is not there.")
    header = read_base_header(file)
    return subjects.register_base(
        name=name,
        artifact=store.put_file(file),
        architecture=header.architecture,
        header=header.to_json(),
        chat_template=header.chat_template,
        by=by,
    )
