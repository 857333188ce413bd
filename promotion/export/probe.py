"""A small exact model cut from a base: some layers and token rows in float32, and an adapter cut alike.

llama.cpp rounds every input of a quantised matrix to 8 bits, which on a 30-layer Q4_1 model moves
log-probabilities by 1 and hides a missing rotary permutation. In a float32 cut it does not round, and a
wrong adapter stands out a hundredfold. The adapter's cut copies the exported file's bytes, so it is that
file which is tested.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

from promotion.export.base_header import BaseHeader
from promotion.export.gguf_file import GgufFile
from promotion.export.gguf_out import write_streamed
from promotion.export.peft_adapter import PeftAdapter

MAX_CUT_BYTES = 256 << 20
MAX_TOKENS = 256
_COPIED_KEYS = [
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
]
_PER_TOKEN = ("token_embd.weight", "output.weight", "token_embd.weight.lora_a", "output.weight.lora_b")


def cuts(file: GgufFile, adapter: PeftAdapter) -> list[range]:
    """Runs of neighbouring layers that together hold every layer with LoRA, each of 256 MiB or one layer."""
    touched = sorted(
        {int(pair.target.split(".")[1]) for pair in adapter.pairs if pair.target.startswith("blk.")}
    )
    result: list[range] = []
    used = 0
    for layer in touched or [0]:  # an adapter of the embeddings alone still needs some layer to act through
        size = 4 * sum(
            math.prod(info.shape) for name, info in file.tensors.items() if _layer_of(name) == layer
        )
        if result and result[-1].stop == layer and used + size <= MAX_CUT_BYTES:
            result[-1] = range(result[-1].start, layer + 1)
            used += size
        else:
            result.append(range(layer, layer + 1))
            used = size
    return result


def token_rows(vocab_size: int) -> npt.NDArray[np.int64]:
    """The token ids a cut keeps, spread evenly over the vocabulary."""
    return np.linspace(0, vocab_size - 1, min(vocab_size, MAX_TOKENS)).astype(np.int64)


def write_base_cut(
    file: GgufFile, header: BaseHeader, layers: range, rows: npt.NDArray[np.int64], out: Path
) -> None:
    """A whole float32 model of these layers and token rows, one tensor in memory at a time."""
    writer = GGUFWriter(out, header.architecture)
    writer.add_block_count(len(layers))
    for name in _COPIED_KEYS:
        _copy_key(writer, f"{header.architecture}.{name}", file.keys.get(f"{header.architecture}.{name}"))
    _add_vocabulary(writer, len(rows))
    names = {name: _renumbered(name, layers) for name in file.tensors}
    kept = {name: cut for name, cut in names.items() if cut is not None}
    for name, cut in kept.items():
        shape = file.tensors[name].shape
        shape = (len(rows), *shape[1:]) if name in _PER_TOKEN else shape
        writer.add_tensor_info(cut, shape, np.dtype(np.float32), 4 * math.prod(shape))
    write_streamed(writer, out, (_cut_rows(file, name, rows) for name in kept))


def _cut_rows(file: GgufFile, name: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    if name not in _PER_TOKEN:
        return file.rows(name)
    return np.concatenate([file.rows(name, row, row + 1) for row in rows])


def _copy_key(writer: GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)


def _add_vocabulary(writer: GGUFWriter, size: int) -> None:
    """Printable placeholder tokens: prompts are given as ids, so nothing is ever tokenised."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"t{index}" for index in range(size)])
    writer.add_token_types([1] * size)
    writer.add_token_merges(["t 0"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)


def write_adapter_cut(adapter_gguf: Path, layers: range, rows: npt.NDArray[np.int64], out: Path) -> None:
    """The exported adapter's tensors of these layers, byte for byte, with its own alpha."""
    reader = GGUFReader(adapter_gguf)
    writer = GGUFWriter(out, str(reader.fields["general.architecture"].contents()))
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(reader.fields["adapter.lora.alpha"].contents()))
    arrays = []
    for tensor in reader.tensors:
        name = _renumbered(tensor.name, layers)
        if name is None:
            continue
        data = np.array(tensor.data)
        if tensor.name in _PER_TOKEN:
            data = np.ascontiguousarray(data[rows])
        plain = tensor.tensor_type in (GGMLQuantizationType.F32, GGMLQuantizationType.F16)
        raw = None if plain else tensor.tensor_type
        writer.add_tensor_info(name, data.shape, data.dtype, data.nbytes, raw_dtype=raw)
        arrays.append(data)
    write_streamed(writer, out, arrays)


def _layer_of(name: str) -> int | None:
    parts = name.split(".")
    return int(parts[1]) if parts[0] == "blk" and parts[1].isdecimal() else None


def _renumbered(name: str, layers: range) -> str | None:
    """A tensor's name in the cut, or None if it is not part of it."""
    layer = _layer_of(name)
    if layer is None:
        return name
    return f"blk.{layer - layers.start}.{name.split('.', 2)[2]}" if layer in layers else None
