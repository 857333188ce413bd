"""A judge's failure is never the model's 0, and the model under test is never its own judge."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User

from rollouts.errors import Conflict, InvalidInput
from rollouts.models import Backend, CallPurpose, EvalRun, Invocation, ModelCall, Rollout, RolloutState
from rollouts.services import backends, runs, suites
from tests import factories
from tests.engine.conftest import calls_of
from tests.engine.scripted import Provider, Reply, Seen, completion

pytestmark = pytest.mark.django_db(transaction=True)
Plan = Callable[..., EvalRun]
ROW = {
    "example_id": "one",
    "family": "prose",
    "messages": [{"role": "user", "content": "one|say hello"}],
    "rubric": "It greets.",
}


def judgement(score: Any, reason: str = "It does.") -> Reply:
    return Reply(completion(json.dumps({"score": score, "reason": reason})))


@pytest.fixture
def judge() -> Iterator[Provider]:
    """The judge's endpoint; its case keys are not read."""
    with Provider(lambda seen: judgement(0.9)).running() as running:
        yield running


def judges(engineer: User, judge: Provider, **limits: Any) -> Backend:
    limits = {"timeout_s": 5, "concurrency": 2, "max_attempts": 2, **limits}
    return backends.save(
        name="judges", kind="openai_compatible", config={"base_url": judge.url}, by=engineer, **limits
    )


@pytest.fixture
def plan_judged(engineer: User, provider: Provider, judge: Provider) -> Plan:
    def make(rows: list[dict[str, Any]] | None = None, *, model: str = "judge-1", **values: Any) -> EvalRun:
        limits = values.pop("limits", {})
        return runs.plan(
            subject=factories.remote_subject(),
            suite=suites.seal(name="prose", data=factories.jsonl(rows or [ROW]), by=engineer, scorer="judge"),
            backend=factories.remote_backend(engineer, provider.url),
            by=engineer,
            judge=runs.Judge(judges(engineer, judge, **limits), model),
            **values,
        )

    provider.answer = lambda seen: Reply(completion("Hello!"))
    return make


def worked(run: EvalRun) -> Rollout:
    runs.work_shard(run.pk)
    run.refresh_from_db()
    return run.rollouts.get()


def test_a_judge_scores_an_answer_and_its_call_is_owned_and_captured(
    plan_judged: Plan, judge: Provider
) -> None:
    rollout = worked(plan_judged())

    assert (rollout.state, rollout.exact, rollout.score) == (RolloutState.SCORED, True, 0.9)
    assert [(call.purpose, call.turn, call.state) for call in calls_of(rollout)] == [
        (CallPurpose.POLICY, 0, "answered"),
        (CallPurpose.JUDGE, 1, "answered"),
    ]
    asked = json.loads(judge.seen[0].body)
    assert asked["model"] == "judge-1"
    assert "Hello!" in str(asked["messages"]) and "It greets." in str(asked["messages"])


def test_a_low_score_is_a_wrong_answer(plan_judged: Plan, judge: Provider) -> None:
    judge.answer = lambda seen: judgement(0.3)
    rollout = worked(plan_judged())

    assert (rollout.state, rollout.exact, rollout.score) == (RolloutState.SCORED, False, 0.3)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(b"down", status=503),
        Reply(b"who are you", status=401),
        Reply(completion("I like it.")),
        Reply(completion('{"score": 7, "reason": "seven"}')),
        Reply(completion('{"score": NaN, "reason": "?"}')),
        Reply(completion('{"score": true, "reason": "?"}')),
        Reply(completion(None)),
    ],
    ids=["503", "401", "prose", "seven", "nan", "true", "nothing"],
)
def test_a_judge_that_fails_leaves_the_answer_unscored(
    plan_judged: Plan, judge: Provider, reply: Reply
) -> None:
    judge.answer = lambda seen: reply
    rollout = worked(plan_judged())

    assert (rollout.state, rollout.failure_kind) == (RolloutState.UNSCORED, "judge")
    assert (rollout.exact, rollout.score, rollout.answer) == (None, None, "Hello!")
    assert (rollout.prompt_tokens, rollout.completion_tokens) == (11, 5)  # the model's, not the judge's


def test_judging_again_asks_the_judge_alone(
    plan_judged: Plan, engineer: User, provider: Provider, judge: Provider
) -> None:
    judge.answer = lambda seen: Reply(completion("?"))
    run = plan_judged()
    worked(run)
    judge.answer = lambda seen: judgement(1)

    runs.run_again(run_id=run.pk, by=engineer)
    rollout = worked(run)

    assert (rollout.state, rollout.score, rollout.answer) == (RolloutState.SCORED, 1.0, "Hello!")
    assert len(provider.seen) == 1
    assert len(judge.seen) == 2
    assert Invocation.objects.count() == 2
    assert rollout.answered_by == Invocation.objects.order_by("id").first()


@pytest.mark.parametrize(
    "answer",
    [completion("Hel", finish_reason="length"), completion(""), completion("  ")],
    ids=["truncated", "empty", "blank"],
)
def test_an_answer_that_is_none_is_wrong_without_asking_the_judge(
    plan_judged: Plan, provider: Provider, judge: Provider, answer: bytes
) -> None:
    provider.answer = lambda seen: Reply(answer)
    rollout = worked(plan_judged())

    assert (rollout.state, rollout.exact) == (RolloutState.SCORED, False)
    assert judge.seen == []


def test_a_model_that_failed_is_masked_and_not_judged(
    plan_judged: Plan, provider: Provider, judge: Provider
) -> None:
    provider.answer = lambda seen: Reply(b"no", status=400)
    rollout = worked(plan_judged())

    assert (rollout.state, rollout.failure_kind) == (RolloutState.MASKED, "bad_request")
    assert judge.seen == []


@pytest.mark.parametrize("name", ["scripted-model", "Scripted-Model", "lab/scripted-model"])
def test_the_model_under_test_is_refused_as_its_own_judge(plan_judged: Plan, name: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        plan_judged(model=name)

    assert refused.value.field == "judge.model"
    assert not EvalRun.objects.exists()


def test_a_judged_suite_without_a_judge_is_refused(engineer: User, provider: Provider) -> None:
    with pytest.raises(InvalidInput) as refused:
        runs.plan(
            subject=factories.remote_subject(),
            suite=suites.seal(name="prose", data=factories.jsonl([ROW]), by=engineer, scorer="judge"),
            backend=factories.remote_backend(engineer, provider.url),
            by=engineer,
        )

    assert refused.value.field == "judge"


def test_a_judge_of_a_suite_that_needs_none_is_refused(
    engineer: User, provider: Provider, judge: Provider
) -> None:
    with pytest.raises(InvalidInput) as refused:
        runs.plan(
            subject=factories.remote_subject(),
            suite=factories.suite(engineer),
            backend=factories.remote_backend(engineer, provider.url),
            by=engineer,
            judge=runs.Judge(judges(engineer, judge), "judge-1"),
        )

    assert refused.value.field == "judge"


def test_another_judge_is_another_plan(plan_judged: Plan, engineer: User) -> None:
    digests = set()
    for model in ("judge-1", "judge-2"):
        run = plan_judged(model=model)
        digests.add(run.plan_digest)
        runs.cancel(run_id=run.pk, by=engineer)

    assert len(digests) == 2


def test_a_reused_answer_is_still_judged(plan_judged: Plan, provider: Provider, judge: Provider) -> None:
    first = worked(plan_judged())
    again = worked(plan_judged(reuse=True))

    assert len(provider.seen) == 1
    assert len(judge.seen) == 2
    assert (again.answered_by_id, again.score) == (first.answered_by_id, 0.9)
    assert [call.purpose for call in calls_of(again)] == [CallPurpose.JUDGE]


def test_a_judges_tokens_count_in_money_and_not_as_the_models(plan_judged: Plan) -> None:
    prices = {"prompt_price": 1_000_000, "completion_price": 1_000_000}
    rollout = worked(plan_judged(limits=prices))

    assert (rollout.prompt_tokens, rollout.completion_tokens) == (11, 5)
    assert rollout.cost_microusd == 16  # the model's own backend has no prices
    assert ModelCall.objects.get(purpose=CallPurpose.JUDGE).cost_microusd == 16


def test_no_more_judgements_are_asked_at_once_than_the_judge_takes(
    plan_judged: Plan, judge: Provider
) -> None:
    at_once: list[int] = []
    open_now: list[int] = []

    def answer(seen: Seen) -> Reply:
        import time

        open_now.append(1)
        at_once.append(len(open_now))
        time.sleep(0.05)
        open_now.pop()
        return judgement(1)

    judge.answer = answer
    rows = [
        {**ROW, "example_id": f"{number}", "messages": [{"role": "user", "content": f"{number}|hello"}]}
        for number in range(6)
    ]
    run = plan_judged(rows)
    runs.work_shard(run.pk)

    assert len(judge.seen) == 6
    assert max(at_once) <= 2


def test_a_judged_run_is_not_scored_again_without_calls(plan_judged: Plan, engineer: User) -> None:
    run = plan_judged()
    worked(run)

    with pytest.raises(Conflict):
        runs.rescore(run_id=run.pk, by=engineer)
