"""The content-addressed store: files under ARTIFACTS_DIR by their SHA-256, written once and never changed."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from django.conf import settings
from django.utils import timezone

from rollouts.errors import NotFound, StorageFailed
from rollouts.hashing import CHUNK_BYTES, sha256_file
from rollouts.models import Artifact

PART = ".part-"
LEFTOVER_S = 6 * 3600  # no writing takes this long


def path_of(sha256: str) -> Path:
    """Where the bytes of a digest lie. Raises `NotFound` where they are gone, with what to do."""
    path = _place(sha256)
    if not path.is_file():
        raise NotFound(
            f"The file {sha256[:12]} is missing from the artifact store. Restore it from a backup."
        )
    return path


def holds(sha256: str) -> bool:
    """Whether the file is there; its bytes are not read."""
    return _place(sha256).is_file()


def _place(sha256: str) -> Path:
    assert len(sha256) == 64 and set(sha256) <= set("0123456789abcdef"), sha256
    return Path(settings.ARTIFACTS_DIR) / sha256[:2] / sha256


def put(chunks: Iterable[bytes]) -> Artifact:
    """Store bytes and return their row. Equal bytes are stored once. Raises `StorageFailed`; then nothing is left."""
    with storage_errors("the artifact store"):
        part = _write_part(chunks)
    return _keep(part)


def put_file(path: Path) -> Artifact:
    """Store a copy of a file."""
    with path.open("rb") as file:
        return put(iter(lambda: file.read(CHUNK_BYTES), b""))


def _write_part(chunks: Iterable[bytes]) -> Path:
    root = Path(settings.ARTIFACTS_DIR)
    root.mkdir(parents=True, exist_ok=True)
    discard_leftovers(root)
    handle, name = tempfile.mkstemp(prefix=PART, dir=root)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return part


def _keep(part: Path) -> Artifact:
    try:
        with storage_errors("the artifact store"):
            sha256, size = sha256_file(part), part.stat().st_size
            place = _place(sha256)
            place.parent.mkdir(exist_ok=True)
            part.chmod(0o640)
            os.replace(part, place)
            sync_folder(place.parent)
    finally:
        part.unlink(missing_ok=True)
    artifact, _ = Artifact.objects.get_or_create(
        sha256=sha256, defaults={"size_bytes": size, "created_at": timezone.now()}
    )
    return artifact


def discard_leftovers(folder: Path) -> None:
    """Removes the temporary files and folders that a killed process left in a folder."""
    oldest = time.time() - LEFTOVER_S
    for part in folder.glob(f"{PART}*"):
        with suppress(OSError):  # another process may be faster
            if part.stat().st_mtime >= oldest:
                continue
            if part.is_dir():
                shutil.rmtree(part)
            else:
                part.unlink()


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Turns the system's write errors into `StorageFailed`, which names the remedy."""
    try:
        yield
    except OSError as error:
        raise StorageFailed(
            f"Writing to {what} failed: {error.strerror or error}. Free space or permissions, then try again; "
            "nothing was left half-written.",
            errno=error.errno,
        ) from error
