"""Real streams against real suites, and the sidecars and configurations of another foundry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from promotion.preflight import Finding, Inputs, findings
from promotion.services.candidate_datasets import tool_schema_digest
from rollouts.models import Suite
from rollouts.selectors import declared_digest, declared_streams
from rollouts.services import datasets, suites
from tests.datasets.conftest import rows
from tests.factories import jsonl

STREAMS = {"bulk": 480, "decoys": 120, "explicit_call": 120}
SUITES = {"regression": 200, "generalization": 150, "fabrication": 160, "gauntlet": 200}


@pytest.fixture
def toolcaller(data: Path) -> Path:
    folder = data / "toolcaller-smollm2"
    if not folder.is_dir():
        pytest.skip("../shared/data/toolcaller-smollm2 is not there")
    return folder


@pytest.fixture
def theorc(data: Path) -> Path:
    folder = data / "theorc"
    if not folder.is_dir():
        pytest.skip("../shared/data/theorc is not there")
    return folder


@pytest.fixture
def sealed(toolcaller: Path, engineer: User) -> dict[str, Suite]:
    return {
        name: suites.seal(name=name, data=(toolcaller / f"suites/{name}.jsonl").read_bytes(), by=engineer)
        for name in SUITES
    }


def stream(toolcaller: Path, name: str) -> bytes:
    return (toolcaller / f"streams/{name}.jsonl").read_bytes()


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_registers_whole_and_shares_nothing_with_any_suite(
    toolcaller: Path, sealed: dict[str, Suite], engineer: User, name: str
) -> None:
    dataset = datasets.register(name=name, data=stream(toolcaller, name), by=engineer)
    assert (dataset.row_count, dataset.text_count, dataset.without_id, dataset.repeated_ids) == (
        STREAMS[name],
        STREAMS[name],
        0,
        0,
    )
    assert dataset.schema_sha256 == ""
    for overlap, size in zip(
        datasets.compare_with(dataset, suites=sealed.values()), SUITES.values(), strict=True
    ):
        report = overlap.report
        assert [report[kind] for kind in ("ids", "groups", "texts", "near")] == [0, 0, 0, 0], str(
            overlap.suite
        )
        assert (report["rows"], report["others"]) == (STREAMS[name], size)


def test_one_stolen_and_one_touched_case_are_found_among_real_rows(
    toolcaller: Path, sealed: dict[str, Suite], engineer: User
) -> None:
    cases = [case.content["messages"][-1]["content"] for case in sealed["regression"].cases.all()]
    long = next(text for text in cases if len(text.split()) >= 10)
    lines = [json.loads(line) for line in stream(toolcaller, "bulk").splitlines()]
    lines[7]["messages"][1]["content"] = cases[3].upper() + "!!"
    lines[9]["messages"][1]["content"] = long.replace(long.split()[2], "something", 1)
    dataset = datasets.register(name="stolen", data=jsonl(lines), by=engineer)
    report = datasets.compare(dataset, suite=sealed["regression"]).report
    assert (report["texts"], report["near"]) == (1, 1)
    assert {example["ours"] for example in report["examples"]} == {
        lines[7]["example_id"],
        lines[9]["example_id"],
    }


def test_no_single_feature_of_the_regression_suite_tells_its_label(sealed: dict[str, Suite]) -> None:
    leak = sealed["regression"].leak
    assert (leak["majority"], leak["n"]) == ("0.750000", 200)
    assert 0.75 <= float(leak["accuracy"]) < 0.85
    assert sealed["fabrication"].leak["majority"] == "1.000000"
    for suite in sealed.values():
        assert len(set(suite.cases.values_list("prompt_sha256", flat=True))) == suite.case_count


def test_the_streams_pass_preflight_against_each_other(toolcaller: Path) -> None:
    found = findings(
        Inputs(
            train=stream(toolcaller, "bulk"),
            evaluation=stream(toolcaller, "decoys"),
            tool_schema=(toolcaller / "tool_families.json").read_bytes(),
        )
    )
    assert {(f.code, f.severity) for f in found} == {("policy", "warning"), ("meta", "warning")}
    same = findings(Inputs(train=stream(toolcaller, "bulk"), evaluation=stream(toolcaller, "bulk")))
    assert "480 rows of train ask word for word what eval asks" in " ".join(f.text for f in same)


def test_a_suffix_that_tells_the_decision_is_found_in_real_rows(toolcaller: Path) -> None:
    lines = [json.loads(line) for line in stream(toolcaller, "bulk").splitlines()]
    for line in lines:
        state = "approved" if line["decision"] == "call" else "pending"
        line["messages"][1]["content"] += f"\n\n[approval context: {state}]"
    clean = findings(Inputs(train=stream(toolcaller, "bulk"), evaluation=stream(toolcaller, "decoys")))
    leaking = findings(Inputs(train=jsonl(lines), evaluation=stream(toolcaller, "decoys")))
    assert "prompt_leak" not in {f.code for f in clean}
    (leak,) = [f for f in leaking if f.code == "prompt_leak"]
    assert "100.0%" in leak.text and ("approved" in leak.text or "pending" in leak.text)


# another foundry's files


def meta(theorc: Path, name: str) -> Any:
    return json.loads((theorc / f"meta/{name}.meta.json").read_bytes())


@pytest.mark.parametrize(
    ("name", "train", "evaluation", "streams"),
    [
        ("toolcaller_v0_r3", "b1d1f248", None, ["base_train", "failures", "gauntlet"]),
        (
            "toolcaller_v2_r3",
            "a59e8f43",
            "1d1f63b2",
            ["v0_stream", "v2_bulk_stream_r2", "v2_explicit_call_stream_r3"],
        ),
        ("toolcaller_v2_explicit_call_r3", "065d3633", "fe93f5bb", []),
    ],
)
def test_each_shape_of_sidecar_declares_what_it_declares(
    theorc: Path, name: str, train: str, evaluation: str | None, streams: list[str]
) -> None:
    sidecar = meta(theorc, name)
    found = [declared_digest(sidecar, role) for role in ("train", "eval")]
    assert [digest and digest[:8] for digest in found] == [train, evaluation]
    assert declared_streams(sidecar) == streams


@pytest.mark.django_db
def test_every_sidecar_can_be_registered_with_rows_that_it_was_not_written_for(
    theorc: Path, engineer: User
) -> None:
    for path in sorted((theorc / "meta").glob("*.json")):
        name = path.name.removesuffix(".meta.json")
        sidecar = datasets.sidecar_of(path.read_bytes())
        dataset = datasets.register(name=name, data=jsonl(rows(name)), by=engineer, sidecar=sidecar)
        assert dataset.declared_sha256 == sidecar["train_sha256"] != dataset.artifact_id
        dataset.refresh_from_db()
        assert dataset.sidecar == sidecar


def preflight(theorc: Path, round_name: str, sidecar: str, schema: str) -> list[Finding]:
    return findings(
        Inputs(
            train=jsonl(rows("t")),
            evaluation=jsonl(rows("e")),
            sidecar=(theorc / f"meta/{sidecar}.meta.json").read_bytes(),
            config=(theorc / f"configs/{round_name}.json").read_bytes(),
            tool_schema=(theorc / f"schemas/{schema}.json").read_bytes(),
            policy={"gates": [{"gate": "dataset_hash"}, {"gate": "runtime_schema_identity"}]},
        )
    )


def test_the_last_round_is_told_all_that_it_was_not_told(theorc: Path) -> None:
    """Its sidecar names no schema and other files; isolation was off, rows waited for review, the baseline is a path."""
    found = preflight(theorc, "toolcaller_v2_r3", "toolcaller_v2_r3", "toolcaller_v2_tool_families")
    told = {(f.code, f.severity, f.where) for f in found}
    assert told >= {
        ("count", "error", "train"),
        ("count", "error", "eval"),
        ("review", "warning", "sidecar.contains_pending"),
        ("validator", "warning", "sidecar.validator.verdict"),
        ("drift", "error", "sidecar.train_sha256"),
        ("drift", "error", "sidecar.eval_sha256"),
        ("schema", "error", "sidecar.tool_schema_hash"),
        ("baseline", "warning", "config.gates.baseline_report"),
    }
    assert not [f for f in found if f.where == "config.gates.tool_schema_hash"]  # the pinned file is the file


def test_the_round_that_asked_for_more_is_blocked_by_what_it_asked(theorc: Path) -> None:
    found = preflight(theorc, "toolcaller_v0_r3", "toolcaller_v0_r3", "toolcaller_v0_frozen_tools")
    told = {(f.code, f.severity, f.where) for f in found}
    assert told >= {
        ("review", "error", "sidecar.contains_pending"),
        ("validator", "error", "sidecar.validator.verdict"),
        ("drift", "error", "sidecar.eval_sha256"),
        ("schema", "error", "sidecar.tool_schema_hash"),
    }


def test_a_schema_of_another_round_is_not_the_pinned_one(theorc: Path) -> None:
    found = preflight(theorc, "toolcaller_v2_r3", "toolcaller_v2_r3", "toolcaller_v1_frozen_tools")
    assert ("schema", "error", "config.gates.tool_schema_hash") in {
        (f.code, f.severity, f.where) for f in found
    }


def test_a_track_that_is_a_template_is_blocked(theorc: Path) -> None:
    found = preflight(theorc, "router_v0", "toolcaller_v2_r3", "toolcaller_v0_frozen_tools")
    assert [f.code for f in found] == ["track_blocked"]


def test_machine_paths_of_a_sidecar_are_told(theorc: Path) -> None:
    found = preflight(
        theorc, "toolcaller_v2_r3", "toolcaller_v2_explicit_call_r3", "toolcaller_v2_tool_families"
    )
    assert ("meta", "warning", "sidecar.source") in {(f.code, f.severity, f.where) for f in found}


def test_every_file_of_tool_schemas_has_a_digest_of_its_own(theorc: Path, toolcaller: Path) -> None:
    files = [*sorted((theorc / "schemas").glob("*.json")), toolcaller / "tool_families.json"]
    digests = {tool_schema_digest(path.read_bytes()) for path in files}
    assert len(digests) == len(files) == 4
