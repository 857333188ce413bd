"""Identity is content: SHA-256 over canonical bytes (RFC 8785 for JSON)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import rfc8785

from rollouts.errors import InvalidInput

CHUNK_BYTES = 1 << 20


def canonical_bytes(value: Any) -> bytes:
    """The RFC 8785 form of a JSON value: UTF-8, sorted keys, no spaces.

    Raises `InvalidInput` for NaN, infinities, integers beyond 2**53 - 1, lone surrogates and types that JSON has not.
    """
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise InvalidInput("value", f"cannot be written as canonical JSON: {error}") from error


def sha256_bytes(data: bytes) -> str:
    """Lower-case hexadecimal SHA-256, 64 characters."""
    return hashlib.sha256(data).hexdigest()


def sha256_json(value: Any) -> str:
    """SHA-256 of the canonical bytes of a JSON value."""
    return sha256_bytes(canonical_bytes(value))


def sha256_file(path: Path) -> str:
    """SHA-256 of a file, read in chunks so that memory stays flat."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest()
