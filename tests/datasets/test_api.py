"""Datasets, a candidate's data and preflight over REST."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from promotion.models import Candidate
from rollouts import store
from rollouts.hashing import sha256_bytes
from rollouts.models import BaseModel, Dataset
from rollouts.services import datasets
from tests import factories
from tests.api.conftest import Api, problem_of, token_of
from tests.datasets.conftest import made, row, rows
from tests.export import tiny

pytestmark = pytest.mark.django_db
TOOLS = [{"name": "play", "description": "Plays."}]


@pytest.fixture
def api(house: factories.House) -> Api:
    return Api(token_of(house.engineer))


def raw(api: Api, path: str, data: bytes, **headers: str) -> Any:
    return api.send("POST", path, raw=data, Content_Type="application/x-ndjson", **headers)


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str, Any], Path]:
    def write(name: str, content: Any) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    return write


def test_a_dataset_is_registered_read_and_listed(api: Api, written: Any) -> None:
    data = factories.jsonl(rows("bulk"))
    sidecar = {"train_sha256": sha256_bytes(data), "sources": {"a": {}}}
    form = {"file": written("bulk.jsonl", data), "sidecar": written("meta.json", sidecar)}
    response = api.upload("datasets?name=bulk&source=export", form)
    found = response.json()
    assert response["Location"] == found["url"]
    assert {
        key: found[key] for key in ("name", "version", "rows", "distinct_texts", "without_id", "source")
    } == {
        "name": "bulk",
        "version": 1,
        "rows": 3,
        "distinct_texts": 3,
        "without_id": 0,
        "source": "export",
    }
    assert found["file_sha256"] == found["declared_sha256"] == sha256_bytes(data)
    assert (found["schema_sha256"], found["streams"], found["sidecar"]) == (None, ["a"], sidecar)
    assert api.get(found["url"]) == found
    listed = api.get("datasets?name=bulk")["results"]
    assert [(part["digest"], "sidecar" in part) for part in listed] == [(found["digest"], False)]
    assert api.get("datasets?name=other")["results"] == []


def test_equal_rows_give_the_dataset_there_is_and_a_key_gives_the_first_answer(api: Api) -> None:
    data = factories.jsonl(rows("bulk"))
    first = raw(api, "datasets?name=bulk", data, Idempotency_Key="k")
    again = raw(api, "datasets?name=bulk", data, Idempotency_Key="k")
    third = raw(api, "datasets?name=bulk", data)
    assert {response.status_code for response in (first, again, third)} == {201}
    assert first.json() == again.json() == third.json()
    assert again["Idempotency-Replayed"] == "true"
    assert Dataset.objects.count() == 1
    assert problem_of(raw(api, "datasets?name=copy", data), 409)["code"] == "conflict"


@pytest.mark.parametrize(
    ("data", "field"),
    [(b"[1]\n", "line 1"), (b'{"prompt": 4}\n', "line 1: prompt"), (b"\xef\xbb\xbf{}", "bulk")],
)
def test_a_wrong_row_is_named_by_its_line(api: Api, data: bytes, field: str) -> None:
    assert problem_of(raw(api, "datasets?name=bulk", data), 400)["field"] == field


def test_a_sidecar_that_is_no_json_is_refused(api: Api, written: Any) -> None:
    form = {"file": written("bulk.jsonl", factories.jsonl(rows("bulk"))), "sidecar": written("m", b"{")}
    assert api.upload("datasets?name=bulk", form, status=400).json()["field"] == "sidecar"
    assert not Dataset.objects.exists()


def test_a_dataset_shows_what_it_was_compared_with(api: Api, house: factories.House) -> None:
    dataset, other = made(house.engineer, "bulk"), made(house.engineer, "eval")
    datasets.compare_with(dataset, suites=[house.suite], others=[other])
    found = api.get(f"datasets/{dataset.digest}")["overlaps"]
    assert [(part["kind"], part["digest"], part["name"]) for part in found] == [
        ("suite", house.suite.digest, "named v1"),
        ("dataset", other.digest, "eval v1"),
    ]
    assert found[0]["report"]["others"] == house.suite.case_count


def test_readers_read_and_only_who_may_registers(house: factories.House) -> None:
    dataset = made(house.engineer, "bulk")
    for person in (house.auditor, house.approver):
        reader = Api(token_of(person))
        assert reader.get(f"datasets/{dataset.digest}")["name"] == "bulk"
        assert problem_of(raw(reader, "datasets?name=x", b"{}"), 403)["code"] == "not_allowed"
    assert raw(Api(token_of(house.administrator)), "datasets?name=x", b"\n").status_code == 201
    problem_of(Api().send("GET", "datasets"), 401)
    problem_of(Api(token_of(house.auditor)).send("GET", f"datasets/{'0' * 64}"), 404)


@pytest.mark.parametrize("path", ["datasets?page_size=200", "datasets/{digest}"])
def test_the_number_of_queries_does_not_grow_with_the_rows(
    api: Api, house: factories.House, path: str
) -> None:
    dataset = made(house.engineer, "first")

    def queries() -> int:
        with CaptureQueriesContext(connection) as found:
            api.get(path.format(digest=dataset.digest))
        return len(found)

    def grow(names: range) -> None:
        others = [made(house.engineer, f"d{n}", rows(f"d{n}", 1)) for n in names]
        datasets.compare_with(dataset, others=others)

    grow(range(3))
    few = queries()
    grow(range(3, 60))
    assert queries() == few


# a candidate's data


@pytest.fixture
def form(tmp_path: Path, house: factories.House) -> dict[str, Any]:
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


def test_a_candidate_is_submitted_with_its_data(
    api: Api, house: factories.House, form: Any, written: Any
) -> None:
    dataset = made(house.engineer, "bulk")
    uses = json.dumps([{"digest": dataset.digest, "role": "train"}])
    schema = written("tools.json", TOOLS)
    found = api.upload("candidates", {**form, "datasets": uses, "tool_schema": schema}, status=202).json()
    assert [(part["name"], part["version"], part["role"], part["digest"]) for part in found["datasets"]] == [
        ("bulk", 1, "train", dataset.digest)
    ]
    assert api.get(found["datasets"][0]["url"])["name"] == "bulk"
    assert len(found["tool_schema_sha256"]) == 64


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"datasets": "x"}, "datasets"),
        ({"datasets": '{"digest": 1}'}, "datasets"),
        ({"datasets": '[{"digest": "x", "role": "train"}]'}, "datasets"),
        ({"datasets": f'[{{"digest": "{"0" * 64}", "role": "judge"}}]'}, "datasets"),
        ({"datasets": f'[{{"digest": "{"0" * 64}", "role": "train"}}]'}, "datasets.0.digest"),
        ({"datasets": f'[{{"digest": "{"0" * 64}", "role": "train", "x": 1}}]'}, "datasets"),
        ({"tool_schema_sha256": "x"}, "tool_schema_sha256"),
        ({"tool_schema": "x"}, "tool_schema"),
    ],
)
def test_data_that_cannot_be_used_is_refused_by_its_field(
    api: Api, form: Any, fields: Any, field: str
) -> None:
    assert api.upload("candidates", {**form, **fields}, status=400).json()["field"] == field
    assert not Candidate.objects.filter(name="r3").exists()


def test_data_is_added_over_rest_until_the_candidate_is_judged(api: Api, house: factories.House) -> None:
    candidate, dataset = house.candidate(), made(house.engineer, "bulk")
    body = {"datasets": [{"digest": dataset.digest, "role": "eval"}], "tool_schema": TOOLS}
    found = api.post(f"candidates/{candidate.pk}/datasets", body, status=200)
    assert [part["role"] for part in found["datasets"]] == ["eval"]
    assert (found["revision"], len(found["tool_schema_sha256"])) == (2, 64)
    both = {"tool_schema": TOOLS, "tool_schema_sha256": "0" * 64}
    assert api.problem(400, "POST", f"candidates/{candidate.pk}/datasets", both)["field"] == "tool_schema"
    for body in (
        {"datasets": "x"},
        {"datasets": [{"digest": dataset.digest}]},
        {"other": 1},
        {"tool_schema": "x"},
    ):
        api.problem(400, "POST", f"candidates/{candidate.pk}/datasets", body)
    house.measure(candidate)
    later = {"datasets": [{"digest": made(house.engineer, "later").digest, "role": "train"}]}
    assert api.problem(409, "POST", f"candidates/{candidate.pk}/datasets", later)["code"] == "conflict"


def test_another_engineer_adds_nothing(house: factories.House) -> None:
    candidate, dataset = house.candidate(), made(house.engineer, "bulk")
    body = {"datasets": [{"digest": dataset.digest, "role": "train"}]}
    for person in (factories.person("bob", "engineer"), house.administrator, house.auditor):
        Api(token_of(person)).problem(403, "POST", f"candidates/{candidate.pk}/datasets", body)
    Api(token_of(house.engineer)).problem(404, "POST", "candidates/999999/datasets", body)


# preflight


def test_preflight_of_registered_data_is_go_or_not(api: Api, house: factories.House) -> None:
    train, watched = made(house.engineer, "bulk"), made(house.engineer, "watched")
    body = {
        "train": train.digest,
        "eval": watched.digest,
        "policy": house.policy.document,
        "tool_schema": TOOLS,
    }
    found = api.post("preflight", body, status=200)
    assert found["go"] is True, found
    assert {part["severity"] for part in found["findings"]} == {"warning"}
    again = api.post("preflight", {**body, "eval": train.digest}, status=200)
    assert again["go"] is False
    assert "leakage" in {part["code"] for part in again["findings"]}
    assert set(again["findings"][0]) == {"code", "severity", "where", "text", "remedy"}


def test_preflight_compares_with_the_suites_of_the_draft(api: Api, house: factories.House) -> None:
    case = house.suite.cases.get(position=0)
    stolen = made(house.engineer, "stolen", [row("s", case.content["messages"][-1]["content"])])
    body = {"train": stolen.digest, "eval": made(house.engineer, "w").digest, "policy": house.policy.document}
    found = api.post("preflight", body, status=200)["findings"]
    assert [part["where"] for part in found if part["code"] == "suite_leakage"] == ["train and named v1"]


def test_preflight_names_what_the_rules_of_policies_refuse(api: Api, house: factories.House) -> None:
    body = {"policy": {**house.policy.document, "samples": 0}, "track": house.track.name}
    found = api.post("preflight", body, status=200)
    assert ("policy", "error", "document.samples") in {
        (part["code"], part["severity"], part["where"]) for part in found["findings"]
    }
    for odd in ({}, {"suites": [{"digest": "x\u0001"}, 5, {"digest": ["a"]}]}, {"suites": "x", "gates": {}}):
        assert api.post("preflight", {"policy": odd}, status=200)["go"] is False


def test_preflight_of_files_finds_what_registering_refuses(
    api: Api, house: factories.House, written: Any
) -> None:
    watched = made(house.engineer, "watched")
    form = {
        "train": written("t.jsonl", factories.jsonl(rows("bulk")) + b"[1]\n{}\n"),
        "eval_digest": watched.digest,
        "policy": written("p.json", b"{"),
        "config": written("c.json", {"status": "active", "gates": {}}),
        "sidecar": written("s.json", {"train_sha256": "0" * 64}),
    }
    found = api.upload("preflight", form, status=200).json()
    assert found["go"] is False
    assert {(part["code"], part["where"]) for part in found["findings"] if part["severity"] == "error"} >= {
        ("config", "policy"),
        ("json", "train line 4"),
        ("format", "train line 5: messages"),
        ("drift", "sidecar.train_sha256"),
    }


def test_preflight_writes_nothing_and_may_be_asked_by_every_reader(
    house: factories.House, written: Any
) -> None:
    before = Dataset.objects.count()
    for person in (house.auditor, house.approver, house.administrator):
        form = {"train": written("t.jsonl", b"x"), "eval": written("e.jsonl", b"")}
        Api(token_of(person)).upload("preflight", form, status=200)
    assert Dataset.objects.count() == before
    Api(token_of(factories.person("nobody"))).problem(403, "POST", "preflight", {})


def test_preflight_refuses_unknown_names_and_too_large_files(
    api: Api, house: factories.House, written: Any, monkeypatch: Any
) -> None:
    assert api.problem(400, "POST", "preflight", {"train": "0" * 64})["field"] == "train"
    assert api.problem(400, "POST", "preflight", {"track": "none"})["field"] == "track"
    api.problem(400, "POST", "preflight", {"train": "x"})
    api.problem(400, "POST", "preflight", {"other": 1})
    dataset = made(house.engineer, "bulk")
    monkeypatch.setattr("promotion.services.preflights.MAX_REQUEST_BYTES", 10)
    assert api.problem(400, "POST", "preflight", {"train": dataset.digest})["field"] == "train"
    form = {"train": written("t.jsonl", b"x" * 11)}
    assert api.upload("preflight", form, status=400).json()["field"] == "train"
    both = {"train": written("t.jsonl", b"x"), "train_digest": dataset.digest}
    assert api.upload("preflight", both, status=400).json()["field"] == "train_digest"
