"""Latency and memory, measured by the run itself; what was not measured is never small."""

from __future__ import annotations

from typing import Any

import pytest

from promotion.gates import Outcome
from tests.gates.documents import MIB, decide, whole, with_run
from tests.gates.refused import with_missing

GATE = "latency_memory_budget"


def timed(p95: Any, n: Any = 200) -> dict[str, Any]:
    return with_run(whole(), latency_ms={"p50": 12, "p95": p95, "n": n})


@pytest.mark.parametrize(
    ("p95", "expected"), [(1, Outcome.PASSED), (500, Outcome.PASSED), (501, Outcome.FAILED)]
)
def test_the_95th_percentile_must_be_within_the_limit(p95: int, expected: Outcome) -> None:
    assert decide(GATE, timed(p95)).outcome is expected


@pytest.mark.parametrize(
    ("peak", "expected"),
    [(1, Outcome.PASSED), (512 * MIB, Outcome.PASSED), (512 * MIB + 1, Outcome.FAILED)],
)
def test_the_peak_of_memory_must_be_within_the_limit(peak: int, expected: Outcome) -> None:
    assert decide(GATE, with_run(whole(), peak_memory_bytes=peak)).outcome is expected


def test_without_a_limit_memory_is_not_asked_for() -> None:
    doc = with_run(whole(), peak_memory_bytes=None)

    assert decide(GATE, doc).outcome is Outcome.NOT_EVALUATED
    assert decide(GATE, doc, max_memory_mib=None).outcome is Outcome.PASSED


@pytest.mark.parametrize("doc", [timed(None), timed(None, 0), timed(12, None)])
def test_what_was_not_measured_is_not_evaluated(doc: dict[str, Any]) -> None:
    assert decide(GATE, doc).outcome is Outcome.NOT_EVALUATED


def test_a_rollout_without_a_time_may_have_been_the_slowest() -> None:
    """Time-outs are masked: without them the percentile would be that of the fast ones."""
    assert decide(GATE, timed(12, 199)).outcome is Outcome.NOT_EVALUATED
    assert decide(GATE, with_missing(1)).outcome is Outcome.NOT_EVALUATED


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, "12", 12.5, True])
def test_a_number_that_cannot_be_does_not_pass(value: Any) -> None:
    assert decide(GATE, timed(value)).outcome is Outcome.ERROR
    assert decide(GATE, timed(12, value)).outcome in (Outcome.ERROR, Outcome.NOT_EVALUATED)
    assert decide(GATE, with_run(whole(), peak_memory_bytes=value)).outcome in (
        Outcome.ERROR,
        Outcome.NOT_EVALUATED,
    )


def test_everything_over_the_budget_is_named() -> None:
    found = decide(GATE, with_run(timed(900), peak_memory_bytes=600 * MIB))

    assert found.reason == "Over the budget: p95 900 ms of 500 ms; memory 600 MiB of 512 MiB."
    assert found.numbers["measured"] == "p95 900 ms, 600 MiB"
