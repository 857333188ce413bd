"""Which gates there are, in which order, under which names, and what a policy may ask of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from promotion.gates import GATES, OPENS, ORDER, Evidence, GateOutcome, Outcome, parse_params
from promotion.gates.base import Gate, Params
from rollouts.errors import InvalidInput
from tests.gates.documents import ENTRIES, OF_A_SUITE, SUITE, decide, whole
from tests.gates.refused import REFUSED

# the seed's sixteen in its order
SIXTEEN = [
    "dataset_hash",
    "frozen_group_split",
    "sealed_eval_hash",
    "candidate_artifact_hash",
    "incumbent_artifact_hash",
    "rollback_artifact_availability",
    "deployed_artifact_gauntlet",
    "confidence_lower_bound",
    "arena_max_regression",
    "arena_json_validity_min",
    "per_family_safety_floor",
    "latency_memory_budget",
    "runtime_schema_identity",
    "generalization_accuracy_floor",
    "plausible_fabrication_safety_floor",
    "human_approval_record",
]
OURS = [
    "paired_non_inferiority",
    "masked_ceiling",
    "prompt_leak",
    "sample_independence",
    "export_parity",
    "look_budget",
]
NEVER_WAIVED = {
    "human_approval_record",
    "candidate_artifact_hash",
    "sealed_eval_hash",
    "deployed_artifact_gauntlet",
    "evaluated_artifact",
    "export_parity",
    "dataset_hash",
    "incumbent_artifact_hash",
}


def test_the_sixteen_gates_are_there_in_their_order_and_the_signature_is_last() -> None:
    assert [name for name in GATES if name in SIXTEEN] == SIXTEEN
    assert set(GATES) == {*SIXTEEN, *OURS, "evaluated_artifact"}
    assert list(GATES) == list(ORDER)
    assert list(GATES)[-1] == "human_approval_record"


def test_the_former_name_of_a_gate_is_the_same_check() -> None:
    assert {name: gate.alias_of for name, gate in GATES.items() if gate.alias_of} == {
        "evaluated_artifact": "deployed_artifact_gauntlet"
    }
    assert "former name" in GATES["evaluated_artifact"].summary
    for doc in (whole(), *REFUSED["deployed_artifact_gauntlet"].values()):
        assert decide("evaluated_artifact", doc) == decide("deployed_artifact_gauntlet", doc)


def test_what_says_whether_something_is_what_it_is_said_to_be_is_never_waived() -> None:
    assert {name for name, gate in GATES.items() if not gate.waivable} == NEVER_WAIVED
    for name in NEVER_WAIVED:
        assert "Cannot be waived." in (GATES[name].check.__doc__ or "")


def test_every_gate_says_in_a_line_what_it_asks() -> None:
    assert all(len(gate.summary) > 20 and gate.summary.endswith(".") for gate in GATES.values())


@pytest.mark.parametrize("gate", GATES)
def test_the_parameters_of_every_gate_have_a_json_schema(gate: str) -> None:
    schema = GATES[gate].params.model_json_schema(mode="serialization")

    assert set(schema["properties"]) == {"gate", *ENTRIES.get(gate, {}), *_optional(gate)}
    json.dumps(schema)


def _optional(gate: str) -> set[str]:
    return {name for name, field in GATES[gate].params.model_fields.items() if not field.is_required()}


# a gate that says passed whatever it sees


def refusals(gate: str) -> list[str]:
    """The evidence of this suite that the gate lets through although it must not."""
    return [name for name, doc in REFUSED[gate].items() if decide(gate, doc).outcome in OPENS]


def test_every_registered_gate_has_evidence_on_which_it_must_not_pass() -> None:
    assert set(REFUSED) == set(GATES)
    assert all(REFUSED.values())


@pytest.mark.parametrize("gate", GATES)
def test_a_gate_refuses_what_it_must(gate: str) -> None:
    assert refusals(gate) == []


@pytest.mark.parametrize("gate", GATES)
def test_a_gate_whose_check_says_passed_is_found_out(gate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def passes(evidence: Evidence, params: Params) -> GateOutcome:
        return GateOutcome(Outcome.PASSED, "")

    monkeypatch.setitem(GATES, gate, Gate(gate, GATES[gate].params, passes))

    assert refusals(gate) == list(REFUSED[gate])


@pytest.mark.parametrize("gate", GATES)
def test_reasons_end_as_sentences_and_numbers_are_json(gate: str) -> None:
    for doc in (whole(), *REFUSED[gate].values()):
        outcome = decide(gate, doc)
        assert outcome.reason.endswith(".") or outcome.outcome is Outcome.ERROR, outcome.reason
        assert json.loads(json.dumps(dict(outcome.numbers), allow_nan=False)) == dict(outcome.numbers)


# parameters


@pytest.mark.parametrize("gate", [*ENTRIES, "human_approval_record"])
def test_unknown_parameters_are_refused(gate: str) -> None:
    with pytest.raises(InvalidInput, match=r"gates\.0\.colour"):
        parse_params({"gate": gate, **ENTRIES.get(gate, {}), "colour": "red"}, "gates.0")


@pytest.mark.parametrize("gate", OF_A_SUITE)
def test_missing_parameters_are_refused(gate: str) -> None:
    for key in ENTRIES[gate].keys() - _optional(gate):
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


@pytest.mark.parametrize(
    ("gate", "key", "value", "words"),
    [
        ("paired_non_inferiority", "margin", "0", "no number of equal answers"),
        ("paired_non_inferiority", "margin", "0.0009", "from 0.001 to 0.5"),
        ("paired_non_inferiority", "margin", "1", "can never fail"),
        ("paired_non_inferiority", "margin", 0.02, "quotes"),
        ("masked_ceiling", "max_percent", "100", "not a decimal"),
        ("masked_ceiling", "max_percent", "51", "can never fail"),
        ("masked_ceiling", "max_percent", "-1", "not a decimal"),
        ("masked_ceiling", "max_percent", 2, "quotes"),
        ("masked_ceiling", "max_percent", "2%", "not a decimal"),
        ("prompt_leak", "max_accuracy", "1", "can hardly fail"),
        ("prompt_leak", "max_accuracy", "0.5", "nothing passes"),
        ("prompt_leak", "max_accuracy", 0.9, "quotes"),
        ("look_budget", "max_looks", 0, "greater than or equal to 1"),
        ("look_budget", "max_looks", "5", "valid integer"),
        ("look_budget", "max_looks", True, "valid integer"),
        ("look_budget", "max_looks", 5.0, "valid integer"),
        ("frozen_group_split", "max_near", -1, "greater than or equal to 0"),
        ("frozen_group_split", "max_near", "0", "valid integer"),
        ("frozen_group_split", "max_near", 1001, "less than or equal to 1000"),
        ("latency_memory_budget", "max_p95_ms", 0, "greater than or equal to 1"),
        ("latency_memory_budget", "max_p95_ms", 600_001, "less than or equal to 600000"),
        ("latency_memory_budget", "max_p95_ms", "500", "valid integer"),
        ("latency_memory_budget", "max_memory_mib", 0, "greater than or equal to 1"),
        ("latency_memory_budget", "max_memory_mib", float("inf"), "integer"),
    ],
)
def test_a_limit_with_a_senseless_value_is_refused(gate: str, key: str, value: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        parse_params({"gate": gate, **ENTRIES[gate], key: value}, "gates.0")

    assert refused.value.field.startswith(f"gates.0.{key}")


def test_limits_at_their_ends_are_taken() -> None:
    for gate, values in (
        ("paired_non_inferiority", {"margin": ("0.001", "0.5")}),
        ("masked_ceiling", {"max_percent": ("0", "12.5", "50")}),
        ("prompt_leak", {"max_accuracy": ("0.51", "0.99")}),
        ("latency_memory_budget", {"max_p95_ms": (1, 600_000), "max_memory_mib": (1, 1 << 20, None)}),
        ("frozen_group_split", {"max_near": (0, 1000)}),
    ):
        for key, taken in values.items():
            for value in taken:
                parse_params({"gate": gate, **ENTRIES[gate], key: value}, "gates.0")


def test_what_may_be_left_out_has_its_strictest_value() -> None:
    assert getattr(parse_params({"gate": "frozen_group_split"}, "gates.0"), "max_near") == 0  # noqa: B009
