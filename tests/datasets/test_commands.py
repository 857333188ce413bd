"""Datasets and preflight from the terminal."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from promotion.models import Candidate
from promotion.selectors import datasets_part
from rollouts import store
from rollouts.models import BaseModel, Dataset
from tests import factories
from tests.datasets.conftest import made, row, rows
from tests.export import tiny

pytestmark = pytest.mark.django_db


def run(*arguments: Any) -> str:
    out = StringIO()
    call_command(*(str(part) for part in arguments), stdout=out)
    return out.getvalue()


def write(path: Path, content: Any) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def test_a_dataset_is_registered_with_its_sidecar(tmp_path: Path) -> None:
    factories.person("ann", "engineer")
    file = write(tmp_path / "bulk.jsonl", factories.jsonl([*rows("bulk"), row(None, "x")]))
    sidecar = write(tmp_path / "meta.json", {"train_sha256": "0" * 64})
    said = run("register_dataset", "bulk", file, "--sidecar", sidecar, "--as", "ann")
    dataset = Dataset.objects.get()
    assert "bulk v1 registered: 4 rows, 4 distinct prompts, 1 without id" in said
    assert "declares another file (000000000000)" in said and dataset.digest in said
    assert dataset.source == "bulk.jsonl"


def test_a_file_that_is_not_there_or_is_wrong_is_said(tmp_path: Path) -> None:
    factories.person("ann", "engineer")
    with pytest.raises(CommandError, match="No such file"):
        run("register_dataset", "bulk", tmp_path / "none", "--as", "ann")
    with pytest.raises(CommandError, match="line 1"):
        run("register_dataset", "bulk", write(tmp_path / "b", b"x\n"), "--as", "ann")


def test_preflight_says_go_or_ends_with_an_error(tmp_path: Path) -> None:
    by = factories.person("ann", "engineer")
    made(by, "watched")
    train = write(tmp_path / "t.jsonl", factories.jsonl(rows("bulk")))
    assert "GO, with" in run("preflight", "--train", train, "--eval", "watched", "--as", "ann")
    hostile = write(tmp_path / "h.jsonl", factories.jsonl([row("\x1b[31mred", "bulk asks for bulk1")]))
    with pytest.raises(CommandError) as refused:
        run("preflight", "--train", train, "--eval", hostile, "--as", "ann")
    assert "NO GO" in str(refused.value) and "leakage" in str(refused.value)
    assert "\x1b" not in str(refused.value)
    with pytest.raises(CommandError, match="No dataset is registered as other"):
        run("preflight", "--train", "other", "--eval", "watched", "--as", "ann")


def test_preflight_reads_every_document(tmp_path: Path) -> None:
    house = factories.house()
    made(house.engineer, "watched")
    files = {
        "policy": {**house.policy.document, "samples": 0},
        "sidecar": {"contains_pending": True},
        "config": {"status": "active", "gates": {}},
        "tool-schema": [],
    }
    options = [part for name, value in files.items() for part in (f"--{name}", write(tmp_path / name, value))]
    train = write(tmp_path / "t.jsonl", factories.jsonl(rows("bulk")))
    with pytest.raises(CommandError) as refused:
        run(
            "preflight",
            "--train",
            train,
            "--eval",
            "watched:1",
            *options,
            "--track",
            "toolcaller",
            "--as",
            "engineer",
        )
    for said in ("document.samples", "nobody has reviewed", "tool_schema_hash", "holds no tools"):
        assert said in str(refused.value)


def test_a_candidate_is_submitted_with_its_data(tmp_path: Path) -> None:
    house = factories.house()
    base = tiny.write_base(tmp_path / "tiny.gguf")
    BaseModel.objects.filter(pk=house.base.pk).update(artifact=store.put_file(base))
    tiny.adapter().write(tmp_path / "adapter")
    train = made(house.engineer, "bulk")
    made(house.engineer, "watched")
    schema = write(tmp_path / "tools.json", {"tools": [{"name": "a", "description": "A."}]})
    command = [
        "submit_candidate",
        "toolcaller",
        "r3",
        tmp_path / "adapter",
        "--base",
        "base",
        "--as",
        "engineer",
    ]
    run(*command, "--train", train.digest, "--eval", "watched", "--tool-schema", schema)
    candidate = Candidate.objects.get(name="r3")
    assert [(part["name"], part["role"]) for part in datasets_part(candidate.pk, [])] == [
        ("bulk", "train"),
        ("watched", "eval"),
    ]
    assert len(candidate.tool_schema_sha256) == 64
    with pytest.raises(CommandError, match="No dataset is registered as none"):
        run(*command, "--train", "none")
