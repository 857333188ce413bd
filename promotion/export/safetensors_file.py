"""A strict, memory-mapped reader of safetensors files (F32, F16, BF16): no tensor library is needed."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rollouts.errors import InvalidInput

MAX_HEADER_BYTES = 16 << 20
MAX_DIMENSIONS = 4
_DTYPES: dict[str, Any] = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
# PyTorch's old format and its zip format: both are pickles, which run code when they are loaded.
_PICKLE_MAGIC = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")


@dataclass(frozen=True)
class StoredTensor:
    """One tensor's place in the file: `start` counts bytes from the file's first byte."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    size_bytes: int


@dataclass(frozen=True)
class SafetensorsFile:
    """The checked header of a safetensors file. Values are read only when they are asked for."""

    path: Path
    tensors: dict[str, StoredTensor]

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor as float32, widened exactly from its stored type. Raises `InvalidInput` if missing."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise InvalidInput(name, "the weights file has no such tensor.")
        count = math.prod(tensor.shape)
        if count == 0:
            return np.zeros(tensor.shape, dtype=np.float32)
        raw = np.memmap(self.path, dtype=_DTYPES[tensor.dtype], mode="r", offset=tensor.start, shape=(count,))
        if tensor.dtype == "BF16":
            # bfloat16 is the upper half of a float32.
            return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(tensor.shape)
        return np.asarray(raw, dtype=np.float32).reshape(tensor.shape)


def read_safetensors(path: Path, *, field: str = "weights") -> SafetensorsFile:
    """Reads and checks the header. Raises `InvalidInput` naming what is wrong and the remedy."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            start = file.read(8)
            if start.startswith(_PICKLE_MAGIC):
                raise InvalidInput(
                    field, "this is a pickle, which can run code; save the adapter again as safetensors."
                )
            length = int.from_bytes(start, "little")
            if len(start) < 8 or not 2 <= length <= MAX_HEADER_BYTES or length > size - 8:
                raise InvalidInput(field, "this is no safetensors file, or it is truncated; copy it again.")
            header = file.read(length)
    except OSError as error:
        raise InvalidInput(field, f"the weights cannot be read: {error.strerror}.") from error
    entries = parse_json_object(header, field=field)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise InvalidInput(f"{field}.__metadata__", "must be an object.")
    tensors = [_stored(name, entry, data_start=8 + length) for name, entry in entries.items()]
    _check_layout(tensors, data_start=8 + length, file_size=size, field=field)
    return SafetensorsFile(path, {tensor.name: tensor for tensor in tensors})


def parse_json_object(data: bytes, *, field: str) -> dict[str, Any]:
    """Strict JSON: an object without doubled keys, NaN or infinities. Raises `InvalidInput`."""

    def no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            names = [name for name, _ in pairs]
            doubled = next(name for name in names if names.count(name) > 1)
            raise InvalidInput(f"{field}.{doubled}", "this name occurs twice.")
        return result

    def no_constant(text: str) -> Any:
        raise InvalidInput(field, f"{text} is not JSON.")

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=no_doubles, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(field, f"not valid JSON: {str(error)[:200]}.") from error
    if not isinstance(value, dict):
        raise InvalidInput(field, "must be a JSON object.")
    return value


def _stored(name: str, entry: Any, *, data_start: int) -> StoredTensor:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise InvalidInput(name, "the safetensors entry must have dtype, shape and data_offsets.")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise InvalidInput(
            name, f"tensors of type {dtype!r} are not supported; save the adapter as F32, F16 or BF16."
        )
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2 or len(shape) > MAX_DIMENSIONS:
        raise InvalidInput(name, "the safetensors entry has a malformed shape or data_offsets.")
    size = math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize
    if offsets[1] - offsets[0] != size:
        raise InvalidInput(
            name, f"its data is {offsets[1] - offsets[0]} bytes, but {dtype} {shape} needs {size}."
        )
    return StoredTensor(name, dtype, tuple(shape), data_start + offsets[0], size)


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 48 for item in value)


def _check_layout(tensors: list[StoredTensor], *, data_start: int, file_size: int, field: str) -> None:
    """The format allows neither gaps nor overlaps: bytes that no tensor owns could hide anything."""
    at = data_start
    for tensor in sorted(tensors, key=lambda each: (each.start, each.size_bytes)):
        if tensor.start != at:
            raise InvalidInput(tensor.name, "its data overlaps another tensor's, or leaves a gap before it.")
        at += tensor.size_bytes
    if at != file_size:
        problem = "is truncated" if at > file_size else "has bytes after its last tensor"
        raise InvalidInput(
            field, f"the safetensors file {problem} ({file_size} bytes, {at} expected); copy it again."
        )
