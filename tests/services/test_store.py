"""Bytes are stored under their digest, whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollouts import store
from rollouts.errors import NotFound, StorageFailed
from rollouts.hashing import canonical_bytes, sha256_bytes, sha256_file
from rollouts.models import Artifact

pytestmark = pytest.mark.django_db


def kept() -> list[Path]:
    return sorted(path for path in Path(store.settings.ARTIFACTS_DIR).rglob("*") if path.is_file())


def test_bytes_come_back_under_their_digest() -> None:
    artifact = store.put([b"abc", b"", b"def"])

    assert artifact.sha256 == sha256_bytes(b"abcdef")
    assert artifact.size_bytes == 6
    assert store.path_of(artifact.sha256).read_bytes() == b"abcdef"


def test_equal_bytes_are_kept_once() -> None:
    first, second = store.put([b"abc"]), store.put([b"a", b"bc"])

    assert first == second and Artifact.objects.count() == 1
    assert kept() == [store.path_of(first.sha256)]


def test_nothing_is_a_file_too() -> None:
    assert store.put([]).sha256 == sha256_bytes(b"")


def test_a_copied_file_is_independent_of_its_source(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 3_000_000)
    artifact = store.put_file(source)

    source.write_bytes(b"changed")

    assert sha256_file(store.path_of(artifact.sha256)) == artifact.sha256


def test_a_missing_file_is_named_with_what_to_do() -> None:
    artifact = store.put([b"abc"])
    store.path_of(artifact.sha256).unlink()

    with pytest.raises(
        NotFound, match=f"{artifact.sha256[:12]} is missing from the artifact store. Restore it"
    ):
        store.path_of(artifact.sha256)


def test_a_file_that_was_lost_can_be_stored_again() -> None:
    artifact = store.put([b"abc"])
    store.path_of(artifact.sha256).unlink()

    assert store.put([b"abc"]) == artifact
    assert store.path_of(artifact.sha256).read_bytes() == b"abc"


@pytest.mark.parametrize("digest", ["../../etc/passwd", "", "A" * 64, "a" * 63, "a" * 65, "/" * 64])
def test_only_a_digest_is_a_place(digest: str) -> None:
    with pytest.raises(AssertionError):
        store.path_of(digest)


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_full_disk_leaves_nothing(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, function, full)
        with pytest.raises(
            StorageFailed, match=r"No space left on device\. Free space or permissions"
        ) as failed:
            store.put([b"abc"])

    assert failed.value.facts == {"errno": errno.ENOSPC}
    assert kept() == [] and not Artifact.objects.exists()
    assert store.put([b"abc"]).size_bytes == 3


def test_a_source_that_breaks_leaves_nothing() -> None:
    def chunks() -> Iterator[bytes]:
        yield b"abc"
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    with pytest.raises(StorageFailed):
        store.put(chunks())

    assert kept() == [] and not Artifact.objects.exists()


def test_a_store_that_is_no_folder_is_a_storage_failure(settings: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings.ARTIFACTS_DIR = tmp_path / "file"

    with pytest.raises(StorageFailed):
        store.put([b"abc"])


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ({"b": 1, "a": [True, None, "é"]}, b'{"a":[true,null,"\xc3\xa9"],"b":1}'),
        ({"a": 1.0, "b": 1e21}, b'{"a":1,"b":1e+21}'),
        ([], b"[]"),
    ],
)
def test_canonical_bytes_are_rfc_8785(value: Any, data: bytes) -> None:
    assert canonical_bytes(value) == data


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 2**53, "\ud800", {1: 2}, {"a": object()}, b"x"]
)
def test_what_has_no_canonical_form_is_refused(value: Any) -> None:
    from rollouts.errors import InvalidInput

    with pytest.raises(InvalidInput, match="canonical JSON"):
        canonical_bytes(value)


def test_what_a_killed_process_left_is_removed_when_it_is_old(settings: Any) -> None:
    folder = Path(settings.ARTIFACTS_DIR)
    old, young = folder / ".part-old", folder / ".part-young"
    for part in (old, young):
        part.write_bytes(b"half")
    os.utime(old, (0, 0))

    artifact = store.put([b"abc"])

    assert kept() == sorted([young, store.path_of(artifact.sha256)])
