"""An import is kept once, under its digest, with one event; what cannot be read leaves nothing behind."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from promotion.importers import foundry_policy
from promotion.models import Candidate, Policy, RegistryEntry
from promotion.services import imports
from rollouts import store
from rollouts.errors import Conflict, NotAllowed, NotFound
from rollouts.hashing import sha256_bytes
from rollouts.models import Artifact, AuditEvent
from tests import factories
from tests.importers.foundry import Foundry, stream
from tests.importers.test_foundry import SETTLED

pytestmark = pytest.mark.django_db


@pytest.fixture
def foundry(tmp_path: Path) -> Foundry:
    return Foundry(tmp_path / "foundry")


@pytest.fixture(autouse=True)
def _static(settings: Any, tmp_path: Path) -> None:
    """whitenoise warns where its folder is missing."""
    settings.STATIC_ROOT = tmp_path / "static"
    settings.STATIC_ROOT.mkdir()


@pytest.fixture
def engineer() -> User:
    return factories.person("engineer", "engineer")


def run(folder: Path, *arguments: str) -> str:
    out = io.StringIO()
    call_command("import_foundry", str(folder), *arguments, stdout=out)
    return out.getvalue()


def page(person: User, digest: str) -> Any:
    client = Client()
    client.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    return client.get(reverse("promotion:import", args=[digest]))


def test_a_record_is_kept_under_the_digest_of_its_bytes(foundry: Foundry, engineer: User) -> None:
    found = imports.import_foundry(folder=foundry.write(), by=engineer)
    data = store.path_of(found.digest).read_bytes()
    assert sha256_bytes(data) == found.digest
    assert json.loads(data) == found.record
    assert imports.imported(found.digest).record == found.record
    event = AuditEvent.objects.get(action="foundry.imported")
    assert (event.subject_id, event.actor) == (found.digest, "user:engineer")
    assert json.loads(event.data)["checks"] == 16


def test_the_same_files_again_add_nothing(foundry: Foundry, engineer: User) -> None:
    first = imports.import_foundry(folder=foundry.write(), by=engineer)
    again = imports.import_foundry(folder=foundry.write(), by=engineer)
    assert (first.new, again.new) == (True, False)
    assert first.digest == again.digest
    assert AuditEvent.objects.filter(action="foundry.imported").count() == 1
    assert Artifact.objects.count() == 1
    foundry.sidecars["part.meta.json"] = stream(train_count=31)
    assert imports.import_foundry(folder=foundry.write(), by=engineer).new
    assert AuditEvent.objects.filter(action="foundry.imported").count() == 2


def test_an_import_promotes_nothing_and_writes_no_policy(foundry: Foundry, engineer: User) -> None:
    imports.import_foundry(folder=foundry.write(), by=engineer)
    for model in (Candidate, RegistryEntry, Policy):
        assert not model.objects.exists()


def test_files_that_cannot_be_read_leave_nothing(foundry: Foundry, engineer: User) -> None:
    foundry.promotions[1]["checks"][0]["name"] = "made_up_gate"
    foundry.sidecars["part.meta.json"] = stream(train_count="many")
    with pytest.raises(imports.Unreadable) as caught:
        imports.import_foundry(folder=foundry.write(), by=engineer)
    assert [finding.field for finding in caught.value.findings] == [
        "train_count",
        "promotions.1.checks.0.name",
    ]
    assert not AuditEvent.objects.exists()
    assert not Artifact.objects.exists()


def test_who_may_not_register_may_not_import(foundry: Foundry) -> None:
    with pytest.raises(NotAllowed):
        imports.import_foundry(folder=foundry.write(), by=factories.person("auditor", "auditor"))
    assert not AuditEvent.objects.filter(action="foundry.imported").exists()


def test_another_artifact_is_no_import() -> None:
    other = store.put([b'{"kind": "foundry"}'])
    with pytest.raises(NotFound):
        imports.imported(other.sha256)


def test_changed_bytes_are_no_record(foundry: Foundry, engineer: User) -> None:
    found = imports.import_foundry(folder=foundry.write(), by=engineer)
    path = store.path_of(found.digest)
    path.chmod(0o640)
    path.write_bytes(path.read_bytes().replace(b"maria", b"marta"))
    with pytest.raises(Conflict, match="other bytes"):
        imports.imported(found.digest)


def test_a_draft_that_leaves_nothing_open_gets_the_reasons_of_any_policy(
    foundry: Foundry, engineer: User
) -> None:
    record = imports.import_foundry(folder=foundry.write(), by=engineer).record
    names = ("regression", "refusal", "generalization", "fabrication")
    done = foundry_policy.completed(
        record["rounds"][0]["policy"],
        {name: f"{index}" * 64 for index, name in enumerate(names)},
        SETTLED,
        samples=1,
        sampling={"temperature": 0, "max_tokens": 64},
        spend_alpha=False,
        approval={
            "approvers": [{"group": "approver", "count": 1}],
            "separation_of_duties": True,
            "expires_after_days": 30,
        },
    )
    reasons = imports.why_not_lockable(done)
    assert any("no sealed suite has the digest 000000000000" in reason for reason in reasons)


# the command


def test_the_command_says_what_each_check_is_worth(foundry: Foundry) -> None:
    foundry.promotions[1]["latency_budget_measured"] = False
    said = run(foundry.write())
    assert "2 promotions, 16 checks" in said
    assert "16 of 16 checks recorded as passed" in said
    assert "latency_memory_budget: recorded as passed, but nothing was measured [unmeasured-passed]" in said
    assert "candidate_artifact_hash: recorded, not verified" in said
    assert AuditEvent.objects.get().actor == "system:import_foundry"
    assert "known already, nothing added" in run(foundry.folder)


def test_the_command_acts_as_the_person_it_is_given(foundry: Foundry, engineer: User) -> None:
    run(foundry.write(), "--by", "engineer", "--track", "gatekeeper")
    assert AuditEvent.objects.get().actor == "user:engineer"
    with pytest.raises(CommandError, match="there is no user nobody"):
        run(foundry.folder, "--by", "nobody")


def test_the_command_lists_everything_that_is_wrong(foundry: Foundry) -> None:
    foundry.promotions[1].update(track=None, approved_by=7)
    with pytest.raises(CommandError) as caught:
        run(foundry.write())
    said = str(caught.value)
    assert "PROMOTION_REGISTRY.json: promotions.1.track: is null" in said
    assert "PROMOTION_REGISTRY.json: promotions.1.approved_by: must be text" in said
    with pytest.raises(CommandError, match="no file names porter"):
        run(Foundry(foundry.folder.parent / "other").write(), "--track", "porter")


# the pages


def test_the_page_shows_the_record_as_recorded_and_not_verified(foundry: Foundry, engineer: User) -> None:
    foundry.promotions[1]["checks"][11]["detail"] = "UNMEASURED"
    foundry.configs["two.json"]["promotion"]["margin"]["rules"].pop("arena_json_validity_min")
    found = imports.import_foundry(folder=foundry.write(), by=engineer)
    shown = page(engineer, found.digest).content.decode()
    for words in (
        "Recorded elsewhere, not verified here",
        "gatekeeper-two",
        "not measured",
        "A check that measured nothing is recorded as passed.",
        "unmeasured-passed",
        "A floor of 0 can never fail.",
        "samples: the file does not say.",
        "min: must be from 0.01 to 1: a floor of 0 can never fail (arena_json_validity_min)",
        "seal the suite &lt;regression&gt; and put its digest here",
        "schemas/gate_tools.json has the configured hash",
        "data/train_two.jsonl",
    ):
        assert words in shown, words


def test_foreign_words_are_shown_as_words(foundry: Foundry, engineer: User) -> None:
    foundry.promotions[1].update(approval_note="<script>alert(1)</script>", round="two\u202e<b>")
    found = imports.import_foundry(folder=foundry.write(), by=engineer)
    shown = page(engineer, found.digest).content.decode()
    assert "<script>alert" not in shown
    assert "\u202e" not in shown
    assert "<b>" not in shown


def test_whoever_may_read_sees_imports_and_nobody_else(foundry: Foundry, engineer: User) -> None:
    found = imports.import_foundry(folder=foundry.write(), by=engineer)
    assert page(factories.person("auditor", "auditor"), found.digest).status_code == 200
    assert page(factories.person("stranger"), found.digest).status_code == 403
    assert page(engineer, "0" * 64).status_code == 404
    client = Client()
    client.force_login(engineer, backend="django.contrib.auth.backends.ModelBackend")
    listed = client.get(reverse("promotion:imports")).content.decode()
    assert f"/imports/{found.digest}/" in listed
    assert f"/imports/{found.digest}/" in client.get(reverse("promotion:audit")).content.decode()


def test_the_real_files_are_imported_and_shown(data: Path, engineer: User) -> None:
    if not (data / "theorc").is_dir():
        pytest.skip("../shared/data/theorc is not there")
    found = imports.import_foundry(folder=data / "theorc", by=engineer)
    response = page(engineer, found.digest)
    assert response.status_code == 200
    assert response.content.decode().count("recorded, not verified") >= 13
