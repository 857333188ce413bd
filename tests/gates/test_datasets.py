"""What the candidate was made from is what is declared, and nothing of it stands in what judges."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from promotion.gates import Evidence, Outcome, judge
from tests.gates.documents import EVAL, OTHER_SUITE, SUITE, TRAIN, dataset, decide, whole, with_suite
from tests.gates.refused import REFUSED, declaring, two_suites, two_training_sets

SPLIT = "frozen_group_split"


def test_files_with_the_bytes_of_their_sidecars_pass() -> None:
    found = decide("dataset_hash", whole())

    assert found.outcome is Outcome.PASSED
    assert found.numbers["n"] == 350


@pytest.mark.parametrize("role", ["train", "eval"])
def test_other_bytes_than_declared_fail_and_say_which(role: str) -> None:
    changed = {"declared_sha256": "0" * 64}
    doc = declaring(changed) if role == "train" else declaring(None, changed)

    found = decide("dataset_hash", doc)

    assert found.outcome is Outcome.FAILED
    assert f"{role} v1 (declared 000000000000" in found.reason


@pytest.mark.parametrize("key", ["declared_sha256", "file_sha256"])
@pytest.mark.parametrize("value", [None, "", 7])
def test_a_missing_digest_is_not_equal_to_a_missing_digest(key: str, value: Any) -> None:
    assert decide("dataset_hash", declaring({key: value})).outcome is Outcome.NOT_EVALUATED
    both = {"declared_sha256": value, "file_sha256": value}
    assert decide("dataset_hash", declaring(both)).outcome is Outcome.NOT_EVALUATED


@pytest.mark.parametrize("gate", ["dataset_hash", SPLIT, "runtime_schema_identity"])
@pytest.mark.parametrize("datasets", [[], ["train"], ["eval"], ["train", "eval", "test"]])
def test_both_roles_must_be_declared_and_no_other(gate: str, datasets: list[str]) -> None:
    found = decide(gate, whole(datasets=[dataset(role) for role in datasets]))

    assert found.outcome is Outcome.NOT_EVALUATED
    assert "declares no" in found.reason


@pytest.mark.parametrize("gate", ["dataset_hash", SPLIT, "runtime_schema_identity"])
def test_a_dataset_that_another_was_compared_with_cannot_be_left_out(gate: str) -> None:
    doc = two_training_sets()
    assert decide(gate, doc).outcome is Outcome.PASSED

    for index in range(3):
        left = {**doc, "datasets": [part for at, part in enumerate(doc["datasets"]) if at != index]}
        assert decide(gate, left).outcome is Outcome.NOT_EVALUATED


def test_nothing_shared_passes_and_says_how_many_pairs_were_compared() -> None:
    found = decide(SPLIT, two_training_sets())

    # each of two training sets with the evaluation set and the suite, and that with the suite
    assert found.outcome is Outcome.PASSED
    assert found.numbers["measured"] == "0 of 5 pairs share rows"
    assert "2 streams declared" in found.reason


@pytest.mark.parametrize("kind", ["ids", "groups", "texts"])
@pytest.mark.parametrize("pair", [(TRAIN, EVAL), (TRAIN, SUITE), (EVAL, SUITE)])
def test_one_shared_id_group_or_text_fails_and_says_where(kind: str, pair: tuple[str, str]) -> None:
    found = decide(SPLIT, whole(shared={pair: {kind: 1}}), max_near=1000)

    assert found.outcome is Outcome.FAILED
    assert f"(1 {kind})" in found.reason
    assert found.numbers["measured"] == "1 of 3 pairs share rows"


@pytest.mark.parametrize(("near", "max_near", "expected"), [(3, 3, Outcome.PASSED), (4, 3, Outcome.FAILED)])
def test_as_many_near_rows_as_the_policy_allows_in_each_pair(
    near: int, max_near: int, expected: Outcome
) -> None:
    doc = whole(shared={(TRAIN, SUITE): {"near": near}, (TRAIN, EVAL): {"near": 3}})

    assert decide(SPLIT, doc, max_near=max_near).outcome is expected


def test_no_near_row_is_allowed_unless_the_policy_says_so() -> None:
    found = judge(Evidence(whole(shared={(TRAIN, SUITE): {"near": 1}})), {"gate": SPLIT})

    assert found.outcome is Outcome.FAILED


@pytest.mark.parametrize("side", [0, 1])
def test_what_either_side_of_a_comparison_says_counts(side: int) -> None:
    """Near rows are counted from one side: many rows of one set may be near to one row of the other."""
    doc = copy.deepcopy(whole())
    found = [part for part in doc["datasets"][side]["overlaps"] if part["with"] == "dataset"]
    found[0]["report"]["near"] = 2

    assert decide(SPLIT, doc).outcome is Outcome.FAILED


@pytest.mark.parametrize("side", [0, 1])
def test_training_and_evaluation_data_are_compared_both_ways(side: int) -> None:
    doc = copy.deepcopy(whole())
    part = doc["datasets"][side]
    part["overlaps"] = [overlap for overlap in part["overlaps"] if overlap["with"] == "suite"]

    assert decide(SPLIT, doc).outcome is Outcome.NOT_EVALUATED


@pytest.mark.parametrize(
    "name", ["suites were not compared", "training and evaluation data were not compared"]
)
def test_a_comparison_that_was_not_made_is_not_evaluated(name: str) -> None:
    found = decide(SPLIT, REFUSED[SPLIT][name])

    assert found.outcome is Outcome.NOT_EVALUATED
    assert "was not compared with" in found.reason


@pytest.mark.parametrize("key", ["rows", "others"])
def test_a_comparison_that_left_rows_out_is_not_evaluated(key: str) -> None:
    doc = whole()
    doc["datasets"][0]["overlaps"][1]["report"][key] -= 1

    found = decide(SPLIT, doc)

    assert found.outcome is Outcome.NOT_EVALUATED
    assert "were not compared whole" in found.reason


def test_every_suite_of_the_policy_is_compared() -> None:
    assert decide(SPLIT, two_suites({})).outcome is Outcome.PASSED
    assert decide(SPLIT, two_suites({(TRAIN, OTHER_SUITE): {"texts": 1}})).outcome is Outcome.FAILED
    assert decide(SPLIT, two_suites({(EVAL, OTHER_SUITE): {"groups": 1}})).outcome is Outcome.FAILED


def test_evidence_on_other_suites_than_the_policys_is_not_evaluated() -> None:
    one, two = whole()["suites"][0], two_suites({})

    assert decide(SPLIT, {**two, "suites": [one]}).outcome is Outcome.NOT_EVALUATED
    assert decide(SPLIT, {**two, "policy": whole()["policy"]}).outcome is Outcome.NOT_EVALUATED


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": 0, "distinct_texts": 300},
        {"distinct_texts": 0},
        {"rows": 0, "distinct_texts": 0},
        {"without_id": 1},
    ],
)
def test_empty_data_and_rows_without_an_id_fail(changes: dict[str, Any]) -> None:
    assert decide(SPLIT, declaring(changes)).outcome is Outcome.FAILED
    assert decide(SPLIT, declaring(None, changes)).outcome is Outcome.FAILED


@pytest.mark.parametrize("value", [-1, 0.5, "0", None, float("nan"), True])
@pytest.mark.parametrize("kind", ["ids", "texts", "near", "rows"])
def test_a_count_of_a_comparison_that_is_none_is_an_error(kind: str, value: Any) -> None:
    doc = whole()
    doc["datasets"][0]["overlaps"][0]["report"][kind] = value

    assert decide(SPLIT, doc).outcome is Outcome.ERROR


@pytest.mark.parametrize("value", [0, 2, "1", None])
def test_a_comparison_in_another_format_is_an_error(value: Any) -> None:
    doc = whole()
    doc["datasets"][0]["overlaps"][0]["report"]["format"] = value

    assert decide(SPLIT, doc).outcome is Outcome.ERROR


def test_a_comparison_with_a_suite_is_none_with_a_dataset() -> None:
    doc = whole()
    assert doc["datasets"][0]["overlaps"][0]["with"] == "dataset"
    doc["datasets"][0]["overlaps"][0]["with"] = "suite"

    assert decide(SPLIT, doc).outcome is Outcome.NOT_EVALUATED


# schemas


def test_one_schema_everywhere_passes() -> None:
    assert decide("runtime_schema_identity", whole()).outcome is Outcome.PASSED


def test_the_schema_of_what_was_watched_does_not_matter() -> None:
    assert (
        decide("runtime_schema_identity", declaring(None, {"schema_sha256": None})).outcome is Outcome.PASSED
    )


def test_another_schema_fails_and_an_unknown_one_is_not_evaluated() -> None:
    for name, doc in REFUSED["runtime_schema_identity"].items():
        if "schema" in name:
            expected = Outcome.NOT_EVALUATED if "not known" in name else Outcome.FAILED
            assert decide("runtime_schema_identity", doc).outcome is expected, name


def test_nobody_knowing_any_schema_is_no_identity() -> None:
    doc = with_suite(declaring({"schema_sha256": None}), schema_sha256=None)
    doc["artifact"]["tool_schema_sha256"] = None

    assert decide("runtime_schema_identity", doc).outcome is Outcome.NOT_EVALUATED


def test_a_dataset_named_like_the_suite_hides_no_schema() -> None:
    named = {"name": "named", "schema_sha256": "0" * 64}

    assert decide("runtime_schema_identity", declaring(named)).outcome is Outcome.FAILED
