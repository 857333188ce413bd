"""What an adapter must fit: the header of a base model's GGUF."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType, LlamaFileType

from promotion.export.gguf_file import GgufFile, LongArray, read_gguf
from rollouts.errors import InvalidInput

# The maths of these two is known here to the last bit; for any other one a conversion may be silently wrong.
SUPPORTED_ARCHITECTURES = ("llama", "qwen2")


@dataclass(frozen=True)
class BaseHeader:
    """A base model as its GGUF describes it. Shapes are in numpy order, (out, in) for a weight."""

    architecture: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    embedding_length: int
    feed_forward_length: int
    head_dim: int
    vocab_size: int
    context_length: int
    rope_freq_base: float
    rope_scaling_type: str | None
    rope_scaling_factor: float
    has_rope_factors: bool
    rms_eps: float
    tied_embeddings: bool
    chat_template: str | None
    file_type: str
    weight_type: str
    tensor_shapes: dict[str, tuple[int, ...]]

    def to_json(self) -> dict[str, Any]:
        """A small JSON-safe form without the tensor shapes. Floats are decimal strings."""
        texts = {"rope_freq_base", "rope_scaling_factor", "rms_eps"}
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "tensor_shapes"}
        return {name: f"{value:.9g}" if name in texts else value for name, value in values.items()}


def read_base_header(path: Path) -> BaseHeader:
    """The header of a whole model.

    Raises `InvalidInput` if the file is no GGUF, truncated, an adapter or incomplete.
    """
    return header_of(read_gguf(path))


def header_of(file: GgufFile) -> BaseHeader:
    """As `read_base_header`, from a header that was already read."""
    keys = file.keys
    kind = keys.get("general.type", "model")
    if kind != "model":
        raise InvalidInput("general.type", f"this GGUF is of type {kind!r}; a base must be a whole model.")
    architecture = _key(keys, "general.architecture", str)
    prefix = f"{architecture}."
    embedding = _count(keys, prefix + "embedding_length")
    n_heads = _count(keys, prefix + "attention.head_count")
    header = BaseHeader(
        architecture=architecture,
        n_layers=_count(keys, prefix + "block_count"),
        n_heads=n_heads,
        n_kv_heads=_count(keys, prefix + "attention.head_count_kv", default=n_heads),
        embedding_length=embedding,
        feed_forward_length=_count(keys, prefix + "feed_forward_length"),
        head_dim=_count(keys, prefix + "attention.key_length", default=max(1, embedding // n_heads)),
        vocab_size=_vocab_size(file),
        context_length=_count(keys, prefix + "context_length"),
        rope_freq_base=_number(keys, prefix + "rope.freq_base", default=10_000.0),
        rope_scaling_type=keys.get(prefix + "rope.scaling.type"),
        rope_scaling_factor=_number(keys, prefix + "rope.scaling.factor", default=1.0),
        has_rope_factors="rope_freqs.weight" in file.tensors,
        rms_eps=_number(keys, prefix + "attention.layer_norm_rms_epsilon"),
        tied_embeddings="output.weight" not in file.tensors,
        chat_template=keys.get("tokenizer.chat_template"),
        file_type=_file_type(keys),
        weight_type=_weight_type(file),
        tensor_shapes={name: info.shape for name, info in file.tensors.items()},
    )
    _check_maths(header, keys)
    return header


def _check_maths(header: BaseHeader, keys: dict[str, Any]) -> None:
    """Refuses variants of a supported architecture whose maths differ."""
    prefix = f"{header.architecture}."
    if keys.get(prefix + "expert_count"):
        raise InvalidInput(prefix + "expert_count", "mixture-of-experts models are not supported.")
    if header.architecture not in SUPPORTED_ARCHITECTURES:
        return  # it may be registered and served; only adapters for it are refused
    if keys.get(prefix + "rope.dimension_count", header.head_dim) != header.head_dim:
        raise InvalidInput(
            prefix + "rope.dimension_count", "models that rotate a part of each head are not supported."
        )
    for name in ("token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight"):
        if name not in header.tensor_shapes:
            raise InvalidInput(
                name, "the file has no such tensor, so it is no whole model (one shard of several?)."
            )


def _key(keys: dict[str, Any], name: str, kind: type) -> Any:
    value = keys.get(name)
    if value is None:
        raise InvalidInput(name, "the GGUF header lacks this key; convert the model again with llama.cpp.")
    if not isinstance(value, kind):
        raise InvalidInput(name, f"the GGUF header holds {value!r} where a {kind.__name__} is needed.")
    return value


def _count(keys: dict[str, Any], name: str, *, default: int | None = None) -> int:
    value = keys.get(name, default)
    if isinstance(value, (list, LongArray)):
        raise InvalidInput(name, "this differs from layer to layer; such models are not supported.")
    if value is None:
        raise InvalidInput(name, "the GGUF header lacks this key; convert the model again with llama.cpp.")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidInput(name, f"the GGUF header holds {value!r} where a count is needed.")
    return value


def _number(keys: dict[str, Any], name: str, *, default: float | None = None) -> float:
    value = keys.get(name, default)
    if value is None:
        raise InvalidInput(name, "the GGUF header lacks this key; convert the model again with llama.cpp.")
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise InvalidInput(name, f"the GGUF header holds {value!r} where a positive number is needed.")
    return float(value)


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise InvalidInput("token_embd.weight", "the file has no such tensor, so it is no whole model.")
    return embedding.shape[0]


def _file_type(keys: dict[str, Any]) -> str:
    try:
        return LlamaFileType(keys.get("general.file_type", -1)).name
    except ValueError:
        return "UNKNOWN"


def _weight_type(file: GgufFile) -> str:
    """The type most matrices have, weighed by their number of bytes."""
    sizes: Counter[GGMLQuantizationType] = Counter()
    for info in file.tensors.values():
        if len(info.shape) > 1:
            sizes[info.ggml_type] += info.size_bytes
    return sizes.most_common(1)[0][0].name if sizes else "F32"
