"""Evidence that was stored before format 2 is judged as it was: cases were prompts, and what it lacks is not known."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from promotion.gates import OPENS, Outcome
from tests.gates.documents import (
    COMPARING,
    ENTRIES,
    NOW,
    decide,
    document,
    format_1,
    run,
    waived,
    whole,
    with_counts,
    with_run,
)
from tests.gates.refused import REFUSED

# what a policy could ask for when format 1 was written
THEN = (
    "candidate_artifact_hash",
    "sealed_eval_hash",
    "evaluated_artifact",
    "arena_max_regression",
    "arena_json_validity_min",
    "per_family_safety_floor",
    "generalization_accuracy_floor",
    "plausible_fabrication_safety_floor",
)
# what needs no more than format 1 holds; the rest is of later
READABLE = {
    *THEN,
    "deployed_artifact_gauntlet",
    "confidence_lower_bound",
    "incumbent_artifact_hash",
    "masked_ceiling",
    "look_budget",
    "export_parity",
    "paired_non_inferiority",
}


@pytest.mark.parametrize("gate", THEN)
def test_what_passed_passes_with_the_same_words_and_numbers(gate: str) -> None:
    assert decide(gate, format_1(document())) == decide(gate, document())
    assert decide(gate, format_1(document())).outcome is Outcome.PASSED


@pytest.mark.parametrize("gate", THEN)
def test_what_was_refused_is_refused_in_the_same_way(gate: str) -> None:
    for name, doc in REFUSED[gate].items():
        if name not in ("a run that lost a prompt", "the champion ran on no known server"):
            assert decide(gate, format_1(doc)).outcome is decide(gate, doc).outcome, name


@pytest.mark.parametrize("gate", [name for name in ENTRIES if name not in READABLE])
def test_what_it_does_not_hold_is_not_evaluated(gate: str) -> None:
    assert decide(gate, format_1(whole())).outcome is Outcome.NOT_EVALUATED


def test_whether_a_champion_is_stored_is_not_known() -> None:
    assert decide("rollback_artifact_availability", format_1(whole())).outcome is Outcome.NOT_EVALUATED


@pytest.mark.parametrize("gate", COMPARING)
def test_servers_that_said_nothing_of_themselves_were_alike(gate: str) -> None:
    silent: dict[str, Any] = {"server": "remote", "base_url": "https://host/v1", "model": "m"}
    doc = with_run(with_run(whole(), served=silent), "champion", served=silent)

    assert decide(gate, doc).outcome is Outcome.NOT_EVALUATED
    assert decide(gate, format_1(doc)).outcome is Outcome.PASSED
    one = with_run(whole(), served={**run()["served"], "build": None})
    assert decide(gate, format_1(one)).outcome is Outcome.NOT_EVALUATED


@pytest.mark.parametrize("served", [None, {}, {"server": "remote"}])
def test_an_endpoint_that_proves_nothing_still_proves_nothing(served: Any) -> None:
    doc = format_1(with_run(document(), served=served))

    assert decide("evaluated_artifact", doc).outcome is Outcome.NOT_EVALUATED


def test_no_waiver_was_known_then() -> None:
    doc = waived(document(), "masked_ceiling")
    old = {**format_1(REFUSED["masked_ceiling"]["five of 200 are masked"]), "waivers": doc["waivers"]}

    assert decide("masked_ceiling", old, NOW).outcome is Outcome.FAILED


def test_judging_leaves_the_document_as_it_was() -> None:
    doc = format_1(with_counts("generalization_accuracy_floor", 90, 100))
    before = copy.deepcopy(doc)

    decide("generalization_accuracy_floor", doc)

    assert doc == before


@pytest.mark.parametrize("written_as", [0, 3, "2", None, float("nan"), [2]])
@pytest.mark.parametrize("gate", ENTRIES)
def test_evidence_of_no_known_format_does_not_pass(gate: str, written_as: Any) -> None:
    assert decide(gate, {**whole(), "format": written_as}).outcome not in OPENS
