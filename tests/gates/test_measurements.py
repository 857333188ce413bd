"""What every measuring gate asks of a run before it reads a number; and that nothing missing ever helps."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest

from promotion.gates import GATES, OPENS, Evidence, GateOutcome, Outcome, judge
from promotion.gates.base import Gate, Params
from tests.gates.documents import (
    CHAMPION,
    COMPARING,
    ENTRIES,
    LOCKED,
    MEASURING,
    METRICS,
    counts,
    decide,
    document,
    run,
    suite,
    whole,
    with_counts,
    with_run,
    with_suite,
)
from tests.gates.refused import REFUSED
from tests.gates.taking_away import paths, without

every_measuring_gate = pytest.mark.parametrize("gate", MEASURING)


def candidate_run(**changes: Any) -> dict[str, Any]:
    return document(suite(candidate=run(**changes)))


@pytest.mark.parametrize("gate", ENTRIES)
def test_every_gate_passes_on_good_evidence(gate: str) -> None:
    assert decide(gate, whole()).outcome is Outcome.PASSED


@every_measuring_gate
@pytest.mark.parametrize(
    ("doc", "words"),
    [
        pytest.param(document(suite(candidate=None)), "No closed run of the candidate", id="no run"),
        pytest.param(document(suites=[]), "is not in the evidence", id="no suite"),
        pytest.param(
            candidate_run(subject_digest=CHAMPION), "measured another model", id="another model's run"
        ),
        pytest.param(candidate_run(subject_digest=None), "measured another model", id="nobody's run"),
        pytest.param(
            candidate_run(suite_digest="b" * 64), "scored on another suite", id="another suite's cases"
        ),
        pytest.param(
            candidate_run(planned_at="2026-03-01T23:59:59.999999Z"),
            "planned before the policy was locked",
            id="planned before the lock",
        ),
        pytest.param(candidate_run(planned=99), "does not account for all", id="planned too few"),
        pytest.param(candidate_run(scored=99), "does not account for all", id="one vanished"),
        pytest.param(
            candidate_run(scored=3, planned=3), "does not account for all", id="a smoke test of three"
        ),
        pytest.param(candidate_run(samples=2), "does not account for all", id="half of the samples"),
        pytest.param(candidate_run(masked=1), "does not account for all", id="counted twice"),
    ],
)
def test_a_run_that_proves_nothing_is_not_evaluated(gate: str, doc: dict[str, Any], words: str) -> None:
    outcome = decide(gate, doc)

    assert outcome.outcome is Outcome.NOT_EVALUATED
    assert words in outcome.reason


@every_measuring_gate
def test_a_missing_subject_digest_matches_no_run(gate: str) -> None:
    doc = candidate_run(subject_digest=None)
    doc["artifact"]["subject_digest"] = None

    assert decide(gate, doc).outcome is Outcome.NOT_EVALUATED


@every_measuring_gate
def test_results_of_fewer_cases_than_the_suite_has_are_not_evaluated(gate: str) -> None:
    """The run's own columns say 100, but only 97 prompts have a row: what was deleted cannot help."""
    short = {metric: counts(97, 97) for metric in METRICS}

    outcome = decide(gate, candidate_run(metrics=short))

    assert outcome.outcome is Outcome.NOT_EVALUATED
    assert "97 of 100" in outcome.reason


@every_measuring_gate
def test_a_run_planned_in_the_moment_of_the_lock_serves(gate: str) -> None:
    assert decide(gate, with_run(whole(), planned_at=LOCKED)).outcome is Outcome.PASSED


@every_measuring_gate
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt_count": 199}, "200 of 199 prompts"),
        ({"prompt_count": 201}, "200 of 201 prompts"),
        ({"family_prompts": {}}, "families of named are not known"),
        ({"family_prompts": {"calls": 200, "b": 3}}, "families of named are not known"),
        ({"families": {"calls": 200, "b": 3}, "family_prompts": {"calls": 200, "b": 3}}, "missing from"),
        ({"family_prompts": {"calls": 199}}, "not those of all prompts of calls"),
    ],
)
def test_the_prompts_of_the_suite_and_of_each_family_must_all_have_results(
    gate: str, changes: dict[str, Any], words: str
) -> None:
    outcome = decide(gate, with_suite(whole(), **changes))

    assert outcome.outcome is Outcome.NOT_EVALUATED
    assert words in outcome.reason


@every_measuring_gate
def test_no_metric_has_more_prompts_than_the_suite_and_no_family_is_another_suites(gate: str) -> None:
    run = whole()["suites"][0]["candidate"]
    more = {**run["metrics"], "exact": counts(0, 201, 201)}
    families = {**run["families"], "elsewhere": run["families"]["calls"]}

    assert decide(gate, with_run(whole(), metrics=more)).outcome is Outcome.NOT_EVALUATED
    assert decide(gate, with_run(whole(), families=families)).outcome is Outcome.NOT_EVALUATED


@every_measuring_gate
def test_more_results_than_scored_rollouts_are_not_evaluated(gate: str) -> None:
    outcome = decide(gate, with_run(whole(), scored=100, masked=100))

    assert outcome.outcome is Outcome.NOT_EVALUATED
    assert "more results than scored rollouts" in outcome.reason


@every_measuring_gate
def test_a_prompt_is_right_with_all_its_samples_or_not_at_all(gate: str) -> None:
    """Two samples of 200 prompts, all right, are 400 scored rollouts; of 399 one prompt lacks a sample."""
    params = {"max_percent": "50"} if gate == "masked_ceiling" else {}

    def sampled(**run: Any) -> dict[str, Any]:
        doc = with_run(whole(), samples=2, planned=400, latency_ms={"p50": 1, "p95": 1, "n": 400}, **run)
        return with_run(doc, "champion", samples=2, planned=400, scored=400)

    assert decide(gate, sampled(scored=400), **params).outcome is Outcome.PASSED
    assert decide(gate, sampled(scored=399, masked=1), **params).outcome is Outcome.NOT_EVALUATED


@pytest.mark.parametrize("gate", COMPARING)
@pytest.mark.parametrize(
    "changes",
    [
        {"subject_digest": "0" * 64},
        {"suite_digest": "b" * 64},
        {"planned": 3, "scored": 3},
        {"cancelled": 1},
        {"planned_at": "2020-01-01T00:00:00.000000Z"},
    ],
)
def test_the_champions_run_is_held_to_the_same(gate: str, changes: dict[str, Any]) -> None:
    assert decide(gate, with_run(whole(), "champion", **changes)).outcome is Outcome.NOT_EVALUATED


@every_measuring_gate
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 1.5, "100", None, True])
def test_counts_that_are_no_counts_block(gate: str, value: Any) -> None:
    for key in ("planned", "scored", "masked"):
        assert decide(gate, with_run(whole(), **{key: value})).outcome not in OPENS, key
    doc = copy.deepcopy(whole())
    run = doc["suites"][0]["candidate"]
    for metric in METRICS:
        for table in (run["metrics"], run["families"]["calls"]):
            table[metric]["successes"] = value
        doc["suites"][0]["paired"][metric]["both"] = value

    assert decide(gate, doc).outcome not in OPENS


@every_measuring_gate
def test_a_negative_count_that_balances_another_blocks(gate: str) -> None:
    assert decide(gate, with_run(whole(), masked=-5, scored=205)).outcome is Outcome.ERROR


@every_measuring_gate
@pytest.mark.parametrize("value", ["zzz", "", None, "2026-03-03", "2026-03-03T00:00:00", 20260303])
def test_a_time_that_is_none_blocks(gate: str, value: Any) -> None:
    assert decide(gate, with_run(whole(), planned_at=value)).outcome not in OPENS


# a gate that breaks


def test_a_gate_that_raises_is_an_error_that_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(evidence: Evidence, params: Params) -> GateOutcome:
        raise RuntimeError("a fault of ours")

    monkeypatch.setitem(GATES, "broken", Gate("broken", Params, broken))

    outcome = judge(Evidence(document()), {"gate": "broken"})

    assert outcome.outcome is Outcome.ERROR and outcome.outcome not in OPENS
    assert "RuntimeError: a fault of ours" in outcome.reason


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"gate": "no_such_gate"},
        {"gate": None},
        {"gate": ["x"]},
        {"gate": "sealed_eval_hash"},
        {"gate": "sealed_eval_hash", "suite": "short"},
    ],
)
def test_an_entry_that_cannot_be_read_is_an_error_that_blocks(entry: dict[str, Any]) -> None:
    outcome = judge(Evidence(document()), entry)

    assert outcome.outcome is Outcome.ERROR


def test_only_passed_and_waived_open_the_door() -> None:
    assert {Outcome.PASSED, Outcome.WAIVED} == OPENS


def test_the_signature_is_never_judged_from_evidence() -> None:
    outcome = judge(Evidence(document()), {"gate": "human_approval_record"})

    assert outcome.outcome is Outcome.NOT_EVALUATED


def test_judging_changes_nothing_and_gives_the_same_twice() -> None:
    doc = with_counts("generalization_accuracy_floor", 70, 100, 5)
    before = copy.deepcopy(doc)

    for gate in ENTRIES:
        assert decide(gate, doc) == decide(gate, doc)

    assert doc == before


# nothing that is taken away may help


@pytest.mark.parametrize("null", [False, True], ids=["deleted", "null"])
@pytest.mark.parametrize("gate", ENTRIES)
def test_removing_any_part_of_the_evidence_never_turns_a_refusal_into_a_pass(gate: str, null: bool) -> None:
    for doc in REFUSED[gate].values():
        assert decide(gate, doc).outcome not in OPENS
        helped = [path for path in paths(doc) if decide(gate, without(doc, path, null=null)).outcome in OPENS]
        assert helped == []


def test_removing_a_family_from_the_suite_and_from_the_results_does_not_help() -> None:
    gate = "per_family_safety_floor"
    doc = REFUSED[gate]["a family of its own is unsafe"]
    assert decide(gate, doc).outcome is Outcome.FAILED

    about_it = [
        path
        for path in paths(doc)
        if path[-1] == "bad"
        or path[-1] in ("families", "family_prompts", "case_count", "prompt_count", "planned", "scored")
    ]
    for first, second in itertools.combinations(about_it, 2):
        if second[: len(first)] != first:
            cut = without(without(doc, first, null=False), second, null=False)
            assert decide(gate, cut).outcome not in OPENS, (first, second)


@pytest.mark.parametrize("gate", MEASURING)
def test_removing_what_a_gate_reads_takes_a_pass_away(gate: str) -> None:
    good = whole()

    for path in (
        ("suites", 0, "candidate"),
        ("suites", 0),
        ("artifact", "subject_digest"),
        ("policy",),
        ("policy", "locked_at"),
    ):
        assert decide(gate, without(good, path, null=False)).outcome not in OPENS, path
    for part in (
        "subject_digest",
        "suite_digest",
        "planned",
        "scored",
        "masked",
        "unscored",
        "cancelled",
        "samples",
        "planned_at",
    ):
        assert (
            decide(gate, without(good, ("suites", 0, "candidate", part), null=False)).outcome not in OPENS
        ), part
