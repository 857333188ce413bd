"""Rules of reading a base model's header."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from promotion.export.base_header import read_base_header
from promotion.export.peft_to_gguf import convert
from rollouts.errors import InvalidInput
from tests.export import tiny


def test_header_of_a_tiny_llama_is_read(tiny_base):
    header = read_base_header(tiny_base)

    assert (header.architecture, header.n_layers, header.n_heads, header.n_kv_heads) == ("llama", 2, 4, 2)
    assert (header.embedding_length, header.head_dim, header.vocab_size) == (64, 16, 300)
    assert header.tensor_shapes["blk.1.ffn_down.weight"] == (64, 128)
    assert not header.tied_embeddings
    assert header.chat_template is None


def test_a_base_without_output_matrix_is_tied(tied_header):
    assert tied_header.tied_embeddings


def test_json_form_is_small_and_has_no_floats(header):
    text = json.dumps(header.to_json())

    assert len(text) < 2000
    assert "tensor_shapes" not in text
    assert not any(isinstance(value, float) for value in header.to_json().values())


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"PK\x03\x04 not a model")

    with pytest.raises(InvalidInput, match="not a GGUF"):
        read_base_header(path)


@pytest.mark.parametrize("keep", [0, 3, 4, 20, 200, 3000, 0.5, 0.999])
def test_a_truncated_model_is_refused(tiny_base, tmp_path, keep):
    data = tiny_base.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])

    with pytest.raises(InvalidInput, match=r"truncated|not a GGUF"):
        read_base_header(path)


def test_an_adapter_is_refused_as_a_base(header, tmp_path):
    convert(*tiny.adapter().write(tmp_path / "a"), header, tmp_path / "adapter.gguf", "f16")

    with pytest.raises(InvalidInput, match="whole model") as caught:
        read_base_header(tmp_path / "adapter.gguf")
    assert caught.value.field == "general.type"


def test_a_missing_key_is_named(tmp_path):
    path = tiny.write_base(tmp_path / "x.gguf", keys={"block_count": None})

    with pytest.raises(InvalidInput) as caught:
        read_base_header(path)
    assert caught.value.field == "llama.block_count"


def test_mixture_of_experts_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="mixture-of-experts"):
        read_base_header(tiny.write_base(tmp_path / "x.gguf", keys={"expert_count": 8}))


def test_other_architectures_may_be_read(tmp_path):
    assert (
        read_base_header(tiny.write_base(tmp_path / "x.gguf", architecture="gemma3")).architecture == "gemma3"
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 255)), min_size=1, max_size=8))
def test_damaged_headers_are_read_or_refused_but_never_crash(tiny_base, tmp_path, edits):
    data = bytearray(tiny_base.read_bytes())
    for at, value in edits:
        data[at] = value
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)

    try:
        read_base_header(path)
    except InvalidInput as error:
        assert error.message


def test_header_of_the_real_base_is_read(real_base):
    header = read_base_header(real_base)

    assert (header.n_layers, header.n_heads, header.n_kv_heads, header.vocab_size) == (30, 9, 3, 49152)
    assert (header.tied_embeddings, header.weight_type, header.file_type) == (True, "Q4_1", "MOSTLY_Q4_1")
    assert isinstance(real_base, Path)
    assert "<|im_start|>" in (header.chat_template or "")
