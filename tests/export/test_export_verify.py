"""Rules of the numeric verification: right files, and each wrong one that llama.cpp loads silently."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from promotion.export import peft_to_gguf
from promotion.export import verify as verify_module
from promotion.export.base_header import BaseHeader, read_base_header
from promotion.export.llama_run import CHILD
from promotion.export.manifest import export_manifest
from promotion.export.peft_adapter import NO_EFFECT, PeftAdapter, find_adapter_files
from promotion.export.peft_to_gguf import convert
from promotion.export.verify import verify
from rollouts.hashing import canonical_bytes
from tests.export import tiny

CASES = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "alpha_pattern": {"alpha_pattern": {"q_proj": 16, "layers.1.mlp.up_proj": 2}},
    "rank_pattern": {"ranks": {"k_proj": 8}, "rank_pattern": {"k_proj": 8}},
    "all": {
        "use_rslora": True,
        "ranks": {"k_proj": 8},
        "rank_pattern": {"k_proj": 8},
        "alpha_pattern": {"v_proj": 3},
    },
}


@contextmanager
def broken_converter(fault: str) -> Iterator[None]:
    """The converter with one fault that gives a file of the right names and shapes."""
    with pytest.MonkeyPatch.context() as patch:
        if fault == "no permutation":
            patch.setattr(peft_to_gguf, "_interleave", lambda b, heads: b)
        elif fault.startswith("alpha"):
            alpha, factor = peft_to_gguf.stored_alpha, float(fault.split()[-1])
            patch.setattr(peft_to_gguf, "fold_factor", lambda adapter, pair: 1.0)
            patch.setattr(peft_to_gguf, "stored_alpha", lambda adapter: alpha(adapter) * factor)
        elif fault.startswith("swap"):
            load, pair = peft_to_gguf.load_adapter, tuple(int(layer) for layer in fault.split()[1:])
            patch.setattr(peft_to_gguf, "load_adapter", lambda *paths: swapped(load(*paths), *pair))
        elif fault == "rslora ignored":
            patch.setattr(peft_to_gguf, "stored_alpha", lambda adapter: adapter.config.alpha)
        yield


def swapped(adapter: PeftAdapter, one: int, two: int) -> PeftAdapter:
    """The adapter with two layers' tensors exchanged."""
    names = {pair.module: pair for pair in adapter.pairs}

    def partner(module: str) -> str:
        parts = module.split(".")
        parts[2] = {str(one): str(two), str(two): str(one)}.get(parts[2], parts[2])
        return ".".join(parts)

    pairs = (
        dataclasses.replace(
            pair, a_name=names[partner(pair.module)].a_name, b_name=names[partner(pair.module)].b_name
        )
        for pair in adapter.pairs
    )
    return dataclasses.replace(adapter, pairs=tuple(pairs))


def outcome(base: Path, paths: tuple[Path, Path], out: Path, *, outtype="f32", fault="none"):
    with broken_converter(fault):
        convert(*paths, read_base_header(base), out, outtype)
    return verify(base, out, *paths, timeout_s=120)


@pytest.mark.llama
@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.parametrize(("architecture", "tied"), [("llama", False), ("llama", True), ("qwen2", False)])
def test_right_files_are_verified_within_a_thousandth(llama, tmp_path, architecture, tied, case):
    base = tiny.write_base(tmp_path / "base.gguf", architecture=architecture, tied=tied)

    report = outcome(base, tiny.adapter(**CASES[case]).write(tmp_path / "a"), tmp_path / "out.gguf")

    assert report.status == "verified", report.reason
    assert [each.part for each in report.comparisons] == ["whole", "layers 0-1"]
    for comparison in report.comparisons:
        assert comparison.effect > 0.1
        assert max(comparison.base_error_max, comparison.adapter_error_max) < 1e-3
        assert comparison.top1_agreements == comparison.positions == 12


@pytest.mark.llama
@pytest.mark.parametrize("outtype", ["f16", "q8_0"])
def test_smaller_types_are_verified(llama, tiny_base, tmp_path, outtype):
    paths = tiny.adapter(use_rslora=True).write(tmp_path / "a", dtype="BF16")

    assert outcome(tiny_base, paths, tmp_path / "out.gguf", outtype=outtype).status == "verified"


@pytest.mark.llama
@pytest.mark.parametrize("weight_type", ["F16", "BF16", "Q8_0", "Q4_0", "Q5_1"])
def test_bases_of_other_types_are_verified_and_faults_on_them_fail(llama, tmp_path, weight_type):
    base = tiny.write_base(tmp_path / "base.gguf", weight_type=GGMLQuantizationType[weight_type])
    paths = tiny.adapter().write(tmp_path / "a")

    right = outcome(base, paths, tmp_path / "right.gguf", outtype="f16")
    wrong = outcome(base, paths, tmp_path / "wrong.gguf", outtype="f16", fault="no permutation")

    assert (right.status, wrong.status) == ("verified", "failed")


@pytest.mark.llama
def test_a_file_that_is_no_adapter_fails(llama, tiny_base, tmp_path):
    paths = tiny.adapter().write(tmp_path / "a")
    (tmp_path / "out.gguf").write_bytes(b"GGUF")

    assert verify(tiny_base, tmp_path / "out.gguf", *paths, timeout_s=60).status == "failed"
    assert verify(tiny_base, tiny_base, *paths, timeout_s=60).status == "failed"


@pytest.mark.llama
@pytest.mark.parametrize("outtype", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("fault", ["no permutation", "alpha 2", "alpha 0.5", "alpha 1.1", "swap 0 1"])
def test_wrong_files_that_load_silently_fail(llama, tiny_base, tmp_path, fault, outtype):
    paths = tiny.adapter().write(tmp_path / "a")

    report = outcome(tiny_base, paths, tmp_path / "out.gguf", outtype=outtype, fault=fault)

    assert report.status == "failed"
    assert "something else" in report.reason


@pytest.mark.llama
def test_an_ignored_rslora_fails(llama, tiny_base, tmp_path):
    paths = tiny.adapter(use_rslora=True).write(tmp_path / "a")

    assert outcome(tiny_base, paths, tmp_path / "out.gguf", fault="rslora ignored").status == "failed"


@pytest.mark.llama
@pytest.mark.parametrize("module", ["lm_head", "model.embed_tokens"])
def test_lora_on_untied_embeddings_is_verified(llama, tiny_base, tmp_path, module):
    adapter, random = tiny.adapter(), np.random.default_rng(5)
    sides = {"lora_A.weight": (4, tiny.WIDTH), "lora_B.weight": (tiny.VOCAB, 4)}
    if module == "model.embed_tokens":
        sides = {"lora_embedding_A": (4, tiny.VOCAB), "lora_embedding_B": (tiny.WIDTH, 4)}
    for name, shape in sides.items():
        values = random.standard_normal(shape) * 0.2
        adapter.tensors[f"base_model.model.{module}.{name}"] = values.astype(np.float32)

    report = outcome(tiny_base, adapter.write(tmp_path / "a"), tmp_path / "out.gguf")

    assert report.status == "verified", report.reason


@pytest.mark.llama
def test_an_adapter_that_changes_nothing_is_verified_with_a_warning(llama, tiny_base, tmp_path):
    report = outcome(tiny_base, tiny.adapter(b_std=0.0).write(tmp_path / "a"), tmp_path / "out.gguf")

    assert (report.status, report.warnings) == ("verified", (NO_EFFECT,))


@pytest.mark.llama
def test_an_effect_too_small_to_measure_is_not_verified(llama, tiny_base, tmp_path):
    report = outcome(tiny_base, tiny.adapter(b_std=1e-6).write(tmp_path / "a"), tmp_path / "out.gguf")

    assert report.status == "not_verified"
    assert "too small" in report.reason


@pytest.mark.llama
def test_a_file_for_another_architecture_fails_with_llama_cpps_reason(llama, tiny_base, tmp_path):
    paths = tiny.adapter().write(tmp_path / "a")
    other = tiny.write_base(tmp_path / "qwen.gguf", architecture="qwen2")
    convert(*paths, read_base_header(other), tmp_path / "out.gguf", "f32")

    report = verify(tiny_base, tmp_path / "out.gguf", *paths, timeout_s=60)

    assert report.status == "failed"
    assert "mismatch" in report.reason
    assert str(tmp_path) not in report.reason


@pytest.mark.llama
def test_an_abort_of_llama_cpp_is_a_failed_verification(llama, tmp_path, monkeypatch):
    """LoRA on tied embeddings loads, and asserts at the first token. It is refused, so it is forced here."""
    base = tiny.write_base(tmp_path / "tied.gguf", tied=True)
    adapter = tiny.adapter()
    adapter.tensors["base_model.model.model.embed_tokens.lora_embedding_A"] = np.ones(
        (4, tiny.VOCAB), np.float32
    )
    adapter.tensors["base_model.model.model.embed_tokens.lora_embedding_B"] = np.ones(
        (tiny.WIDTH, 4), np.float32
    )
    paths = adapter.write(tmp_path / "a")
    for module in (peft_to_gguf, verify_module):
        monkeypatch.setattr(module, "check_against", lambda *_: None)

    report = outcome(base, paths, tmp_path / "out.gguf")

    assert report.status == "failed"
    assert "aborted with signal 6" in report.reason
    assert "GGML_ASSERT" in report.reason


@pytest.mark.llama
def test_a_run_out_of_time_is_not_verified(llama, tiny_base, tmp_path):
    paths = tiny.adapter().write(tmp_path / "a")
    convert(*paths, read_base_header(tiny_base), tmp_path / "out.gguf", "f32")

    report = verify(tiny_base, tmp_path / "out.gguf", *paths, timeout_s=0.01)

    assert report.status == "not_verified"
    assert "in time" in report.reason


def test_without_llama_cpp_nothing_is_verified(tiny_base, header: BaseHeader, tmp_path, monkeypatch):
    paths = tiny.adapter().write(tmp_path / "a")
    convert(*paths, header, tmp_path / "out.gguf", "f32")
    monkeypatch.setattr(verify_module.importlib.util, "find_spec", lambda name: None)

    report = verify(tiny_base, tmp_path / "out.gguf", *paths, timeout_s=60)

    assert report.status == "not_verified"
    assert "pip install 'assay[local]'" in report.reason


@pytest.mark.llama
def test_report_and_manifest_are_canonical_json(llama, tiny_base, header: BaseHeader, tmp_path):
    paths = tiny.adapter().write(tmp_path / "a")
    conversion = convert(*paths, header, tmp_path / "out.gguf", "f16")
    verification = verify(tiny_base, tmp_path / "out.gguf", *paths, timeout_s=60)

    manifest = export_manifest(
        name="out-f16.gguf",
        base_name="tiny",
        base_sha256="0" * 64,
        adapter_config_sha256=conversion.config_sha256,
        adapter_weights_sha256=conversion.weights_sha256,
        gguf_sha256=conversion.sha256,
        size_bytes=conversion.size_bytes,
        outtype=conversion.outtype,
        verification=verification.to_json(),
    )

    canonical_bytes(manifest)
    assert not any(
        isinstance(value, float)
        for each in manifest["verification"]["comparisons"]
        for value in each.values()
    )
    assert str(tmp_path) not in json.dumps(manifest)
    assert manifest["sha256"] == conversion.sha256


@pytest.mark.llama
def test_the_child_dies_with_its_parent(llama, tmp_path):
    child = (
        f"import sys, time; sys.path.insert(0, {str(CHILD.parent)!r}); import llama_child, os;"
        f"llama_child.die_with_parent(int(sys.argv[1])); print(os.getpid(), flush=True); time.sleep(60)"
    )
    parent = f"import os, subprocess, sys;subprocess.run([sys.executable, '-c', {child!r}, str(os.getpid())])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child_pid = int(process.stdout.readline())

    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)
    process.stdout.close()

    assert gone(child_pid, within_s=10)


def gone(pid: int, *, within_s: float) -> bool:
    """Whether a process ended; one that only waits to be reaped counts."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.llama
def test_the_trained_adapter_is_verified_on_the_real_base(llama, real_base, real_adapters, tmp_path):
    report = outcome(real_base, find_adapter_files(real_adapters / "r3"), tmp_path / "x.gguf", outtype="f16")

    assert report.status == "verified", report.reason
    assert all(each.relative_error < 0.001 for each in report.comparisons[1:])


@pytest.mark.llama
@pytest.mark.parametrize("fault", ["no permutation", "alpha 0.5", "swap 10 11"])
def test_wrong_files_of_the_trained_adapter_fail(llama, real_base, real_adapters, tmp_path, fault):
    paths = find_adapter_files(real_adapters / "r1")

    report = outcome(real_base, paths, tmp_path / "x.gguf", outtype="f16", fault=fault)

    assert report.status == "failed"
    assert max(each.relative_error for each in report.comparisons[1:]) > 0.05
