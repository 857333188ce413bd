"""What each address gives and does."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from rollouts.hashing import sha256_bytes
from rollouts.models import BaseModel, Claim, EvalRun, Invocation, ModelCall, Payload
from tests import factories
from tests.export import tiny

REMOTE = {"name": "remote", "kind": "openai_compatible", "config": {"base_url": "http://127.0.0.1:9/v1"}}


# backends and suites


def test_a_backend_s_newest_revision_is_in_use(administrator: Any):
    first = administrator.post("backends", REMOTE)
    assert (first["revision"], first["prompt_price"]) == (1, None)
    assert administrator.post("backends", REMOTE)["revision"] == 1
    assert administrator.post("backends", {**REMOTE, "concurrency": 8})["revision"] == 2
    assert administrator.get("backends/remote")["concurrency"] == 8
    assert [row["name"] for row in administrator.get("backends?kind=openai_compatible")["results"]] == [
        "remote"
    ]
    administrator.problem(404, "GET", "backends/other")


def test_a_suite_is_sealed_from_a_body_or_a_file(engineer: Any, tmp_path: Path):
    data = factories.jsonl([factories.call_case("one"), factories.decline_case("two")])
    response = engineer.send(
        "POST", "suites?name=s&source=here.jsonl", raw=data, Content_Type="application/x-ndjson"
    )
    made = response.json()
    assert (response.status_code, response["Location"]) == (201, f"/api/v1/suites/{made['digest']}")
    assert (made["version"], made["case_count"], made["source"]) == (1, 2, "here.jsonl")
    file = tmp_path / "cases.jsonl"
    file.write_bytes(data)
    assert engineer.upload("suites?name=s", {"file": file}).json() == made
    cases = engineer.get(f"suites/{made['digest']}/cases")["results"]
    assert [(case["position"], case["key"], case["expects_call"]) for case in cases] == [
        (0, "one", True),
        (1, "two", False),
    ]


def test_a_suite_that_cannot_be_sealed_names_line_and_field(engineer: Any):
    rows = [factories.call_case("one"), {**factories.call_case("two"), "family": 7}]
    found = engineer.problem(
        400, "POST", "suites?name=s", raw=factories.jsonl(rows), Content_Type="application/x-ndjson"
    )
    assert found["field"] == "line 2: family"
    engineer.problem(400, "POST", "suites?name=s", raw=b"", Content_Type="application/x-ndjson")


def test_a_suite_needs_a_name_and_a_form_needs_its_file(engineer: Any, tmp_path: Path):
    found = engineer.problem(400, "POST", "suites", raw=b"{}", Content_Type="application/x-ndjson")
    assert found["field"] == "name"
    file = tmp_path / "x"
    file.write_text("x")
    for fields, field in (({"data": file}, "data"), ({"file": "text"}, "file"), ({}, "file")):
        found = engineer.upload("suites?name=s", fields, status=400).json()
        assert found["field"] == field


# bases


def test_a_base_is_registered_from_an_upload(engineer: Any, tmp_path: Path):
    file = tiny.write_base(tmp_path / "tiny.gguf")
    response = engineer.upload("bases", {"name": "tiny", "file": file}, status=400)
    # the tiny model has no chat template: the sentence of the header's reader comes through
    assert "chat template" in response.json()["detail"]
    assert response.json()["field"] == "file"
    assert not BaseModel.objects.filter(name="tiny").exists()


def test_what_is_no_gguf_is_refused(engineer: Any, tmp_path: Path):
    file = tmp_path / "no.gguf"
    file.write_bytes(b"not a GGUF at all")
    assert (
        engineer.upload("bases", {"name": "no", "file": file}, status=400).json()["code"] == "invalid_input"
    )


@pytest.mark.llama
def test_a_real_base_is_streamed_to_disk_and_registered(engineer: Any, tmp_path: Path):
    from tests.conftest import base_gguf

    path = base_gguf()
    assert path is not None
    made = engineer.upload("bases", {"name": "smollm2", "file": path}).json()
    assert (made["architecture"], made["size_bytes"]) == ("llama", path.stat().st_size)
    assert engineer.get("bases/smollm2") == made
    assert engineer.upload("bases", {"name": "smollm2", "file": path}).json() == made
    assert list(tmp_path.glob("*.upload*")) == []


# runs, rollouts, calls


@pytest.fixture
def run(engineer: Any, house: Any) -> EvalRun:
    body = {
        "suite": house.suite.digest,
        "backend": house.backend.name,
        "base": house.base.name,
        "label": "bare",
    }
    return EvalRun.objects.get(pk=engineer.post("runs", body, status=202)["id"])


def test_a_run_is_planned_and_its_status_address_tells_its_progress(
    engineer: Any, house: Any, run: EvalRun, sent: Any
):
    response = engineer.send("GET", f"runs/{run.pk}")
    found = response.json()
    assert (found["state"], found["planned"], found["scored"]) == ("queued", 20, None)
    assert found["progress"]["states"]["queued"] == 20
    assert found["subject"]["base"] == house.base.name
    factories.finish_run(run, wrong=3)
    found = engineer.get(f"runs/{run.pk}")
    assert (found["state"], found["scored"], found["progress"]["done"]) == ("scored", 20, 20)
    decision = {"name": "decision", "right": 17, "wrong": 3}
    assert decision in found["progress"]["metrics"]


def test_a_planned_run_is_a_202_with_its_address(engineer: Any, house: Any):
    body = {"suite": house.suite.digest, "backend": house.backend.name, "base": house.base.name}
    response = engineer.send("POST", "runs", body)
    assert (response.status_code, response["Location"]) == (202, response.json()["url"])
    again = engineer.problem(409, "POST", "runs", body)
    assert again["facts"] == {"run": response.json()["id"]}


def test_a_run_is_of_exactly_one_model(engineer: Any, house: Any):
    body = {"suite": house.suite.digest, "backend": house.backend.name}
    for models in ({}, {"base": house.base.name, "model": "m"}, {"candidate": 1, "base": house.base.name}):
        assert engineer.problem(400, "POST", "runs", {**body, **models})["field"] in {"model", "candidate"}


def test_a_name_in_a_body_that_is_unknown_is_wrong_input(engineer: Any, house: Any):
    body = {"suite": house.suite.digest, "backend": house.backend.name, "base": house.base.name}
    for change in ({"suite": "0" * 64}, {"backend": "none"}, {"base": "none"}):
        assert engineer.problem(400, "POST", "runs", {**body, **change})["field"] == next(iter(change))
    body.pop("base")
    assert engineer.problem(400, "POST", "runs", {**body, "candidate": 999})["field"] == "candidate"


def test_a_remote_model_is_run_by_its_name(administrator: Any, engineer: Any, house: Any):
    administrator.post("backends", REMOTE)
    body = {"suite": house.suite.digest, "backend": "remote", "model": "gpt", "samples": 2}
    made = engineer.post("runs", {**body, "sampling": {"temperature": 0.5}}, status=202)
    assert (made["planned"], made["subject"]["remote_model"]) == (40, "gpt")
    assert made["subject"]["sampling"] == {"temperature": 0.5, "max_tokens": 256}
    assert (
        engineer.problem(400, "POST", "runs", {**body, "backend": house.backend.name})["field"] == "backend"
    )


def test_a_candidate_is_run_with_its_policy_s_sampling(engineer: Any, house: Any):
    candidate = house.candidate()
    body = {"suite": house.suite.digest, "backend": house.backend.name, "candidate": candidate.pk}
    made = engineer.post("runs", body, status=202)
    assert made["subject"]["adapter"] == candidate.gguf_id
    assert made["subject"]["sampling"] == house.policy.document["sampling"]


def test_a_run_is_cancelled_once(engineer: Any, run: EvalRun):
    assert engineer.post(f"runs/{run.pk}/cancel", status=200)["state"] == "cancelled"
    assert engineer.problem(409, "POST", f"runs/{run.pk}/cancel")["code"] == "invalid_transition"
    engineer.problem(404, "POST", "runs/999/cancel")


def test_what_failed_is_run_again(engineer: Any, run: EvalRun):
    factories.finish_run(run, masked=2)
    response = engineer.send("POST", f"runs/{run.pk}/run_again")
    assert (response.status_code, response["Location"]) == (202, f"/api/v1/runs/{run.pk}")
    assert response.json()["progress"]["states"]["queued"] == 2


def test_a_rollout_tells_its_scores_and_its_answer(engineer: Any, run: EvalRun):
    factories.finish_run(run, wrong=1)
    listed = engineer.get(f"rollouts?run={run.pk}&metric=decision&value=false")["results"]
    assert len(listed) == 1
    found = engineer.get(f"rollouts/{listed[0]['id']}")
    assert found["scores"] == {
        "decision": False,
        "tool": False,
        "exact": False,
        "safe": None,
        "json_valid": True,
    }
    assert found["answer"] == '{"decision": "no_tool"}'
    assert found["case"]["content"]["expected"]["decision"] == "call"


def test_hostile_answers_come_through_as_escaped_text(engineer: Any, run: EvalRun):
    factories.finish_run(run)
    hostile = "<script>alert(1)</script>\u202e\x1b[31m" + "x" * 1_000_000
    rollout = run.rollouts.first()
    run.rollouts.filter(pk=rollout.pk).update(answer=hostile)
    response = engineer.send("GET", f"rollouts/{rollout.pk}")
    assert response.json()["answer"] == hostile
    assert response.content.isascii()
    assert b"\x1b" not in response.content


@pytest.fixture
def call(run: EvalRun) -> ModelCall:
    now = timezone.now()
    claim = Claim.objects.create(run=run, worker="w", created_at=now, lease_expires_at=now, ended_at=now)
    invocation = Invocation.objects.create(
        rollout=run.rollouts.first(), claim=claim, state="finished", started_at=now, finished_at=now
    )
    bodies = [
        Payload.objects.create(sha256=sha256_bytes(raw), size_bytes=len(raw), data=zlib.compress(raw))
        for raw in (b'{"text": "\xc3\xa9"}', b"\xff\xfe")
    ]
    return ModelCall.objects.create(
        invocation=invocation, dialect="openai.chat", state="answered", status=200, request=bodies[0],
        response=bodies[1], response_headers={"x": "y"}, created_at=now,
    )  # fmt: skip


def test_a_call_gives_its_bodies_as_text_or_base64(engineer: Any, call: ModelCall):
    found = engineer.get(f"calls/{call.pk}")
    assert found["request"]["encoding"] == "text"
    assert found["request"]["body"] == '{"text": "é"}'
    assert (found["response"]["encoding"], found["response"]["body"]) == ("base64", "//4=")
    assert found["cost_microusd"] is None


def test_calls_are_listed_by_run_and_by_rollout(engineer: Any, call: ModelCall):
    run, rollout = call.invocation.rollout.run_id, call.invocation.rollout_id
    for query in (f"run={run}", f"rollout={rollout}", f"run={run}&state=answered"):
        assert [row["id"] for row in engineer.get(f"calls?{query}")["results"]] == [call.pk]
    assert engineer.get(f"calls?run={run}&state=failed")["results"] == []
    assert "request" not in engineer.get(f"calls?run={run}")["results"][0]


# tracks, policies, gates


def test_a_track_is_created_once(administrator: Any):
    made = administrator.post("tracks", {"name": "new", "purpose": "Tries."})
    assert (made["champion"], made["created_by"]) == (None, "administrator")
    administrator.problem(409, "POST", "tracks", {"name": "new", "purpose": "Again."})


def test_a_track_shows_its_champion(auditor: Any, house: Any):
    champion = auditor.get(f"tracks/{house.track.name}")["champion"]
    assert champion["number"] == house.champion.number
    assert auditor.get(champion["url"])["candidate_name"] == champion["candidate"]


def test_a_policy_is_drafted_replaced_and_locked_by_a_second_person(
    administrator: Any, acting: Any, house: Any
):
    document = {**house.policy.document, "note": "second"}
    draft = administrator.post("policies", {"track": house.track.name, "document": document})
    assert (draft["version"], draft["locked_at"]) == (2, None)
    replaced = administrator.post(
        "policies", {"track": house.track.name, "document": {**document, "note": "third"}}
    )
    assert (replaced["id"], replaced["document"]["note"]) == (draft["id"], "third")
    administrator.problem(409, "POST", f"policies/{draft['id']}/lock")
    approver = acting(house.approver)
    stale = f'"{draft["digest"]}"'
    found = approver.problem(412, "POST", f"policies/{draft['id']}/lock", If_Match=stale)
    assert found["code"] == "precondition_failed"
    locked = approver.send("POST", f"policies/{draft['id']}/lock", If_Match=found["facts"]["current"])
    assert (locked.status_code, locked["ETag"]) == (200, f'"{replaced["digest"]}"')
    assert locked.json()["locked_by"] == "approver"
    assert [row["version"] for row in administrator.get("policies?locked=true")["results"]] == [2, 1]
    assert administrator.get("policies?locked=false")["results"] == []


def test_the_list_of_gates_says_what_a_policy_may_hold(auditor: Any):
    gates = {gate["gate"]: gate for gate in auditor.get("gates")["results"]}
    assert "human_approval_record" in gates
    floor = gates["generalization_accuracy_floor"]
    assert floor["summary"]
    assert set(floor["parameters"]["required"]) == {"gate", "suite", "metric", "min"}
    assert floor["parameters"]["additionalProperties"] is False
