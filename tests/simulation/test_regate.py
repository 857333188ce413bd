"""A bundle says the same without the database: gates, waivers, signatures. A changed one is found."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from promotion.bundle import TIME, bundle_of, regate
from promotion.evidence import measurement_digest
from promotion.models import Candidate, Evidence, Waiver
from promotion.services import gating
from rollouts.errors import InvalidInput
from rollouts.hashing import canonical_bytes, sha256_json
from tests import factories
from tests.conftest import ROOT
from tests.factories import House
from tests.gates import documents

NOWHERE = "postgres://nobody@127.0.0.1:1/nothing"


@pytest.fixture
def house(db: None) -> House:
    gates = [
        {"gate": "arena_max_regression", "metric": "tool", "max_drop": "0.10"},
        {"gate": "paired_non_inferiority", "metric": "decision", "margin": "0.4"},
        {"gate": "masked_ceiling", "max_percent": "10"},
    ]
    return factories.house(calls=20, declines=10, gates=gates, champion=True)


def newest(candidate: Candidate) -> Evidence:
    return Evidence.objects.filter(candidate=candidate).order_by("-id")[0]


def exported(candidate: Candidate, path: Path, **changes: Any) -> Path:
    """The file that the command writes, with these keys changed afterwards."""
    out = io.StringIO()
    call_command("export_evidence", str(candidate), stdout=out)
    file = path / "bundle.json"
    file.write_text(json.dumps({**json.loads(out.getvalue()), **changes}))
    return file


def without_a_database(file: Path, *arguments: str, var: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, whose database is behind a closed port."""
    return subprocess.run(
        [sys.executable, "manage.py", "regate", str(file), *arguments],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": NOWHERE, "ASSAY_VAR": str(var)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def stored_outcomes(candidate: Candidate) -> list[tuple[str, str, str]]:
    rows = newest(candidate).gate_results.order_by("position")
    return [(row.gate, row.outcome, row.reason) for row in rows]


# the same verdicts


def test_a_bundle_gives_the_stored_verdicts_without_a_database(house: House, tmp_path: Path) -> None:
    candidate = house.evaluated("cand", wrong=4, masked=2)
    file = exported(candidate, tmp_path)

    done = without_a_database(file, "--expect", "stored", "--json", var=tmp_path)

    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    found = [(gate["gate"], gate["outcome"], gate["reason"]) for gate in said["gates"]]
    assert found == stored_outcomes(candidate)
    assert len({outcome for _, outcome, _ in found}) > 1
    assert said["digest"] == newest(candidate).digest
    assert said["differences"] == []


def test_the_table_names_each_gate_its_suite_and_what_blocks(house: House, tmp_path: Path) -> None:
    candidate = house.evaluated("cand", wrong=9)
    file = exported(candidate, tmp_path)

    done = without_a_database(file, var=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "| arena_max_regression | named | failed |" in done.stdout
    assert "Blocked by: arena_max_regression: tool 11/20" in done.stdout


@pytest.mark.parametrize("changed", ["outcome", "numbers"])
def test_a_stored_outcome_that_is_another_fails(house: House, tmp_path: Path, changed: str) -> None:
    candidate = house.evaluated("cand", wrong=9)
    outcomes = bundle_of(newest(candidate))["outcomes"]
    at = next(i for i, entry in enumerate(outcomes) if entry["gate"] == "arena_max_regression")
    outcomes[at] = {**outcomes[at], changed: {"outcome": "passed", "numbers": {"n": 1}}[changed]}
    file = exported(candidate, tmp_path, outcomes=outcomes)

    done = without_a_database(file, "--expect", "stored", var=tmp_path)

    assert done.returncode == 1
    assert f"{at + 1} arena_max_regression" in done.stderr


def test_a_changed_document_is_not_judged(house: House, tmp_path: Path) -> None:
    candidate = house.evaluated("cand", wrong=9)
    document = bundle_of(newest(candidate))["document"]
    document["suites"][0]["candidate"]["metrics"]["tool"] = {"successes": 20, "failures": 0, "missing": 0}
    file = exported(candidate, tmp_path, document=document)

    done = without_a_database(file, "--expect", "stored", var=tmp_path)

    assert done.returncode == 1
    assert "it was changed" in done.stderr
    assert done.stdout == ""


def test_a_bare_evidence_document_is_judged_as_the_api_gives_it(house: House, tmp_path: Path) -> None:
    candidate = house.evaluated("cand", wrong=9)
    file = tmp_path / "evidence.json"
    file.write_bytes(bytes(newest(candidate).document))

    done = without_a_database(file, "--json", var=tmp_path)

    said = json.loads(done.stdout)
    assert [(g["gate"], g["outcome"], g["reason"]) for g in said["gates"]] == stored_outcomes(candidate)
    assert (said["signatures"], said["differences"]) == (None, None)


def test_nothing_to_compare_with_is_said(house: House, tmp_path: Path) -> None:
    file = tmp_path / "evidence.json"
    file.write_bytes(bytes(newest(house.evaluated("cand")).document))

    with pytest.raises(CommandError, match="holds no outcomes to compare with"):
        call_command("regate", str(file), "--expect", "stored", stdout=io.StringIO())


# waivers


@pytest.fixture
def waived(house: House) -> Candidate:
    """A candidate whose one unmet gate two persons let be for a day, judged again with that waiver."""
    candidate = house.evaluated("cand", wrong=3)
    unmet = [gate for gate, outcome, _ in stored_outcomes(candidate) if outcome == "failed"]
    assert unmet == ["arena_max_regression"]
    now = timezone.now()
    Waiver.objects.create(
        candidate=candidate,
        gate="arena_max_regression",
        suite_digest=house.suite.digest,
        measurement_digest=measurement_digest(bundle_of(newest(candidate))["document"]),
        reason="It is better elsewhere.",
        requested_by=house.engineer,
        requested_at=now,
        granted_by=house.approver,
        granted_at=now,
        expires_at=now + timedelta(days=1),
    )
    gating.judge_again(candidate_id=candidate.pk, by=house.engineer)
    return candidate


def test_a_waiver_holds_at_the_time_of_the_bundle_and_not_after_it_ran_out(waived: Candidate) -> None:
    bundle = bundle_of(newest(waived))

    def outcome(**at: Any) -> str:
        gates = regate(bundle, **at).gates
        return str(next(j.outcome.outcome for j in gates if j.gate == "arena_max_regression"))

    assert outcome() == "waived"
    assert outcome(at=timezone.now() + timedelta(days=2)) == "failed"
    assert regate(bundle).differences == []
    assert len(regate(bundle, timezone.now() + timedelta(days=2)).differences) == 1


def test_the_time_can_be_named_on_the_command_line(waived: Candidate, tmp_path: Path) -> None:
    out = io.StringIO()

    call_command("regate", str(exported(waived, tmp_path)), "--at", "2099-01-01", "--json", stdout=out)

    said = json.loads(out.getvalue())
    assert said["at"] == "2099-01-01T00:00:00.000000Z"
    assert any(reason.startswith("arena_max_regression") for reason in said["blocked_by"])


def test_a_time_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="'soon' is no time such as"):
        call_command("regate", str(tmp_path / "bundle.json"), "--at", "soon")


# signatures


def test_signatures_are_judged_by_the_rule_of_the_document(house: House) -> None:
    candidate = house.evaluated("cand")
    assert regate(bundle_of(newest(candidate))).blocked_by == [
        f"human_approval_record: Waits for 1 more approver to sign {newest(candidate).digest[:8]}."
    ]

    factories.sign(candidate, house.approver)

    signed = regate(bundle_of(newest(candidate)))
    assert signed.signatures is not None and signed.signatures.reason == "Signed by approver."
    assert signed.blocked_by == []


@pytest.mark.parametrize(
    "wrong", [{"evidence_digest": "0" * 64}, {"person": "engineer"}, {"role": "auditor"}, {"person": " "}]
)
def test_a_signature_of_another_digest_person_or_group_does_not_count(
    house: House, wrong: dict[str, str]
) -> None:
    candidate = house.evaluated("cand")
    factories.sign(candidate, house.approver)
    bundle = bundle_of(newest(candidate))
    bundle["approvals"] = [{**bundle["approvals"][0], **wrong}]

    assert len(regate(bundle).blocked_by) == 1


def test_a_signature_runs_out(house: House) -> None:
    candidate = house.evaluated("cand")
    factories.sign(candidate, house.approver)
    bundle = bundle_of(newest(candidate))

    assert regate(bundle, timezone.now() + timedelta(days=29)).blocked_by == []
    assert len(regate(bundle, timezone.now() + timedelta(days=31)).blocked_by) == 1


def test_a_baseline_is_held_to_its_file_and_two_signatures(house: House) -> None:
    baseline = Candidate.objects.get(name="first")
    regated = regate(bundle_of(newest(baseline)))

    assert [judged.gate for judged in regated.gates] == ["candidate_artifact_hash"]
    assert regated.blocked_by == []
    unsigned = {**bundle_of(newest(baseline)), "approvals": []}
    assert len(regate(unsigned).blocked_by) == 1


def test_evidence_without_rules_is_blocked() -> None:
    document = documents.document(documents.suite(), policy=None)

    assert regate(document).blocked_by == ["policy: the track had no locked policy when this was frozen."]


# files that are no bundle


@pytest.mark.parametrize(
    ("bundle", "says"),
    [
        ([], "neither a bundle"),
        ({}, "neither a bundle"),
        ({"format": 2, "document": {}}, "neither a bundle"),
        ({"format": 1, "document": []}, "document.candidate"),
        ({"format": 1, "document": {**documents.document(), "suites": {}}}, "document.suites"),
        ({"format": 1, "document": {**documents.document(), "suites": [{}]}}, "not shaped as evidence"),
        ({"format": 1, "document": {**documents.document(), "policy": {}}}, "document"),
        ({"format": 1, "document": documents.document(), "digest": "0" * 64}, "it was changed"),
        ({"format": 1, "document": documents.document(), "digest": None}, "it was changed"),
        ({"format": 1, "document": {**documents.document(), "format": float("nan")}}, "canonical JSON"),
    ],
)
def test_what_is_no_bundle_is_refused_with_its_place(bundle: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        regate(bundle)


@pytest.mark.parametrize(
    "changes",
    [
        {"outcomes": "all passed"},
        {"outcomes": [1]},
        {"outcomes": [{"gate": "dataset_hash"}]},
        {"approvals": [{"person": "x"}]},
        {"approvals": [{"person": "x", "role": "y", "evidence_digest": "z", "signed_at": "today"}]},
        {"at": 7},
        {"at": "yesterday"},
    ],
)
def test_what_stands_beside_the_document_must_be_readable(house: House, changes: dict[str, Any]) -> None:
    bundle = bundle_of(newest(house.evaluated("cand")))

    with pytest.raises(InvalidInput, match=next(iter(changes))):
        regate({**bundle, **changes})


def test_a_file_that_is_no_json_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "bundle.json"
    file.write_text("{")

    with pytest.raises(CommandError, match=r"bundle\.json: Expecting"):
        call_command("regate", str(file))


# exporting


def test_the_bundle_holds_the_bytes_that_were_hashed(house: House, tmp_path: Path) -> None:
    candidate = house.evaluated("cand")

    bundle = json.loads(exported(candidate, tmp_path).read_text())

    assert canonical_bytes(bundle["document"]) == bytes(newest(candidate).document)
    assert sha256_json(bundle["document"]) == bundle["digest"] == newest(candidate).digest
    assert bundle["at"] == newest(candidate).created_at.strftime(TIME)


def test_a_candidate_is_named_by_track_and_name_or_by_number(house: House) -> None:
    candidate = house.evaluated("cand")

    def said(*arguments: str) -> str:
        out = io.StringIO()
        call_command("export_evidence", *arguments, stdout=out)
        return out.getvalue()

    assert said("toolcaller/cand") == said(str(candidate.pk))
    with pytest.raises(CommandError, match="There is no candidate toolcaller/other"):
        said("toolcaller/other")
    with pytest.raises(CommandError, match="has no evidence ffff"):
        said("toolcaller/cand", "--digest", "ffff")


def test_an_older_evidence_can_be_exported_by_its_digest(house: House) -> None:
    candidate = house.evaluated("cand")
    older = newest(candidate).digest
    Candidate.objects.filter(pk=candidate.pk).update(revision=99)
    gating.judge_again(candidate_id=candidate.pk, by=house.engineer)
    assert newest(candidate).digest != older
    out = io.StringIO()

    call_command("export_evidence", "toolcaller/cand", "--digest", older[:12], stdout=out)

    assert json.loads(out.getvalue())["digest"] == older


def test_a_candidate_that_was_not_judged_has_nothing_to_export(house: House) -> None:
    house.candidate("new")

    with pytest.raises(CommandError, match="no evidence yet"):
        call_command("export_evidence", "toolcaller/new", stdout=io.StringIO())


def test_an_unsigned_bundle_says_that_it_holds_no_signatures(house: House, tmp_path: Path) -> None:
    file = tmp_path / "evidence.json"
    file.write_bytes(bytes(newest(house.evaluated("cand")).document))
    out = io.StringIO()

    call_command("regate", str(file), stdout=out)

    assert "Nothing blocks it. The file holds no signatures." in out.getvalue()
