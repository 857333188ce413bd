"""What changed between two evidence documents is said in words and numbers."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from promotion import evidence as evidence_module
from promotion.web.compare import MOST, changes
from promotion.web.review import shown_bound
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def document(house: factories.House) -> dict[str, Any]:
    return evidence_module.build(house.evaluated()).document


def changed(document: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(document)


def test_equal_documents_have_no_changes(document: dict[str, Any]) -> None:
    assert changes(document, changed(document)) == []


def test_counts_are_said_with_both_numbers(document: dict[str, Any]) -> None:
    new = changed(document)
    run = new["suites"][0]["candidate"]
    run["scored"], run["masked"] = 38, 2
    run["metrics"]["decision"] = {"successes": 38, "failures": 0, "missing": 2}
    found = changes(document, new)
    assert "named, candidate: scored 40 is now 38." in found
    assert "named, candidate: masked 0 is now 2." in found
    assert "named, candidate: decision right 40 of 40 is now 38 of 40, 2 without a score." in found


def test_a_new_champion_and_a_new_policy_are_named(document: dict[str, Any]) -> None:
    new = changed(document)
    new["champion"] = {"entry": 2, "name": "other", "gguf_sha256": "0" * 64, "subject_digest": None}
    new["policy"]["version"] = 2
    new["policy"]["document"]["samples"] = 3
    found = changes(document, new)
    assert "The champion was v1 (first) and is v2 (other)." in found
    assert "Policy samples: 1 is now 3." in found


def test_a_revision_says_that_signatures_end(document: dict[str, Any]) -> None:
    new = changed(document)
    new["candidate"]["revision"] += 1
    assert "signatures on the earlier revision no longer count" in " ".join(changes(document, new))


def test_an_unforeseen_difference_is_still_named(document: dict[str, Any]) -> None:
    new = changed(document)
    new["candidate"]["name"] = "renamed"
    assert changes(document, new) == ["candidate.name: cand is now renamed."]


def test_the_list_is_bounded(document: dict[str, Any]) -> None:
    new = changed(document)
    new["policy"]["document"]["gates"] = [
        {"gate": str(n)} for n in range(len(new["policy"]["document"]["gates"]))
    ]
    new["policy"]["document"]["approval"] = {str(n): n for n in range(100)}
    found = changes(document, new)
    assert len(found) == MOST + 1
    assert found[-1].startswith("And ")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("0.949999", "0.9499"),
        ("+0.020001", "+0.0201"),
        ("-0.026667", "-0.0266"),
        (None, "–"),
        ("1.000000", "1.0000"),
    ],
)
def test_a_bound_is_rounded_against_the_candidate(value: str | None, shown: str) -> None:
    assert shown_bound(value) == shown
