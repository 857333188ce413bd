"""Not worse than the champion by more than a margin, pair by pair, by a bound: few pairs and wide bounds block."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal
from typing import Any

import pytest
from scipy import stats

from promotion.gates import Outcome
from promotion.gates.regression import least_pairs
from rollouts.statistics import clopper_pearson_upper, tango_lower
from tests.gates.documents import (
    METRICS,
    Prompts,
    counts,
    decide,
    pairs,
    run,
    suite,
    suite_of,
    whole,
    with_policy,
    with_run,
    with_suite,
)

GATE = "paired_non_inferiority"


def measured(
    n: int, lost: int = 0, won: int = 0, neither: int = 0, missing: int = 0, **champion: int
) -> dict[str, Any]:
    """`n` prompts: so many lost, won, wrong with both, and without a value of the candidate's; the rest right."""
    gone = champion.get("champion_missing", 0)
    both = n - lost - won - neither - missing - gone
    return whole(
        suite_of(
            [
                Prompts("calls", True, "right", "right", both),
                Prompts("calls", True, "wrong", "right", lost),
                Prompts("calls", True, "right", "wrong", won),
                Prompts("calls", True, "wrong", "wrong", neither),
                Prompts("calls", True, "missing", "right", missing),
                Prompts("calls", True, "right", "missing", gone),
            ]
        )
    )


def outcome(
    n: int, lost: int = 0, won: int = 0, *, params: dict[str, str] | None = None, **rest: int
) -> Outcome:
    return decide(GATE, measured(n, lost, won, **rest), **(params or {})).outcome


def test_two_perfect_models_can_be_compared_from_149_prompts_on() -> None:
    """Tango's bound alone would take 133; where none is won the exact limit of the share lost counts too."""
    assert outcome(149) is Outcome.PASSED
    assert outcome(148) is Outcome.FAILED
    assert tango_lower(0, 0, 133) >= -0.02 > tango_lower(0, 0, 132)
    assert least_pairs(Decimal("0.02"), Decimal("0.05")) == 149


def test_a_saturated_champion_does_not_lock_the_track() -> None:
    assert outcome(1386) is Outcome.PASSED
    assert outcome(1386, lost=10) is Outcome.PASSED


@pytest.mark.parametrize(("lost", "won", "n"), [(3, 0, 500), (3, 1, 200), (10, 12, 400), (0, 1, 133)])
def test_the_bound_decides_and_its_margin_is_exact(lost: int, won: int, n: int) -> None:
    bound = tango_lower(lost, won, n)
    if won == 0:
        bound = min(bound, -clopper_pearson_upper(lost, n))
    just, short = (str(math.ceil(-bound * 10**6 - step) / 10**6) for step in (0, 1))

    assert decide(GATE, measured(n, lost, won), margin=just).outcome is Outcome.PASSED
    assert decide(GATE, measured(n, lost, won), margin=short).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("missing", "champion_missing", "lost", "expected"),
    [
        (2, 0, 0, Outcome.PASSED),  # passes with both counted as lost
        (0, 2, 0, Outcome.PASSED),
        (20, 0, 0, Outcome.NOT_EVALUATED),
        (0, 20, 0, Outcome.NOT_EVALUATED),
        (2, 0, 30, Outcome.FAILED),  # fails with both counted as won
        (20, 0, 10, Outcome.NOT_EVALUATED),
    ],
)
def test_a_pair_without_its_partner_is_counted_both_ways(
    missing: int, champion_missing: int, lost: int, expected: Outcome
) -> None:
    found = decide(GATE, measured(500, lost, missing=missing, champion_missing=champion_missing))

    assert found.outcome is expected
    assert found.numbers["masked"] == missing + champion_missing


@pytest.mark.parametrize(
    ("n", "lost", "won", "missing"),
    [(500, 30, 0, 0), (500, 30, 4, 0), (300, 6, 1, 3), (200, 3, 0, 0), (1000, 40, 30, 0)],
)
def test_what_would_pass_passes_and_one_more_lost_does_not(n: int, lost: int, won: int, missing: int) -> None:
    meets = decide(GATE, measured(n, lost, won, missing=missing)).numbers["meets_with"]
    most = int(meets.removeprefix("at most ").removesuffix(" lost"))

    assert outcome(n, most, won) is Outcome.PASSED
    assert outcome(n, most + 1, won) is Outcome.FAILED


def test_with_too_few_prompts_it_says_how_many_would_do() -> None:
    found = decide(GATE, measured(60))

    assert found.numbers["meets_with"] == "at least 149 prompts, none lost"
    assert "at least 149 prompts" in found.reason


@pytest.mark.parametrize("n", [1, 0])
def test_fewer_than_two_pairs_are_not_evaluated(n: int) -> None:
    doc = measured(n) if n else with_suite(whole(), paired=pairs(0))

    assert decide(GATE, doc).outcome is Outcome.NOT_EVALUATED


@pytest.mark.parametrize("n", [60, 133, 149, 150, 200, 300, 500])
@pytest.mark.parametrize("margin", ["0.02", "0.05", "0.1"])
def test_with_losses_only_the_real_error_never_passes_alpha(n: int, margin: str) -> None:
    """Each prompt is truly lost with the chance of the margin: the gate passes in at most 5 of 100 such suites."""
    passing = [lost for lost in range(n + 1) if outcome(n, lost, params={"margin": margin}) is Outcome.PASSED]
    error = sum(stats.binom.pmf(lost, n, float(margin)) for lost in passing)

    assert passing == list(range(len(passing)))
    assert error <= 0.05
    assert (
        tango_lower(0, 0, 133) > -0.02 and stats.binom.pmf(0, 133, 0.02) > 0.06
    )  # what Tango alone would do


def test_more_lost_or_fewer_won_never_helps() -> None:
    for lost, won in itertools.product(range(0, 12, 2), range(4)):
        if outcome(400, lost, won) is not Outcome.PASSED:
            assert outcome(400, lost + 1, won) is not Outcome.PASSED
            if won:
                assert outcome(400, lost, won - 1) is not Outcome.PASSED


def test_looks_that_were_taken_widen_the_bound() -> None:
    doc = measured(200)
    spending = with_policy(doc, spend_alpha=True)

    assert decide(GATE, doc).outcome is Outcome.PASSED
    first = decide(GATE, spending)
    assert (first.outcome, first.numbers["alpha"], first.numbers["look"]) == (Outcome.PASSED, "0.025", 1)
    assert decide(GATE, with_run(spending, look=4)).outcome is Outcome.FAILED
    # the champion's own look is of another time
    assert decide(GATE, with_run(spending, "champion", look=9)).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    "table", [pairs(190, neither=9), pairs(190, neither=11), pairs(190, missing=10), pairs(185, 5, 5, 5, 5)]
)
def test_pairs_of_runs_with_wrong_answers_must_be_all_of_them(table: dict[str, Any]) -> None:
    """190 of 200 right and 10 wrong on both sides, with nothing missing, are 190 and 10 pairs."""
    tables = {metric: counts(190, 200) for metric in METRICS}
    runs = {who: run(who, n=200, metrics=tables) for who in ("candidate", "champion")}
    doc = whole(suite(n=200, paired=pairs(190, neither=10), **runs))

    assert decide(GATE, doc).outcome is Outcome.PASSED
    found = decide(GATE, with_suite(doc, paired=table))
    assert found.outcome is Outcome.NOT_EVALUATED
    assert "not those of the two runs" in found.reason


def test_pairs_that_leave_out_what_has_no_value_are_not_those_of_the_runs() -> None:
    """The candidate has no value for 5 prompts, which the pairs give as wrong on both sides."""
    candidate = run(n=200, metrics={metric: counts(190, 200, 5) for metric in METRICS})
    champion = run("champion", n=200, metrics={metric: counts(190, 200) for metric in METRICS})
    doc = whole(suite(n=200, candidate=candidate, champion=champion, paired=pairs(190, neither=10)))

    assert decide(GATE, doc).outcome is Outcome.NOT_EVALUATED


@pytest.mark.parametrize(
    "table",
    [
        pairs(199),
        pairs(201),
        pairs(198, 2),
        pairs(198, won=2),
        pairs(198, neither=2),
        pairs(190, missing=10),
        {metric: {"both": 200} for metric in METRICS},
        {metric: {**pairs(200)[metric], "lost": -1, "won": 1} for metric in METRICS},
        {metric: {**pairs(0)[metric], "both": float("nan")} for metric in METRICS},
        {},
    ],
)
def test_pairs_that_are_not_those_of_the_two_runs_do_not_pass(table: dict[str, Any]) -> None:
    assert decide(GATE, with_suite(whole(), paired=table)).outcome in (Outcome.NOT_EVALUATED, Outcome.ERROR)


def test_the_bound_is_shown_as_a_drop_that_is_rounded_up() -> None:
    found = decide(GATE, measured(500, 3, 1))

    assert found.numbers["measured"] == "3 lost, 1 won" and found.numbers["n"] == 500
    drop = Decimal(found.numbers["bound"])
    assert found.numbers["bound"].startswith("+")
    assert 0 <= drop - Decimal(-tango_lower(3, 1, 500)) < Decimal("0.000001")


def test_a_better_candidate_passes_and_its_bound_is_a_gain() -> None:
    found = decide(GATE, measured(500, won=100))

    assert found.outcome is Outcome.PASSED and found.numbers["bound"].startswith("-")


def test_several_samples_need_no_other_pairs() -> None:
    twofold = {"samples": 2, "planned": 400, "scored": 400}
    doc = with_run(with_run(whole(), **twofold), "champion", **twofold)

    assert decide(GATE, doc).outcome is Outcome.PASSED


def test_metrics_have_their_own_pairs() -> None:
    """A champion that called a wrong tool, where the decision is right with both."""
    table = {**pairs(200), "tool": pairs(190, won=10)["tool"]}
    champion = run("champion", n=200, metrics={"tool": counts(190, 200)})
    doc = whole(suite(n=200, champion=champion, paired=table))

    assert decide(GATE, doc, metric="tool").numbers["measured"] == "0 lost, 10 won"
    assert decide(GATE, doc, metric="decision").numbers["measured"] == "0 lost, 0 won"
