"""The road of a candidate over REST, to the signature that REST cannot give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from promotion.models import Approval, Candidate, CandidateState, Evidence, Export
from promotion.services import registry
from rollouts import store
from rollouts.hashing import sha256_bytes
from rollouts.models import AuditEvent, BaseModel
from tests import factories
from tests.export import tiny


@pytest.fixture
def files(tmp_path: Path, house: Any) -> dict[str, Any]:
    """The form of an adapter that fits the house's base, whose stored file is a tiny real model."""
    base = tiny.write_base(tmp_path / "tiny.gguf")
    BaseModel.objects.filter(pk=house.base.pk).update(artifact=store.put_file(base))
    config, weights = tiny.adapter().write(tmp_path / "adapter")
    return {
        "track": house.track.name,
        "name": "r3",
        "base": house.base.name,
        "adapter_config": config,
        "adapter_model": weights,
    }


def test_an_adapter_is_uploaded_and_sent_to_be_built(engineer: Any, files: Any):
    response = engineer.upload("candidates", files, status=202)
    made = response.json()
    assert response["Location"] == made["url"]
    assert (made["state"], made["gguf_sha256"], made["submitted_by"]) == ("submitted", None, "engineer")
    assert made["adapter_config_sha256"] == sha256_bytes(files["adapter_config"].read_bytes())
    found = engineer.send("GET", made["url"])
    assert found.json() == made
    assert found["ETag"] == '"1-submitted"'


def test_the_same_bytes_are_one_candidate(engineer: Any, files: Any):
    engineer.upload("candidates", files, status=202)
    found = engineer.upload("candidates", {**files, "name": "again"}, status=409).json()
    assert found["code"] == "conflict"


def test_an_upload_sent_twice_with_one_key_is_one_candidate(engineer: Any, files: Any):
    first = engineer.upload("candidates", files, status=202, Idempotency_Key="k")
    again = engineer.upload("candidates", files, status=202, Idempotency_Key="k")
    assert (again.json(), again["Location"]) == (first.json(), first["Location"])
    assert Candidate.objects.filter(name="r3").count() == 1


def test_an_adapter_that_does_not_fit_is_refused_by_the_key_that_is_wrong(engineer: Any, files: Any):
    config = json.loads(files["adapter_config"].read_text())
    files["adapter_config"].write_text(json.dumps({**config, "use_dora": True}))
    found = engineer.upload("candidates", files, status=400).json()
    assert "use_dora" in found["field"]
    assert not Candidate.objects.filter(name="r3").exists()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "Not a name"}, "name"),
        ({"outtype": "q2"}, "outtype"),
        ({"baseline": "yes"}, "baseline"),
        ({"track": "none"}, "track"),
        ({"base": "none"}, "base"),
        ({"adapter_config": "{}"}, "adapter_config"),
        ({"extra": "1"}, "extra"),
        ({"name": ["a", "b"]}, "name"),
        ({"name": "a\x00"}, "name"),
    ],
)
def test_a_wrong_field_of_the_form_is_named(engineer: Any, files: Any, change: Any, field: str):
    assert engineer.upload("candidates", {**files, **change}, status=400).json()["field"] == field


def test_a_missing_file_of_the_form_is_named(engineer: Any, files: Any):
    files.pop("adapter_model")
    assert engineer.upload("candidates", files, status=400).json()["field"] == "adapter_model"


def test_an_evaluation_answers_with_the_runs_it_planned(engineer: Any, house: Any):
    candidate = house.candidate()
    response = engineer.send("POST", f"candidates/{candidate.pk}/evaluate", {"backend": house.backend.name})
    found = response.json()
    assert (response.status_code, response["Location"]) == (202, f"/api/v1/candidates/{candidate.pk}")
    assert found["candidate"]["state"] == "evaluating"
    assert [run["label"] for run in found["runs"]] == ["cand", "first"]
    for run in found["runs"]:
        assert engineer.get(run["url"])["state"] == "queued"


def test_an_evaluating_candidate_is_not_judged_before_its_runs_close(engineer: Any, house: Any):
    candidate = house.candidate()
    engineer.post(f"candidates/{candidate.pk}/evaluate", {"backend": house.backend.name}, status=202)
    assert len(engineer.problem(409, "POST", f"candidates/{candidate.pk}/judge")["facts"]["runs"]) == 2


def test_judging_again_gives_the_same_evidence(engineer: Any, house: Any):
    candidate = house.evaluated()
    before = engineer.get(f"candidates/{candidate.pk}")
    assert engineer.post(f"candidates/{candidate.pk}/judge", status=200) == before
    assert AuditEvent.objects.filter(action="candidate.judged").last().actor.startswith("token:engineer:")
    engineer.problem(404, "POST", "candidates/999/judge")


@pytest.mark.parametrize("state", ["promoted", "approved", "withdrawn", "publishing"])
def test_a_candidate_past_review_is_not_judged_again(engineer: Any, house: Any, state: str):
    candidate = house.evaluated()
    Candidate.objects.filter(pk=candidate.pk).update(state=state)
    engineer.problem(409, "POST", f"candidates/{candidate.pk}/judge")
    assert Candidate.objects.get(pk=candidate.pk).state == state


def test_the_gates_of_a_candidate_are_those_of_its_newest_evidence(auditor: Any, house: Any):
    candidate = house.evaluated(wrong=20)
    found = auditor.get(f"candidates/{candidate.pk}/gates")
    assert found["evidence"] == factories.digest_of(candidate)
    outcomes = {result["gate"]: result["outcome"] for result in found["results"]}
    assert outcomes["generalization_accuracy_floor"] == "failed"
    assert auditor.get(f"candidates/{house.candidate('new').pk}/gates") == {"evidence": None, "results": []}


def test_evidence_is_given_byte_for_byte_under_its_digest(auditor: Any, house: Any):
    candidate = house.evaluated()
    digest = factories.digest_of(candidate)
    listed = auditor.get(f"evidence?candidate={candidate.pk}")["results"]
    assert [row["digest"] for row in listed] == [digest]
    response = auditor.send("GET", listed[0]["url"])
    assert sha256_bytes(response.content) == digest
    assert (response["ETag"], response["Content-Type"]) == (f'"{digest}"', "application/json")
    assert auditor.send("GET", listed[0]["url"], If_None_Match=f'"{digest}"').status_code == 304
    auditor.problem(404, "GET", f"evidence/{'0' * 64}")


def test_withdrawing_needs_a_reason_and_the_state_that_was_read(engineer: Any, house: Any):
    candidate = house.evaluated()
    path = f"candidates/{candidate.pk}/withdraw"
    assert engineer.problem(400, "POST", path, {})["field"] == "reason"
    assert engineer.problem(400, "POST", path, {"reason": "  "})["field"] == "reason"
    engineer.problem(412, "POST", path, {"reason": "r"}, If_Match='"1-built"')
    etag = engineer.send("GET", f"candidates/{candidate.pk}")["ETag"]
    response = engineer.send("POST", path, {"reason": "Another is better."}, If_Match=etag)
    assert (response.status_code, response.json()["state"]) == (200, "withdrawn")


def test_a_failed_build_and_a_failed_publication_are_tried_again(engineer: Any, house: Any):
    built, approved = house.candidate("b"), house.approved("p")
    Candidate.objects.filter(pk=built.pk).update(state="build_failed", error_detail="disk full")
    Candidate.objects.filter(pk=approved.pk).update(state="publish_failed", error_detail="disk full")
    assert engineer.post(f"candidates/{built.pk}/retry_build", status=202)["state"] == "submitted"
    assert engineer.post(f"candidates/{approved.pk}/retry_publish", status=202)["state"] == "publishing"


# the registry


def test_a_promoted_candidate_s_export_is_downloaded_with_its_digest(auditor: Any, house: Any):
    candidate = house.approved()
    registry.publish(candidate.pk)
    exports = auditor.get(f"exports?track={house.track.name}")["results"]
    found = next(export for export in exports if export["entry"]["candidate"] == "cand")
    response = auditor.send("GET", found["file_url"])
    data = b"".join(response.streaming_content)
    assert sha256_bytes(data) == found["sha256"] == candidate.gguf_id
    assert response["Content-Disposition"] == 'attachment; filename="cand-f16.gguf"'
    assert int(response["Content-Length"]) == found["size_bytes"] == len(data)
    assert response["ETag"] == f'"{found["sha256"]}"'
    assert auditor.send("GET", found["file_url"], If_None_Match=response["ETag"]).status_code == 304
    accepted = auditor.send("GET", found["file_url"], Accept="application/octet-stream")
    assert b"".join(accepted.streaming_content) == data
    assert auditor.get(f"exports?entry={house.champion.pk}")["results"][0]["name"] == "first-f16.gguf"


def test_damaged_bytes_are_not_given_out(auditor: Any, house: Any):
    export = Export.objects.get(entry=house.champion)
    path = store.path_of(export.artifact_id)
    path.write_bytes(b"other bytes")
    assert auditor.problem(409, "GET", f"exports/{export.pk}/file")["code"] == "artifact_damaged"
    path.unlink()
    auditor.problem(404, "GET", f"exports/{export.pk}/file", Accept="application/octet-stream")


def test_an_unpublished_gguf_has_no_address(engineer: Any, house: Any):
    """Up to the signature the bytes exist and nothing gives them out."""
    candidate = house.approved()
    secret = factories.stored_bytes(candidate.gguf)
    listed = engineer.get("exports")["results"]
    assert candidate.gguf_id not in {export["sha256"] for export in listed}
    for number in range(1, 30):
        response = engineer.send("GET", f"exports/{number}/file")
        if response.status_code == 200:
            assert b"".join(response.streaming_content) != secret
    for path in (
        f"exports/{candidate.gguf_id}/file",
        f"artifacts/{candidate.gguf_id}",
        f"candidates/{candidate.pk}/gguf",
    ):
        engineer.problem(404, "GET", path)


def test_the_registry_tells_entries_aliases_and_their_history(auditor: Any, house: Any):
    candidate = house.approved()
    entry = registry.publish(candidate.pk)
    listed = auditor.get(f"registry?track={house.track.name}")["results"]
    assert [(row["number"], row["aliases"], row["ungated"]) for row in listed] == [
        (2, ["champion"], False),
        (1, [], True),
    ]
    assert auditor.get(f"registry/{entry.pk}")["record"]["gguf_sha256"] == candidate.gguf_id
    aliases = auditor.get(f"aliases?track={house.track.name}&name=champion")["results"]
    assert [alias["entry"]["number"] for alias in aliases] == [2]
    moves = auditor.get("alias_moves")["results"]
    assert [(move["old"] and move["old"]["number"], move["new"]["number"]) for move in moves] == [
        (1, 2),
        (None, 1),
    ]


# signing


def test_nothing_that_a_token_can_send_signs(acting: Any, house: Any):
    """Every verb there is, sent by the approver on a candidate that only waits for a signature."""
    from rollouts.api.schema import document

    candidate = house.evaluated()
    assert candidate.state == CandidateState.IN_REVIEW
    approver, before = acting(house.approver), Approval.objects.count()
    signature = {
        "evidence_digest": factories.digest_of(candidate), "password": factories.PASSWORD,
        "decision": "approve", "meaning": "authorises", "reason": "r", "comment": "",
    }  # fmt: skip
    values = {
        "id": candidate.pk,
        "name": house.track.name,
        "digest": factories.digest_of(candidate),
        "key": "k",
        "number": 1,
    }
    for path, verbs in document()["paths"].items():
        for method in verbs:
            if (method, path) != ("delete", "/api/v1/auth/token"):
                approver.send(method.upper(), path.format(**values), signature)
    for guess in ("sign", "approve", "approvals", "reject", "signatures"):
        approver.problem(404, "POST", f"candidates/{candidate.pk}/{guess}", signature)
    assert Approval.objects.count() == before
    assert Evidence.objects.filter(candidate=candidate).exists()
