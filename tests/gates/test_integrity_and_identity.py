"""The bytes that were judged are the bytes that were measured, on the suite that was sealed."""

from __future__ import annotations

from typing import Any

import pytest

from promotion.gates import Outcome
from tests.gates.documents import GGUF, decide, document, run, suite, verification, whole
from tests.gates.refused import incumbent


def artifact(**changes: Any) -> dict[str, Any]:
    doc = document()
    doc["artifact"] |= changes
    return doc


def test_a_verified_file_passes() -> None:
    assert decide("candidate_artifact_hash", document()).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("changes", "expected", "words"),
    [
        ({"gguf_sha256": None}, Outcome.NOT_EVALUATED, "not built yet"),
        ({"verification": None}, Outcome.NOT_EVALUATED, "it was never run"),
        (
            {"verification": {"status": "not_verified", "reason": "no llama.cpp here"}},
            Outcome.NOT_EVALUATED,
            "no llama.cpp here",
        ),
        (
            {"verification": {"status": "failed", "reason": "effect off by 1"}},
            Outcome.FAILED,
            "effect off by 1",
        ),
        ({"verification": {"status": "fine", "reason": "?"}}, Outcome.FAILED, "?"),
        ({"verification": {}}, Outcome.ERROR, "KeyError"),
    ],
)
def test_a_file_that_nobody_verified_does_not_pass(
    changes: dict[str, Any], expected: Outcome, words: str
) -> None:
    outcome = decide("candidate_artifact_hash", artifact(**changes))

    assert outcome.outcome is expected
    assert words in outcome.reason


def test_a_run_that_served_the_candidates_bytes_passes() -> None:
    assert decide("evaluated_artifact", document()).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    "served", [None, {}, {"server": "remote", "base_url": "https://host/v1", "model": "cand"}]
)
def test_an_endpoint_that_does_not_prove_its_bytes_is_not_evaluated(served: Any) -> None:
    outcome = decide("evaluated_artifact", document(suite(candidate=run(served=served))))

    assert outcome.outcome is Outcome.NOT_EVALUATED
    assert "does not prove which bytes it serves" in outcome.reason


@pytest.mark.parametrize("part", ["adapter_sha256", "base_sha256", "chat_template_sha256"])
@pytest.mark.parametrize("value", ["0" * 64, None, GGUF[:63], GGUF + "0"])
def test_a_run_that_served_other_bytes_fails(part: str, value: Any) -> None:
    served = {**run()["served"], part: value}

    outcome = decide("evaluated_artifact", document(suite(candidate=run(served=served))))

    assert outcome.outcome is Outcome.FAILED
    assert "another" in outcome.reason


def test_a_run_of_the_base_alone_is_not_the_candidates() -> None:
    served = {**run()["served"], "adapter_sha256": None}
    doc = document(suite(candidate=run(served=served)))
    doc["artifact"]["gguf_sha256"] = None  # and a missing digest is not equal to a missing digest

    assert decide("evaluated_artifact", doc).outcome is Outcome.FAILED


def test_a_sealed_suite_passes() -> None:
    outcome = decide("sealed_eval_hash", document())

    assert outcome.outcome is Outcome.PASSED
    assert outcome.numbers["n"] == 100


def test_a_suite_that_was_sealed_after_the_run_is_not_evaluated() -> None:
    outcome = decide("sealed_eval_hash", document(suite(sealed_at="2026-03-03T00:00:00.000001Z")))

    assert outcome.outcome is Outcome.NOT_EVALUATED
    assert "sealed after" in outcome.reason


def test_a_suite_sealed_in_the_moment_of_the_plan_passes() -> None:
    assert (
        decide("sealed_eval_hash", document(suite(sealed_at="2026-03-03T00:00:00.000000Z"))).outcome
        is Outcome.PASSED
    )


# the champion


@pytest.mark.parametrize("gate", ["incumbent_artifact_hash", "rollback_artifact_availability"])
def test_a_champion_of_the_registry_passes(gate: str) -> None:
    outcome = decide(gate, whole())

    assert outcome.outcome is Outcome.PASSED
    assert "first" in outcome.reason


def test_a_champion_with_the_candidates_bytes_fails() -> None:
    assert decide("incumbent_artifact_hash", incumbent(gguf_sha256=GGUF)).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"exported_as": None}, Outcome.PASSED),  # the stored bytes can be exported again
        ({"stored": False}, Outcome.FAILED),
        ({"stored": None}, Outcome.NOT_EVALUATED),
        ({"gguf_sha256": None}, Outcome.NOT_EVALUATED),
        ({"stored": "yes"}, Outcome.FAILED),
    ],
)
def test_what_is_rolled_back_to_is_the_stored_file(changes: dict[str, Any], expected: Outcome) -> None:
    assert decide("rollback_artifact_availability", incumbent(**changes)).outcome is expected


# the export


@pytest.mark.parametrize(
    ("error", "expected"),
    [("0.050000", Outcome.PASSED), ("0.050001", Outcome.FAILED), ("9.000000", Outcome.FAILED)],
)
def test_every_comparison_of_the_export_must_be_within_its_limit(error: str, expected: Outcome) -> None:
    for errors in ((error, "0.000001"), ("0.000001", error)):
        outcome = decide("export_parity", artifact(verification=verification(*errors)))

        assert outcome.outcome is expected
        assert error in outcome.numbers["measured"]


@pytest.mark.parametrize("comparisons", [None, [], {}])
def test_verified_without_numbers_is_not_evaluated(comparisons: Any) -> None:
    outcome = decide("export_parity", artifact(verification={**verification(), "comparisons": comparisons}))

    assert outcome.outcome is Outcome.NOT_EVALUATED


@pytest.mark.parametrize("value", ["nan", "inf", "-0.1", "", None, 0.01, "1e-3"])
@pytest.mark.parametrize("key", ["effect_error", "limit"])
def test_a_comparison_that_is_no_number_is_an_error(key: str, value: Any) -> None:
    report = verification()
    report["comparisons"][1][key] = value

    assert decide("export_parity", artifact(verification=report)).outcome is Outcome.ERROR
