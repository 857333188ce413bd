"""Pages of datasets, of a candidate's data, and of preflight."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from promotion.models import Candidate
from promotion.selectors import datasets_part
from promotion.services.candidate_datasets import attach_datasets
from rollouts import store
from rollouts.models import BaseModel, Dataset
from rollouts.services import datasets
from tests import factories
from tests.datasets.conftest import made, row, rows
from tests.export import tiny
from tests.web.conftest import html, signed_in

pytestmark = pytest.mark.django_db
HOSTILE = "<script>x</script>\u202e"


def upload(name: str, content: Any) -> SimpleUploadedFile:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return SimpleUploadedFile(name, data)


@pytest.fixture
def client(house: factories.House) -> Client:
    return signed_in(house.engineer)


def page_of(dataset: Dataset) -> str:
    return reverse("rollouts:dataset", args=[dataset.name, dataset.version])


def test_the_list_shows_each_dataset_and_whether_it_is_the_declared_file(
    client: Client, house: factories.House
) -> None:
    made(house.engineer, "bulk")
    made(house.engineer, "other", sidecar={"train_sha256": "0" * 64})
    text = html(client.get(reverse("rollouts:datasets")))
    for said in ("bulk v1", "declares nothing", "other v1", "another file", "Register a dataset"):
        assert said in text
    assert "other v1" not in html(client.get(reverse("rollouts:datasets"), {"name": "bulk"}))
    assert "Register a dataset" not in html(signed_in(house.auditor).get(reverse("rollouts:datasets")))


def test_a_dataset_shows_what_it_shares_and_foreign_names_are_harmless(
    client: Client, house: factories.House
) -> None:
    case = house.suite.cases.get(position=0)
    stolen = row(HOSTILE, case.content["messages"][-1]["content"])
    dataset = made(house.engineer, "stolen", [stolen], sidecar={"sources": {HOSTILE: {}}}, source=HOSTILE)
    assert "Compared with nothing yet" in html(client.get(page_of(dataset)))
    datasets.compare(dataset, suite=house.suite)
    text = html(client.get(page_of(dataset)))
    assert "same text" in text and "named v1" in text
    assert "<script>x" not in text and "&lt;script&gt;x" in text and "U+202E" in text
    assert f"{reverse('promotion:preflight')}?train={dataset.digest}" in text


def test_a_dataset_is_registered_by_upload(client: Client, house: factories.House) -> None:
    address = reverse("rollouts:register-dataset")
    assert client.get(reverse("rollouts:new-dataset")).status_code == 200
    data = {"name": "bulk", "file": upload("bulk.jsonl", factories.jsonl(rows("bulk")))}
    response = client.post(address, {**data, "sidecar": upload("m.json", {"sources": {"a": {}}})})
    found = Dataset.objects.get()
    assert response["Location"] == page_of(found)
    assert (found.source, found.sidecar, found.registered_by) == (
        "bulk.jsonl",
        {"sources": {"a": {}}},
        house.engineer,
    )


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": "Bulk!"}, "slug"),
        ({"file": upload("b.jsonl", b"[1]\n")}, "line 1"),
        ({"sidecar": upload("m.json", b"{")}, "not strict JSON"),
        ({"sidecar": upload("m.json", [])}, "must be a JSON object"),
        ({"file": ""}, "required"),
    ],
)
def test_a_wrong_upload_is_said_at_its_field(client: Client, fields: dict[str, Any], says: str) -> None:
    data = {"name": "bulk", "file": upload("bulk.jsonl", factories.jsonl(rows("bulk"))), **fields}
    for file in data.values():
        if hasattr(file, "seek"):
            file.seek(0)
    response = client.post(reverse("rollouts:register-dataset"), data)
    assert response.status_code == 422
    assert says in html(response)
    assert not Dataset.objects.exists()


def test_rows_that_are_registered_under_another_name_are_a_conflict(
    client: Client, house: factories.House
) -> None:
    made(house.engineer, "bulk")
    data = {"name": "copy", "file": upload("b.jsonl", factories.jsonl(rows("bulk")))}
    response = client.post(reverse("rollouts:register-dataset"), data)
    assert response.status_code == 409
    assert "registered already as bulk v1" in html(response)


def test_only_who_may_registers(house: factories.House) -> None:
    for person in (house.auditor, house.approver):
        client = signed_in(person)
        assert client.get(reverse("rollouts:new-dataset")).status_code == 403
        assert client.post(reverse("rollouts:register-dataset"), {}).status_code == 403


@pytest.mark.parametrize("page", ["rollouts:datasets", "dataset", "promotion:preflight"])
def test_the_number_of_queries_does_not_grow(client: Client, house: factories.House, page: str) -> None:
    first = made(house.engineer, "first")
    address = page_of(first) if page == "dataset" else reverse(page)

    def queries() -> int:
        with CaptureQueriesContext(connection) as found:
            assert client.get(address).status_code == 200
        return len(found)

    def grow(names: range) -> None:
        others = [made(house.engineer, f"d{n}", rows(f"d{n}", 1)) for n in names]
        datasets.compare_with(first, others=others)

    grow(range(3))
    few = queries()
    grow(range(3, 40))
    assert queries() == few


# a candidate's data


def test_a_candidate_is_submitted_with_data_on_the_page(
    client: Client, house: factories.House, tmp_path: Path
) -> None:
    base = tiny.write_base(tmp_path / "tiny.gguf")
    BaseModel.objects.filter(pk=house.base.pk).update(artifact=store.put_file(base))
    config, weights = tiny.adapter().write(tmp_path / "adapter")
    train, watched = made(house.engineer, "bulk"), made(house.engineer, "watched")
    assert "bulk v1 (3 rows)" in html(client.get(reverse("promotion:submit", args=[house.track.name])))
    data = {
        "name": "r3",
        "base": house.base.pk,
        "outtype": "f16",
        "adapter_config": upload("adapter_config.json", config.read_bytes()),
        "adapter_model": upload("adapter_model.safetensors", weights.read_bytes()),
        "train": [train.digest],
        "eval": [watched.digest],
        "tool_schema": upload("tools.json", [{"name": "a", "description": "A."}]),
    }
    response = client.post(reverse("promotion:submit-files", args=[house.track.name]), data)
    made_now = Candidate.objects.get(name="r3")
    assert response["Location"] == reverse("promotion:candidate", args=[made_now.pk])
    assert [(part["name"], part["role"]) for part in datasets_part(made_now.pk, [])] == [
        ("bulk", "train"),
        ("watched", "eval"),
    ]
    assert len(made_now.tool_schema_sha256) == 64


def test_what_a_candidate_was_made_from_is_completed_by_its_submitter(
    client: Client, house: factories.House
) -> None:
    candidate, dataset = house.candidate(), made(house.engineer, "bulk")
    page = reverse("promotion:candidate-datasets", args=[candidate.pk])
    act = reverse("promotion:attach-datasets", args=[candidate.pk])
    assert "No dataset is named" in html(client.get(page))
    assert "<form" in html(client.get(page)).split("<main")[1]
    assert "<form" not in html(signed_in(house.auditor).get(page)).split("<main")[1]
    other = signed_in(factories.person("bob", "engineer"))
    assert other.post(act, {"train": [dataset.digest]}).status_code == 403
    assert signed_in(house.auditor).post(act, {}).status_code == 403
    assert client.post(act, {"train": [dataset.digest]})["Location"] == page
    assert "bulk v1" in html(client.get(page))
    wrong = client.post(act, {"tool_schema": upload("t.json", b"[]")})
    assert wrong.status_code == 422 and "holds no tools" in html(wrong)
    assert client.post(act, {"train": ["0" * 64]}).status_code == 422
    house.measure(candidate)
    late = client.post(act, {"eval": [made(house.engineer, "late").digest]})
    assert late.status_code == 409 and "is judged or closed" in html(late)


def test_the_candidate_page_still_opens_with_data(client: Client, house: factories.House) -> None:
    candidate, dataset = house.candidate(), made(house.engineer, "bulk")
    attach_datasets(
        candidate_id=candidate.pk, by=house.engineer, datasets=[{"digest": dataset.digest, "role": "train"}]
    )
    house.measure(candidate)
    assert client.get(reverse("promotion:candidate", args=[candidate.pk])).status_code == 200


# preflight


def test_preflight_shows_its_findings_and_what_to_do(client: Client, house: factories.House) -> None:
    address = reverse("promotion:preflight-check")
    train = made(house.engineer, "bulk")
    chosen = html(client.get(reverse("promotion:preflight"), {"train": train.digest}))
    assert f'<option value="{train.digest}" selected>' in chosen
    data = {
        "train": train.digest,
        "eval_file": upload("e.jsonl", factories.jsonl([row(HOSTILE, "bulk asks for bulk1")]) + b"{\n"),
        "policy": house.policy.pk,
    }
    text = html(client.post(address, data))
    assert "no go" in text and "eval line 2" in text and "word for word" in text
    assert "<script>x" not in text
    good = {**data, "eval_file": "", "eval": made(house.engineer, "watched").digest}
    text = html(client.post(address, good))
    assert "no go" not in text and "with" in text and "came without a sidecar" in text


def test_preflight_takes_one_of_registered_data_and_a_file(client: Client, house: factories.House) -> None:
    data = {"train": made(house.engineer, "bulk").digest, "train_file": upload("t.jsonl", b"x")}
    response = client.post(reverse("promotion:preflight-check"), data)
    assert response.status_code == 422 and "Give one of the two" in html(response)


def test_preflight_of_nothing_and_of_too_much_is_said_on_the_page(
    client: Client, house: factories.House, monkeypatch: Any
) -> None:
    assert "no training data was given" in html(client.post(reverse("promotion:preflight-check"), {}))
    monkeypatch.setattr("promotion.services.preflights.MAX_REQUEST_BYTES", 10)
    data = {"train": made(house.engineer, "bulk").digest}
    response = client.post(reverse("promotion:preflight-check"), data)
    assert response.status_code == 422 and "manage.py preflight" in html(response)


def test_every_role_may_preflight_and_nobody_else(house: factories.House) -> None:
    for role in ("engineer", "approver", "auditor", "administrator"):
        client = signed_in(getattr(house, role))
        assert client.get(reverse("promotion:preflight")).status_code == 200
        assert client.post(reverse("promotion:preflight-check"), {}).status_code == 200
    assert signed_in(factories.person("nobody")).get(reverse("promotion:preflight")).status_code == 403
    assert Client().get(reverse("promotion:preflight")).status_code == 302
