"""What the evidence answers to each question of a checklist. Whoever signs relies on its yes, so that not knowing is no."""

from __future__ import annotations

from typing import Any

import pytest

from promotion.checklist import QUESTIONS, answer, basis

CLEAN = {"masked": 0, "unscored": 0, "look": 1}
NOTHING = {"ids": 0, "groups": 0, "texts": 0, "near": 0, "rows": 40}
WAIVER = {"gate": "masked_ceiling", "granted_by": "approver"}


def runs(*each: dict[str, int] | None) -> dict[str, Any]:
    """A document with a suite for each; None is a suite on which the candidate was not measured."""
    return {"suites": [{"candidate": None if run is None else {**CLEAN, **run}} for run in each]}


def data(*each: list[dict[str, int]]) -> dict[str, Any]:
    """A document with a dataset for each, and in it the comparisons that were made of it."""
    reports = [
        [{"digest": f"suite-{nth}", "report": {**NOTHING, **report}} for nth, report in enumerate(made)]
        for made in each
    ]
    return {"suites": [{"digest": "suite-0"}], "datasets": [{"overlaps": made} for made in reports]}


TABLE: list[tuple[str, dict[str, Any], bool]] = [
    ("no_waivers", {"waivers": []}, True),
    ("no_waivers", {}, True),
    ("no_waivers", {"waivers": [WAIVER]}, False),
    ("no_masked", runs({}), True),
    ("no_masked", runs({}, {}), True),
    ("no_masked", runs({"masked": 1}), False),
    ("no_masked", runs({"unscored": 1}), False),
    ("no_masked", runs({}, {"masked": 1}), False),
    ("no_masked", runs({"unscored": 1}, {}), False),
    ("no_masked", runs(), False),
    ("no_masked", runs(None), False),
    ("datasets_declared", data([]), True),
    ("datasets_declared", data(), False),
    ("datasets_declared", {"suites": []}, False),
    ("no_overlaps", data([{}]), True),
    ("no_overlaps", data([{}, {}], [{}]), True),
    ("no_overlaps", data([{"ids": 1}]), False),
    ("no_overlaps", data([{"groups": 1}]), False),
    ("no_overlaps", data([{"texts": 1}]), False),
    ("no_overlaps", data([{"near": 1}]), False),
    ("no_overlaps", data([{}, {"near": 1}]), False),
    ("no_overlaps", data([{}], [{"texts": 1}]), False),
    ("no_overlaps", data([], []), False),
    ("no_overlaps", data([{}], []), False),
    ("no_overlaps", {**data([{}]), "suites": [{"digest": "suite-0"}, {"digest": "suite-1"}]}, False),
    ("no_masked", runs({}, None), False),
    ("first_look", runs({}, None), False),
    ("no_overlaps", data(), False),
    ("no_overlaps", {"suites": []}, False),
    ("first_look", runs({}), True),
    ("first_look", runs({}, {}), True),
    ("first_look", runs({"look": 2}), False),
    ("first_look", runs({}, {"look": 2}), False),
    ("first_look", runs({"look": 2}, {}), False),
    ("first_look", runs({"look": None}), False),
    ("first_look", runs(), False),
    ("first_look", runs(None), False),
]


@pytest.mark.parametrize(("question", "document", "expected"), TABLE)
def test_the_evidence_says_yes_only_where_it_knows(
    question: str, document: dict[str, Any], expected: bool
) -> None:
    assert answer(question, document) is expected


def test_each_question_has_a_yes_and_a_no_in_the_table_and_says_from_what_it_is_answered() -> None:
    assert {(question, said) for question, _, said in TABLE} == {
        (question, said) for question in QUESTIONS for said in (True, False)
    }
    assert all(basis(question) for question in QUESTIONS)


def test_a_question_that_nobody_knows_is_not_answered() -> None:
    with pytest.raises(KeyError):
        answer("no_questions", runs({}))
