"""What every measuring gate asks of a run before it reads a number; and that nothing missing ever helps."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from promotion.gates import GATES, OPENS, Evidence, GateOutcome, Outcome, judge, parse_params
from promotion.gates.base import Gate, Params
from rollouts.errors import InvalidInput
from tests.gates.documents import (
    CHAMPION,
    ENTRIES,
    LOCKED,
    MEASURING,
    SUITE,
    counts,
    decide,
    document,
    run,
    suite,
    with_counts,
)

every_measuring_gate = pytest.mark.parametrize("gate", MEASURING)


def candidate_run(**changes: Any) -> dict[str, Any]:
    return document(suite(candidate=run(**changes)))


@pytest.mark.parametrize("gate", ENTRIES)
def test_every_gate_passes_on_good_evidence(gate: str) -> None:
    assert decide(gate, document()).outcome is Outcome.PASSED


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
    """The run's own columns say 100, but only 97 cases have a row: what was deleted cannot help."""
    short = {metric: counts(97, 97) for metric in ("decision", "tool", "exact", "safe", "json_valid")}

    outcome = decide(gate, candidate_run(metrics=short))

    assert outcome.outcome is Outcome.NOT_EVALUATED
    assert "97 of 100" in outcome.reason


@every_measuring_gate
def test_a_run_planned_in_the_moment_of_the_lock_serves(gate: str) -> None:
    assert decide(gate, candidate_run(planned_at=LOCKED)).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    "changes",
    [{"subject_digest": "0" * 64}, {"suite_digest": "b" * 64}, {"planned": 3, "scored": 3}, {"cancelled": 1}],
)
def test_the_champions_run_is_held_to_the_same(changes: dict[str, Any]) -> None:
    doc = document(suite(champion=run("champion", **changes)))

    assert decide("arena_max_regression", doc).outcome is Outcome.NOT_EVALUATED


def test_the_champions_run_may_not_be_older_than_the_policy_either() -> None:
    doc = document(suite(champion=run("champion", planned_at="2020-01-01T00:00:00.000000Z")))

    assert decide("arena_max_regression", doc).outcome is Outcome.NOT_EVALUATED


@pytest.mark.parametrize("key", ["build", "config"])
def test_a_champion_measured_on_another_server_is_not_compared_with(key: str) -> None:
    doc = document(suite())
    doc["suites"][0]["champion"]["served"] = {**doc["suites"][0]["champion"]["served"], key: "another"}

    assert decide("arena_max_regression", doc).outcome is Outcome.NOT_EVALUATED


@every_measuring_gate
@pytest.mark.parametrize("value", [float("nan"), -1, 1.5, "100", None])
def test_counts_that_are_no_counts_block(gate: str, value: Any) -> None:
    if gate in ("sealed_eval_hash", "evaluated_artifact"):
        doc = candidate_run()
        doc["suites"][0]["candidate"]["scored"] = value
    else:
        doc = with_counts(gate, 100, 100)
        for metrics in (
            doc["suites"][0]["candidate"]["metrics"],
            doc["suites"][0]["candidate"]["families"]["calls"],
        ):
            metrics[ENTRIES[gate]["metric"]]["successes"] = value

    assert decide(gate, doc).outcome not in OPENS


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


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document, outermost first."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from paths(item, (*path, key))


def without(doc: Any, path: tuple[Any, ...], *, null: bool) -> Any:
    """A copy in which the place is gone, or null. Only what lies on the path is copied."""
    copied = copy.copy(doc)
    if len(path) == 1:
        if null:
            copied[path[0]] = None
        else:
            del copied[path[0]]
    else:
        copied[path[0]] = without(doc[path[0]], path[1:], null=null)
    return copied


def blocked_documents(gate: str) -> list[dict[str, Any]]:
    """Evidence on which the gate does not pass, each for another reason."""
    if gate == "candidate_artifact_hash":
        wrong, unknown = document(), document()
        wrong["artifact"]["verification"]["status"] = "failed"
        unknown["artifact"]["verification"]["status"] = "not_verified"
        return [wrong, unknown]
    found = [
        candidate_run(subject_digest=CHAMPION),
        candidate_run(suite_digest="b" * 64),
        candidate_run(planned_at="2026-03-01T00:00:00.000000Z"),
        candidate_run(cancelled=1),
    ]
    if gate == "sealed_eval_hash":
        found.append(document(suite(sealed_at="2026-04-01T00:00:00.000000Z")))
    elif gate == "evaluated_artifact":
        found += [
            candidate_run(served={**run()["served"], key: "0" * 64})
            for key in ("adapter_sha256", "base_sha256", "chat_template_sha256")
        ]
    else:
        found += [with_counts(gate, 50, 100), with_counts(gate, 50, 100, 50)]
    if gate == "arena_max_regression":
        same = document()
        same["artifact"]["gguf_sha256"] = same["champion"]["gguf_sha256"]
        found += [
            same,
            document(suite(champion=run("champion", sampling={"temperature": 1}))),
            document(suite(champion=run("champion", cancelled=1))),
        ]
    if gate == "per_family_safety_floor":
        candidate = run(n=150)
        bad = copy.deepcopy(candidate["metrics"])
        bad["safe"] = counts(10, 50)
        candidate["families"] = {"calls": run()["metrics"], "bad": {**bad, "decision": counts(50, 50)}}
        candidate["metrics"]["safe"] = counts(110, 150)
        found.append(
            document(suite(n=150, candidate=candidate, champion=None, families={"calls": 100, "bad": 50}))
        )
    return found


@pytest.mark.parametrize("null", [False, True], ids=["deleted", "null"])
@pytest.mark.parametrize("gate", ENTRIES)
def test_removing_any_part_of_the_evidence_never_turns_a_refusal_into_a_pass(gate: str, null: bool) -> None:
    for doc in blocked_documents(gate):
        assert decide(gate, doc).outcome not in OPENS
        helped = [path for path in paths(doc) if decide(gate, without(doc, path, null=null)).outcome in OPENS]
        assert helped == []


def test_removing_a_family_from_the_suite_and_from_the_results_does_not_help() -> None:
    gate = "per_family_safety_floor"
    doc = blocked_documents(gate)[-1]
    assert decide(gate, doc).outcome is Outcome.FAILED

    about_it = [
        path
        for path in paths(doc)
        if path[-1] == "bad" or path[-1] in ("families", "case_count", "planned", "scored")
    ]
    for first, second in itertools.combinations(about_it, 2):
        if second[: len(first)] != first:
            cut = without(without(doc, first, null=False), second, null=False)
            assert decide(gate, cut).outcome not in OPENS, (first, second)


@pytest.mark.parametrize("gate", MEASURING)
def test_removing_what_a_gate_reads_takes_a_pass_away(gate: str) -> None:
    good = document()

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


# parameters


@pytest.mark.parametrize("gate", [*ENTRIES, "human_approval_record"])
def test_unknown_parameters_are_refused(gate: str) -> None:
    with pytest.raises(InvalidInput, match=r"gates\.0\.colour"):
        parse_params({"gate": gate, **ENTRIES.get(gate, {}), "colour": "red"}, "gates.0")


@pytest.mark.parametrize("gate", MEASURING)
def test_missing_parameters_are_refused(gate: str) -> None:
    for key in ENTRIES[gate]:
        entry = {"gate": gate, **{name: value for name, value in ENTRIES[gate].items() if name != key}}
        with pytest.raises(InvalidInput, match=rf"gates\.0\.{key}: Field required"):
            parse_params(entry, "gates.0")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("min", 0.85, "a decimal in quotes"),
        ("min", 1, "a decimal in quotes"),
        ("min", None, "a decimal in quotes"),
        ("min", True, "a decimal in quotes"),
        ("min", "0", "can never fail"),
        ("min", "-0.5", "not a decimal"),
        ("min", "0.0", "can never fail"),
        ("min", "1.01", "can never fail"),
        ("min", "NaN", "not a decimal"),
        ("min", "sNaN", "not a decimal"),
        ("min", "Infinity", "not a decimal"),
        ("min", "85%", "not a decimal"),
        ("min", "", "not a decimal"),
        ("alpha", 0.05, "a decimal in quotes"),
        ("alpha", "0", "from 0.000001 to 0.2"),
        ("alpha", "0.5", "from 0.000001 to 0.2"),
        ("alpha", "NaN", "not a decimal"),
        ("metric", "accuracy", "Input should be"),
        ("metric", "Tool", "Input should be"),
        ("suite", SUITE[:63], "should match pattern"),
        ("suite", SUITE.upper(), "should match pattern"),
        ("suite", SUITE + "\n", "should match pattern"),
        ("suite", 7, "valid string"),
    ],
)
def test_a_floor_with_a_senseless_value_is_refused_with_its_key(key: str, value: Any, words: str) -> None:
    entry = {"gate": "generalization_accuracy_floor", **ENTRIES["generalization_accuracy_floor"], key: value}

    with pytest.raises(InvalidInput, match=words) as refused:
        parse_params(entry, "document.gates.3")

    assert refused.value.field == f"document.gates.3.{key}"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.02, "quotes"),
        ("1", "can never fail"),
        ("-0.01", "not a decimal"),
        ("1e-3000000", "not a decimal"),
        ("NaN", "not a decimal"),
        ("2", "can never fail"),
        (None, "quotes"),
    ],
)
def test_a_drop_with_a_senseless_value_is_refused(value: Any, words: str) -> None:
    entry = {"gate": "arena_max_regression", **ENTRIES["arena_max_regression"], "max_drop": value}

    with pytest.raises(InvalidInput, match=words):
        parse_params(entry, "gates.0")


def test_an_unknown_gate_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match=r"'beauty' is not a gate\. Use one of: arena_json_validity_min, "):
        parse_params({"gate": "beauty"}, "gates.0")


def test_every_gate_says_in_a_line_what_it_asks() -> None:
    assert len(GATES) == 9
    assert all(len(gate.summary) > 20 for gate in GATES.values())
