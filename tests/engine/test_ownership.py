"""Each call of a run has one owner, each answered turn is one step, and what it used is counted once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import Sum

from rollouts import overview, selectors
from rollouts.engine import claims
from rollouts.models import (
    CallPurpose,
    CallState,
    Claim,
    EvalRun,
    Invocation,
    InvocationState,
    ModelCall,
    Payload,
    Rollout,
    RolloutState,
    RunState,
)
from rollouts.services import backends, runs, suites
from tests import factories
from tests.engine.conftest import body_of, calls_of, rollout_of
from tests.engine.scripted import Provider, Reply, Seen, completion, right, tool_calls
from tests.engine.test_leases import SlowWorker, vanish

pytestmark = pytest.mark.django_db(transaction=True)
Plan = Callable[..., EvalRun]
PRICES = {"prompt_price": 1_000_000, "completion_price": 2_000_000}  # one and two micro-dollars a token
SEARCH = {"name": "search", "description": "", "parameters": {"type": "object"}}


def worked(run: EvalRun) -> EvalRun:
    runs.work_shard(run.pk)
    run.refresh_from_db()
    return run


def tool_row(*checks: dict[str, Any], tools: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {
        "example_id": "one",
        "family": "tools",
        "messages": [{"role": "user", "content": "one|find it"}],
        "checks": list(checks),
        **({"tools": tools} if tools is not None else {}),
    }


def plan_rows(by: User, url: str, *rows: dict[str, Any], **values: Any) -> EvalRun:
    return runs.plan(
        subject=factories.remote_subject(),
        suite=suites.seal(name="rows", data=factories.jsonl(rows), by=by, scorer="rules"),
        backend=factories.remote_backend(by, url),
        by=by,
        **values,
    )


# owners


def test_an_answered_call_is_one_owned_step_with_its_usage(plan: Plan) -> None:
    run = worked(plan(calls=1, **PRICES))

    call, invocation, rollout = ModelCall.objects.get(), Invocation.objects.get(), Rollout.objects.get()
    assert call.invocation_id == invocation.pk == rollout.answered_by_id
    assert invocation.rollout_id == rollout.pk and rollout.run_id == run.pk
    assert (call.turn, call.attempt, call.purpose) == (0, 1, CallPurpose.POLICY)
    assert (call.prompt_tokens, call.completion_tokens, call.cost_microusd) == (11, 5, 21)
    assert (rollout.prompt_tokens, rollout.completion_tokens, rollout.cost_microusd) == (11, 5, 21)


def test_identical_retries_are_rows_of_their_own(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: right(seen) if seen.nth == 3 else Reply(b"slow down", status=429)
    run = worked(plan(calls=1))

    calls = calls_of(run.rollouts.get())
    assert [(call.attempt, call.status, call.state) for call in calls] == [
        (1, 429, CallState.FAILED),
        (2, 429, CallState.FAILED),
        (3, 200, CallState.ANSWERED),
    ]
    assert len({call.pk for call in calls}) == 3
    assert len({call.invocation_id for call in calls}) == len({call.request_id for call in calls}) == 1
    assert {seen.body for seen in provider.seen} == {body_of(calls[0].request_id)}
    assert Payload.objects.count() == 3  # the request, the refusal, the answer: equal bytes are kept once


@pytest.mark.parametrize("owner", [None, 4711], ids=["nobody", "one that is not there"])
def test_the_database_refuses_a_call_without_an_owner(plan: Plan, owner: int | None) -> None:
    worked(plan(calls=1))

    with pytest.raises(IntegrityError), transaction.atomic():
        ModelCall.objects.update(invocation=owner)


def test_calls_in_flight_together_belong_to_the_rollouts_they_asked_for(
    engineer: User, provider: Provider
) -> None:
    """The same model, overlapping times, answers out of order and retries in between."""

    def answer(seen: Seen) -> Reply:
        time.sleep(0.002 * (seen.number % 7))
        seed = json.loads(seen.body)["seed"]
        if seen.number % 5 == 0:
            return Reply(f"busy {seen.case} {seed}".encode(), status=503)
        return Reply(completion(f"{seen.case} {seed}"))

    provider.answer = answer
    run = runs.plan(
        subject=factories.remote_subject(temperature=0.7),
        suite=factories.suite(engineer, calls=20),
        backend=factories.remote_backend(engineer, provider.url, concurrency=10, max_attempts=5),
        by=engineer,
        samples=2,
    )
    worked(run)

    assert run.scored == 40
    calls = ModelCall.objects.select_related("invocation__rollout__case")
    assert calls.count() == len(provider.seen) > 40
    for call in calls:
        rollout = call.invocation.rollout
        sent = json.loads(body_of(call.request_id))
        assert sent["messages"][-1]["content"].startswith(f"{rollout.case.key}|")
        assert sent["seed"] == rollout.sample_index
        assert f"{rollout.case.key} {rollout.sample_index}" in body_of(call.response_id).decode()
    for rollout in run.rollouts.select_related("case"):
        assert rollout.answer == f"{rollout.case.key} {rollout.sample_index}"


def test_of_a_dialogue_each_answered_turn_is_one_step_and_no_failure_is_one(
    engineer: User, provider: Provider
) -> None:
    def answer(seen: Seen) -> Reply:
        if seen.number in (2, 3):
            return Reply(b"busy", status=503)
        if seen.number < 5:
            return Reply(tool_calls(("search", {"q": f"{seen.number}"})))
        return Reply(completion("found"))

    provider.answer = answer
    run = worked(
        plan_rows(engineer, provider.url, tool_row({"op": "tool_called", "arg": "search"}, tools=[SEARCH]))
    )

    rollout = run.rollouts.get()
    calls = calls_of(rollout)
    assert [(call.turn, call.attempt) for call in calls] == [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1)]
    steps = [call.turn for call in calls if call.state == CallState.ANSWERED]
    assert steps == [0, 1, 2]  # each turn once
    assert {call.invocation_id for call in calls} == {rollout.answered_by_id}
    assert (rollout.prompt_tokens, rollout.completion_tokens) == (33, 15)


def test_a_tool_that_two_checks_want_is_offered_once_and_both_are_scored(
    engineer: User, provider: Provider
) -> None:
    provider.answer = lambda seen: Reply(
        completion("done") if seen.nth == 2 else tool_calls(("search", {"q": "x"}))
    )
    twice = [{"op": "tool_called", "arg": "search"}] * 2
    rollout = worked(plan_rows(engineer, provider.url, tool_row(*twice))).rollouts.get()

    assert [tool["function"]["name"] for tool in json.loads(provider.seen[0].body)["tools"]] == ["search"]
    assert [check["passed"] for check in rollout.details["checks"]] == [True, True]


# again, and too late


def test_running_again_leaves_earlier_executions_and_their_calls_as_they_were(
    plan: Plan, provider: Provider, engineer: User
) -> None:
    provider.answer = lambda seen: Reply(b"no", status=400) if seen.case == "named-call-1" else right(seen)
    run = worked(plan(calls=3))
    executions = list(Invocation.objects.order_by("id").values())
    calls = list(ModelCall.objects.order_by("id").values())
    provider.answer = right

    runs.run_again(run_id=run.pk, by=engineer)
    worked(run)

    assert run.scored == 3
    assert list(Invocation.objects.order_by("id").values())[:3] == executions
    assert list(ModelCall.objects.order_by("id").values())[:3] == calls
    again = rollout_of(run, "named-call-1")
    assert [call.state for call in calls_of(again)] == [CallState.FAILED, CallState.ANSWERED]
    assert again.answered_by_id == Invocation.objects.order_by("id")[3].pk


def test_an_answer_that_came_too_late_keeps_its_usage_and_is_in_the_sum(
    plan: Plan, provider: Provider
) -> None:
    """The provider bills both calls: that of the worker that was lost, and that of the one that took over."""
    provider.answer = lambda seen: (
        Reply(completion("too late", usage={"prompt_tokens": 100, "completion_tokens": 50}), hang=True)
        if seen.nth == 1
        else right(seen)
    )
    run = plan(calls=1, **PRICES)
    slow = SlowWorker(run, provider)
    provider.wait_for(1)
    vanish(Claim.objects.get().pk)
    claims.expire_leases()
    worked(run)
    slow.let_go()

    late, answered = calls_of(run.rollouts.get())
    assert (late.prompt_tokens, late.completion_tokens, late.cost_microusd) == (100, 50, 200)
    assert (answered.prompt_tokens, answered.completion_tokens, answered.cost_microusd) == (11, 5, 21)
    rollout = run.rollouts.get()
    assert (rollout.prompt_tokens, rollout.completion_tokens) == (11, 5)  # of the answer that counts
    assert selectors.progress(run.pk).cost_microusd == 221


def test_the_same_request_is_never_answered_twice_for_one_rollout(plan: Plan, provider: Provider) -> None:
    """After lost workers and retries a rollout has one answered call that is scored: that of `answered_by`."""
    provider.answer = lambda seen: (
        Reply(right(seen).body, hang=seen.nth == 1) if seen.nth != 2 else Reply(b"busy", status=503)
    )
    run = plan(calls=2, concurrency=2)
    slow = SlowWorker(run, provider)
    provider.wait_for(2)
    vanish(Claim.objects.get().pk)
    claims.expire_leases()
    worked(run)
    slow.let_go()

    assert (run.state, run.scored) == (RunState.SCORED, 2)
    for rollout in run.rollouts.all():
        finished = rollout.invocations.filter(state=InvocationState.FINISHED)
        assert [row.pk for row in finished] == [rollout.answered_by_id]
        steps = ModelCall.objects.filter(invocation=rollout.answered_by, state=CallState.ANSWERED)
        assert steps.count() == 1


# sums


def test_usage_is_the_providers_to_the_token(plan: Plan, provider: Provider) -> None:
    used = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 9_999}
    provider.answer = lambda seen: Reply(completion(seen.right_answer, usage=used))
    run = worked(plan(calls=1, budget={"tokens": 10_000}, **PRICES))

    rollout = run.rollouts.get()
    assert (rollout.prompt_tokens, rollout.completion_tokens, rollout.cost_microusd) == (100, 50, 200)
    assert run.spent_tokens == 150


@pytest.mark.parametrize(
    ("usage", "kept"),
    [({"prompt_tokens": 7}, (7, None)), ({"completion_tokens": 7}, (None, 7)), ({}, (None, None))],
)
def test_half_a_usage_is_no_sum_and_no_cost(
    plan: Plan, provider: Provider, usage: dict[str, int], kept: tuple[int | None, int | None]
) -> None:
    provider.answer = lambda seen: Reply(completion(seen.right_answer, usage=usage))
    run = worked(plan(calls=1, budget={"tokens": 10_000}, **PRICES))

    call, rollout = ModelCall.objects.get(), run.rollouts.get()
    assert (call.prompt_tokens, call.completion_tokens) == kept
    assert (rollout.prompt_tokens, rollout.completion_tokens) == kept
    assert call.cost_microusd is None and rollout.cost_microusd is None
    # what is unknown is spent whole
    assert run.spent_tokens == len(provider.seen[0].body) + 64


def test_sums_leave_out_what_is_unknown(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: (
        Reply(completion(seen.right_answer, usage=None)) if seen.case == "named-call-1" else right(seen)
    )
    run = worked(plan(calls=3, **PRICES))

    assert sorted(run.rollouts.values_list("prompt_tokens", flat=True), key=str) == [11, 11, None]
    assert selectors.progress(run.pk).cost_microusd == 42
    assert not ModelCall.objects.filter(prompt_tokens=0).exists()


def test_the_costs_of_all_calls_add_up_to_the_runs(engineer: User, provider: Provider) -> None:
    """Answers, retries that were billed nothing, and a judge's calls: nothing is missing and nothing double."""
    row = {**tool_row(), "rubric": "It greets."}
    del row["checks"]
    rows = [
        {**row, "example_id": f"{number}", "messages": [{"role": "user", "content": f"{number}|greet"}]}
        for number in range(6)
    ]
    provider.answer = lambda seen: (
        Reply(b"busy", status=503) if seen.number % 4 == 0 else Reply(completion("Hello!"))
    )
    judged = json.dumps({"score": 1, "reason": "It does."})
    with Provider(lambda seen: Reply(completion(judged))).running() as judge:
        run = runs.plan(
            subject=factories.remote_subject(),
            suite=suites.seal(name="judged", data=factories.jsonl(rows), by=engineer, scorer="judge"),
            backend=factories.remote_backend(engineer, provider.url, **PRICES),
            by=engineer,
            judge=runs.Judge(
                backends.save(
                    name="judges",
                    kind="openai_compatible",
                    config={"base_url": judge.url},
                    by=engineer,
                    **PRICES,
                ),
                "judge-1",
            ),
        )
        worked(run)

    assert run.scored == 6
    of_calls = ModelCall.objects.aggregate(n=Sum("cost_microusd"))["n"]
    of_rollouts = run.rollouts.aggregate(n=Sum("cost_microusd"))["n"]
    assert of_calls == of_rollouts == selectors.progress(run.pk).cost_microusd == 12 * 21
    assert ModelCall.objects.filter(purpose=CallPurpose.JUDGE).count() == 6
    assert ModelCall.objects.filter(state=CallState.FAILED).count() > 0


def test_a_masked_rollout_says_why_and_counts_in_no_metric(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: (
        Reply(b"x" * 5000, status=400) if seen.case == "named-call-1" else right(seen)
    )
    run = worked(plan(calls=3))

    failed = rollout_of(run, "named-call-1")
    assert (failed.state, failed.failure_kind) == (RolloutState.MASKED, "bad_request")
    assert failed.failure_reason.startswith("HTTP 400: xxx") and len(failed.failure_reason) <= 2000
    summary = overview.run_summary(run)
    assert {metric.n for metric in summary.metrics if metric.name != "safe"} == {2}
    assert summary.states["masked"] == 1
