"""Rules of the conversion, seen in the written file."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize

from promotion.export import peft_to_gguf
from promotion.export.base_header import read_base_header
from promotion.export.peft_adapter import find_adapter_files
from promotion.export.peft_to_gguf import convert, read_back
from rollouts.errors import InvalidInput, StorageFailed
from rollouts.hashing import sha256_file
from tests.export import tiny

# SHA-256 of the f16 exports of the trained adapters: no release may change them.
PINNED = {
    "r1": "a80890ad4a8d010134316c377497dcc1c462c08ecb069d7e017dcf14658430c0",
    "r2": "92a9507048acb1b12430071cf2f4e09264c025dcf070f6f5887793af1974e7a5",
    "r3": "3a9a643f8c7a218befddf92d6e546a440510de46d5bd097b7813a8569329a36d",
}
REPOSITORY = Path(__file__).resolve().parents[2]


def written(
    adapter: tiny.Adapter, header, folder: Path, outtype: str = "f32", dtype: str = "F32"
) -> GGUFReader:
    config, weights = adapter.write(folder / "adapter", dtype=dtype)
    convert(config, weights, header, folder / "out.gguf", outtype)
    read_back(folder / "out.gguf", config, weights, header, outtype)
    return GGUFReader(folder / "out.gguf")


def tensor(reader: GGUFReader, name: str) -> np.ndarray:
    found = next(each for each in reader.tensors if each.name == name)
    return dequantize(found.data, found.tensor_type)


def alpha(reader: GGUFReader) -> float:
    return float(reader.fields["adapter.lora.alpha"].contents())


def effective(reader: GGUFReader, target: str) -> np.ndarray:
    """What llama.cpp adds to the weight: alpha / rank * B @ A."""
    a, b = tensor(reader, f"{target}.lora_a"), tensor(reader, f"{target}.lora_b")
    return alpha(reader) / b.shape[1] * (b.astype(np.float64) @ a)


def source(adapter: tiny.Adapter, module: str) -> tuple[np.ndarray, np.ndarray]:
    name = f"base_model.model.model.layers.0.{module}"
    return adapter.tensors[f"{name}.lora_A.weight"], adapter.tensors[f"{name}.lora_B.weight"]


def test_metadata_is_complete_and_holds_no_path(header, tmp_path):
    reader = written(tiny.adapter(base_model_name_or_path="/home/someone/secret"), header, tmp_path)
    keys = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}

    assert keys == {
        "general.architecture": "llama",
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": 8.0,
        "assay.export.format_version": 1,
    }
    assert b"secret" not in (tmp_path / "out.gguf").read_bytes()


def test_q_and_k_rows_are_interleaved_for_llama_in_b_only(header, tmp_path):
    adapter = tiny.adapter()
    a, b = source(adapter, "self_attn.q_proj")

    reader = written(adapter, header, tmp_path)

    half = tiny.HEAD_DIM // 2
    stored = tensor(reader, "blk.0.attn_q.weight.lora_b")
    assert np.array_equal(tensor(reader, "blk.0.attn_q.weight.lora_a"), a)
    assert np.array_equal(stored[0], b[0])
    assert np.array_equal(
        stored[1], b[half]
    )  # the pair of row 0 stands half a head further in Hugging Face's order
    assert np.array_equal(stored[tiny.HEAD_DIM], b[tiny.HEAD_DIM])


def test_v_and_o_rows_keep_their_order(header, tmp_path):
    adapter = tiny.adapter()

    reader = written(adapter, header, tmp_path)

    for module, name in (("self_attn.v_proj", "attn_v"), ("self_attn.o_proj", "attn_output")):
        assert np.array_equal(tensor(reader, f"blk.0.{name}.weight.lora_b"), source(adapter, module)[1])


def test_qwen2_rows_keep_their_order(tmp_path):
    header = read_base_header(tiny.write_base(tmp_path / "base.gguf", architecture="qwen2"))
    adapter = tiny.adapter()

    reader = written(adapter, header, tmp_path)

    assert np.array_equal(
        tensor(reader, "blk.0.attn_q.weight.lora_b"), source(adapter, "self_attn.q_proj")[1]
    )


def test_rslora_scale_is_folded_into_alpha(header, tmp_path):
    adapter = tiny.adapter(use_rslora=True)
    a, b = source(adapter, "mlp.up_proj")

    reader = written(adapter, header, tmp_path)

    assert alpha(reader) == 8 * np.sqrt(4)
    assert np.array_equal(tensor(reader, "blk.0.ffn_up.weight.lora_b"), b)
    np.testing.assert_allclose(
        effective(reader, "blk.0.ffn_up.weight"), 8 / np.sqrt(4) * (b @ a), rtol=1e-5, atol=1e-6
    )


def test_alpha_pattern_is_folded_into_its_lora_b_only(header, tmp_path):
    adapter = tiny.adapter(alpha_pattern={"up_proj": 2})
    a, b = source(adapter, "mlp.up_proj")

    reader = written(adapter, header, tmp_path)

    assert alpha(reader) == 8
    assert np.array_equal(tensor(reader, "blk.0.ffn_down.weight.lora_b"), source(adapter, "mlp.down_proj")[1])
    np.testing.assert_allclose(
        effective(reader, "blk.0.ffn_up.weight"), 2 / 4 * (b @ a), rtol=1e-5, atol=1e-6
    )


def test_rank_pattern_with_rslora_and_alpha_pattern_gives_pefts_scale(header, tmp_path):
    adapter = tiny.adapter(
        use_rslora=True, ranks={"up_proj": 8}, rank_pattern={"up_proj": 8}, alpha_pattern={"up_proj": 3}
    )
    a, b = source(adapter, "mlp.up_proj")

    reader = written(adapter, header, tmp_path)

    np.testing.assert_allclose(
        effective(reader, "blk.0.ffn_up.weight"), 3 / np.sqrt(8) * (b @ a), rtol=1e-5, atol=1e-6
    )


def test_rank_pattern_alone_leaves_the_numbers_as_they_are(header, tmp_path):
    adapter = tiny.adapter(ranks={"up_proj": 8}, rank_pattern={"up_proj": 8})

    reader = written(adapter, header, tmp_path)

    assert np.array_equal(tensor(reader, "blk.0.ffn_up.weight.lora_b"), source(adapter, "mlp.up_proj")[1])


def test_embedding_a_is_transposed(header, tmp_path):
    adapter = tiny.adapter()
    a = np.random.default_rng(3).standard_normal((4, tiny.VOCAB)).astype(np.float32)
    adapter.tensors["base_model.model.model.embed_tokens.lora_embedding_A"] = a
    adapter.tensors["base_model.model.model.embed_tokens.lora_embedding_B"] = np.ones((64, 4), np.float32)

    reader = written(adapter, header, tmp_path)

    assert np.array_equal(tensor(reader, "token_embd.weight.lora_a"), a.T)


@pytest.mark.parametrize("outtype", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_each_type_pair_is_written_and_read_back(header, tmp_path, outtype, dtype):
    reader = written(tiny.adapter(), header, tmp_path, outtype, dtype)

    types = {each.name[-6:]: each.tensor_type.name for each in reader.tensors}
    assert types == {"lora_a": outtype.upper(), "lora_b": "F16" if outtype == "q8_0" else outtype.upper()}


@pytest.mark.parametrize("outtype", ["f16", "q8_0"])
def test_values_that_do_not_survive_the_cast_are_refused(header, tmp_path, outtype):
    adapter = tiny.adapter()
    adapter.tensors["base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"][0, 0] = 1e8

    with pytest.raises(InvalidInput, match="export it as f32") as caught:
        written(adapter, header, tmp_path, outtype)
    assert caught.value.field == "blk.0.ffn_up.weight.lora_a"
    assert not (tmp_path / "out.gguf").exists()


def test_an_unknown_outtype_is_refused(header, tmp_path):
    with pytest.raises(InvalidInput) as caught:
        convert(*tiny.adapter().write(tmp_path / "a"), header, tmp_path / "out.gguf", "q4_0")
    assert caught.value.field == "outtype"


def test_read_back_sees_one_changed_byte(header, tmp_path):
    config, weights = tiny.adapter().write(tmp_path / "a")
    out = tmp_path / "out.gguf"
    convert(config, weights, header, out, "f16")
    data = bytearray(out.read_bytes())
    data[-100] ^= 1
    out.write_bytes(data)

    with pytest.raises(InvalidInput, match="other values"):
        read_back(out, config, weights, header, "f16")


@pytest.mark.parametrize("key", ["lora_alpha", "use_rslora"])
def test_read_back_sees_another_scale(header, tmp_path, key):
    adapter = tiny.adapter()
    convert(*adapter.write(tmp_path / "a"), header, tmp_path / "out.gguf", "f16")
    adapter.config[key] = 2 if key == "lora_alpha" else True

    with pytest.raises(InvalidInput) as caught:
        read_back(tmp_path / "out.gguf", *adapter.write(tmp_path / "b"), header, "f16")
    assert caught.value.field == "adapter.lora.alpha"


def test_a_full_disk_is_reported_and_leaves_no_file(header, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(peft_to_gguf, "_fsync", full)
    (tmp_path / "out").mkdir()

    with pytest.raises(StorageFailed, match="No space left"):
        convert(*tiny.adapter().write(tmp_path / "a"), header, tmp_path / "out" / "x.gguf", "f16")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_write_that_the_system_refuses_half_way_leaves_no_file(header, tmp_path):
    paths = tiny.adapter().write(tmp_path / "a")
    (tmp_path / "out").mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)  # in bytes; a full disk fails the same write calls
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        with pytest.raises(StorageFailed, match="too large"):
            convert(*paths, header, tmp_path / "out" / "x.gguf", "f32")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_missing_folder_is_a_storage_failure(header, tmp_path):
    with pytest.raises(StorageFailed):
        convert(*tiny.adapter().write(tmp_path / "a"), header, tmp_path / "none" / "x.gguf", "f16")


SCRIPT = """
import os, sys
from pathlib import Path
os.umask(int(sys.argv[5], 8))
from promotion.export.base_header import read_base_header
from promotion.export.peft_to_gguf import convert
config, weights, base, out = map(Path, sys.argv[1:5])
convert(config, weights, read_base_header(base), out, "f16")
"""


def test_bytes_do_not_depend_on_time_zone_umask_hash_seed_or_folder(tiny_base, tmp_path):
    digests, modes = set(), set()
    for number, (zone, seed, umask) in enumerate([("UTC", "0", "022"), ("Pacific/Auckland", "77", "077")]):
        folder = tmp_path / f"run {number}"
        config, weights = tiny.adapter(use_rslora=True, alpha_pattern={"k_proj": 3}).write(folder / "adapter")
        out = folder / f"out{number}.gguf"
        arguments = [str(path) for path in (config, weights, tiny_base, out)]
        environment = os.environ | {"TZ": zone, "PYTHONHASHSEED": seed, "PYTHONPATH": str(REPOSITORY)}
        subprocess.run(
            [sys.executable, "-c", SCRIPT, *arguments, umask],
            cwd=folder,
            env=environment,
            check=True,
            timeout=60,
        )
        digests.add(sha256_file(out))
        modes.add(out.stat().st_mode & 0o777)

    assert len(digests) == 1
    assert modes == {0o644}


@pytest.mark.parametrize("name", sorted(PINNED))
def test_trained_adapters_give_the_pinned_bytes(real_base, real_adapters, tmp_path, name):
    config, weights = find_adapter_files(real_adapters / name)
    header = read_base_header(real_base)

    report = convert(config, weights, header, tmp_path / "x.gguf", "f16")

    read_back(tmp_path / "x.gguf", config, weights, header, "f16")
    assert report.sha256 == PINNED[name]
    assert report.tensors == 420
