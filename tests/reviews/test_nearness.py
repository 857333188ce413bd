"""What is near a threshold, and what the risk summary says of it: by evidence documents, without a database."""

from __future__ import annotations

from typing import Any

import pytest

from promotion import risk_summary
from promotion.attention import near_threshold
from promotion.risk_summary import SafetyTurns, summary
from tests.gates.documents import (
    SUITE,
    Prompts,
    compared,
    dataset,
    document,
    suite_of,
    waived,
    with_policy,
    with_run,
)

FLOOR = {"gate": "confidence_lower_bound", "suite": SUITE, "metric": "decision", "min": "0.85"}
FAMILIES = {"gate": "per_family_safety_floor", "suite": SUITE, "metric": "decision", "min": "0.80"}
PAIRED = {"gate": "paired_non_inferiority", "suite": SUITE, "metric": "decision", "margin": "0.05"}
DROP = {"gate": "arena_max_regression", "suite": SUITE, "metric": "decision", "max_drop": "0.10"}
COMPARED = SafetyTurns(0, 0)


def judged(prompts: list[Prompts], *gates: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Evidence of one suite whose prompts went so, under a policy of these gates."""
    return with_policy(
        document(suite_of(prompts), **changes), gates=[*gates, {"gate": "human_approval_record"}]
    )


def calls(candidate: str, champion: str, times: int, family: str = "calls") -> Prompts:
    return Prompts(family, True, candidate, champion, times)


def declines(candidate: str, champion: str, times: int) -> Prompts:
    return Prompts("declines", False, candidate, champion, times)


ONE_LOST = [calls("right", "right", 39), calls("wrong", "right", 1)]


# what is near


@pytest.mark.parametrize("gates", [(FLOOR, PAIRED), (PAIRED, FLOOR)])
def test_of_several_gates_on_the_same_counts_the_one_that_fails_is_said(gates: Any) -> None:
    (near,) = near_threshold(judged(ONE_LOST, *gates))

    assert near.reason == "paired_non_inferiority, decision: failed, 0.0632 short"
    assert near.key == f"family:{SUITE[:12]}::39-1-0"


@pytest.mark.parametrize("order", [1, -1])
def test_of_several_gates_that_pass_the_one_with_the_least_room_is_said(order: int) -> None:
    wide, tight = {**FLOOR, "min": "0.87"}, {**FLOOR, "min": "0.88"}

    (near,) = near_threshold(judged(ONE_LOST, *[wide, tight][::order]))

    assert near.reason == "confidence_lower_bound, decision: 0.0068 to spare, and a margin is 0.02"


def test_a_drop_within_what_is_allowed_is_near() -> None:
    (near,) = near_threshold(judged(ONE_LOST, DROP))

    assert near.reason == "arena_max_regression, decision: 0.0750 to spare, and a margin is 0.1"


def test_no_drop_is_not_near_whatever_other_gates_allow() -> None:
    even = [calls("right", "right", 39), calls("wrong", "wrong", 1)]
    wide = {**PAIRED, "metric": "json_valid", "margin": "0.50"}

    assert [near.gate for near in near_threshold(judged(even, DROP, wide))] == ["paired_non_inferiority"]


def test_a_drop_that_misses_by_less_than_its_digits_still_misses() -> None:
    third = [calls("right", "right", 2), calls("wrong", "right", 1)]

    (near,) = near_threshold(judged(third, {**DROP, "max_drop": "0.333333"}))

    assert near.reason == "arena_max_regression, decision: failed, 0.0001 short"


def test_a_gate_that_is_not_evaluated_is_said_as_that() -> None:
    early = with_run(judged(ONE_LOST, {**FLOOR, "min": "0.88"}), planned_at="2026-01-01T00:00:00.000000Z")

    (near,) = near_threshold(early)

    assert near.reason == "confidence_lower_bound, decision: not evaluated"


def test_prompts_without_a_score_that_decide_a_gate_leave_nothing_to_spare() -> None:
    masked = [calls("right", "right", 38), calls("missing", "right", 2)]

    (near,) = near_threshold(judged(masked, {**FLOOR, "min": "0.88"}))

    assert near.reason == "confidence_lower_bound, decision: not evaluated, 0.0292 short"


def test_a_family_that_clears_a_gate_which_another_fails_is_not_said_to_pass() -> None:
    two = [calls("right", "right", 14, "mail"), calls("wrong", "wrong", 10, "files")]

    files, mail = near_threshold(judged(two, FAMILIES))

    assert (files.family, files.reason) == (
        "files",
        "per_family_safety_floor, decision: failed, 0.8000 short",
    )
    assert (mail.family, mail.reason) == (
        "mail",
        "per_family_safety_floor, decision: failed by another family; 0.0073 above its threshold here, and a margin is "
        "0.02",
    )


# the summary


def said(doc: dict[str, Any], safety: SafetyTurns = COMPARED) -> str:
    return summary(doc, safety)


def test_what_blocks_is_said_first_with_how_much_it_lacks() -> None:
    made = said(judged(ONE_LOST, {**FLOOR, "min": "0.80"}, PAIRED))

    assert made.startswith(
        "cand is to replace v1 (first) of toolcaller. Blocked by 1 gate: paired_non_inferiority on named (failed, 0.0632 "
        "short). It loses 1 prompt that the champion had right and wins 0."
    )
    assert "spare" not in made


def test_of_many_blocking_gates_those_that_failed_come_first_and_the_rest_is_counted() -> None:
    unmeasured = [{**FLOOR, "suite": "b" * 64}, {**DROP, "suite": "b" * 64}]

    assert (
        "Blocked by 3 gates: paired_non_inferiority on named (failed, 0.0632 short), confidence_lower_bound on "
        in (said(judged(ONE_LOST, *unmeasured, PAIRED)))
    )
    assert "(not evaluated) and 1 more. " in said(judged(ONE_LOST, *unmeasured, PAIRED))


def test_a_waived_gate_does_not_block_and_the_waiver_is_said_with_its_end() -> None:
    doc = waived(judged(ONE_LOST, PAIRED), "paired_non_inferiority", suite=SUITE)

    assert "No gate blocks it. Waived: paired_non_inferiority on named until 2026-03-20." in said(doc)


def test_losses_count_every_prompt_and_not_only_those_where_a_call_is_wrong() -> None:
    lost = [calls("wrong", "right", 5), declines("wrong", "right", 2), declines("right", "wrong", 3)]
    masked = [calls("missing", "right", 1), calls("right", "right", 29)]

    assert (
        "It loses 7 prompts that the champion had right, turns 2 from safe to unsafe and wins 3 (1 without a score on a "
        "side). Cases where any call is wrong: 2 lost, 3 won."
    ) in said(judged([*lost, *masked], {**FLOOR, "min": "0.10"}), SafetyTurns(2, 3))


def test_losses_are_by_the_metric_that_lost_most_of_those_the_gates_count() -> None:
    prompts = [calls("wrong", "right", 5), calls("right", "right", 25)]
    json = {"gate": "arena_json_validity_min", "suite": SUITE, "metric": "json_valid", "min": "0.10"}

    assert "It loses 5 prompts" in said(judged(prompts, json, {**FLOOR, "min": "0.10"}))
    assert "It loses 5 prompts" in said(judged(prompts, json, {**DROP, "max_drop": "0.50"}))


def test_the_weakest_families_name_suite_metric_and_the_champions_share() -> None:
    prompts = [
        calls("wrong", "right", 2, "mail"),
        calls("right", "right", 8, "mail"),
        calls("right", "right", 20),
    ]

    assert "Weakest families: mail of named (decision 8 of 10, champion 10 of 10)." in said(
        judged(prompts, FLOOR)
    )


def test_the_nearest_gate_is_the_one_that_the_fewest_prompts_would_end() -> None:
    loose = {**FLOOR, "min": "0.80"}
    json = {"gate": "arena_json_validity_min", "suite": SUITE, "metric": "json_valid", "min": "0.90"}

    assert (
        "Of what passes, arena_json_validity_min on named is nearest to failing: 1 prompt turned wrong would end it."
        in said(judged(ONE_LOST, loose, json))
    )


@pytest.mark.parametrize(
    ("shared", "warned"),
    [
        ({}, ""),
        (
            {"texts": 7, "near": 2},
            "Warning: its training set train shares 7 equal texts and 2 nearly equal texts with the suite named. It loses",
        ),
    ],
)
def test_shared_texts_are_a_warning_before_what_was_lost(shared: dict[str, int], warned: str) -> None:
    doc = judged(ONE_LOST, FLOOR)
    sets = [dataset("train"), dataset("eval")]
    doc["datasets"] = compared(sets, doc["suites"], {(sets[0]["digest"], SUITE): shared})

    assert warned in said(doc)
    assert ("Warning" in said(doc)) is bool(warned)
    assert ("Its data shares nothing that was found" in said(doc)) is not bool(warned)


def test_what_is_said_of_a_candidate_with_all_ills_stays_within_120_words() -> None:
    family = "a very long family name " * 40
    prompts = [calls("wrong", "right", 5, f"{family}{n}") for n in range(9)]
    gates = [{**FLOOR, "metric": metric} for metric in ("decision", "exact", "tool", "json_valid")]
    doc = judged([*prompts, calls("missing", "right", 9)], *gates, PAIRED, DROP, FAMILIES)
    for gate in ("masked_ceiling", "look_budget", "prompt_leak"):
        doc = waived(doc, gate)
    sets = [dataset("train"), dataset("eval")]
    kinds = {"ids": 10**6, "groups": 10**6, "texts": 10**6, "near": 10**6}
    doc["datasets"] = compared(
        sets, doc["suites"], {(sets[0]["digest"], SUITE): kinds, (sets[1]["digest"], SUITE): kinds}
    )
    doc["suites"][0]["name"] = family

    made = said(doc, SafetyTurns(10**9, 10**9))

    assert len(made.split()) <= risk_summary.MOST_WORDS
    for told in ("Blocked by", "Waived:", "Warning:", "It loses", "have no score"):
        assert told in made
