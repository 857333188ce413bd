"""Files that come in and go out."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from django.core.files.uploadedfile import TemporaryUploadedFile, UploadedFile
from django.http import FileResponse
from rest_framework.renderers import BaseRenderer

from rollouts import store
from rollouts.errors import Conflict, InvalidInput
from rollouts.hashing import sha256_file
from rollouts.models import Artifact


class OctetStream(BaseRenderer):
    """So that a client may ask for bytes. What it renders itself are problems; files are streamed past it."""

    media_type = "application/octet-stream"
    format = "bin"
    charset = None
    render_style = "binary"

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None
    ) -> bytes:
        return json.dumps(data).encode()


class ArtifactDamaged(Conflict):
    """The stored bytes are not those of the digest."""

    code = "artifact_damaged"


def path_on_disk(file: UploadedFile) -> Path:
    assert isinstance(file, TemporaryUploadedFile), "uploads go to disk"
    file.flush()
    return Path(file.temporary_file_path())


def bytes_of(field: str, file: UploadedFile | None, most: int) -> bytes | None:
    """A small file's bytes. Raises `InvalidInput` where it is larger than `most`."""
    if file is None:
        return None
    if (file.size or 0) > most:
        raise InvalidInput(field, f"is {file.size} bytes; at most {most} are taken.")
    data: bytes = file.read()
    return data


def file_response(artifact: Artifact, name: str) -> FileResponse:
    """The artifact's file under a name, its hash checked first. Raises `NotFound` or `ArtifactDamaged`."""
    path = store.path_of(artifact.sha256)
    if sha256_file(path) != artifact.sha256:
        raise ArtifactDamaged(f"The stored file of {name} holds other bytes than its digest says.", name=name)
    response = FileResponse(
        path.open("rb"), as_attachment=True, filename=name, content_type=OctetStream.media_type
    )
    response["ETag"] = f'"{artifact.sha256}"'
    response["Repr-Digest"] = f"sha-256=:{base64.b64encode(bytes.fromhex(artifact.sha256)).decode()}:"
    return response
