"""Datasets are read strictly, counted, kept once by what their rows are, and described by their sidecar."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import pytest
from django.contrib.auth.models import User

from rollouts import audit, store
from rollouts.errors import Conflict, InvalidInput, NotAllowed, NotFound
from rollouts.models import AuditEvent, Dataset
from rollouts.selectors import declared_digest, declared_streams
from rollouts.services import datasets
from tests import factories
from tests.datasets.conftest import made, row, rows

pytestmark = pytest.mark.django_db


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_dataset_keeps_its_bytes_and_its_counts(engineer: User) -> None:
    lines = [
        row("a", "Play jazz."),
        row("b", "play JAZZ"),
        row("a", "Stop."),
        row(None, "Louder"),
        {"id": 7, "prompt": "Quieter", "completion": "{}"},
    ]
    data = factories.jsonl(lines)
    dataset = datasets.register(name="bulk", data=data, by=engineer, source="bulk.jsonl")
    assert (dataset.row_count, dataset.text_count, dataset.without_id, dataset.repeated_ids) == (5, 4, 1, 1)
    assert (dataset.version, dataset.declared_sha256, dataset.sidecar, dataset.schema_sha256) == (
        1,
        "",
        None,
        "",
    )
    assert dataset.artifact_id == sha(data)
    assert store.path_of(dataset.artifact_id).read_bytes() == data
    event = AuditEvent.objects.get(action="dataset.registered")
    assert event.subject_label == "bulk v1" and event.actor == "user:ann"


def test_equal_rows_are_one_dataset_whatever_their_line_ends_and_keys(engineer: User) -> None:
    first = made(engineer, "bulk")
    turned = [dict(reversed(line.items())) for line in rows("bulk")]
    data = b"\r\n".join(json.dumps(line, indent=None).encode() for line in turned) + b"\r\n\r\n"
    assert datasets.register(name="bulk", data=data, by=engineer) == first
    assert Dataset.objects.count() == AuditEvent.objects.filter(action="dataset.registered").count() == 1


def test_the_order_of_rows_and_any_value_make_another_version(engineer: User) -> None:
    made(engineer, "bulk")
    again = made(engineer, "bulk", list(reversed(rows("bulk"))))
    changed = made(engineer, "bulk", [{**line, "note": "x"} for line in rows("bulk")])
    assert [again.version, changed.version] == [2, 3]


def test_the_same_rows_under_another_name_are_refused(engineer: User) -> None:
    made(engineer, "bulk")
    with pytest.raises(Conflict, match="registered already as bulk v1"):
        made(engineer, "copy", rows("bulk"))


def test_a_file_without_rows_is_a_dataset_of_none(engineer: User) -> None:
    dataset = datasets.register(name="empty", data=b"\n \n", by=engineer)
    assert (dataset.row_count, dataset.text_count) == (0, 0)
    assert datasets.rows_of(dataset) == []


@pytest.mark.parametrize(
    ("line", "field", "says"),
    [
        (b"[1]", "line 2", "not a JSON object but a list"),
        (b"{", "line 2", "not strict JSON"),
        (b'{"a": NaN}', "line 2", "not strict JSON"),
        (b'{"a": 1, "a": 2}', "line 2", "not strict JSON"),
        (b"\xff", "line 2", "not UTF-8"),
        (b"{}", "line 2: messages", "is missing"),
        (b'{"messages": []}', "line 2: messages", "empty or no list"),
        (b'{"messages": ["x"]}', "line 2: messages[0]", "must be an object"),
        (b'{"messages": [{"role": "human", "content": "x"}]}', "line 2: messages[0].role", "is unknown"),
        (b'{"messages": [{"role": "user", "content": 4}]}', "line 2: messages[0].content", "is no text"),
        (b'{"messages": [{"role": "system", "content": "x"}]}', "line 2: messages", "no user's message"),
        (b'{"messages": [{"role": "user", "content": " "}]}', "line 2: messages", "no user's message"),
        (b'{"prompt": "x", "example_id": true}', "line 2: example_id", "no text and no whole number"),
        (b'{"prompt": "x", "id": " "}', "line 2: id", "no text and no whole number"),
        (b'{"prompt": "x", "lineage_group_id": 1.5}', "line 2: lineage_group_id", "no text and no whole"),
        (b'{"prompt": "x", "tools": {}}', "line 2: tools", "must be a list"),
        (b'{"prompt": "x", "tools": [{"description": "d"}]}', "line 2: tools[0]", "has no name"),
        (b'{"prompt": "x", "n": 9007199254740993}', "line 2: n", "beyond 2**53"),
        (b'{"prompt": "x\\u0000"}', "line 2: prompt", "NUL"),
        (json.dumps({"prompt": "x", "id": "i" * 201}).encode(), "line 2: id", "201 characters"),
    ],
)
def test_a_row_that_cannot_be_compared_is_refused_by_line_and_key(
    engineer: User, line: bytes, field: str, says: str
) -> None:
    data = factories.jsonl(rows("bulk", 1)) + line + b"\n"
    with pytest.raises(InvalidInput, match=re.escape(says)) as refused:
        datasets.register(name="bulk", data=data, by=engineer)
    assert refused.value.field == field
    assert not Dataset.objects.exists()


def test_rows_may_hold_calls_parts_and_several_turns(engineer: User) -> None:
    line = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Look at"}, {"type": "image_url"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look"}}]},
            {"role": "tool", "content": "a cat", "tool_call_id": "1"},
            {"role": "user", "content": "this."},
        ]
    }
    dataset = made(engineer, "turns", [line])
    assert [asked.text for asked in datasets.rows_of(dataset)] == ["look at this"]


def test_tools_shown_in_full_give_the_schema_and_names_give_none(engineer: User) -> None:
    tool = {"name": "play", "description": "Plays.", "parameters": {"type": "object"}}
    full = made(engineer, "full", [row("a", "x", tools=[tool]), row("b", "y", tools=[tool, "stop"])])
    names = made(engineer, "names", [row("a", "x", tools=["play"])])
    assert len(full.schema_sha256) == 64 and names.schema_sha256 == ""


# the sidecar


def test_a_sidecar_declares_the_bytes_and_the_streams(engineer: User) -> None:
    data = factories.jsonl(rows("bulk"))
    sidecar = {"train_sha256": sha(data), "eval_sha256": "0" * 64, "sources": {"b": {}, "a": {}}}
    dataset = datasets.register(name="bulk", data=data, by=engineer, sidecar=sidecar)
    assert dataset.declared_sha256 == dataset.artifact_id
    assert declared_digest(dataset.sidecar, "train") == sha(data)
    assert declared_digest(dataset.sidecar, "eval") == "0" * 64
    assert declared_streams(dataset.sidecar) == ["a", "b"]


@pytest.mark.parametrize(
    ("sidecar", "digest", "streams"),
    [
        (None, None, []),
        ({}, None, []),
        ({"eval_sha256": "1" * 64}, None, []),
        ({"sha256": "1" * 64, "sources": ["x", {"name": "y"}, 3]}, "1" * 64, ["x", "y"]),
        ({"train_sha256": None, "sources": "x"}, None, []),
    ],
)
def test_what_a_sidecar_does_not_say_of_training_data_is_not_invented(
    sidecar: Any, digest: str | None, streams: list[str]
) -> None:
    assert declared_digest(sidecar, "train") == digest
    assert declared_streams(sidecar) == streams


def test_a_declared_digest_that_is_another_stays_as_it_is_declared(engineer: User) -> None:
    dataset = made(engineer, "bulk", sidecar={"train_sha256": "a" * 64})
    assert dataset.declared_sha256 == "a" * 64 != dataset.artifact_id


@pytest.mark.parametrize(
    ("sidecar", "field"),
    [
        ([], "sidecar"),
        ({"train_sha256": "abc"}, "sidecar.train_sha256"),
        ({"train_sha256": 5}, "sidecar.train_sha256"),
        ({"note": "a\0b"}, "sidecar"),
        ({"n": 2**53}, "sidecar"),
        ({"note": "x" * (4 << 20)}, "sidecar"),
    ],
)
def test_a_sidecar_that_cannot_be_kept_is_refused(engineer: User, sidecar: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        made(engineer, "bulk", sidecar=sidecar)
    assert refused.value.field == field
    assert not Dataset.objects.exists()


def test_whoever_registered_a_dataset_may_add_its_sidecar_later_and_nobody_else(engineer: User) -> None:
    data = factories.jsonl(rows("bulk"))
    first = datasets.register(name="bulk", data=data, by=engineer)
    sidecar = {"train_sha256": sha(data)}
    with pytest.raises(Conflict, match="registered by ann"):
        datasets.register(name="bulk", data=data, by=factories.person("bob", "engineer"), sidecar=sidecar)
    again = datasets.register(name="bulk", data=data, by=engineer, sidecar=sidecar)
    assert again == first and again.declared_sha256 == again.artifact_id
    assert AuditEvent.objects.filter(action="dataset.described").count() == 1
    datasets.register(name="bulk", data=data, by=engineer, sidecar=sidecar)
    datasets.register(name="bulk", data=data, by=engineer)
    assert AuditEvent.objects.filter(action="dataset.described").count() == 1


def test_a_sidecar_that_is_there_is_not_replaced_by_another(engineer: User) -> None:
    made(engineer, "bulk", sidecar={"note": "first"})
    with pytest.raises(Conflict, match="another sidecar"):
        made(engineer, "bulk", sidecar={"note": "second"})
    assert Dataset.objects.get().sidecar == {"note": "first"}


def test_line_ends_that_were_changed_on_the_way_can_be_put_right(engineer: User) -> None:
    data = factories.jsonl(rows("bulk"))
    sidecar = {"train_sha256": sha(data)}
    mangled = datasets.register(name="bulk", data=data.replace(b"\n", b"\r\n"), by=engineer, sidecar=sidecar)
    assert mangled.declared_sha256 != mangled.artifact_id
    right = datasets.register(name="bulk", data=data, by=engineer, sidecar=sidecar)
    assert right == mangled and right.artifact_id == right.declared_sha256 == sha(data)
    with pytest.raises(Conflict):
        datasets.register(name="bulk", data=data.replace(b"\n", b"\r\n"), by=engineer, sidecar=sidecar)


def test_only_who_may_register_registers(engineer: User) -> None:
    for role in ("auditor", "approver"):
        with pytest.raises(NotAllowed):
            made(factories.person(role, role), "bulk")
    made(factories.person("root", "administrator"), "bulk")


def test_a_dataset_is_found_by_digest_name_and_version(engineer: User) -> None:
    first, second = made(engineer, "bulk"), made(engineer, "bulk", rows("bulk", 4))
    assert datasets.named(first.digest) == datasets.named("bulk:1") == first
    assert datasets.named("bulk") == datasets.named("bulk:2") == second
    for unknown in ("other", "bulk:3", "bulk:x", "0" * 64):
        with pytest.raises(NotFound):
            datasets.named(unknown)


def test_the_actions_are_listed() -> None:
    assert {"dataset.registered", "dataset.described", "candidate.datasets_attached"} <= audit.ACTIONS.keys()
