"""The maths of llama and qwen2 in numpy, as an independent witness for an exported adapter.

The base weights come from the GGUF, the adapter from PEFT's own safetensors in Hugging Face's layout:
nothing that the converter wrote is read here, and no code of it is used. Weights are dequantised one matrix
at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from promotion.export.base_header import SUPPORTED_ARCHITECTURES, BaseHeader, header_of
from promotion.export.gguf_file import GgufFile, read_gguf
from promotion.export.peft_adapter import LoraPair, PeftAdapter
from rollouts.errors import InvalidInput

Floats = npt.NDArray[np.float32]

OUTPUT_ROWS = 8192  # vocabulary rows that are dequantised at a time


@dataclass(frozen=True)
class Cut:
    """The part of a model that a base file holds: layers and token ids as the whole model numbers them."""

    layers: range
    rows: npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Model:
    file: GgufFile
    header: BaseHeader
    adapter: PeftAdapter
    cut: Cut

    def weight(self, name: str) -> Floats:
        return self.file.rows(name)

    def pair(self, name: str) -> LoraPair | None:
        return next((pair for pair in self.adapter.pairs if pair.target == name), None)

    def linear(self, x: Floats, layer: int, kind: str, *, heads: int = 0) -> Floats:
        """x (runs, tokens, in) -> (runs, tokens, out); run 1 has the adapter, `heads` marks a rotated one."""
        name = f"blk.{layer}.{kind}"
        weight = self.weight(f"{name}.weight")
        bias = self.weight(f"{name}.bias") if f"{name}.bias" in self.file.tensors else None
        if heads and self.header.architecture == "llama":
            weight = _halves(weight, heads)
            bias = None if bias is None else _halves(bias[:, None], heads)[:, 0]
        y: Floats = x @ weight.T
        if bias is not None:
            y = y + bias
        pair = self.pair(f"blk.{self.cut.layers.start + layer}.{kind}.weight")
        if pair is not None:
            low = x[1] @ self.adapter.a(pair).T
            y[1] += np.float32(pair.scale) * (low @ self.adapter.b(pair).T)
        return y

    def embed(self, tokens: Sequence[int]) -> Floats:
        """(2, tokens, width)"""
        rows = np.concatenate([self.file.rows("token_embd.weight", token, token + 1) for token in tokens])
        x = np.stack([rows, rows])
        pair = self.pair("token_embd.weight")
        if pair is not None:
            a = self.adapter.a(pair)[:, self.cut.rows[list(tokens)]]
            x[1] += np.float32(pair.scale) * (a.T @ self.adapter.b(pair).T)
        return x

    def logits(self, x: Floats) -> Floats:
        """(2, tokens, vocabulary)"""
        name = "token_embd.weight" if self.header.tied_embeddings else "output.weight"
        starts = range(0, self.header.vocab_size, OUTPUT_ROWS)
        y = np.concatenate(
            [x @ self.file.rows(name, start, start + OUTPUT_ROWS).T for start in starts], axis=-1
        )
        pair = self.pair("output.weight")
        if pair is not None:
            b = self.adapter.b(pair)[self.cut.rows]
            y[1] += np.float32(pair.scale) * ((x[1] @ self.adapter.a(pair).T) @ b.T)
        return y


def reference_log_probs(
    base_path: Path,
    adapter: PeftAdapter,
    tokens: Sequence[int],
    positions: Sequence[int],
    *,
    cut: Cut | None = None,
) -> Floats:
    """Natural log-probabilities of the next token, (2, positions, vocabulary): without and with the adapter.

    A position p has seen tokens[: p + 1]. `cut` says which part of the adapter's model the base file holds,
    if not all. Raises `InvalidInput` for a base whose maths are not known here.
    """
    file = read_gguf(base_path)
    header = header_of(file)
    _check_known(header)
    model = _Model(file, header, adapter, cut or Cut(range(header.n_layers), np.arange(header.vocab_size)))
    x = model.embed(tokens)
    cosines, sines = _rotary_tables(file, header, len(tokens))
    for layer in range(header.n_layers):
        x = x + _attention(model, _normed(model, x, f"blk.{layer}.attn_norm.weight"), layer, cosines, sines)
        x = x + _feed_forward(model, _normed(model, x, f"blk.{layer}.ffn_norm.weight"), layer)
    return _log_softmax(model.logits(_normed(model, x[:, list(positions)], "output_norm.weight")))


def _check_known(header: BaseHeader) -> None:
    if header.architecture not in SUPPORTED_ARCHITECTURES:
        raise InvalidInput("base.architecture", f"{header.architecture!r} has no reference here.")
    if header.rope_scaling_type not in (None, "none", "linear"):
        raise InvalidInput("base.rope.scaling.type", f"{header.rope_scaling_type!r} has no reference here.")


def _normed(model: _Model, x: Floats, name: str) -> Floats:
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True)
    scaled: Floats = x / np.sqrt(mean_square + np.float32(model.header.rms_eps)) * model.weight(name)
    return scaled


def _attention(model: _Model, x: Floats, layer: int, cosines: Floats, sines: Floats) -> Floats:
    header = model.header
    runs, tokens, _ = x.shape

    def split(y: Floats, heads: int) -> Floats:
        return y.reshape(runs, tokens, heads, header.head_dim).swapaxes(1, 2)

    q = split(model.linear(x, layer, "attn_q", heads=header.n_heads), header.n_heads)
    k = split(model.linear(x, layer, "attn_k", heads=header.n_kv_heads), header.n_kv_heads)
    v = split(model.linear(x, layer, "attn_v"), header.n_kv_heads)
    q, k = _rotate(q, cosines, sines), _rotate(k, cosines, sines)
    group = header.n_heads // header.n_kv_heads
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores: Floats = q @ k.swapaxes(-1, -2) / np.float32(np.sqrt(header.head_dim))
    future = np.triu(np.ones((tokens, tokens), dtype=bool), 1)
    mixed: Floats = np.exp(_log_softmax(np.where(future, np.float32(-1e30), scores))) @ v
    return model.linear(mixed.swapaxes(1, 2).reshape(runs, tokens, -1), layer, "attn_output")


def _feed_forward(model: _Model, x: Floats, layer: int) -> Floats:
    gate, up = model.linear(x, layer, "ffn_gate"), model.linear(x, layer, "ffn_up")
    # Clipped, because exp(80) is near the end of float32.
    silu = gate / (np.float32(1) + np.exp(-np.maximum(gate, np.float32(-80))))
    return model.linear(np.asarray(silu * up, dtype=np.float32), layer, "ffn_down")


def _halves(weight: Floats, heads: int) -> Floats:
    """Rows from llama.cpp's rotary order (pairs side by side) back to Hugging Face's (two halves a head)."""
    width = weight.shape[0] // heads
    order = np.concatenate([np.arange(0, width, 2), np.arange(1, width, 2)])
    rows = (np.arange(heads)[:, None] * width + order[None, :]).ravel()
    ordered: Floats = weight[rows]
    return ordered


def _rotary_tables(file: GgufFile, header: BaseHeader, tokens: int) -> tuple[Floats, Floats]:
    """Cosines and sines, each (tokens, head_dim / 2)."""
    half = header.head_dim // 2
    frequencies = header.rope_freq_base ** (-np.arange(half, dtype=np.float64) / half)
    if header.has_rope_factors:
        frequencies = frequencies / file.rows("rope_freqs.weight").astype(np.float64)
    if header.rope_scaling_type == "linear":
        frequencies = frequencies / header.rope_scaling_factor
    angles = np.arange(tokens, dtype=np.float64)[:, None] * frequencies
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _rotate(x: Floats, cosines: Floats, sines: Floats) -> Floats:
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)


def _log_softmax(x: Floats) -> Floats:
    shifted = x - x.max(axis=-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
