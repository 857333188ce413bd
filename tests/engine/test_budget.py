"""Budgets and pace are reserved before a call is sent, over all workers."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections

from rollouts.errors import InvalidInput
from rollouts.models import Claim, EvalRun, ModelCall, Rollout, RolloutState, RunState
from rollouts.services import runs
from tests.engine.scripted import Provider, Reply, completion, right

pytestmark = pytest.mark.django_db(transaction=True)
Plan = Callable[..., EvalRun]
PRICES = {"prompt_price": 1_000_000, "completion_price": 2_000_000}


def worked(run: EvalRun) -> EvalRun:
    runs.work_shard(run.pk)
    run.refresh_from_db()
    return run


def kinds(run: EvalRun) -> Counter[tuple[str, str]]:
    return Counter(run.rollouts.values_list("state", "failure_kind"))


def in_threads(run: EvalRun, number: int) -> None:
    def work() -> None:
        try:
            runs.work_shard(run.pk)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def test_no_call_beyond_the_budget_is_made_even_with_several_workers(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: time.sleep(0.02) or right(seen)
    run = plan(calls=40, budget={"calls": 17}, concurrency=4)

    in_threads(run, 4)

    run.refresh_from_db()
    assert len(provider.seen) == 17 == run.spent_calls
    assert kinds(run) == {("scored", ""): 17, ("unscored", "budget"): 23}
    assert (run.state, run.scored, run.unscored) == (RunState.SCORED, 17, 23)


def test_retries_count(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(b"busy", status=503)
    run = worked(plan(calls=3, budget={"calls": 4}, concurrency=1))

    assert len(provider.seen) == 4
    # what failed at the provider says so; what was never asked says budget
    assert kinds(run) == {("masked", "server"): 2, ("unscored", "budget"): 1}


def test_tokens_are_settled_with_what_was_used(plan: Plan, provider: Provider) -> None:
    """The bound of one call is its request's bytes and max_tokens; 16 tokens are used."""
    run = worked(plan(calls=30, budget={"tokens": 500}, concurrency=1))

    scored = run.rollouts.filter(state=RolloutState.SCORED).count()
    assert run.spent_tokens == 16 * scored
    assert run.spent_tokens <= 500 < run.spent_tokens + len(provider.seen[-1].body) + 64
    assert run.rollouts.filter(failure_kind="budget").count() == 30 - scored > 0


def test_a_call_that_says_no_usage_spends_its_whole_bound(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(completion(seen.right_answer, usage=None))
    run = worked(plan(calls=5, budget={"tokens": 900}, concurrency=1))

    bodies = [len(seen.body) + 64 for seen in provider.seen]
    assert run.spent_tokens == sum(bodies) <= 900
    assert run.rollouts.filter(failure_kind="budget").exists()


def test_money_is_counted_in_prices_of_the_backend(plan: Plan, provider: Provider) -> None:
    run = worked(plan(calls=3, budget={"microusd": 1_000_000}, **PRICES))

    assert run.spent_microusd == 3 * 21
    assert kinds(run) == {("scored", ""): 3}


def test_money_that_is_too_little_for_one_call_buys_none(plan: Plan, provider: Provider) -> None:
    run = worked(plan(calls=3, budget={"microusd": 5}, **PRICES))

    assert provider.seen == []
    assert kinds(run) == {("unscored", "budget"): 3}


def test_wall_time_ends_a_run(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: time.sleep(0.3) or right(seen)
    run = worked(plan(calls=40, budget={"wall_s": 1}, concurrency=1))

    assert 2 <= len(provider.seen) <= 6
    assert kinds(run)[("unscored", "budget")] == 40 - len(provider.seen)


def test_a_budget_is_allowed_once_more_when_the_run_goes_on(
    plan: Plan, engineer: User, provider: Provider
) -> None:
    run = worked(plan(calls=5, budget={"calls": 2}))
    runs.run_again(run_id=run.pk, by=engineer)

    worked(run)

    assert len(provider.seen) == 4
    assert kinds(run) == {("scored", ""): 4, ("unscored", "budget"): 1}


def test_a_lost_workers_calls_are_spent(plan: Plan, provider: Provider) -> None:
    from rollouts.engine import claims
    from tests.engine.test_leases import SlowWorker, vanish

    provider.answer = lambda seen: Reply(right(seen).body, hang=True)
    run = plan(calls=1, budget={"tokens": 5000, "calls": 2})
    slow = SlowWorker(run, provider)
    provider.wait_for(1)
    reserved = Claim.objects.get().reserved_tokens
    assert reserved == len(provider.seen[0].body) + 64
    vanish(Claim.objects.get().pk)

    claims.expire_leases()
    slow.let_go()

    run.refresh_from_db()
    assert (run.spent_calls, run.spent_tokens) == (1, reserved)
    assert Claim.objects.get().reserved_tokens == 0


@pytest.mark.parametrize(
    ("budget", "field"),
    [
        ({"calls": 0}, "budget.calls"),
        ({"calls": True}, "budget.calls"),
        ({"tokens": 1.5}, "budget.tokens"),
        ({"dollars": 5}, "budget.dollars"),
        ({"microusd": 5}, "budget.microusd"),  # the backend has no prices
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(plan: Plan, budget: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        plan(calls=1, budget=budget)

    assert refused.value.field == field
    assert not EvalRun.objects.exists()


def test_requests_keep_the_backends_pace_over_several_workers(plan: Plan, provider: Provider) -> None:
    run = plan(calls=12, concurrency=4, requests_per_minute=600)

    in_threads(run, 3)

    times = sorted(seen.at for seen in provider.seen)
    assert len(times) == 12
    # ten a second: no window of half a second holds more than six
    assert all(later - earlier > 0.45 for earlier, later in zip(times, times[6:], strict=False))
    assert Rollout.objects.filter(state=RolloutState.SCORED).count() == 12


def test_a_retry_waits_for_its_turn_too(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(b"busy", status=503) if seen.number == 1 else right(seen)
    worked(plan(calls=1, requests_per_minute=120))

    first, second = (seen.at for seen in provider.seen)
    assert second - first >= 0.45
    assert ModelCall.objects.count() == 2


def test_what_the_pace_leaves_no_time_for_is_not_taken_and_given_back(
    plan: Plan, provider: Provider, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow pace waits for hours: rollouts written twice at every look would swell the database."""
    from rollouts.engine import claims

    given_back: list[int] = []
    real = claims.give_back
    monkeypatch.setattr(claims, "give_back", lambda ids: (given_back.extend(ids), real(ids)))
    settings.SHARD_SECONDS = 1
    run = plan(calls=5, requests_per_minute=1)

    assert runs.work_shard(run.pk) == 1

    assert (len(provider.seen), given_back) == (1, [])
    assert kinds(run) == {("scored", ""): 1, ("queued", ""): 4}


def test_a_paced_shard_ends_when_nothing_is_queued(plan: Plan, provider: Provider) -> None:
    run = plan(calls=1, requests_per_minute=1)
    start = time.monotonic()

    worked(run)

    assert run.state == RunState.SCORED
    assert time.monotonic() - start < 10  # not the minute until the next turn
