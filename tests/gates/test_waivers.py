"""Two persons may let an unmet gate be, for a time, for exactly what was measured; never an error, never an identity."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from promotion.gates import GATES, OPENS, Outcome, measurement_digest
from tests.gates.documents import (
    NOW,
    OTHER_SUITE,
    decide,
    waived,
    whole,
    with_policy,
    with_run,
    with_suite,
)
from tests.gates.refused import REFUSED

GATE = "latency_memory_budget"
UNMET = REFUSED[GATE]["no times"]
WAIVABLE = [name for name, gate in GATES.items() if gate.waivable]


def outcome(doc: dict[str, Any], at: datetime | None = NOW) -> Outcome:
    return decide(GATE, doc, at).outcome


def test_a_waiver_opens_the_door_and_names_who_until_when_and_what_the_gate_said() -> None:
    itself = decide(GATE, REFUSED[GATE]["slow"], NOW)
    found = decide(GATE, waived(REFUSED[GATE]["slow"], GATE), NOW)

    assert found.outcome is Outcome.WAIVED and found.outcome in OPENS
    for words in ("engineer", "approver", "2026-03-20", "The server has no clock.", "failed", itself.reason):
        assert words in found.reason
    assert found.numbers == itself.numbers


@pytest.mark.parametrize("gate", WAIVABLE)
def test_every_waivable_gate_is_waived_where_it_is_unmet(gate: str) -> None:
    for doc in REFUSED[gate].values():
        if decide(gate, doc).outcome is not Outcome.ERROR:
            assert decide(gate, waived(doc, gate), NOW).outcome is Outcome.WAIVED


@pytest.mark.parametrize("gate", [name for name in GATES if name not in WAIVABLE])
def test_identity_and_the_signature_are_never_waived(gate: str) -> None:
    for doc in REFUSED[gate].values():
        assert decide(gate, waived(doc, gate), NOW).outcome not in OPENS


@pytest.mark.parametrize("gate", WAIVABLE)
def test_a_gate_that_passes_needs_no_waiver(gate: str) -> None:
    assert decide(gate, waived(whole(), gate), NOW) == decide(gate, whole(), NOW)


def test_a_gate_that_erred_said_nothing_that_could_be_waived() -> None:
    broken = with_run(UNMET, latency_ms={"p50": 1, "p95": "12", "n": 200})

    assert outcome(broken) is Outcome.ERROR
    assert outcome(waived(broken, GATE)) is Outcome.ERROR


def test_without_a_time_no_waiver_applies() -> None:
    assert outcome(waived(UNMET, GATE), None) is Outcome.NOT_EVALUATED


@pytest.mark.parametrize(("seconds", "expected"), [(-1, Outcome.WAIVED), (0, Outcome.NOT_EVALUATED)])
def test_a_waiver_ends_in_the_moment_it_names(seconds: int, expected: Outcome) -> None:
    ends = datetime.fromisoformat("2026-03-20T00:00:00.000000Z")

    assert outcome(waived(UNMET, GATE), ends + timedelta(seconds=seconds)) is expected


@pytest.mark.parametrize(
    "changes",
    [
        {"gate": "masked_ceiling"},
        {"suite": None},
        {"suite": OTHER_SUITE},
        {"measurement_digest": "0" * 64},
        {"granted_by": None},
        {"granted_by": " "},
        {"granted_by": "engineer"},  # who asked for it
        {"requested_by": None},
        {"requested_by": ""},
        {"granted_at": None},
        {"granted_at": "soon"},
        {"expires_at": None},
        {"expires_at": "2999"},
        {"expires_at": "2026-03-20T00:00:00"},
        {"reason": ""},
        {"reason": None},
    ],
)
def test_a_waiver_that_is_of_something_else_or_unfinished_waives_nothing(changes: dict[str, Any]) -> None:
    assert outcome(waived(UNMET, GATE, **changes)) is Outcome.NOT_EVALUATED


@pytest.mark.parametrize("key", list(waived(UNMET, GATE)["waivers"][0]))
def test_a_waiver_without_one_of_its_parts_waives_nothing(key: str) -> None:
    doc = waived(UNMET, GATE)
    del doc["waivers"][0][key]

    assert outcome(doc) is Outcome.NOT_EVALUATED


@pytest.mark.parametrize("broken", [None, {}, {"gate": GATE}, [], 7, "waiver"])
def test_a_waiver_that_cannot_be_read_is_no_obstacle_to_one_that_can(broken: Any) -> None:
    doc = waived(UNMET, GATE)

    assert outcome({**doc, "waivers": [broken, *doc["waivers"]]}) is Outcome.WAIVED
    assert outcome({**doc, "waivers": [broken]}) is Outcome.NOT_EVALUATED


@pytest.mark.parametrize("candidate", [None, [], "cand", {}])
def test_a_document_whose_measurements_have_no_digest_is_judged_without_waivers(candidate: Any) -> None:
    doc = waived(UNMET, GATE)

    assert outcome({**doc, "candidate": candidate}) is Outcome.NOT_EVALUATED
    assert outcome({**doc, "extra": float("nan")}) is Outcome.NOT_EVALUATED


@pytest.mark.parametrize("waivers", [None, [], {}, 7, "all"])
def test_a_document_without_waivers_is_judged_without_them(waivers: Any) -> None:
    assert outcome({**UNMET, "waivers": waivers}) is Outcome.NOT_EVALUATED
    assert outcome({key: value for key, value in UNMET.items() if key != "waivers"}) is Outcome.NOT_EVALUATED


def test_whatever_is_measured_again_voids_it() -> None:
    doc = waived(UNMET, GATE)

    assert outcome(with_run(doc, truncated=1)) is Outcome.NOT_EVALUATED
    assert outcome(with_suite(doc, version=2)) is Outcome.NOT_EVALUATED
    assert outcome({**doc, "artifact": {**doc["artifact"], "outtype": "f32"}}) is Outcome.NOT_EVALUATED
    assert outcome({**doc, "datasets": []}) is Outcome.NOT_EVALUATED


def test_rules_people_and_the_revision_are_not_measured() -> None:
    doc = waived(UNMET, GATE)
    later = {**doc, "candidate": {**doc["candidate"], "revision": 9}, "people": {}}

    assert measurement_digest(later) == measurement_digest(UNMET)
    assert outcome(with_policy(later, note="as before")) is Outcome.WAIVED


def test_a_waiver_of_one_suite_is_none_of_another() -> None:
    doc = waived(whole(), "look_budget", suite=OTHER_SUITE)

    assert decide("look_budget", with_run(doc, look=6), NOW).outcome is Outcome.FAILED


def test_a_former_name_is_no_way_round() -> None:
    doc = REFUSED["evaluated_artifact"]["served nobody knows what"]

    assert decide("evaluated_artifact", waived(doc, "evaluated_artifact"), NOW).outcome not in OPENS
