"""Comparisons are found once, by however many workers, and evidence lists those that it needs."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from promotion.models import CandidateDataset
from promotion.selectors import datasets_part
from rollouts import store
from rollouts.errors import Conflict
from rollouts.hashing import canonical_bytes
from rollouts.models import Dataset, Overlap, Suite
from rollouts.services import datasets, suites
from tests import factories
from tests.datasets.conftest import made, row, rows
from tests.threads import in_threads

pytestmark = pytest.mark.django_db


def suite_of(by: User, name: str, texts: dict[str, str]) -> Suite:
    lines = [
        {**row(key, text), "family": "f", "tools": ["play"], "lineage_group_id": f"group of {key}"}
        for key, text in texts.items()
    ]
    return suites.seal(name=name, data=factories.jsonl(lines), by=by)


def test_a_comparison_counts_what_the_users_messages_share(engineer: User) -> None:
    sealed = suite_of(
        engineer, "arena", {"c1": "Play some jazz!", "b1": "Other words", "c3": "Nothing of it"}
    )
    dataset = made(
        engineer,
        "bulk",
        [
            row("b0", "play some JAZZ", group="group of c3"),
            row("b1", "entirely different"),
            row(None, "nothing alike at all"),
        ],
    )
    report = datasets.compare(dataset, suite=sealed).report
    assert [report[kind] for kind in ("texts", "near", "ids", "groups", "rows", "others")] == [
        1,
        0,
        1,
        1,
        3,
        3,
    ]
    assert {"kind": "text", "ours": "b0", "theirs": "c1", "similarity": "1.000000"} in report["examples"]
    assert {"kind": "group", "ours": "b0", "theirs": "c3", "similarity": None} in report["examples"]


def test_the_system_prompt_and_the_answers_may_be_equal(engineer: User) -> None:
    sealed = suite_of(engineer, "arena", {"c1": "Play some jazz!"})
    report = datasets.compare(made(engineer, "bulk", [row("b0", "Stop the music")]), suite=sealed).report
    assert [report[kind] for kind in ("texts", "near", "ids", "groups")] == [0, 0, 0, 0]


def test_a_comparison_is_found_once(engineer: User, monkeypatch: Any) -> None:
    sealed, dataset, other = (
        suite_of(engineer, "arena", {"c": "x"}),
        made(engineer, "bulk"),
        made(engineer, "eval"),
    )
    first = datasets.compare_with(dataset, suites=[sealed], others=[other])
    monkeypatch.setattr(store, "path_of", lambda sha256: pytest.fail("the file was read again"))
    assert datasets.compare_with(dataset, suites=[sealed], others=[other]) == first
    assert Overlap.objects.count() == 2
    assert [overlap.report["others"] for overlap in first] == [1, 3]


@pytest.mark.django_db(transaction=True)
def test_workers_at_once_find_one_comparison() -> None:
    engineer = factories.person("ann", "engineer")
    sealed, dataset = suite_of(engineer, "arena", {"c": "x"}), made(engineer, "bulk")
    found = in_threads(*[lambda: datasets.compare(dataset, suite=sealed).pk] * 4)
    assert len(set(found)) == 1 == Overlap.objects.count(), found


@pytest.mark.django_db(transaction=True)
def test_people_at_once_register_one_dataset() -> None:
    people = [factories.person(f"p{number}", "engineer") for number in range(4)]
    found = in_threads(*[lambda by=by: made(by, "bulk").pk for by in people])
    assert len(set(found)) == 1 == Dataset.objects.count(), found


@pytest.mark.django_db(transaction=True)
def test_people_at_once_register_versions_without_gap() -> None:
    people = [factories.person(f"p{number}", "engineer") for number in range(4)]
    in_threads(*[lambda by=by, n=n: made(by, "bulk", rows("bulk", n + 1)) for n, by in enumerate(people)])
    assert sorted(Dataset.objects.values_list("version", flat=True)) == [1, 2, 3, 4]


def test_a_damaged_file_is_not_compared(engineer: User) -> None:
    sealed, dataset = suite_of(engineer, "arena", {"c": "x"}), made(engineer, "bulk")
    path = store.path_of(dataset.artifact_id)
    path.chmod(0o640)
    path.write_bytes(b"{}\n")
    with pytest.raises(Conflict, match="other bytes"):
        datasets.compare(dataset, suite=sealed)
    assert not Overlap.objects.exists()


def test_the_database_keeps_one_comparison_with_one_thing(engineer: User) -> None:
    sealed, dataset = suite_of(engineer, "arena", {"c": "x"}), made(engineer, "bulk")
    values = {"report": {}, "created_at": timezone.now()}
    for wrong in ({}, {"suite": sealed, "other": dataset}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Overlap.objects.create(dataset=dataset, **wrong, **values)
    Overlap.objects.create(dataset=dataset, suite=sealed, **values)
    with pytest.raises(IntegrityError), transaction.atomic():
        Overlap.objects.create(dataset=dataset, suite=sealed, **values)


# what is sealed along with a suite


def test_a_sealed_suite_knows_its_prompts_its_schema_and_what_leaks(engineer: User) -> None:
    tool = {"name": "play", "description": "Plays.", "parameters": {"type": "object"}}
    lines = [
        {**row(f"c{n}", text, decision="no_tool"), "family": "f", "tools": [tool]}
        for n, text in enumerate(("Play it", "Play it", "Stop it"))
    ]
    sealed = suites.seal(name="arena", data=factories.jsonl(lines), by=engineer)
    prompts = list(sealed.cases.values_list("prompt_sha256", flat=True))
    assert prompts[0] == prompts[1] != prompts[2] and len(prompts[0]) == 64
    assert sealed.schema_sha256 == made(engineer, "d", [row("a", "b", tools=[tool])]).schema_sha256
    assert sealed.leak == {
        "format": 1,
        "label": "expects_call",
        "n": 3,
        "majority": "1.000000",
        "feature": "",
        "accuracy": "1.000000",
        "features_tried": 0,
    }


def test_tools_that_are_not_sent_make_no_other_prompt(engineer: User) -> None:
    """The decision scorer shows tools in the messages alone: another list beside them is the same question."""
    lines = [
        {**row(f"c{n}", "Play it"), "family": "f", "tools": tools} for n, tools in enumerate((["a"], ["b"]))
    ]
    sealed = suites.seal(name="arena", data=factories.jsonl(lines), by=engineer)
    assert len(set(sealed.cases.values_list("prompt_sha256", flat=True))) == 1


def test_tools_that_are_sent_are_part_of_the_prompt(engineer: User) -> None:
    lines = [
        {
            "example_id": name,
            "family": "f",
            "messages": [{"role": "user", "content": "Play it"}],
            "tools": [{"name": name}],
            "expected_calls": [],
        }
        for name in ("a", "b")
    ]
    sealed = suites.seal(name="arena", data=factories.jsonl(lines), by=engineer, scorer="function_call")
    assert len(set(sealed.cases.values_list("prompt_sha256", flat=True))) == 2
    assert sealed.schema_sha256 == ""


def test_tools_that_rules_show_only_where_a_call_is_right_are_a_leak(engineer: User) -> None:
    lines = [
        {
            "example_id": f"c{n}",
            "family": "f",
            "messages": [{"role": "user", "content": f"question {n}"}],
            "tools": [{"name": "look"}],
            "checks": [{"op": "tool_called", "arg": "look"} if n % 2 else {"op": "contains", "arg": "yes"}],
        }
        for n in range(6)
    ]
    sealed = suites.seal(name="arena", data=factories.jsonl(lines), by=engineer, scorer="rules")
    assert (sealed.leak["accuracy"], sealed.leak["feature"]) == ("1.000000", 'the tool "look": a call')


# the part of the evidence


def test_the_part_of_the_evidence_holds_every_dataset_with_what_was_compared(house: factories.House) -> None:
    candidate, by = house.candidate(), house.engineer
    sidecar = {"eval_sha256": "e" * 64, "sources": {"s2": {}, "s1": {}}}
    train = made(by, "bulk")
    watched = made(
        by, "watched", [row(None, "bulk asks for bulk1"), row("x", "y"), row("x", "z")], sidecar=sidecar
    )
    for dataset, role in ((watched, "eval"), (train, "train")):
        CandidateDataset.objects.create(candidate=candidate, dataset=dataset, role=role)
    stranger = suite_of(by, "stranger", {"s": "t"})
    datasets.compare_with(train, suites=[stranger, house.suite], others=[watched])
    datasets.compare(watched, suite=house.suite)
    first, second = datasets_part(candidate.pk, [house.suite.digest])
    assert {key: value for key, value in first.items() if key != "overlaps"} == {
        "role": "train",
        "name": "bulk",
        "version": 1,
        "digest": train.digest,
        "file_sha256": train.artifact_id,
        "declared_sha256": None,
        "rows": 3,
        "distinct_texts": 3,
        "without_id": 0,
        "repeated_ids": 0,
        "schema_sha256": None,
        "streams": [],
        "registered_by": "engineer",
    }
    assert [(part["with"], part["name"], part["digest"]) for part in first["overlaps"]] == [
        ("suite", house.suite.name, house.suite.digest),
        ("dataset", "watched", watched.digest),
    ]
    assert first["overlaps"][1]["report"]["texts"] == 1
    assert (second["role"], second["declared_sha256"], second["streams"]) == ("eval", "e" * 64, ["s1", "s2"])
    assert (second["without_id"], second["repeated_ids"]) == (1, 1)
    assert [part["with"] for part in second["overlaps"]] == ["suite"]
    canonical_bytes([first, second])


def test_the_part_of_the_evidence_takes_two_queries_for_few_and_for_many(house: factories.House) -> None:
    by = house.engineer
    sealed = [suite_of(by, f"s{n}", {"k": f"t{n}"}) for n in range(12)]
    candidates = {1: house.candidate("one"), 12: house.candidate("twelve")}
    for n, candidate in candidates.items():
        for number in range(n):
            dataset = made(by, f"d{n}-{number}")
            datasets.compare_with(dataset, suites=sealed[:n])
            CandidateDataset.objects.create(candidate=candidate, dataset=dataset, role="train")
    for n, candidate in candidates.items():
        with CaptureQueriesContext(
            connection,
        ) as queries:
            found = datasets_part(candidate.pk, [suite.digest for suite in sealed])
        assert len(queries) == 2
        assert [len(part["overlaps"]) for part in found] == [n] * n


def test_a_candidate_without_datasets_has_an_empty_part(house: factories.House) -> None:
    assert datasets_part(house.candidate().pk, [house.suite.digest]) == []


def test_reports_do_not_depend_on_when_they_are_made(engineer: User) -> None:
    sealed, dataset = (
        suite_of(engineer, "arena", {f"c{n}": f"play song {n}" for n in range(30)}),
        made(engineer, "b"),
    )
    report = datasets.compare(dataset, suite=sealed).report
    Overlap.objects.all().delete()
    assert datasets.compare(dataset, suite=sealed).report == report
