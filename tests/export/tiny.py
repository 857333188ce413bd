"""Tiny random models and adapters, written by hand, so that the export's tests need no trained weights."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

LAYERS, WIDTH, INNER, HEADS, KV_HEADS, VOCAB = 2, 64, 128, 4, 2, 300
HEAD_DIM = WIDTH // HEADS
PROJECTIONS = {
    "self_attn.q_proj": (HEADS * HEAD_DIM, WIDTH),
    "self_attn.k_proj": (KV_HEADS * HEAD_DIM, WIDTH),
    "self_attn.v_proj": (KV_HEADS * HEAD_DIM, WIDTH),
    "self_attn.o_proj": (WIDTH, HEADS * HEAD_DIM),
    "mlp.gate_proj": (INNER, WIDTH),
    "mlp.up_proj": (INNER, WIDTH),
    "mlp.down_proj": (WIDTH, INNER),
}
GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_base(
    path: Path,
    *,
    architecture: str = "llama",
    tied: bool = False,
    keys: dict[str, Any] | None = None,
    weight_type: GGMLQuantizationType = GGMLQuantizationType.F32,
) -> Path:
    """A base model of 2 layers; `keys` adds or replaces integer keys, `weight_type` is its matrices'."""
    random = np.random.default_rng(7)
    writer = GGUFWriter(path, architecture)
    sizes = {
        "block_count": LAYERS,
        "context_length": 128,
        "embedding_length": WIDTH,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "rope.dimension_count": HEAD_DIM,
    } | (keys or {})
    for name, value in sizes.items():
        if value is not None:
            writer.add_uint32(f"{architecture}.{name}", value)
    writer.add_float32(f"{architecture}.rope.freq_base", 10_000.0)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    _add_tokenizer(writer)
    for name, shape in base_shapes(architecture, tied=tied).items():
        scale = 0.1 if len(shape) == 1 else 1.0 / np.sqrt(shape[-1])
        values = (random.standard_normal(shape) * scale).astype(np.float32)
        if len(shape) == 2 and weight_type is not GGMLQuantizationType.F32:
            writer.add_tensor(name, quantize(values, weight_type), raw_dtype=weight_type)
        else:
            writer.add_tensor(name, values + np.float32(1.0) if "norm" in name else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def base_shapes(architecture: str, *, tied: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, WIDTH), "output_norm.weight": (WIDTH,)}
    if not tied:
        shapes["output.weight"] = (VOCAB, WIDTH)
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}_norm.weight": (WIDTH,) for name in ("attn", "ffn")}
        for projection, shape in PROJECTIONS.items():
            shapes[f"blk.{layer}.{GGUF_NAMES[projection]}.weight"] = shape
            if architecture == "qwen2" and projection[-6:] in ("q_proj", "k_proj", "v_proj"):
                shapes[f"blk.{layer}.{GGUF_NAMES[projection]}.bias"] = shape[:1]
    return shapes


def _add_tokenizer(writer: GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"t{index}" for index in range(VOCAB)])
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges(["t 0"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)


@dataclass
class Adapter:
    """A PEFT adapter to be written: change `config` or `tensors` before `write`."""

    config: dict[str, Any]
    tensors: dict[str, np.ndarray] = field(default_factory=dict)

    def write(self, folder: Path, *, dtype: str = "F32") -> tuple[Path, Path]:
        folder.mkdir(parents=True, exist_ok=True)
        config, weights = folder / "adapter_config.json", folder / "adapter_model.safetensors"
        config.write_text(json.dumps(self.config))
        write_safetensors(weights, self.tensors, dtype=dtype)
        return config, weights


def adapter(
    *, rank: int = 4, b_std: float = 0.08, ranks: dict[str, int] | None = None, **config: Any
) -> Adapter:
    """LoRA on all seven projections of both layers; `ranks` gives another rank to modules by name ending."""
    random = np.random.default_rng(11)
    made = Adapter(
        {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 8, "bias": "none"} | config
    )
    for layer in range(LAYERS):
        for projection, (rows, columns) in PROJECTIONS.items():
            name = f"base_model.model.model.layers.{layer}.{projection}"
            module_rank = next((r for end, r in (ranks or {}).items() if name.endswith(end)), rank)
            a = random.standard_normal((module_rank, columns)) / np.sqrt(columns)
            b = random.standard_normal((rows, module_rank)) * b_std
            made.tensors[f"{name}.lora_A.weight"] = a.astype(np.float32)
            made.tensors[f"{name}.lora_B.weight"] = b.astype(np.float32)
    return made


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], *, dtype: str = "F32") -> Path:
    """The format by hand: length, JSON header, data. BF16 keeps the upper half of each float32."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts, at = [], 0
    for name, values in tensors.items():
        if dtype == "BF16":
            data = (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
        else:
            data = values.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    write_raw_safetensors(path, header, b"".join(parts))
    return path


def write_raw_safetensors(path: Path, header: dict[str, Any] | str, data: bytes) -> Path:
    """Any header with any data, right or wrong."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path
