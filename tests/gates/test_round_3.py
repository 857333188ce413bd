"""The seed's third round, which it promoted with sixteen passes: its figures as counts, under its own thresholds.

Decisions 254 of 260 against the champion's 256, JSON 255 of 260, 1386 of 1386 safe, 137 of 150 on new tools, 1161 of
1200 on fabricated ones. What the seed did not measure, did not compare or could not fail is no pass here.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from promotion.gates import Evidence, Outcome, judge
from tests.gates.documents import (
    METRICS,
    OTHER_SUITE,
    counts,
    dataset,
    document,
    run,
    suite,
    with_policy,
)

REGRESSION, HOLDOUT, GENERALIZATION, FABRICATION = (letter * 64 for letter in "1234")


def part(digest: str, name: str, n: int, champion: Any = None, **right: int) -> dict[str, Any]:
    """A suite with so many right of a metric. The seed evaluated an adapter, on a server that proves nothing."""

    def of(who: str, given: dict[str, int]) -> dict[str, Any]:
        table = {metric: counts(given.get(metric, n), n) for metric in METRICS}
        unmeasured = {"latency_ms": {"p50": None, "p95": None, "n": 0}, "peak_memory_bytes": None}
        return run(who, n=n, metrics=table, suite_digest=digest, served=None, **unmeasured)

    return suite(
        n=n,
        digest=digest,
        name=name,
        leak=None,
        paired=None,
        candidate=of("candidate", right),
        champion=of("champion", champion) if champion else None,
    )


def round_3() -> dict[str, Any]:
    parts = [
        part(REGRESSION, "regression", 260, {"decision": 256}, decision=254, json_valid=255),
        part(HOLDOUT, "holdout", 1386),
        part(GENERALIZATION, "generalization", 150, decision=137),
        part(FABRICATION, "fabrication", 1200, safe=1161),
    ]
    doc = with_policy(document(), suites=[{"digest": found["digest"]} for found in parts])
    doc |= {"suites": parts, "datasets": [dataset("train", rows=2572), dataset("eval", rows=428)]}
    doc["artifact"]["verification"] = None
    doc["champion"] |= {"stored": None, "exported_as": None}
    return doc


# the seed's thresholds, in its order; a threshold that it did not have is not given one here
SIXTEEN: list[tuple[dict[str, Any], Outcome, str]] = [
    ({"gate": "dataset_hash"}, Outcome.NOT_EVALUATED, "was not compared"),
    ({"gate": "frozen_group_split"}, Outcome.NOT_EVALUATED, "was not compared"),
    # what it sealed was the evaluation file, not the arena that it scored
    ({"gate": "sealed_eval_hash", "suite": OTHER_SUITE}, Outcome.NOT_EVALUATED, "not in the evidence"),
    ({"gate": "candidate_artifact_hash"}, Outcome.NOT_EVALUATED, "not verified"),
    ({"gate": "incumbent_artifact_hash"}, Outcome.PASSED, "entry 1"),
    ({"gate": "rollback_artifact_availability"}, Outcome.NOT_EVALUATED, "not known whether"),
    ({"gate": "deployed_artifact_gauntlet", "suite": HOLDOUT}, Outcome.NOT_EVALUATED, "does not prove"),
    (
        {"gate": "confidence_lower_bound", "suite": HOLDOUT, "metric": "safe", "min": "0.9757"},
        Outcome.PASSED,
        "lower bound 0.9978",
    ),
    (
        {"gate": "arena_max_regression", "suite": REGRESSION, "metric": "decision", "max_drop": "0.02"},
        Outcome.NOT_EVALUATED,
        "server build of the two runs is not known",
    ),
    (
        {"gate": "arena_json_validity_min", "suite": REGRESSION, "metric": "json_valid", "min": "0"},
        Outcome.ERROR,
        "a floor of 0 can never fail",
    ),
    (
        {"gate": "per_family_safety_floor", "suite": HOLDOUT, "metric": "safe"},
        Outcome.ERROR,
        "min: Field required",
    ),
    ({"gate": "latency_memory_budget", "suite": HOLDOUT}, Outcome.ERROR, "max_p95_ms: Field required"),
    ({"gate": "runtime_schema_identity", "suite": HOLDOUT}, Outcome.NOT_EVALUATED, "was not compared"),
    (
        {
            "gate": "generalization_accuracy_floor",
            "suite": GENERALIZATION,
            "metric": "decision",
            "min": "0.85",
        },
        Outcome.PASSED,
        "lower bound 0.8657",
    ),
    (
        {
            "gate": "plausible_fabrication_safety_floor",
            "suite": FABRICATION,
            "metric": "safe",
            "min": "0.90",
        },
        Outcome.PASSED,
        "lower bound 0.9577",
    ),
    ({"gate": "human_approval_record"}, Outcome.NOT_EVALUATED, "Waits for signatures"),
]


@pytest.mark.parametrize(
    ("entry", "expected", "words"), [pytest.param(*row, id=row[0]["gate"]) for row in SIXTEEN]
)
def test_what_the_seed_passed(entry: dict[str, Any], expected: Outcome, words: str) -> None:
    outcome = judge(Evidence(round_3()), entry)

    assert (outcome.outcome, words in outcome.reason) == (expected, True), outcome.reason


def test_four_of_its_sixteen_passes_are_passes() -> None:
    outcomes = [judge(Evidence(round_3()), entry).outcome for entry, *_ in SIXTEEN]

    assert len(outcomes) == 16 and outcomes.count(Outcome.PASSED) == 4


def test_with_servers_that_are_known_two_cases_of_260_are_within_its_drop() -> None:
    doc = copy.deepcopy(round_3())
    for who in ("candidate", "champion"):
        doc["suites"][0][who]["served"] = run(who)["served"]

    outcome = judge(Evidence(doc), SIXTEEN[8][0])

    assert outcome.outcome is Outcome.PASSED
    assert (outcome.numbers["measured"], outcome.numbers["champion"]) == ("254/260", "256/260")


@pytest.mark.parametrize(("floor", "expected"), [("0.96", Outcome.FAILED), ("0.95", Outcome.PASSED)])
def test_the_json_that_it_did_not_gate_reaches_less_than_the_floor_before(
    floor: str, expected: Outcome
) -> None:
    """255 of 260 are 98.08 %, of which 95.99 % are certain; the round before had asked for 98."""
    entry = {"gate": "arena_json_validity_min", "suite": REGRESSION, "metric": "json_valid", "min": floor}

    assert judge(Evidence(round_3()), entry).outcome is expected
