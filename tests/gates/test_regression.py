"""At most so many points worse than the champion on the same cases, by integer counts."""

from __future__ import annotations

import pytest

from promotion.gates import Outcome
from tests.gates.documents import counts, decide, document, run, suite, with_counts

GATE = "arena_max_regression"


def drop(
    candidate: int,
    champion: int,
    n: int,
    *,
    max_drop: str = "0.02",
    missing: int = 0,
    champion_missing: int = 0,
) -> Outcome:
    doc = with_counts(GATE, candidate, n, missing, champion=champion, champion_missing=champion_missing)
    return decide(GATE, doc, max_drop=max_drop).outcome


@pytest.mark.parametrize(
    ("candidate", "champion", "n", "max_drop"),
    [
        (96, 98, 100, "0.02"),  # 0.98 - 0.96 > 0.02 as floats: the seed's gate failed here
        (91, 93, 100, "0.02"),
        (48, 49, 50, "0.02"),
        (980, 1000, 1000, "0.02"),
        (66, 100, 100, "0.34"),
        (100, 100, 100, "0"),
    ],
)
def test_a_drop_of_exactly_the_allowed_margin_passes(
    candidate: int, champion: int, n: int, max_drop: str
) -> None:
    assert drop(candidate, champion, n, max_drop=max_drop) is Outcome.PASSED


@pytest.mark.parametrize(("champion", "n"), [(98, 100), (49, 50), (1000, 1000)])
def test_one_case_more_than_the_margin_fails(champion: int, n: int) -> None:
    least = champion - n // 50

    assert drop(least, champion, n) is Outcome.PASSED
    assert drop(least - 1, champion, n) is Outcome.FAILED


def test_a_margin_of_zero_allows_no_case_less() -> None:
    assert drop(50, 50, 100, max_drop="0") is Outcome.PASSED
    assert drop(49, 50, 100, max_drop="0") is Outcome.FAILED


def test_a_better_candidate_passes() -> None:
    assert drop(100, 60, 100) is Outcome.PASSED


def test_two_perfect_models_can_be_compared() -> None:
    assert drop(5, 5, 5, max_drop="0") is Outcome.PASSED


@pytest.mark.parametrize(
    ("candidate", "missing", "champion", "champion_missing", "expected"),
    [
        (96, 4, 98, 0, Outcome.PASSED),  # passes with all four against the candidate
        (95, 5, 98, 0, Outcome.NOT_EVALUATED),
        (90, 6, 98, 0, Outcome.NOT_EVALUATED),
        (90, 5, 98, 0, Outcome.FAILED),  # fails with all five for it
        (96, 0, 97, 1, Outcome.PASSED),  # the champion's masked case counts for the champion
        (96, 0, 97, 2, Outcome.NOT_EVALUATED),
        (94, 0, 97, 3, Outcome.FAILED),
        (96, 0, 90, 10, Outcome.NOT_EVALUATED),
    ],
)
def test_masked_cases_of_either_side_are_bracketed(
    candidate: int, missing: int, champion: int, champion_missing: int, expected: Outcome
) -> None:
    assert drop(candidate, champion, 100, missing=missing, champion_missing=champion_missing) is expected


def test_the_champion_itself_is_no_candidate() -> None:
    doc = document()
    doc["artifact"]["gguf_sha256"] = doc["champion"]["gguf_sha256"]

    outcome = decide(GATE, doc)

    assert outcome.outcome is Outcome.FAILED
    assert "the same bytes" in outcome.reason


def test_without_a_champion_there_is_nothing_to_compare_with() -> None:
    outcome = decide(GATE, document(champion=None))

    assert outcome.outcome is Outcome.NOT_EVALUATED
    assert "Adopt a baseline first" in outcome.reason


@pytest.mark.parametrize("side", ["artifact", "champion"])
def test_without_a_built_file_on_either_side_there_is_nothing_to_compare(side: str) -> None:
    doc = document()
    doc[side]["gguf_sha256"] = None

    assert decide(GATE, doc).outcome is Outcome.NOT_EVALUATED


@pytest.mark.parametrize(
    ("key", "value"),
    [("samples", 2), ("sampling", {"temperature": 1, "max_tokens": 64}), ("scorer", "lenient")],
)
def test_runs_that_were_made_otherwise_are_not_compared(key: str, value: object) -> None:
    changes = {key: value}
    if key == "samples":
        changes |= {"planned": 200, "scored": 200}
    other = run("champion", **changes)

    outcome = decide(GATE, document(suite(champion=other)))

    assert outcome.outcome is Outcome.NOT_EVALUATED
    assert "differ in" in outcome.reason


def test_the_numbers_say_what_would_pass() -> None:
    doc = with_counts(GATE, 90, 100, champion=98)

    numbers = decide(GATE, doc).numbers

    assert (numbers["measured"], numbers["champion"], numbers["meets_with"]) == ("90/100", "98/100", "96/100")
    assert drop(96, 98, 100) is Outcome.PASSED and drop(95, 98, 100) is Outcome.FAILED


def test_what_would_pass_is_never_negative() -> None:
    doc = with_counts(GATE, 0, 100, champion=1)

    assert decide(GATE, doc).numbers["meets_with"] == "0/100"


def test_a_metric_that_no_case_has_is_not_evaluated() -> None:
    nothing = {"tool": counts(0, 0)}
    part = suite(candidate=run(metrics=nothing), champion=run("champion", metrics=nothing))

    assert decide(GATE, document(part)).outcome is Outcome.NOT_EVALUATED


@pytest.mark.parametrize("key", ["build", "config"])
@pytest.mark.parametrize("value", ["another", None])
def test_runs_on_other_servers_or_on_unknown_ones_are_not_compared(key: str, value: object) -> None:
    served = {**run()["served"], key: value}
    doc = document(suite(champion=run("champion", served=served)))
    assert decide(GATE, doc).outcome is Outcome.NOT_EVALUATED

    if value is None:
        both = document(suite(champion=run("champion", served=served), candidate=run(served=served)))
        assert decide(GATE, both).outcome is Outcome.NOT_EVALUATED
