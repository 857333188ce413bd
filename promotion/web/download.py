"""Gives out published exports, and only those: the row must be there, and the file must hold its bytes."""

from __future__ import annotations

import base64
import hashlib
from typing import BinaryIO

from django.http import FileResponse

from promotion.models import Export
from promotion.services.registry import export_path
from rollouts.errors import NotFound
from rollouts.hashing import CHUNK_BYTES


def stream_export(export: Export) -> FileResponse:
    """The published file. The very handle that is hashed is streamed, so no other bytes can slip in between.

    Raises `NotFound` where the file is gone or holds other bytes.
    """
    path = export_path(export.entry.candidate)
    try:
        file = path.open("rb")
    except OSError as error:
        raise NotFound(f"The export {export.name} is not in the export folder.") from error
    digest = _digest(file)
    if path.name != export.name or digest.hex() != export.artifact_id:
        file.close()
        raise NotFound(f"The export {export.name} holds other bytes than were published.")
    file.seek(0)
    response = FileResponse(
        file, as_attachment=True, filename=export.name, content_type="application/octet-stream"
    )
    response["Repr-Digest"] = f"sha-256=:{base64.b64encode(digest).decode()}:"
    response["ETag"] = f'"{digest.hex()}"'
    return response


def _digest(file: BinaryIO) -> bytes:
    hasher = hashlib.sha256()
    while chunk := file.read(CHUNK_BYTES):
        hasher.update(chunk)
    return hasher.digest()
