"""The simulation is about the product: its thresholds decide as the gates do, and its draws are of the stated truth."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from promotion import simulation
from promotion.gates import OPENS, Evidence, judge
from promotion.gates.base import spent_alpha
from promotion.services import policy_rules
from promotion.simulation import (
    FABRICATION,
    FAMILIES,
    GENERALIZATION,
    HOLDOUT,
    LOOKS,
    REGRESSION,
    SIZES,
    Draws,
    Ours,
    Share,
    Truth,
)
from rollouts import bulk
from rollouts.hashing import sha256_json
from rollouts.models import Case, Suite
from rollouts.statistics import clopper_pearson_lower
from tests.conftest import ROOT

FLOORS = {
    "confidence_lower_bound": HOLDOUT,
    "arena_json_validity_min": REGRESSION,
    "generalization_accuracy_floor": GENERALIZATION,
    "plausible_fabrication_safety_floor": FABRICATION,
}


@pytest.fixture(scope="module")
def ours() -> Ours:
    return Ours()


def perfect(draws: int, looks: int = LOOKS) -> Draws:
    """A perfect champion and perfect candidates."""

    def full(n: int, across: int = looks) -> Any:
        return np.full((draws, across), n)

    return Draws(
        champion_decision=full(SIZES[REGRESSION], 1),
        champion_safe={family: full(size, 1) for family, size in FAMILIES.items()},
        lost=full(0),
        won=full(0),
        json_valid=full(SIZES[REGRESSION]),
        safe={family: full(size) for family, size in FAMILIES.items()},
        generalization_decision=full(SIZES[GENERALIZATION]),
        tool=full(SIZES[GENERALIZATION]),
        fabrication_safe=full(SIZES[FABRICATION]),
    )


def at_every_look(counts: Any) -> Any:
    return np.repeat(np.asarray(counts)[:, None], LOOKS, axis=1)


def position_of(ours: Ours, gate: str) -> int:
    return next(at for at, entry in enumerate(ours.policy["gates"]) if entry["gate"] == gate)


def decided(ours: Ours, gate: str, draws: Draws, row: int, look: int) -> bool:
    """By the gate itself."""
    evidence = Evidence(simulation.document(draws, row, look, ours.policy, ours.digests))
    entry = ours.policy["gates"][position_of(ours, gate)]
    return judge(evidence, entry, simulation.AT).outcome in OPENS


def require_alike(ours: Ours, gate: str, draws: Draws, places: Iterator[tuple[int, int]]) -> None:
    """At each (row, look): what the thresholds say is what the gate says. Both answers must occur."""
    opens = ours.by_gate(draws)[position_of(ours, gate)]
    seen = set()
    for row, look in places:
        says = decided(ours, gate, draws, row, look)
        assert says is bool(opens[row, look - 1]), (gate, row, look)
        seen.add(says)
    assert seen == {True, False}


# our decision


@pytest.mark.parametrize("gate", FLOORS)
@pytest.mark.parametrize("look", [1, LOOKS])
def test_a_floor_decides_every_count_as_its_gate_does(ours: Ours, gate: str, look: int) -> None:
    n = SIZES[FLOORS[gate]]
    counts = at_every_look(np.arange(n + 1))
    draws = perfect(n + 1)
    if gate == "confidence_lower_bound":
        # filled family by family, so that each total occurs
        left, safe = counts, {}
        for family, size in FAMILIES.items():
            safe[family] = np.minimum(left, size)
            left = left - safe[family]
        draws = replace(draws, safe=safe)
    elif gate == "arena_json_validity_min":
        draws = replace(draws, json_valid=counts)
    elif gate == "generalization_accuracy_floor":
        draws = replace(draws, tool=counts)
    else:
        draws = replace(draws, fabrication_safe=counts)

    require_alike(ours, gate, draws, ((row, look) for row in range(n + 1)))


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_decides_every_count_as_the_gate_does(ours: Ours, family: str) -> None:
    n = FAMILIES[family]
    draws = perfect(n + 1)
    draws = replace(draws, safe={**draws.safe, family: at_every_look(np.arange(n + 1))})

    places = ((row, look) for row in range(n // 2, n + 1) for look in (1, LOOKS))
    require_alike(ours, "per_family_safety_floor", draws, places)


def test_the_paired_bound_turns_where_its_gate_does_at_every_look(ours: Ours) -> None:
    """One win too few and just enough, for numbers of losses: wins only help, so that is where the gate turns."""
    n, margin = SIZES[REGRESSION], Decimal(simulation.MARGIN)
    found = [
        (look, lost, simulation.fewest_won(lost, n, margin, float(spent_alpha(simulation.ALPHA, look))))
        for look in range(1, LOOKS + 1)
        for lost in (0, 1, 2, 5, 10, 20, 40, 60)
    ]
    turning = [(look, lost, enough) for look, lost, enough in found if enough > 0]
    assert len(turning) > 80
    for look, lost, enough in turning:
        draws = replace(
            perfect(2),
            champion_decision=np.full((2, 1), n - 100),
            lost=at_every_look([lost, lost]),
            won=at_every_look([enough - 1, enough]),
        )
        says = [decided(ours, "paired_non_inferiority", draws, row, look) for row in (0, 1)]
        assert says == [False, True], (look, lost, enough)


@pytest.mark.parametrize("gate", ["paired_non_inferiority", "arena_max_regression"])
@pytest.mark.parametrize("look", [1, LOOKS])
def test_all_pairs_that_are_drawn_are_decided_as_by_the_gate(ours: Ours, gate: str, look: int) -> None:
    scenario = next(s for s in simulation.scenarios() if s.what == "loses 0.02 to its champion")
    draws = simulation.draw(scenario, 20_000, (1, 0))
    tuples = np.concatenate(
        [draws.lost[:, [look - 1]], draws.won[:, [look - 1]], draws.champion_decision], axis=1
    )
    _, rows = np.unique(tuples[:, :2], axis=0, return_index=True)
    assert len(rows) > 400

    require_alike(ours, gate, draws, ((int(row), look) for row in rows))


def test_a_threshold_that_differs_from_its_gate_is_found(ours: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = next(s for s in simulation.scenarios() if s.what.startswith("valid JSON 0.94"))
    draws = simulation.draw(scenario, 500, (1, 1))
    opens = ours.by_gate(draws)
    opens[position_of(ours, "arena_json_validity_min")] = np.full(draws.shape, True)

    with pytest.raises(simulation.Disagreement, match="arena_json_validity_min says failed"):
        ours.agree(draws, opens, np.random.default_rng(1))


def test_no_look_after_the_budget_promotes(ours: Ours) -> None:
    draws = perfect(3, looks=LOOKS + 2)

    assert simulation.all_of(ours.by_gate(draws).values()).tolist() == [[True] * LOOKS + [False] * 2] * 3


@pytest.mark.django_db
def test_the_default_policy_can_be_locked_over_suites_of_its_sizes() -> None:
    """Nothing in it is vacuous, and everything is within reach of a perfect candidate at the last look."""
    digests = {name: sha256_json(name) for name in SIZES}
    for name, size in SIZES.items():
        suite = Suite.objects.create(
            name=name,
            version=1,
            digest=digests[name],
            scorer="decision",
            case_count=size,
            leak={"majority": "0.500000"},
            sealed_at=timezone.now(),
        )
        families = FAMILIES if name == HOLDOUT else {name: size}
        expects_call = name == GENERALIZATION
        rows = [
            (suite.pk, at, f"{name}-{at}", family, "", {}, expects_call, "0" * 64, sha256_json([name, at]))
            for at, family in enumerate(family for family, n in families.items() for _ in range(n))
        ]
        fields = (
            *("suite", "position", "key", "family", "group", "content", "expects_call", "digest"),
            "prompt_sha256",
        )
        bulk.insert_many(Case, fields, rows)

    assert [str(problem) for problem in policy_rules.problems(simulation.default_policy(digests))] == []


# the seed's decision


def seed_on(**changes: Any) -> bool:
    """Whether the seed promotes: a perfect candidate against a champion with one unsafe answer, but for `changes`."""
    draws = perfect(1, looks=1)
    champion_safe = {**draws.champion_safe, "injection": draws.champion_safe["injection"] - 1}
    return bool(simulation.seed_promotes(replace(draws, champion_safe=champion_safe, **changes))[0, 0])


def one(value: int) -> Any:
    return np.array([[value]])


def test_the_seed_promotes_the_better_candidate() -> None:
    assert seed_on()


def test_the_seed_never_promotes_after_a_perfect_champion() -> None:
    assert not simulation.seed_promotes(perfect(1)).any()


def test_the_seeds_floor_of_valid_json_cannot_fail() -> None:
    assert seed_on(json_valid=one(0))


def test_the_seed_refuses_a_drop_of_exactly_its_limit_by_a_rounding_error() -> None:
    """0.98 - 0.96 is more than 0.02 as floats."""
    before, after = one(882), {"lost": one(18), "won": one(0)}

    assert not seed_on(champion_decision=before, **after)
    assert seed_on(champion_decision=before, lost=one(17), won=one(0))


def test_the_seed_counts_a_call_of_the_wrong_tool_as_right() -> None:
    assert seed_on(tool=one(0))
    assert not seed_on(generalization_decision=one(254))  # 0.8467 of the decisions


def test_the_seed_refuses_one_unsafe_answer_in_a_family_that_was_perfect() -> None:
    draws = perfect(1, looks=1)

    assert not seed_on(safe={**draws.safe, "near_match": draws.safe["near_match"] - 1})


# draws and shares


def test_the_draws_are_of_the_stated_rates() -> None:
    truth = Truth(
        champion_decision=0.9, lost=0.05, won=0.03, json_valid=0.95, safe={"injection": 0.8}, tool=0.7
    )
    draws = simulation.draw(simulation.Scenario("", "", truth, 10), 4000, (7,))

    def off(counts: Any, n: int, rate: float) -> float:
        """Standard errors between what was drawn and the rate; a champion's draws are shared by ten looks."""
        return abs(counts.mean() - n * rate) / np.sqrt(n * rate * (1 - rate) / len(counts))

    n = SIZES[REGRESSION]
    assert off(draws.champion_decision, n, 0.9) < 4
    assert off(draws.lost, n, 0.05) < 4
    assert off(draws.won, n, 0.03) < 4
    assert off(draws.decision, n, 0.88) < 4
    assert off(draws.json_valid, n, 0.95) < 4
    assert off(draws.safe["injection"], FAMILIES["injection"], 0.8) < 4
    assert off(draws.tool, SIZES[GENERALIZATION], 0.7) < 4
    assert (draws.safe["near_match"] == FAMILIES["near_match"]).all()
    assert (draws.json_valid >= draws.decision).all()


def test_the_same_seed_draws_the_same() -> None:
    scenario = simulation.scenarios()[0]
    first, again, other = (simulation.draw(scenario, 50, (seed,)) for seed in (1, 1, 2))

    assert (first.tool == again.tool).all()
    assert (first.tool != other.tool).any()


def test_a_share_that_refutes_alpha_does_not_hold() -> None:
    """5.26 % of 20,000 is above 5 % with 95 % confidence, 5.25 % is not."""
    assert Share(1050, 20_000).at_most_alpha
    assert not Share(1052, 20_000).at_most_alpha
    assert Share(1000, 20_000).limits == pytest.approx((0.04703, 0.05311), abs=1e-5)


# the command


def test_the_command_prints_both_shares_of_every_scenario() -> None:
    out = io.StringIO()

    call_command("simulate", "--draws", "400", stdout=out)

    rows = [line.split(" | ") for line in out.getvalue().splitlines() if line.startswith("| ")]
    for scenario in simulation.scenarios():
        (row,) = [row for row in rows if row[0] == f"| {scenario.what}"]
        assert len(row) == 4 and row[2] == ("yes" if scenario.wrong else "")


def test_a_policy_that_lets_too_many_through_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = simulation.default_policy

    def without_json(digests: simulation.Digests) -> dict[str, Any]:
        document = policy(digests)
        gates = [entry for entry in document["gates"] if entry["gate"] != "arena_json_validity_min"]
        return {**document, "gates": gates}

    monkeypatch.setattr(simulation, "default_policy", without_json)

    with pytest.raises(CommandError, match=r"More than 0\.05 were promoted: valid JSON 0\.969"):
        call_command("simulate", "--draws", "400", stdout=io.StringIO())


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(CommandError, match="at least 100"):
        call_command("simulate", "--draws", "99")


# the document


def test_the_document_on_statistics_shows_every_scenario_and_its_vectors_are_right() -> None:
    written = (ROOT / "docs" / "statistics.md").read_text()
    for scenario in simulation.scenarios():
        assert f"\n| {scenario.what} | " in written
    vectors = re.findall(r"^\| (\d+) \| (\d+) \| (0\.\d+) \|$", written, re.MULTILINE)
    assert len(vectors) == 8
    for successes, n, limit in vectors:
        assert clopper_pearson_lower(int(successes), int(n)) == pytest.approx(float(limit), abs=5e-7)
