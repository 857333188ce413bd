"""From a PEFT LoRA adapter to a GGUF adapter: numpy only, the same bytes on every machine.

llama.cpp applies `adapter.lora.alpha / rank(lora_b)` to every tensor. What PEFT means by rslora and
alpha_pattern is therefore folded: into the one alpha where that serves every tensor, else into lora_b.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, Keys
from gguf.quants import quant_shape_to_byte_shape, quantize

from promotion.export.base_header import BaseHeader
from promotion.export.gguf_out import write_streamed
from promotion.export.peft_adapter import LoraPair, PeftAdapter, check_against, check_values, load_adapter
from rollouts.errors import InvalidInput, StorageFailed
from rollouts.hashing import sha256_file

FORMAT_VERSION = 1
FORMAT_KEY = "assay.export.format_version"
FILE_MODE = 0o644
Outtype = Literal["f32", "f16", "q8_0"]
F32, F16, Q8_0 = GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.Q8_0
_TYPES = {"f32": F32, "f16": F16, "q8_0": Q8_0}
_A: Literal["a"] = "a"
_B: Literal["b"] = "b"
_F16_MAX = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class ConversionReport:
    """What was written. `alpha` is the stored adapter.lora.alpha as a decimal string."""

    sha256: str
    size_bytes: int
    outtype: str
    architecture: str
    format_version: int
    alpha: str
    tensors: int
    config_sha256: str
    weights_sha256: str
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON-safe."""
        return asdict(self) | {"warnings": list(self.warnings)}


@dataclass(frozen=True)
class _Planned:
    """One tensor to come: `shape` is its logical shape in numpy order, whatever its type."""

    name: str
    shape: tuple[int, int]
    ggml_type: GGMLQuantizationType
    pair: LoraPair
    side: Literal["a", "b"]

    @property
    def byte_shape(self) -> tuple[int, ...]:
        return quant_shape_to_byte_shape(self.shape, self.ggml_type)


def convert(
    config_path: Path, weights_path: Path, base: BaseHeader, out: Path, outtype: Outtype
) -> ConversionReport:
    """Writes the GGUF adapter to `out`, whole or not at all.

    Raises `InvalidInput` if a GGUF of this base cannot carry the adapter, `StorageFailed` if the disk fails.
    """
    if outtype not in get_args(Outtype):
        raise InvalidInput("outtype", f"{outtype!r} is not one of {', '.join(get_args(Outtype))}.")
    adapter = load_adapter(config_path, weights_path)
    check_against(adapter, base)
    warnings = check_values(adapter)
    config_sha256, weights_sha256 = sha256_file(config_path), sha256_file(weights_path)
    with _atomic_file(out) as temporary:
        _write(temporary, adapter, base, outtype)
        sha256, size = sha256_file(temporary), temporary.stat().st_size
    return ConversionReport(
        sha256=sha256,
        size_bytes=size,
        outtype=outtype,
        architecture=base.architecture,
        format_version=FORMAT_VERSION,
        alpha=f"{float(np.float32(stored_alpha(adapter))):.9g}",
        tensors=2 * len(adapter.pairs),
        config_sha256=config_sha256,
        weights_sha256=weights_sha256,
        warnings=tuple(warnings),
    )


def stored_alpha(adapter: PeftAdapter) -> float:
    """The one alpha of the file: PEFT's lora_alpha, times sqrt(rank) with rank-stabilised LoRA."""
    config = adapter.config
    return config.alpha * math.sqrt(config.rank) if config.use_rslora else config.alpha


def fold_factor(adapter: PeftAdapter, pair: LoraPair) -> float:
    """What turns llama.cpp's alpha / rank into PEFT's scale when lora_b is multiplied by it; mostly 1."""
    config = adapter.config
    if pair.alpha == config.alpha and (not config.use_rslora or pair.rank == config.rank):
        return 1.0
    return pair.scale * pair.rank / stored_alpha(adapter)


def _plan(adapter: PeftAdapter, outtype: Outtype) -> list[_Planned]:
    planned = []
    for pair in adapter.pairs:
        rows, columns = adapter.weights.tensors[pair.a_name].shape
        # llama.cpp looks up rows of an embedding's lora_a by token.
        a_shape = (columns, rows) if pair.is_embedding else (rows, columns)
        out, rank = adapter.weights.tensors[pair.b_name].shape
        for side, shape in ((_A, a_shape), (_B, (out, rank))):
            name = f"{pair.target}.lora_{side}"
            planned.append(_Planned(name, shape, _type_for(shape, outtype), pair, side))
    return planned


def _type_for(shape: tuple[int, int], outtype: Outtype) -> GGMLQuantizationType:
    """Q8_0 needs rows of a multiple of 32; others (lora_b: a row is the rank) become F16, as in llama.cpp."""
    if outtype == "q8_0" and shape[-1] % 32:
        return F16
    return _TYPES[outtype]


def _values(planned: _Planned, adapter: PeftAdapter, base: BaseHeader) -> npt.NDArray[np.float32]:
    """The float32 values in llama.cpp's layout, before the cast."""
    pair = planned.pair
    if planned.side == "a":
        a = adapter.a(pair)
        return np.ascontiguousarray(a.T) if pair.is_embedding else a
    b = adapter.b(pair)
    factor = fold_factor(adapter, pair)
    if factor != 1.0:
        b = (b.astype(np.float64) * factor).astype(np.float32)
    heads = {"attn_q": base.n_heads, "attn_k": base.n_kv_heads}.get(pair.target.split(".")[-2])
    return _interleave(b, heads) if heads and base.architecture == "llama" else b


def _interleave(b: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows from Hugging Face's rotary order (two halves a head) to llama.cpp's (pairs side by side)."""
    out, rank = b.shape
    halves = b.reshape(heads, 2, out // heads // 2, rank)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(out, rank)


def _cast(planned: _Planned, values: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """The bytes to store, as an array. Raises `InvalidInput` if a value does not survive the cast."""
    if planned.ggml_type is F32:
        result: npt.NDArray[Any] = values
    elif planned.ggml_type is F16:
        with np.errstate(over="ignore"):
            result = values.astype(np.float16)
    else:
        _check_q8_blocks(planned, values)
        return np.asarray(quantize(values, planned.ggml_type))
    if not np.isfinite(result).all():
        raise InvalidInput(planned.name, "has values that do not fit 16-bit floats; export it as f32.")
    return result


def _check_q8_blocks(planned: _Planned, values: npt.NDArray[np.float32]) -> None:
    # A block's scale, its largest value / 127, is stored as a 16-bit float.
    if float(np.abs(values).max(initial=0.0)) / 127 > _F16_MAX:
        raise InvalidInput(planned.name, "has values that do not fit q8_0 blocks; export it as f32.")


def _write(path: Path, adapter: PeftAdapter, base: BaseHeader, outtype: Outtype) -> None:
    """Header first, then one tensor at a time, so that memory stays at one tensor."""
    planned = _plan(adapter, outtype)
    writer = GGUFWriter(path, base.architecture)
    writer.add_type("adapter")
    writer.add_string(Keys.Adapter.TYPE, "lora")
    writer.add_float32(Keys.Adapter.LORA_ALPHA, stored_alpha(adapter))
    writer.add_uint32(FORMAT_KEY, FORMAT_VERSION)
    for tensor in planned:
        _declare(writer, tensor)
    write_streamed(writer, path, (_cast(tensor, _values(tensor, adapter, base)) for tensor in planned))


def _declare(writer: GGUFWriter, tensor: _Planned) -> None:
    byte_shape = tensor.byte_shape
    if tensor.ggml_type is Q8_0:
        writer.add_tensor_info(
            tensor.name, byte_shape, np.dtype(np.uint8), math.prod(byte_shape), raw_dtype=tensor.ggml_type
        )
        return
    dtype = np.dtype(np.float32 if tensor.ggml_type is F32 else np.float16)
    writer.add_tensor_info(tensor.name, tensor.shape, dtype, math.prod(tensor.shape) * dtype.itemsize)


@contextlib.contextmanager
def _atomic_file(out: Path) -> Iterator[Path]:
    """A temporary file beside `out` that takes its name, fsynced, only if the block succeeds."""
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{out.name}.", suffix=".tmp", dir=out.parent)
        temporary = Path(name)
        os.close(handle)
        yield temporary
        temporary.chmod(FILE_MODE)
        _fsync(temporary)
        temporary.replace(out)
        _fsync(out.parent)
    except OSError as error:
        raise StorageFailed(
            f"{out.name} could not be written: {error.strerror or error}. Free space and export again."
        ) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_back(path: Path, config_path: Path, weights_path: Path, base: BaseHeader, outtype: Outtype) -> None:
    """Reopens a written file and compares all of it with the source. Raises `InvalidInput` if it differs."""
    adapter = load_adapter(config_path, weights_path)
    check_against(adapter, base)
    try:
        reader = GGUFReader(path)
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise InvalidInput("export", f"the written file cannot be read back: {error}.") from error
    _compare_keys(reader, adapter, base)
    planned = _plan(adapter, outtype)
    if [tensor.name for tensor in reader.tensors] != [tensor.name for tensor in planned]:
        raise InvalidInput("export", "the written file has other tensors than the adapter.")
    for stored, wanted in zip(reader.tensors, planned, strict=True):
        shape = tuple(int(size) for size in reversed(stored.shape))
        if stored.tensor_type != wanted.ggml_type or shape != wanted.shape:
            raise InvalidInput(wanted.name, "was written with another type or shape.")
        if stored.data.tobytes() != _cast(wanted, _values(wanted, adapter, base)).tobytes():
            raise InvalidInput(wanted.name, "was written with other values than the adapter's.")


def _compare_keys(reader: GGUFReader, adapter: PeftAdapter, base: BaseHeader) -> None:
    found = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    wanted = {
        Keys.General.ARCHITECTURE: base.architecture,
        Keys.General.TYPE: "adapter",
        Keys.Adapter.TYPE: "lora",
        Keys.Adapter.LORA_ALPHA: float(np.float32(stored_alpha(adapter))),
        FORMAT_KEY: FORMAT_VERSION,
    }
    for key in sorted(found.keys() | wanted.keys()):
        if found.get(key) != wanted.get(key):
            raise InvalidInput(key, f"the written file says {found.get(key)!r}, not {wanted.get(key)!r}.")
