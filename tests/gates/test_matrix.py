"""How the seed's promotion behaved in 25 situations, and what each must do here instead; a row a test.

Three rows are about more than gates. "same candidate again" is also refused by the database (tests/services/
test_candidates.py, the same bytes are one candidate of a track), "registry empty" is the adoption of a baseline by two
signatures (tests/services/test_approvals.py), and "status template" is a policy that is not locked (tests/services/
test_policies.py). Here the nearest rule of the gates is tested for them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from promotion.gates import OPENS, Evidence, GateOutcome, Outcome, judge
from promotion.gates.approval import Signature, approval_outcome
from tests.gates.documents import (
    CHAMPION,
    EVAL,
    FLOORS,
    GGUF,
    NOW,
    OTHER_SUITE,
    SUITE,
    TRAIN,
    Prompts,
    decide,
    document,
    run,
    suite_of,
    waived,
    whole,
    with_counts,
    with_run,
)
from tests.gates.refused import RUNS, artifact, declaring, unsafe_family

Row = tuple[str, Callable[[], GateOutcome], Outcome, str]
BASE_ONLY = "e9" * 32


def unmeasured_latency_is_waived() -> GateOutcome:
    """Every gate passes but the one that measured nothing, which two persons let be."""
    doc = with_run(whole(), latency_ms={"p50": None, "p95": None, "n": 0}, peak_memory_bytes=None)
    doc = waived(doc, "latency_memory_budget")
    for gate in ("dataset_hash", "paired_non_inferiority", *FLOORS):
        assert decide(gate, doc, NOW).outcome is Outcome.PASSED
    return decide("latency_memory_budget", doc, NOW)


def of_the_base_alone(gate: str) -> GateOutcome:
    """The base's own run: another subject, and a server that loaded no adapter."""
    doc = with_run(whole(), subject_digest=BASE_ONLY)
    assert decide(gate, doc).outcome is Outcome.NOT_EVALUATED
    return decide(
        "deployed_artifact_gauntlet", with_run(whole(), served={**run()["served"], "adapter_sha256": None})
    )


def no_families() -> GateOutcome:
    return decide("per_family_safety_floor", with_run(whole(), families={}))


def no_champion(gate: str) -> GateOutcome:
    """A baseline's own gate asks for none."""
    baseline = document(policy=None, champion=None, suites=[])
    assert decide("candidate_artifact_hash", baseline).outcome is Outcome.PASSED
    return decide(gate, whole(champion=None))


def three_rows() -> GateOutcome:
    other_file = decide("arena_max_regression", with_run(whole(), suite_digest=OTHER_SUITE))
    assert other_file.outcome is Outcome.NOT_EVALUATED
    return decide("arena_max_regression", with_run(whole(), planned=3, scored=3))


def both_perfect() -> GateOutcome:
    doc = whole(suite_of([Prompts("benign", False, "right", "right", 1386)]))
    assert decide("confidence_lower_bound", doc, min="0.99").outcome is Outcome.PASSED
    assert decide("arena_max_regression", doc, metric="safe", max_drop="0").outcome is Outcome.PASSED
    return decide("paired_non_inferiority", doc, margin="0.01")


def a_blank_signature() -> GateOutcome:
    def signed(person: str) -> GateOutcome:
        signature = Signature(person, "approver", "a" * 64, datetime(2026, 3, 9, tzinfo=UTC))
        rule = {
            "approvers": [{"group": "approver", "count": 1}],
            "separation_of_duties": True,
            "expires_after_days": 30,
        }
        return approval_outcome(rule=rule, signatures=[signature], digest="a" * 64, involved=[], now=NOW)

    assert signed("ann").outcome is Outcome.PASSED
    return signed(" ")


def other_seed() -> GateOutcome:
    """Typed fields: 7 is not the start of 71, and a number is not a word."""
    as_word = judge(Evidence(whole()), {"gate": "frozen_group_split", "max_near": "0"})
    assert as_word.outcome is Outcome.ERROR
    doc = with_run(whole(), sampling={"seed": 71})
    return decide("arena_max_regression", with_run(doc, "champion", sampling={"seed": 7}))


def not_a_number() -> GateOutcome:
    doc = with_counts("generalization_accuracy_floor", 100, 100)
    doc["suites"][0]["candidate"]["metrics"]["tool"]["successes"] = float("nan")
    return decide("generalization_accuracy_floor", doc)


def policy_not_locked() -> GateOutcome:
    doc = whole()
    return decide("generalization_accuracy_floor", {**doc, "policy": {**doc["policy"], "locked_at": None}})


MATRIX: list[Row] = [
    (
        "all evidence good, latency not measured: waived by name",
        unmeasured_latency_is_waived,
        Outcome.WAIVED,
        "granted by approver",
    ),
    (
        "same candidate again",
        lambda: decide("incumbent_artifact_hash", artifact(gguf_sha256=whole()["champion"]["gguf_sha256"])),
        Outcome.FAILED,
        "the same bytes",
    ),
    (
        "generalization result from base-only run",
        lambda: of_the_base_alone("generalization_accuracy_floor"),
        Outcome.FAILED,
        "another adapter",
    ),
    (
        "gauntlet of another model",
        lambda: decide("confidence_lower_bound", with_run(whole(), subject_digest=CHAMPION)),
        Outcome.NOT_EVALUATED,
        "measured another model",
    ),
    (
        "fabrication result of the base alone",
        lambda: of_the_base_alone("plausible_fabrication_safety_floor"),
        Outcome.FAILED,
        "another adapter",
    ),
    (
        "sidecar lacks sources",
        lambda: decide("frozen_group_split", declaring({"streams": []})),
        Outcome.PASSED,
        "0 streams declared",
    ),
    (
        "row lacks example_id",
        lambda: decide("frozen_group_split", declaring({"without_id": 2})),
        Outcome.FAILED,
        "2 rows of train v1 have no id",
    ),
    (
        "tool_schema_path: null",
        lambda: decide("runtime_schema_identity", declaring({"schema_sha256": None})),
        Outcome.NOT_EVALUATED,
        "The tool schema of dataset train v1 is not known",
    ),
    (
        "tool_schema_hash: null",
        lambda: decide("runtime_schema_identity", artifact(tool_schema_sha256=None)),
        Outcome.NOT_EVALUATED,
        "The tool schema of candidate is not known",
    ),
    (
        "incumbent numbers missing",
        lambda: decide("arena_max_regression", whole(champion=None)),
        Outcome.NOT_EVALUATED,
        "no champion",
    ),
    ("candidate per_family empty", no_families, Outcome.NOT_EVALUATED, "Families missing"),
    (
        "extra unsafe family",
        lambda: decide("per_family_safety_floor", unsafe_family()),
        Outcome.FAILED,
        "bad: lower bound",
    ),
    (
        "registry empty for track",
        lambda: no_champion("incumbent_artifact_hash"),
        Outcome.NOT_EVALUATED,
        "Adopt a baseline first",
    ),
    (
        "adapter path prefix look-alike",
        lambda: decide(
            "deployed_artifact_gauntlet",
            with_run(whole(), served={**run()["served"], "adapter_sha256": GGUF[:63]}),
        ),
        Outcome.FAILED,
        "another adapter",
    ),
    ("arena 3 rows or another file", three_rows, Outcome.NOT_EVALUATED, "does not account for all"),
    ("perfect vs perfect incumbent", both_perfect, Outcome.PASSED, "0 lost and 0 won of 1386"),
    (
        "incumbent file is the candidate's",
        lambda: decide("arena_max_regression", artifact(gguf_sha256=whole()["champion"]["gguf_sha256"])),
        Outcome.FAILED,
        "the same bytes",
    ),
    ("approval by a blank", a_blank_signature, Outcome.NOT_EVALUATED, "1 more approver"),
    (
        "identical text, other id, train vs eval",
        lambda: decide("frozen_group_split", whole(shared={(TRAIN, EVAL): {"texts": 1}})),
        Outcome.FAILED,
        "train v1 and eval v1 (1 texts)",
    ),
    (
        "empty train and eval",
        lambda: decide(
            "frozen_group_split",
            declaring({"rows": 0, "distinct_texts": 0}, {"rows": 0, "distinct_texts": 0}),
        ),
        Outcome.FAILED,
        "is empty",
    ),
    ("seed 71 vs 7", other_seed, Outcome.NOT_EVALUATED, "differ in sampling"),
    (
        "drop exactly the maximum",
        lambda: decide("arena_max_regression", with_counts("arena_max_regression", 96, 100, champion=98)),
        Outcome.PASSED,
        "within a drop of 0.02",
    ),
    ("NaN metric", not_a_number, Outcome.ERROR, "not a count"),
    ("status template", policy_not_locked, Outcome.ERROR, "not a time"),
    (
        "no floors in the rules",
        lambda: judge(Evidence(whole()), {"gate": "generalization_accuracy_floor", "suite": SUITE}),
        Outcome.ERROR,
        "metric: Field required",
    ),
]


@pytest.mark.parametrize(
    ("decided", "expected", "words"),
    [pytest.param(decided, expected, words, id=text) for text, decided, expected, words in MATRIX],
)
def test_row(decided: Callable[[], GateOutcome], expected: Outcome, words: str) -> None:
    outcome = decided()

    assert (outcome.outcome, words in outcome.reason) == (expected, True), outcome.reason


def test_there_are_25_rows() -> None:
    assert len({text for text, *_ in MATRIX}) == len(MATRIX) == 25


def test_every_way_to_measure_something_else_blocks_every_floor() -> None:
    """What is common to the rows on identity: no floor reads a number of a run that is not the candidate's."""
    for doc in RUNS.values():
        assert all(decide(gate, doc).outcome not in OPENS for gate in FLOORS)
