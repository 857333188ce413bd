"""A small, bounded reader of GGUF headers.

`gguf.GGUFReader` makes Python objects of every token and merge (2.5 s for a vocabulary of 49,152); this one
skips them (0.05 s) and checks every offset before it is used, since base models are uploaded by people.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from rollouts.errors import InvalidInput

MAX_KEYS = 10_000
MAX_TENSORS = 100_000
MAX_STRING_BYTES = 16 << 20
MAX_DIMENSIONS = 4
MAX_NESTING = 4
KEPT_ARRAY_ITEMS = 16  # longer arrays (tokens, merges) are only counted

_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class LongArray:
    """An array that was counted, not kept. `offset` is where its first item starts in the file."""

    item_type: int
    count: int
    offset: int


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies. `shape` is in numpy order: a weight that maps `in` to `out` is (out, in)."""

    name: str
    shape: tuple[int, ...]
    ggml_type: GGMLQuantizationType
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class GgufFile:
    """The header of a GGUF file: keys, and where each tensor lies."""

    path: Path
    keys: dict[str, Any]
    tensors: dict[str, TensorInfo]

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        """Rows `start:stop` of a tensor as float32; a 1-D tensor comes whole. Raises `InvalidInput`."""
        info = self.tensors.get(name)
        if info is None:
            raise InvalidInput(name, "the base model has no such tensor.")
        if len(info.shape) == 1:
            return self._read(info, 0, info.size_bytes).reshape(info.shape)
        stop = info.shape[0] if stop is None else min(stop, info.shape[0])
        row_bytes = info.size_bytes // info.shape[0]
        values = self._read(info, start * row_bytes, (stop - start) * row_bytes)
        return values.reshape(stop - start, *info.shape[1:])

    def _read(self, info: TensorInfo, start: int, size: int) -> npt.NDArray[np.float32]:
        with self.path.open("rb") as file:
            file.seek(info.offset + start)
            raw = np.frombuffer(file.read(size), dtype=np.uint8)
        if info.ggml_type is GGMLQuantizationType.F32:
            return raw.view(np.float32)
        if info.ggml_type is GGMLQuantizationType.F16:
            return raw.view(np.float16).astype(np.float32)
        try:
            # As one long row: gguf-py works through 16 rows at a time, which is 20 times slower.
            values = dequantize(raw.reshape(1, -1), info.ggml_type)
        except NotImplementedError as error:
            raise InvalidInput(
                info.name, f"tensors of type {info.ggml_type.name} cannot be read here."
            ) from error
        return np.asarray(values, dtype=np.float32)

    def integers(self, key: str) -> npt.NDArray[np.int32] | None:
        """A long array of 32-bit integers, such as the token types; None if the file has no such array."""
        value = self.keys.get(key)
        if not isinstance(value, LongArray) or value.item_type not in (4, 5):
            return None
        return np.fromfile(self.path, dtype=np.int32, count=value.count, offset=value.offset)

    def strings(self, key: str) -> list[str]:
        """An array of strings, such as the tokens; empty if the file has no such array."""
        value = self.keys.get(key)
        if isinstance(value, list):
            return [item for item in value if isinstance(item, str)]
        if not isinstance(value, LongArray) or value.item_type != _STRING:
            return []
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            cursor = _Cursor(data)
            cursor.at = value.offset
            return [cursor.string() for _ in range(value.count)]


class _Cursor:
    """Reads forward through a mapped file and refuses to pass its end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def skip(self, count: int) -> int:
        start = self.at
        if count > len(self.data) - start:
            raise InvalidInput(
                "file", "the GGUF file is truncated: its header runs past its end. Copy it again."
            )
        self.at = start + count
        return start

    def scalar(self, code: str) -> Any:
        return struct.unpack_from(code, self.data, self.skip(struct.calcsize(code)))[0]

    def string(self) -> str:
        size = self.scalar("<Q")
        if size > MAX_STRING_BYTES:
            raise InvalidInput(
                "file", f"the GGUF header holds a string of {size} bytes; at most {MAX_STRING_BYTES}."
            )
        start = self.skip(size)
        return self.data[start : start + size].decode("utf-8", errors="replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY and depth < MAX_NESTING:
            return self._array(depth)
        if kind not in _SCALARS:
            raise InvalidInput("file", f"the GGUF header uses an unknown value type {kind}.")
        return self.scalar(_SCALARS[kind])

    def _array(self, depth: int) -> Any:
        kind, count = self.scalar("<I"), self.scalar("<Q")
        if count <= KEPT_ARRAY_ITEMS:
            return [self.value(kind, depth + 1) for _ in range(count)]
        start = self.at
        if kind in _SCALARS:
            self.skip(count * struct.calcsize(_SCALARS[kind]))
        elif kind == _STRING:
            for _ in range(count):
                self.skip(self.scalar("<Q"))
        else:
            raise InvalidInput("file", "the GGUF header nests long arrays, which no model needs.")
        return LongArray(kind, count, start)


def read_gguf(path: Path) -> GgufFile:
    """The header of the file. Raises `InvalidInput` for anything but a whole GGUF of version 2 or 3."""
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise InvalidInput("file", "this is not a GGUF file (it does not start with 'GGUF').")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(path, _Cursor(data))
    except OSError as error:
        raise InvalidInput("file", f"the GGUF file cannot be read: {error.strerror}.") from error


def _parse(path: Path, cursor: _Cursor) -> GgufFile:
    cursor.skip(4)
    version = cursor.scalar("<I")
    if version not in (2, 3):
        raise InvalidInput(
            "file", f"GGUF version {version} is not supported; convert the model with a newer llama.cpp."
        )
    n_tensors, n_keys = cursor.scalar("<Q"), cursor.scalar("<Q")
    if n_tensors > MAX_TENSORS or n_keys > MAX_KEYS:
        raise InvalidInput(
            "file", f"the GGUF header claims {n_tensors} tensors and {n_keys} keys, which is absurd."
        )
    keys: dict[str, Any] = {}
    for _ in range(n_keys):
        key = cursor.string()
        if key in keys:
            raise InvalidInput(key, "the GGUF header has this key twice.")
        keys[key] = cursor.value(cursor.scalar("<I"))
    entries = [_tensor_entry(cursor) for _ in range(n_tensors)]
    alignment = keys.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 16:
        raise InvalidInput("general.alignment", f"{alignment!r} is no alignment.")
    data_start = -(-cursor.at // alignment) * alignment
    return GgufFile(path, keys, _placed(entries, data_start, len(cursor.data)))


def _tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape in numpy order, type number, offset from the start of the data."""
    name, dimensions = cursor.string(), cursor.scalar("<I")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise InvalidInput(name, f"a tensor of {dimensions} dimensions cannot be used.")
    shape = tuple(cursor.scalar("<Q") for _ in range(dimensions))[::-1]
    return name, shape, cursor.scalar("<I"), cursor.scalar("<Q")


def _placed(
    entries: list[tuple[str, tuple[int, ...], int, int]], data_start: int, file_size: int
) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for name, shape, type_number, offset in entries:
        try:
            ggml_type = GGMLQuantizationType(type_number)
        except ValueError as error:
            raise InvalidInput(name, f"tensor type {type_number} is not known to gguf-py.") from error
        block, block_bytes = GGML_QUANT_SIZES[ggml_type]
        if min(shape) < 1 or shape[-1] % block or name in tensors:
            raise InvalidInput(
                name, f"the tensor is doubled, or its shape {shape} does not fit {ggml_type.name}."
            )
        size = math.prod(shape) // block * block_bytes
        if data_start + offset + size > file_size:
            raise InvalidInput(
                name, "the GGUF file is truncated: this tensor runs past its end. Copy it again."
            )
        tensors[name] = TensorInfo(name, shape, ggml_type, data_start + offset, size)
    return tensors
