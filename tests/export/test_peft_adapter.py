"""Rules of what adapters are taken, and what the refusal says."""

from __future__ import annotations

import json

import numpy as np
import pytest

from promotion.export.base_header import read_base_header
from promotion.export.peft_adapter import NO_EFFECT, check_adapter, find_adapter_files, load_adapter
from rollouts.errors import InvalidInput
from tests.export import tiny

LAYER = "base_model.model.model.layers.0."
Q = LAYER + "self_attn.q_proj."


def refusal(adapter: tiny.Adapter, header, tmp_path) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        check_adapter(*adapter.write(tmp_path / "adapter"), header)
    return caught.value


def test_a_plain_adapter_is_taken(header, tmp_path):
    report = check_adapter(*tiny.adapter().write(tmp_path / "a"), header)

    assert (report.rank, report.alpha, report.layers, report.tensors) == (4, "8", 2, 28)
    assert report.modules["q_proj"] == 2
    assert report.warnings == ()
    json.dumps(report.to_json())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("peft_type", "LOHA"),
        ("peft_type", None),
        ("task_type", "SEQ_CLS"),
        ("use_dora", True),
        ("bias", "all"),
        ("bias", "lora_only"),
        ("lora_bias", True),
        ("modules_to_save", ["norm"]),
        ("trainable_token_indices", [1]),
        ("layer_replication", [[0, 2]]),
        ("target_parameters", ["mlp.experts.w"]),
        ("alora_invocation_tokens", [5]),
        ("use_qalora", True),
        ("use_bdlora", {"a": 1}),
        ("kasa_config", {"beta": 1}),
        ("eva_config", {"rho": 2}),
        ("velora_config", {"x": 1}),
        ("loftq_config", {"loftq_bits": 4}),
        ("some_later_feature", "on"),
        ("init_lora_weights", "pissa"),
        ("init_lora_weights", "pissa_niter_16"),
        ("init_lora_weights", "olora"),
        ("init_lora_weights", "corda"),
        ("init_lora_weights", "loftq"),
        ("init_lora_weights", {"x": 1}),
        ("lora_alpha", 0),
        ("lora_alpha", -1),
        ("lora_alpha", True),
        ("lora_alpha", "16"),
        ("lora_alpha", 10**400),
        ("r", 0),
        ("r", 4.5),
        ("use_rslora", "yes"),
        ("rank_pattern", [1]),
    ],
)
def test_features_that_a_gguf_adapter_cannot_carry_are_refused_by_name(header, tmp_path, key, value):
    adapter = tiny.adapter()
    adapter.config[key] = value

    assert refusal(adapter, header, tmp_path).field == key


@pytest.mark.parametrize("key", ["use_dora", "modules_to_save", "lora_bias", "trainable_token_indices"])
def test_the_remedy_is_to_merge(header, tmp_path, key):
    adapter = tiny.adapter()
    adapter.config[key] = ["x"]

    assert "Merge the adapter" in refusal(adapter, header, tmp_path).message


@pytest.mark.parametrize("pattern", ["(a+)+b", "(" * 3, "a" * 400, ".*.*.*.*.*.*.*x"])
def test_patterns_that_could_hang_or_are_no_expression_are_refused(header, tmp_path, pattern):
    adapter = tiny.adapter(alpha_pattern={pattern: 4})

    assert refusal(adapter, header, tmp_path).field.startswith("alpha_pattern.")


def test_an_alpha_of_zero_in_a_pattern_is_refused(header, tmp_path):
    assert (
        refusal(tiny.adapter(alpha_pattern={"q_proj": 0}), header, tmp_path).field == "alpha_pattern.q_proj"
    )


def test_missing_alpha_and_rank_are_pefts_defaults(tmp_path):
    adapter = tiny.adapter(rank=8)
    del adapter.config["lora_alpha"], adapter.config["r"]

    config = load_adapter(*adapter.write(tmp_path / "a")).config

    assert (config.rank, config.alpha) == (8, 8.0)


def test_the_first_matching_pattern_wins_as_in_peft(tmp_path):
    patterns = {"layers.0.self_attn.q_proj": 2, r"^model\.layers\.\d\.self_attn\.q_proj": 3, "proj": 5}
    config = load_adapter(*tiny.adapter(alpha_pattern=patterns).write(tmp_path / "a")).config

    assert config.alpha_of("model.layers.0.self_attn.q_proj") == 2
    assert config.alpha_of("model.layers.1.self_attn.q_proj") == 3
    assert config.alpha_of("model.layers.1.self_attn.k_proj") == 8  # 'proj' is no whole part of the name


@pytest.mark.parametrize(
    "name",
    [
        LAYER + "input_layernorm.weight",
        "base_model.model.lm_head.weight",
        "base_model.model.model.embed_tokens.weight",
        Q + "lora_magnitude_vector",
        Q + "lora_B.bias",
        Q + "lora_A.default.weight",
        LAYER + "self_attn.k_proj.base_layer.bias",
        LAYER + "self_attn.qkv_proj.lora_A.weight",
        "model.layers.0.self_attn.q_proj.lora_A.weight",
    ],
)
def test_tensors_that_are_no_lora_of_a_known_module_are_refused(header, tmp_path, name):
    adapter = tiny.adapter()
    adapter.tensors[name] = np.ones((4, 64), dtype=np.float32)

    error = refusal(adapter, header, tmp_path)

    assert error.field == name or error.field in name


def test_a_without_b_is_refused(header, tmp_path):
    adapter = tiny.adapter()
    del adapter.tensors[Q + "lora_B.weight"]

    assert refusal(adapter, header, tmp_path).field == Q + "lora_A.weight"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(header, tmp_path, value):
    adapter = tiny.adapter()
    adapter.tensors[Q + "lora_B.weight"][3, 1] = value

    assert refusal(adapter, header, tmp_path).field == Q + "lora_B.weight"


def test_a_layer_that_the_base_has_not_is_refused(header, tmp_path):
    adapter = tiny.adapter()
    adapter.tensors = {name.replace("layers.1.", "layers.2."): v for name, v in adapter.tensors.items()}

    assert "0 to 1" in refusal(adapter, header, tmp_path).message


def test_a_rank_unlike_the_config_is_refused(header, tmp_path):
    adapter = tiny.adapter(ranks={"k_proj": 8})

    assert "rank 4" in refusal(adapter, header, tmp_path).message


def test_shapes_of_another_base_are_refused(header, tmp_path):
    adapter = tiny.adapter()
    adapter.tensors[Q + "lora_A.weight"] = np.ones((4, 96), dtype=np.float32)

    assert "right base" in refusal(adapter, header, tmp_path).message


@pytest.mark.parametrize("module", ["lm_head", "model.embed_tokens"])
def test_lora_on_tied_embeddings_is_refused(tied_header, header, tmp_path, module):
    adapter = embedding_adapter(module)

    assert "ties its embeddings" in refusal(adapter, tied_header, tmp_path).message
    assert check_adapter(*adapter.write(tmp_path / "untied"), header).tensors == 30


def embedding_adapter(module: str) -> tiny.Adapter:
    adapter, random = tiny.adapter(), np.random.default_rng(3)
    side_a, side_b = (4, tiny.WIDTH), (tiny.VOCAB, 4)
    ending = ("lora_A.weight", "lora_B.weight")
    if module == "model.embed_tokens":
        side_a, side_b = (4, tiny.VOCAB), (tiny.WIDTH, 4)
        ending = ("lora_embedding_A", "lora_embedding_B")
    for name, shape in zip(ending, (side_a, side_b), strict=True):
        adapter.tensors[f"base_model.model.{module}.{name}"] = random.standard_normal(shape).astype(
            np.float32
        )
    return adapter


def test_frozen_copies_of_embeddings_are_left_out_with_a_warning(header, tmp_path):
    adapter = embedding_adapter("model.embed_tokens")
    name = "base_model.model.model.embed_tokens.base_layer.weight"
    adapter.tensors[name] = np.zeros((tiny.VOCAB, tiny.WIDTH), dtype=np.float32)

    assert name in check_adapter(*adapter.write(tmp_path / "a"), header).warnings[0]


def test_embeddings_of_another_vocabulary_are_refused(header, tmp_path):
    adapter = tiny.adapter()
    name = "base_model.model.model.embed_tokens.base_layer.weight"
    adapter.tensors[name] = np.zeros((tiny.VOCAB + 3, tiny.WIDTH), dtype=np.float32)

    assert refusal(adapter, header, tmp_path).field == name


def test_an_unsupported_architecture_is_refused(tmp_path):
    base = read_base_header(tiny.write_base(tmp_path / "x.gguf", architecture="gemma3"))

    assert refusal(tiny.adapter(), base, tmp_path).field == "base.architecture"


def test_an_adapter_whose_b_is_zero_is_taken_with_a_warning(header, tmp_path):
    assert check_adapter(*tiny.adapter(b_std=0.0).write(tmp_path / "a"), header).warnings == (NO_EFFECT,)


def test_adapter_files_are_found(tmp_path):
    written = tiny.adapter().write(tmp_path)

    assert find_adapter_files(tmp_path) == written


def test_pickle_weights_are_refused(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.bin").write_bytes(b"\x80\x02")

    with pytest.raises(InvalidInput, match="safe_serialization"):
        find_adapter_files(tmp_path)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_missing_file_and_a_link_are_refused_by_name(tmp_path, name):
    tiny.adapter().write(tmp_path / "a")
    (tmp_path / "a" / name).rename(tmp_path / "elsewhere")

    with pytest.raises(InvalidInput, match="missing") as caught:
        find_adapter_files(tmp_path / "a")
    assert caught.value.field == name

    (tmp_path / "a" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidInput, match="link"):
        find_adapter_files(tmp_path / "a")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"r": 1, "r": 2}', '{"r": NaN}'])
def test_a_config_that_is_no_strict_json_object_is_refused(header, tmp_path, text):
    config, weights = tiny.adapter().write(tmp_path)
    config.write_text(text)

    with pytest.raises(InvalidInput) as caught:
        check_adapter(config, weights, header)
    assert caught.value.field.startswith("adapter_config.json")
