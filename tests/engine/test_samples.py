"""Samples of cases: each is asked for itself, side by side up to the limit, and n is what was measured."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User

from rollouts import overview
from rollouts.models import EvalRun, ModelCall, RolloutState, RunState
from rollouts.services import runs
from tests import factories
from tests.engine.conftest import body_of, calls_of
from tests.engine.scripted import Provider, Reply, Seen, completion, right

pytestmark = pytest.mark.django_db(transaction=True)
Plan = Callable[..., EvalRun]


def worked(run: EvalRun) -> EvalRun:
    runs.work_shard(run.pk)
    run.refresh_from_db()
    return run


def seed_of(seen: Seen) -> int:
    return int(json.loads(seen.body)["seed"])


@pytest.fixture
def plan_drawn(engineer: User, provider: Provider) -> Plan:
    """Runs whose samples are drawn: at a temperature, with a seed of 10 and up."""

    def make(*, calls: int, samples: int, model: str = "scripted-model", **limits: Any) -> EvalRun:
        return runs.plan(
            subject=factories.remote_subject(model, temperature=0.7, seed=10),
            suite=factories.suite(engineer, calls=calls),
            backend=factories.remote_backend(engineer, provider.url, **limits),
            by=engineer,
            samples=samples,
        )

    return make


def test_each_sample_has_its_own_seed_and_it_is_captured(plan_drawn: Plan, provider: Provider) -> None:
    run = worked(plan_drawn(calls=2, samples=3))

    found = set()
    for rollout in run.rollouts.select_related("case"):
        (call,) = calls_of(rollout)
        sent = json.loads(body_of(call.request_id))
        found.add((rollout.case.key, rollout.sample_index, sent["seed"]))
    assert found == {(f"named-call-{case}", sample, 10 + sample) for case in (0, 1) for sample in (0, 1, 2)}
    assert len({seen.body for seen in provider.seen}) == 6


def test_a_sample_asked_again_has_the_seed_it_had(
    plan_drawn: Plan, provider: Provider, engineer: User
) -> None:
    provider.answer = lambda seen: Reply(b"no", status=400) if seed_of(seen) == 11 else right(seen)
    run = worked(plan_drawn(calls=1, samples=3))
    provider.answer = right

    runs.run_again(run_id=run.pk, by=engineer)
    worked(run)

    assert run.scored == 3
    assert sorted(map(seed_of, provider.seen)) == [10, 11, 11, 12]
    first, second = calls_of(run.rollouts.get(sample_index=1))
    assert first.request_id == second.request_id


def test_of_a_hundred_rollouts_never_more_than_the_limit_are_in_flight(
    plan: Plan, provider: Provider
) -> None:
    lock, now, most = threading.Lock(), [0], [0]

    def slow(seen: Seen) -> Reply:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.01)
        with lock:
            now[0] -= 1
        return Reply(b"busy", status=503) if seen.number % 10 == 0 else right(seen)

    provider.answer = slow
    run = worked(plan(calls=50, samples=2, concurrency=4, max_attempts=8))

    assert run.scored == 100
    assert most[0] == 4


def test_one_at_a_time_and_eight_at_a_time_come_to_the_same(plan_drawn: Plan, provider: Provider) -> None:
    def answer(seen: Seen) -> Reply:
        time.sleep(0.002 * (seen.number % 3))
        lucky = (seed_of(seen) + len(seen.case) + int(seen.case[-1])) % 3
        return right(seen) if lucky else Reply(completion("no idea"))

    provider.answer = answer
    found = []
    for concurrency in (1, 8):
        run = worked(plan_drawn(calls=6, samples=4, concurrency=concurrency))
        found.append(set(run.rollouts.values_list("case__key", "sample_index", "exact", "answer")))

    assert found[0] == found[1] and len(found[0]) == 24
    assert Counter(exact for _, _, exact, _ in found[0]) == {True: 16, False: 8}


def test_a_sample_that_fails_leaves_its_siblings(plan_drawn: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: (
        Reply(b"no", status=400)
        if seed_of(seen) == 12
        else Reply(completion("no idea"))
        if seed_of(seen) == 11
        else right(seen)
    )
    run = worked(plan_drawn(calls=1, samples=4))

    outcomes = run.rollouts.order_by("sample_index").values_list("state", "exact")
    assert list(outcomes) == [("scored", True), ("scored", False), ("masked", None), ("scored", True)]
    repeats = overview.run_summary(run).repeats
    assert repeats is not None
    assert (repeats.disagree, repeats.answers, repeats.distinct_answers) == (1, 3, 2)
    assert repeats.mean_rate == pytest.approx(2 / 3)


def test_of_five_cases_with_four_samples_a_masked_one_reduces_the_n_of_its_case(
    plan_drawn: Plan, provider: Provider
) -> None:
    def answer(seen: Seen) -> Reply:
        if seen.case == "named-call-0" and seed_of(seen) == 12:
            return Reply(b"no", status=400)
        if seen.case == "named-call-1" and seed_of(seen) < 12:
            return Reply(completion("no idea"))
        return right(seen)

    provider.answer = answer
    run = worked(plan_drawn(calls=5, samples=4))

    summary = overview.run_summary(run)
    exact = next(metric for metric in summary.metrics if metric.name == "exact")
    assert (run.planned, run.scored, run.masked) == (20, 19, 1)
    assert (exact.right, exact.n, summary.states["masked"]) == (17, 19, 1)
    assert summary.repeats is not None
    # by case: 3 of 3, 2 of 4, and three times 4 of 4
    assert summary.repeats.mean_rate == pytest.approx((1 + 1 / 2 + 3) / 5)
    at = {row.k: row for row in summary.repeats.pass_at}
    assert (at[2].n, at[2].skipped) == (5, 0)
    assert at[2].value == pytest.approx((1 + (1 - 1 / 6) + 3) / 5)
    assert (at[4].n, at[4].skipped, at[4].value) == (4, 1, 1.0)  # the masked one's case has three samples


def test_of_five_samples_with_one_masked_and_three_right_two_always_hold_a_right_one(
    plan_drawn: Plan, provider: Provider
) -> None:
    provider.answer = lambda seen: (
        Reply(b"no", status=400)
        if seed_of(seen) == 10
        else Reply(completion("no idea"))
        if seed_of(seen) == 11
        else right(seen)
    )
    run = worked(plan_drawn(calls=1, samples=5))

    repeats = overview.run_summary(run).repeats
    assert repeats is not None
    assert next(row.value for row in repeats.pass_at if row.k == 2) == 1.0


def test_scores_are_of_what_was_measured_and_the_masked_are_counted_beside_them(
    plan: Plan, provider: Provider
) -> None:
    def answer(seen: Seen) -> Reply:
        number = int(seen.case.rsplit("-", 1)[1])
        if number < 4:
            return Reply(b"down", status=500)
        return right(seen) if number < 7 else Reply(completion("no idea"))

    provider.answer = answer
    run = worked(plan(calls=10, max_attempts=1))

    summary = overview.run_summary(run)
    exact = next(metric for metric in summary.metrics if metric.name == "exact")
    assert (exact.right, exact.wrong, exact.n) == (3, 3, 6)
    assert [(failure.state, failure.kind, failure.n) for failure in summary.failures] == [
        ("masked", "server", 4)
    ]
    assert "many_masked" in {flag.code for flag in summary.flags}


def test_of_a_hundred_rollouts_one_that_fails_leaves_the_others(plan: Plan, provider: Provider) -> None:
    page = b"<html>" + b"broken " * 1000
    provider.answer = lambda seen: Reply(page, status=500) if seen.case == "named-call-42" else right(seen)
    run = worked(plan(calls=100, concurrency=16, max_attempts=2))

    assert (run.state, run.scored, run.masked) == (RunState.SCORED, 99, 1)
    failed = run.rollouts.get(state=RolloutState.MASKED)
    assert (failed.case.key, failed.failure_kind) == ("named-call-42", "server")
    calls = calls_of(failed)
    assert [(call.status, call.error_kind) for call in calls] == [(500, "server")] * 2
    assert all(len(call.error_text) <= 2000 and body_of(call.response_id) == page for call in calls)


def test_failures_of_an_earlier_run_do_not_count_in_the_next(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(b"no", status=400)
    earlier = worked(plan(calls=3))
    provider.answer = right

    later = worked(plan(calls=3))

    assert (earlier.masked, later.masked, later.scored) == (3, 0, 3)
    assert overview.run_summary(later).failures == []
    assert ModelCall.objects.filter(invocation__rollout__run=later).count() == 3


def test_a_plan_is_as_many_rollouts_and_calls_as_cases_times_samples(plan: Plan, provider: Provider) -> None:
    run = plan(calls=6, samples=4)
    assert (run.planned, run.rollouts.count(), provider.seen) == (24, 24, [])

    worked(run)

    assert len(provider.seen) == ModelCall.objects.count() == run.planned
