"""How many prompts, which family, and whether the masked decide: each answer checked against every possibility."""

from __future__ import annotations

import itertools
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promotion.fragility import Fragility, fragility
from promotion.gates import Evidence, Outcome, judge
from rollouts.statistics import required_successes
from tests.gates import documents
from tests.gates.documents import SUITE, counts, document, run, suite

FLOOR = {"gate": "confidence_lower_bound", "suite": SUITE, "metric": "decision", "min": "0.80"}
DROP = {"gate": "arena_max_regression", "suite": SUITE, "metric": "decision", "max_drop": "0.03"}
PAIRED = {"gate": "paired_non_inferiority", "suite": SUITE, "metric": "decision", "margin": "0.1"}
FAMILIES = {"gate": "per_family_safety_floor", "suite": SUITE, "metric": "decision", "min": "0.60"}
CEILING = {"gate": "masked_ceiling", "suite": SUITE, "max_percent": "5"}


def one_suite(right: int, n: int, missing: int = 0, **changes: Any) -> dict[str, Any]:
    return document(
        suite(n=n, candidate=run("candidate", n=n, metrics=_tables(right, n, missing)), **changes)
    )


def _tables(right: int, n: int, missing: int) -> dict[str, dict[str, int]]:
    """The decision as said, every other metric right; `missing` prompts have no value of any."""
    return {metric: counts(n - missing, n, missing) for metric in documents.METRICS} | {
        "decision": counts(right, n, missing)
    }


def in_families(sizes: dict[str, tuple[int, int]], missing: int = 0) -> dict[str, Any]:
    """(right, n) of each family; `missing` prompts of the first one have no score. The other metrics are all right."""
    tables = {}
    for index, (name, (right, n)) in enumerate(sizes.items()):
        tables[name] = _tables(right, n, missing if index == 0 else 0)
    n = sum(size for _, size in sizes.values())
    totals = {
        metric: {key: sum(table[metric][key] for table in tables.values()) for key in counts(0, 0)}
        for metric in documents.METRICS
    }
    prompts = {name: size for name, (_, size) in sizes.items()}
    sides = {
        "candidate": run(
            "candidate", n=n, metrics=totals, families=tables, scored=n - missing, masked=missing
        ),
        "champion": run(
            "champion",
            n=n,
            families={name: {m: counts(k, k) for m in documents.METRICS} for name, k in prompts.items()},
        ),
    }
    return document(suite(n=n, families=prompts, family_prompts=dict(prompts), **sides))


def asked(doc: dict[str, Any], entry: dict[str, Any]) -> Fragility:
    found = fragility(doc, entry)
    assert found is not None
    assert found.outcome is judge(Evidence(doc), entry).outcome
    return found


# floors


@given(
    n=st.integers(5, 120),
    share=st.floats(0, 1),
    gone=st.floats(0, 0.3),
    minimum=st.sampled_from(["0.30", "0.80", "0.95"]),
)
@settings(max_examples=80, deadline=None)
def test_a_floor_turns_at_exactly_the_count_that_the_bound_needs(
    n: int, share: float, gone: float, minimum: str
) -> None:
    missing = int(gone * n)
    right = int(share * (n - missing))
    entry = {**FLOOR, "min": minimum}
    found = asked(one_suite(right, n, missing), entry)
    needed = required_successes(n, float(Decimal(minimum)), 0.05)
    wrong = n - right - missing
    if found.passes:
        assert needed is not None
        assert found.flips == right - needed + 1
        assert found.masked_needed == 0
    elif needed is None or needed > right + wrong:
        assert found.flips is None
    else:
        assert found.flips == needed - right
    assert found.masked == missing
    if not found.passes:
        enough = needed is not None and needed <= right + missing
        assert found.masked_needed == (needed - right if needed is not None and enough and missing else None)


def test_a_floor_says_it_in_a_line() -> None:
    assert asked(one_suite(90, 100), FLOOR).sentence == "4 prompts turned wrong would end it."
    assert asked(one_suite(60, 100), FLOOR).sentence == "27 prompts turned right would pass it."
    one_more = asked(one_suite(86, 100, 1), FLOOR)
    assert one_more.outcome is Outcome.NOT_EVALUATED
    assert one_more.sentence == (
        "1 prompt turned right would pass it. It passes if 1 of the 1 without a score prove right."
    )
    assert (
        "It fails with all 2 without a score counted right." in asked(one_suite(60, 100, 2), FLOOR).sentence
    )
    assert (
        "It passes with all 2 without a score counted wrong." in asked(one_suite(95, 100, 2), FLOOR).sentence
    )


def test_what_no_count_can_reach_is_said() -> None:
    found = asked(one_suite(10, 10), {**FLOOR, "min": "0.95"})
    assert found.flips is None
    assert found.sentence == "No number of wrong answers turned right would pass it."


def test_alpha_that_is_spent_is_spent_here_too() -> None:
    doc = one_suite(95, 100)
    doc["suites"][0]["candidate"]["look"] = 3
    plain = asked(doc, FLOOR).flips
    doc["policy"]["document"]["spend_alpha"] = True
    spent = asked(doc, FLOOR)
    needed = required_successes(100, 0.8, float(Decimal("0.05") / 12))
    assert needed is not None
    assert spent.flips == 95 - needed + 1
    assert plain is not None and spent.flips < plain


def test_more_samples_than_one_do_not_hide_that_answers_may_turn() -> None:
    doc = one_suite(60, 100)
    mine = doc["suites"][0]["candidate"]
    # of the wrong prompts only one sample of three has a score
    mine.update(samples=3, planned=300, scored=220, masked=80)
    mine["metrics"] = mine["families"]["calls"] = {metric: counts(60, 100) for metric in documents.METRICS}
    assert asked(doc, FLOOR).flips == 27


# a drop


@given(n=st.integers(5, 80), ours=st.floats(0, 1), theirs=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_a_drop_turns_at_exactly_the_count_that_is_allowed(n: int, ours: float, theirs: float) -> None:
    right, champion = int(ours * n), int(theirs * n)
    other = run("champion", n=n, metrics={"decision": counts(champion, n)})
    found = asked(one_suite(right, n, champion=other), DROP)
    allowed = [k for k in range(n + 1) if champion - k <= Decimal("0.03") * n]
    if found.passes:
        expected = right - allowed[0] + 1
        assert found.flips == (expected if expected <= right else None)
    else:
        assert found.flips == allowed[0] - right


# pairs


def paired(both: int, lost: int, won: int, neither: int) -> dict[str, Any]:
    n = both + lost + won + neither
    mine = run("candidate", n=n, metrics={"decision": counts(both + won, n)})
    other = run("champion", n=n, metrics={"decision": counts(both + lost, n)})
    return document(
        suite(n=n, candidate=mine, champion=other, paired=documents.pairs(both, lost, won, neither))
    )


def passes(both: int, lost: int, won: int, neither: int) -> bool:
    return judge(Evidence(paired(both, lost, won, neither)), PAIRED).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    "table",
    [
        (60, 0, 0, 0), (60, 0, 1, 2), (58, 1, 1, 0), (50, 2, 6, 2), (40, 0, 5, 15), (30, 1, 12, 5), (38, 1, 0, 1),
        (50, 8, 1, 2), (40, 9, 0, 3), (30, 15, 0, 0), (45, 5, 0, 0), (45, 5, 1, 4), (20, 30, 5, 5), (2, 0, 0, 8),
        (0, 0, 0, 30), (0, 12, 0, 18), (34, 2, 0, 0), (33, 2, 1, 0),
    ],
)  # fmt: skip
def test_pairs_turn_at_the_least_number_over_every_way_to_turn_them(table: tuple[int, int, int, int]) -> None:
    both, lost, won, neither = table
    found = asked(paired(*table), PAIRED)
    if found.passes:
        ways = itertools.product(range(both + 1), range(won + 1))
        turned = [a + b for a, b in ways if not passes(both - a, lost + a, won - b, neither + b)]
    else:
        ways = itertools.product(range(lost + 1), range(neither + 1))
        turned = [a + b for a, b in ways if passes(both + a, lost - a, won + b, neither - b)]
    assert found.flips == min(turned, default=None)


def test_pairs_without_a_value_are_counted_and_families_are_not_invented() -> None:
    doc = paired(58, 0, 1, 1)
    part = doc["suites"][0]
    part["paired"] = documents.pairs(57, 0, 1, 1, 1)
    part["candidate"] = run("candidate", n=60, metrics=_tables(58, 60, 1))
    found = asked(doc, PAIRED)
    assert (found.masked, found.masked_needed) == (1, 0 if found.passes else None)
    assert found.families == []
    assert "one family" in found.why_no_families


# families


def test_the_nearest_family_ends_it_and_every_failing_one_must_be_made_good() -> None:
    spare = asked(in_families({"a": (30, 30), "b": (27, 30)}), FAMILIES)
    alone = asked(one_suite(27, 30), {**FLOOR, "min": "0.60"})
    assert spare.passes
    assert spare.flips == alone.flips
    both = asked(in_families({"a": (10, 30), "b": (12, 30), "c": (30, 30)}), FAMILIES)
    needed = required_successes(30, 0.6, 0.05)
    assert needed is not None
    assert both.flips == (needed - 10) + (needed - 12)


def test_the_family_that_decides_is_named() -> None:
    found = asked(in_families({"a": (30, 30), "b": (10, 30), "c": (29, 30)}), FAMILIES)
    assert not found.passes
    assert [without.family for without in found.deciding] == ["b"]
    assert found.sentence.endswith("Without b it would pass.")
    assert {without.family: without.n for without in found.families} == {"a": 30, "b": 30, "c": 30}


def test_one_weak_family_of_a_floor_over_all_is_named_and_a_strong_one_carries_it() -> None:
    carried = asked(in_families({"easy": (200, 200), "hard": (24, 40)}), {**FLOOR, "min": "0.85"})
    assert carried.passes
    assert [without.family for without in carried.deciding] == ["easy"]
    assert carried.sentence.endswith("Without easy it would not pass.")
    steady = asked(in_families({"a": (98, 100), "b": (97, 100)}), FLOOR)
    assert steady.deciding == []
    assert [without.changed for without in steady.families] == [False, False]
    assert "Without" not in steady.sentence


def test_leaving_a_family_out_is_judging_a_suite_that_never_had_it() -> None:
    sizes = {"a": (28, 30), "b": (20, 30), "c": (44, 50)}
    found = asked(in_families(sizes), FLOOR)
    for without in found.families:
        rest = {name: size for name, size in sizes.items() if name != without.family}
        assert without.outcome is judge(Evidence(in_families(rest)), FLOOR).outcome


def test_a_drop_is_told_family_by_family_from_both_runs() -> None:
    doc = in_families({"a": (100, 100), "b": (40, 50)})
    found = asked(doc, {**DROP, "max_drop": "0.05"})
    assert not found.passes
    assert [without.family for without in found.deciding] == ["b"]


def test_prompts_of_several_families_cannot_be_taken_off() -> None:
    doc = in_families({"a": (30, 30), "b": (30, 30)})
    part = doc["suites"][0]
    part.update(prompt_count=50)
    for who in ("candidate", "champion"):
        part[who]["metrics"] = {metric: counts(50, 50) for metric in documents.METRICS}
    found = asked(doc, FLOOR)
    assert found.families == []
    assert "several families" in found.why_no_families


# rollouts without a score


@pytest.mark.parametrize(
    ("masked", "flips", "ends"), [(0, 6, True), (3, 3, True), (5, 1, True), (9, 4, False)]
)
def test_a_ceiling_counts_rollouts(masked: int, flips: int, ends: bool) -> None:
    doc = one_suite(100 - masked, 100, masked)
    doc["suites"][0]["candidate"].update(scored=100 - masked, masked=masked)
    found = asked(doc, CEILING)
    assert (found.passes, found.flips, found.unit) == (ends, flips, "rollouts")


# what has no such number


@pytest.mark.parametrize(
    "entry",
    [
        {"gate": "candidate_artifact_hash"},
        {"gate": "sealed_eval_hash", "suite": SUITE},
        {"gate": "look_budget", "suite": SUITE, "max_looks": 3},
        {"gate": "human_approval_record"},
        {**FLOOR, "min": "0"},
        {**FLOOR, "suite": "b" * 64},
        {**FLOOR, "gate": "made_up"},
        {**FLOOR, "metric": "made_up"},
    ],
)
def test_gates_that_count_nothing_have_no_fragility(entry: dict[str, Any]) -> None:
    assert fragility(one_suite(90, 100), entry) is None


@pytest.mark.parametrize(
    "change",
    [
        {"subject_digest": "0" * 64},
        {"planned_at": "2026-01-01T00:00:00.000000Z"},
        {"metrics": {}},
        {"planned": -1},
        {"families": {}},
    ],
)
def test_evidence_that_the_gate_cannot_count_gives_no_number(change: dict[str, Any]) -> None:
    doc = one_suite(90, 100)
    doc["suites"][0]["candidate"].update(change)
    assert fragility(doc, FLOOR) is None


def test_a_missing_run_gives_no_number() -> None:
    assert fragility(document(suite(candidate=None)), FLOOR) is None


def test_the_document_is_left_as_it_was() -> None:
    import copy

    doc = in_families({"a": (28, 30), "b": (20, 30)}, missing=1)
    before = copy.deepcopy(doc)
    for entry in (FLOOR, DROP, FAMILIES, CEILING):
        fragility(doc, entry)
    assert doc == before
