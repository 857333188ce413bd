"""Reading `adapter_config.json`, and refusing every PEFT feature that a GGUF adapter cannot carry.

llama.cpp's converter ignores this file's features and exits 0 with a wrong result for half of them (rslora,
alpha_pattern, pissa, saved norms), so a feature that is not known to be right is refused here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promotion.export.safetensors_file import parse_json_object
from rollouts.errors import InvalidInput

MAX_CONFIG_BYTES = 1 << 20
MAX_PATTERN_LENGTH = 300
MAX_PATTERN_REPEATS = 6
DEFAULT_RANK = 8
DEFAULT_ALPHA = 8  # PEFT's own defaults, used by it when the key is missing
MERGE = "Merge the adapter into the model first and register the merged model instead."

# Keys that say how training went or where things were; they do not change what the stored A and B mean.
# `fan_in_fan_out` is reset by PEFT for the linear layers that the supported architectures are made of.
_HARMLESS = frozenset(
    [
        "auto_mapping",
        "base_model_name_or_path",
        "ensure_weight_tying",
        "exclude_modules",
        "fan_in_fan_out",
        "inference_mode",
        "layers_pattern",
        "layers_to_transform",
        "lora_dropout",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
    ]
)
_READ = frozenset(
    [
        "peft_type",
        "r",
        "lora_alpha",
        "rank_pattern",
        "alpha_pattern",
        "use_rslora",
        "init_lora_weights",
        "bias",
    ]
)
# With any other start PEFT changes the base weights too, and A and B only make sense on the changed ones.
_PLAIN_STARTS = (True, False, None, "gaussian", "orthogonal")

_REASONS = {
    "use_dora": f"DoRA has a magnitude vector that GGUF adapters cannot hold. {MERGE}",
    "lora_bias": f"a bias on lora_B cannot be held by a GGUF adapter. {MERGE}",
    "modules_to_save": f"a GGUF adapter cannot hold whole trained modules (llama.cpp drops them). {MERGE}",
    "trainable_token_indices": f"trained token embeddings cannot be held by a GGUF adapter. {MERGE}",
    "layer_replication": f"replicated layers make another model than the base. {MERGE}",
    "target_parameters": f"LoRA on bare parameters is not supported. {MERGE}",
    "alora_invocation_tokens": "activated LoRA (switched on by a token) is not supported.",
}


@dataclass(frozen=True)
class PeftConfig:
    """What decides the maths in `adapter_config.json`. Patterns keep their order: the first match wins."""

    rank: int
    alpha: float
    use_rslora: bool
    rank_pattern: tuple[tuple[str, int], ...]
    alpha_pattern: tuple[tuple[str, float], ...]

    def rank_of(self, module: str) -> int:
        """The rank that a module (e.g. `model.layers.0.self_attn.q_proj`) was trained with."""
        return next((value for key, value in self.rank_pattern if _matches(key, module)), self.rank)

    def alpha_of(self, module: str) -> float:
        """The alpha that a module was trained with."""
        return next((value for key, value in self.alpha_pattern if _matches(key, module)), self.alpha)

    def scale_of(self, module: str) -> float:
        """What PEFT multiplies B @ A by: alpha / rank, or alpha / sqrt(rank) with rank-stabilised LoRA."""
        rank = self.rank_of(module)
        return self.alpha_of(module) / (math.sqrt(rank) if self.use_rslora else rank)


def _matches(pattern: str, module: str) -> bool:
    return re.match(rf"(.*\.)?({pattern})$", module) is not None


def read_config(path: Path) -> PeftConfig:
    """Reads and checks the file. Raises `InvalidInput` naming the config field and the remedy."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise InvalidInput("adapter_config.json", f"cannot be read: {error.strerror}.") from error
    if len(data) > MAX_CONFIG_BYTES:
        raise InvalidInput("adapter_config.json", f"is larger than {MAX_CONFIG_BYTES} bytes.")
    return check_config(parse_json_object(data, field="adapter_config.json"))


def check_config(raw: dict[str, Any]) -> PeftConfig:
    """The checked form of a parsed `adapter_config.json`. Raises `InvalidInput`."""
    if raw.get("peft_type") != "LORA":
        raise InvalidInput("peft_type", f"{raw.get('peft_type')!r} is not supported, only 'LORA'. {MERGE}")
    if raw.get("task_type") not in (None, "CAUSAL_LM"):
        raise InvalidInput("task_type", f"{raw['task_type']!r} is not supported, only 'CAUSAL_LM'.")
    if raw.get("bias", "none") != "none":
        raise InvalidInput(
            "bias", f"trained biases ({raw['bias']!r}) cannot be held by a GGUF adapter. {MERGE}"
        )
    _check_start(raw.get("init_lora_weights", True))
    for name, value in raw.items():
        if value and name not in _HARMLESS and name not in _READ:
            reason = _REASONS.get(name, f"this feature is not known to survive the export. {MERGE}")
            raise InvalidInput(name, reason)
    use_rslora = raw.get("use_rslora") or False
    if not isinstance(use_rslora, bool):
        raise InvalidInput("use_rslora", "must be true or false.")
    return PeftConfig(
        rank=_rank("r", raw.get("r", DEFAULT_RANK)),
        alpha=_alpha("lora_alpha", raw.get("lora_alpha", DEFAULT_ALPHA)),
        use_rslora=use_rslora,
        rank_pattern=tuple(
            (key, _rank(f"rank_pattern.{key}", v)) for key, v in _pattern(raw, "rank_pattern")
        ),
        alpha_pattern=tuple(
            (key, _alpha(f"alpha_pattern.{key}", v)) for key, v in _pattern(raw, "alpha_pattern")
        ),
    )


def _check_start(value: Any) -> None:
    if isinstance(value, (bool, str, type(None))) and value in _PLAIN_STARTS:
        return
    raise InvalidInput(
        "init_lora_weights",
        f"{value!r} changes the base weights, so the adapter is wrong on the original base. Convert it with "
        "PEFT's `path_initial_model_for_weight_conversion`, or merge the adapter first.",
    )


def _rank(field: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= 1 << 20:
        raise InvalidInput(field, f"{value!r} is no rank; it must be a whole number of at least 1.")
    return value


def _alpha(field: str, value: Any) -> float:
    if type(value) not in (int, float) or not 1e-30 < value < 1e30:
        raise InvalidInput(
            field,
            f"{value!r} cannot be used; it must be above 0 (llama.cpp reads 0 as 'no alpha', a scale of 1).",
        )
    return float(value)


def _pattern(raw: dict[str, Any], name: str) -> list[tuple[str, Any]]:
    patterns = raw.get(name) or {}
    if not isinstance(patterns, dict):
        raise InvalidInput(name, "must be an object of module name patterns.")
    for pattern in patterns:
        # The keys are regular expressions from outside. Without a repeated group, and with few repeats,
        # matching a module name stays cheap.
        repeats = len(re.findall(r"[*+{?]", pattern))
        if (
            len(pattern) > MAX_PATTERN_LENGTH
            or repeats > MAX_PATTERN_REPEATS
            or re.search(r"\)[*+{?]", pattern)
        ):
            raise InvalidInput(
                f"{name}.{pattern[:80]}", "the pattern is too complex; name the modules one by one."
            )
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise InvalidInput(f"{name}.{pattern[:80]}", f"is no regular expression: {error}.") from error
    return list(patterns.items())
