"""A PEFT LoRA adapter, read from its two files and checked against the base model it is for."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from promotion.export.base_header import SUPPORTED_ARCHITECTURES, BaseHeader
from promotion.export.peft_config import MERGE, PeftConfig, read_config
from promotion.export.safetensors_file import SafetensorsFile, read_safetensors
from rollouts.errors import InvalidInput
from rollouts.hashing import sha256_file

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
PICKLE_NAME = "adapter_model.bin"
NO_EFFECT = "Every lora_B is zero: the adapter changes nothing."

_PROJECTIONS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_PREFIX = "base_model.model."
_LORA = re.compile(
    r"base_model\.model\.(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(?P<rest>.*)"
)
_LAYER = re.compile(r"model\.layers\.(?P<layer>0|[1-9][0-9]{0,5})\.(?P<projection>[a-z_.]+)")
_FROZEN_EMBEDDING = re.compile(r"base_model\.model\.(model\.embed_tokens|lm_head)\.base_layer\.weight")


@dataclass(frozen=True)
class LoraPair:
    """One adapted weight. `module` is its Hugging Face name, `target` the base tensor's GGUF name.

    The stored A is (rank, in), B is (out, rank); for an embedding A is (rank, vocab) and B (width, rank).
    """

    module: str
    target: str
    a_name: str
    b_name: str
    rank: int
    alpha: float
    scale: float
    is_embedding: bool


@dataclass(frozen=True)
class PeftAdapter:
    """An adapter whose config and tensor names are sound; `check_against` looks at shapes and ranks."""

    config: PeftConfig
    weights: SafetensorsFile
    pairs: tuple[LoraPair, ...]
    frozen_copies: tuple[str, ...]

    def a(self, pair: LoraPair) -> npt.NDArray[np.float32]:
        """lora_A as float32, (rank, in)."""
        return self.weights.read(pair.a_name)

    def b(self, pair: LoraPair) -> npt.NDArray[np.float32]:
        """lora_B as float32, (out, rank)."""
        return self.weights.read(pair.b_name)


@dataclass(frozen=True)
class AdapterReport:
    """What a quick check found. `parameters` counts numbers in all A and B."""

    architecture: str
    rank: int
    alpha: str
    use_rslora: bool
    dtypes: tuple[str, ...]
    modules: dict[str, int]
    layers: int
    tensors: int
    parameters: int
    config_sha256: str
    weights_sha256: str
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON-safe."""
        return asdict(self) | {"dtypes": list(self.dtypes), "warnings": list(self.warnings)}


def find_adapter_files(folder: Path) -> tuple[Path, Path]:
    """The config and the weights in a folder that PEFT's `save_pretrained` wrote.

    Raises `InvalidInput` if one is missing, only a pickle is there, or one is a link or leaves the folder.
    """
    if not folder.is_dir():
        raise InvalidInput("adapter", f"{folder.name!r} is no folder.")
    config, weights = folder / CONFIG_NAME, folder / WEIGHTS_NAME
    for path in (config, weights):
        if path.is_symlink() or (path.exists() and path.resolve().parent != folder.resolve()):
            raise InvalidInput(path.name, "is a link; put the file itself into the adapter's folder.")
    if not config.is_file():
        raise InvalidInput(CONFIG_NAME, "is missing; export the folder that PEFT's `save_pretrained` wrote.")
    if not weights.is_file() and (folder / PICKLE_NAME).exists():
        raise InvalidInput(
            PICKLE_NAME,
            "is a pickle, which can run code; save the adapter again with `safe_serialization=True`.",
        )
    if not weights.is_file():
        raise InvalidInput(WEIGHTS_NAME, "is missing; save the adapter with PEFT's `save_pretrained`.")
    return config, weights


def load_adapter(config_path: Path, weights_path: Path) -> PeftAdapter:
    """Reads config and tensor names. Raises `InvalidInput` naming the config field or the tensor."""
    config = read_config(config_path)
    weights = read_safetensors(weights_path)
    sides: dict[str, dict[str, str]] = {}
    frozen = []
    for name in weights.tensors:
        if _FROZEN_EMBEDDING.fullmatch(name):
            frozen.append(name)
            continue
        module, side = _split_name(name)
        sides.setdefault(module, {})[side] = name
    if not sides:
        raise InvalidInput("weights", "the file holds no LoRA tensors.")
    pairs = sorted((_pair(config, module, names) for module, names in sides.items()), key=_order)
    return PeftAdapter(config, weights, tuple(pairs), tuple(frozen))


def _split_name(name: str) -> tuple[str, str]:
    """Module and side ("A", "B", "embedding_A", "embedding_B") of a stored tensor."""
    found = _LORA.fullmatch(name)
    if found is None:
        if name.startswith(_PREFIX) and ("embed_tokens" in name or "lm_head" in name):
            raise InvalidInput(
                name, f"embeddings saved whole (a resized vocabulary?) cannot be held. {MERGE}"
            )
        raise InvalidInput(name, f"is neither lora_A nor lora_B, so a GGUF adapter cannot hold it. {MERGE}")
    embedding, rest = found["embedding"] or "", found["rest"]
    if found["side"] == "B" and rest == ".bias":
        raise InvalidInput(name, f"a bias on lora_B cannot be held by a GGUF adapter. {MERGE}")
    if rest != ("" if embedding else ".weight"):
        raise InvalidInput(
            name, "the name is not as PEFT's `save_pretrained` writes it (an adapter's name in it?)."
        )
    return found["module"], embedding + found["side"]


def _pair(config: PeftConfig, module: str, names: dict[str, str]) -> LoraPair:
    is_embedding = module == "model.embed_tokens"
    wanted = {"embedding_A", "embedding_B"} if is_embedding else {"A", "B"}
    if set(names) != wanted:
        present = sorted(names.values())[0]
        raise InvalidInput(
            present, f"{module} needs one lora_A and one lora_B; the other is missing or misnamed."
        )
    return LoraPair(
        module=module,
        target=_gguf_name(module),
        a_name=names["embedding_A" if is_embedding else "A"],
        b_name=names["embedding_B" if is_embedding else "B"],
        rank=config.rank_of(module),
        alpha=config.alpha_of(module),
        scale=config.scale_of(module),
        is_embedding=is_embedding,
    )


def _gguf_name(module: str) -> str:
    if module == "model.embed_tokens":
        return "token_embd.weight"
    if module == "lm_head":
        return "output.weight"
    found = _LAYER.fullmatch(module)
    if found is None or found["projection"] not in _PROJECTIONS:
        raise InvalidInput(module, f"LoRA on this module is not supported. {MERGE}")
    return f"blk.{found['layer']}.{_PROJECTIONS[found['projection']]}.weight"


def _order(pair: LoraPair) -> tuple[int, int, str]:
    found = _LAYER.fullmatch(pair.module)
    return (
        (1, int(found["layer"]), pair.target)
        if found
        else (2 if pair.module == "lm_head" else 0, 0, pair.target)
    )


def check_against(adapter: PeftAdapter, base: BaseHeader) -> None:
    """Checks names, ranks and shapes against the base model. Raises `InvalidInput` naming the tensor."""
    if base.architecture not in SUPPORTED_ARCHITECTURES:
        supported = ", ".join(SUPPORTED_ARCHITECTURES)
        raise InvalidInput(
            "base.architecture",
            f"{base.architecture!r} is not supported for adapters, only {supported}. {MERGE}",
        )
    for pair in adapter.pairs:
        _check_target(pair, base)
        rows, columns = base.tensor_shapes[pair.target]
        if pair.is_embedding:
            rows, columns = columns, rows
        _check_shape(adapter, pair.a_name, (pair.rank, columns), pair)
        _check_shape(adapter, pair.b_name, (rows, pair.rank), pair)
    for name in adapter.frozen_copies:
        target = "output.weight" if "lm_head" in name else "token_embd.weight"
        if adapter.weights.tensors[name].shape != base.tensor_shapes.get(target):
            raise InvalidInput(name, f"the saved embeddings have another shape than the base's. {MERGE}")


def _check_target(pair: LoraPair, base: BaseHeader) -> None:
    if base.tied_embeddings and not pair.target.startswith("blk."):
        raise InvalidInput(
            pair.a_name,
            "the base ties its embeddings to its output, and llama.cpp crashes on (or drops) LoRA there. "
            "Train without embed_tokens and lm_head, or untie, merge and register the merged model.",
        )
    found = _LAYER.fullmatch(pair.module)
    if found and int(found["layer"]) >= base.n_layers:
        raise InvalidInput(
            pair.a_name,
            f"the base has {base.n_layers} layers (0 to {base.n_layers - 1}); is it the right base?",
        )
    if len(base.tensor_shapes.get(pair.target, ())) != 2:
        raise InvalidInput(pair.a_name, f"the base has no matrix {pair.target}; is it the right base?")


def _check_shape(adapter: PeftAdapter, name: str, wanted: tuple[int, int], pair: LoraPair) -> None:
    shape = adapter.weights.tensors[name].shape
    if shape == wanted:
        return
    if len(shape) == 2 and sorted(set(shape) & set(wanted)) and pair.rank not in shape:
        raise InvalidInput(name, f"its shape is {shape}, but adapter_config.json gives it rank {pair.rank}.")
    raise InvalidInput(
        name, f"its shape is {shape}, but the base and rank need {wanted}; is it the right base?"
    )


def check_values(adapter: PeftAdapter) -> list[str]:
    """Reads every number once. Raises `InvalidInput` at NaN or infinity; returns warnings."""
    any_effect = False
    for pair in adapter.pairs:
        for name in (pair.a_name, pair.b_name):
            values = adapter.weights.read(name)
            if not np.isfinite(values).all():
                raise InvalidInput(
                    name, "holds NaN or infinity; the training diverged. Take an earlier checkpoint."
                )
            any_effect |= name == pair.b_name and bool(values.any())
    warnings = [] if any_effect else [NO_EFFECT]
    for name in adapter.frozen_copies:
        warnings.append(f"{name} is taken to be a frozen copy of the base's weights and is left out.")
    return warnings


def check_adapter(config_path: Path, weights_path: Path, base: BaseHeader) -> AdapterReport:
    """The check at registration: what `convert` would refuse, but for the cast. Raises `InvalidInput`."""
    adapter = load_adapter(config_path, weights_path)
    check_against(adapter, base)
    warnings = check_values(adapter)
    stored = [adapter.weights.tensors[name] for pair in adapter.pairs for name in (pair.a_name, pair.b_name)]
    return AdapterReport(
        architecture=base.architecture,
        rank=adapter.config.rank,
        alpha=f"{adapter.config.alpha:.9g}",
        use_rslora=adapter.config.use_rslora,
        dtypes=tuple(sorted({tensor.dtype for tensor in stored})),
        modules=dict(sorted(Counter(pair.module.rsplit(".", 1)[-1] for pair in adapter.pairs).items())),
        layers=len({pair.target.split(".")[1] for pair in adapter.pairs if pair.target.startswith("blk.")}),
        tensors=len(stored),
        parameters=sum(int(np.prod(tensor.shape)) for tensor in stored),
        config_sha256=sha256_file(config_path),
        weights_sha256=sha256_file(weights_path),
        warnings=tuple(warnings),
    )
