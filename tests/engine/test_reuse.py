"""An attempt's answer is taken again only by runs that ask for it, and only while it can be trusted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.utils import timezone

from rollouts.engine import runner
from rollouts.models import EvalRun, Invocation, ModelCall, Rollout, RolloutState, RunState
from rollouts.services import backends, runs
from tests import factories
from tests.engine.conftest import rollout_of
from tests.engine.scripted import Provider, Reply, completion, right

pytestmark = pytest.mark.django_db(transaction=True)
Plan = Callable[..., EvalRun]
PRICES = {"prompt_price": 1_000_000, "completion_price": 2_000_000}  # one and two micro-dollars a token


def worked(run: EvalRun) -> EvalRun:
    runs.work_shard(run.pk)
    run.refresh_from_db()
    return run


def states(run: EvalRun) -> Counter[str]:
    return Counter(run.rollouts.values_list("state", flat=True))


def test_every_sample_of_a_case_is_a_call_of_its_own(plan: Plan, provider: Provider) -> None:
    run = worked(plan(calls=1, samples=4))

    assert len(provider.seen) == 4
    assert states(run) == {RolloutState.SCORED: 4}
    assert len(set(run.rollouts.values_list("attempt_key", flat=True))) == 4


def test_samples_asked_before_are_not_asked_again(plan: Plan, provider: Provider) -> None:
    """Samples 0, 1, 2, then 0 and 1 again: three calls, and the same sample has the same answer."""
    provider.answer = lambda seen: Reply(completion(f"answer {seen.number}"))
    first = worked(plan(calls=1, samples=3, reuse=True))

    again = worked(plan(calls=1, samples=2, reuse=True))

    assert len(provider.seen) == 3
    for sample in (0, 1):
        mine, origin = (rollout_of(run, "named-call-0", sample) for run in (again, first))
        assert (mine.answer, mine.answered_by_id) == (origin.answer, origin.answered_by_id)


def test_sample_zero_has_the_key_of_plain_scoring(plan: Plan, provider: Provider) -> None:
    """After an ordinary run of one sample, four samples cost three calls."""
    worked(plan(calls=1, samples=1))

    again = worked(plan(calls=1, samples=4, reuse=True))

    assert len(provider.seen) == 4
    reused = again.rollouts.get(sample_index=0)
    assert reused.answered_by is not None and reused.answered_by.rollout.run_id != again.pk


def test_a_run_that_does_not_ask_for_it_takes_no_answer(plan: Plan, provider: Provider) -> None:
    worked(plan(calls=2))
    worked(plan(calls=2))

    assert len(provider.seen) == 4


def test_a_reused_answer_costs_nothing_and_says_what_it_avoided(plan: Plan, provider: Provider) -> None:
    paid = worked(plan(calls=1, **PRICES))
    reused = worked(plan(calls=1, reuse=True, **PRICES))

    before, after = Rollout.objects.get(run=paid), Rollout.objects.get(run=reused)
    assert (before.prompt_tokens, before.completion_tokens, before.cost_microusd) == (11, 5, 21)
    assert before.avoided_microusd is None
    assert (after.prompt_tokens, after.completion_tokens, after.cost_microusd) == (0, 0, 0)
    assert after.avoided_microusd == 21
    assert after.latency_ms is None  # nothing was measured
    assert (after.exact, after.answer, after.state) == (before.exact, before.answer, RolloutState.SCORED)
    assert not Invocation.objects.filter(rollout=after).exists()


def test_what_a_call_cost_is_unknown_without_prices(plan: Plan) -> None:
    run = worked(plan(calls=1))

    assert Rollout.objects.get(run=run).cost_microusd is None


def test_a_failure_is_never_taken_again(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(b"oops", status=400) if seen.number == 1 else right(seen)
    failed = worked(plan(calls=1))
    assert states(failed) == {RolloutState.MASKED: 1}

    again = worked(plan(calls=1, reuse=True))

    assert len(provider.seen) == 2
    assert states(again) == {RolloutState.SCORED: 1}


def test_a_truncated_answer_is_an_answer_and_is_taken_again(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(completion('{"decision"', finish_reason="length"))
    worked(plan(calls=1))
    again = worked(plan(calls=1, reuse=True))

    assert len(provider.seen) == 1
    assert Rollout.objects.get(run=again).answer_class == "truncated"


def test_an_old_answer_is_not_taken(plan: Plan, provider: Provider, settings: Any) -> None:
    first = worked(plan(calls=1))
    old = timezone.now() - timedelta(days=settings.ATTEMPT_CACHE_DAYS, seconds=1)
    Rollout.objects.filter(run=first).update(finished_at=old)

    worked(plan(calls=1, reuse=True))

    assert len(provider.seen) == 2


def test_an_answer_beyond_the_newest_rollouts_is_not_taken(
    plan: Plan, provider: Provider, settings: Any
) -> None:
    worked(plan(calls=3))
    settings.ATTEMPT_CACHE_ROLLOUTS = 5  # of the six that there are now

    worked(plan(calls=3, reuse=True))

    assert len(provider.seen) == 4


def test_answers_of_an_invalid_run_are_not_taken(plan: Plan, provider: Provider) -> None:
    first = plan(calls=2)
    EvalRun.objects.filter(pk=first.pk).update(server_facts={"server": "another"})
    runs.work_shard(first.pk)
    first.refresh_from_db()
    assert first.error_code == "server_changed"
    asked = len(provider.seen)

    worked(plan(calls=2, reuse=True))

    assert len(provider.seen) == asked + 2


def test_what_took_answers_from_a_run_that_proves_invalid_fails_with_it(
    plan: Plan, engineer: User, provider: Provider
) -> None:
    origin = worked(plan(calls=2))
    reused = worked(plan(calls=2, reuse=True))
    second = worked(plan(calls=2, reuse=True, label="of the reuser"))
    untouched = worked(plan(calls=2))
    Rollout.objects.filter(run=origin, case__key="named-call-0").update(
        state=RolloutState.MASKED,
        failure_kind="server",
        **dict.fromkeys(
            ("exact", "decision", "tool", "safe", "json_valid", "arguments_valid", "reason_code")
        ),
    )
    runs.run_again(run_id=origin.pk, by=engineer)

    runs.fail(origin.pk, code="server_changed", detail="Another file is served now.")

    for run in (reused, second):
        run.refresh_from_db()
        assert (run.state, run.error_code) == (RunState.FAILED, "reused_invalid")
    untouched.refresh_from_db()
    assert untouched.state == RunState.SCORED


def test_another_sampling_model_backend_or_case_is_another_attempt(
    plan: Plan, engineer: User, provider: Provider
) -> None:
    def keys(run: EvalRun) -> set[str]:
        return set(run.rollouts.values_list("attempt_key", flat=True))

    def planned(**changed: Any) -> EvalRun:
        return runs.plan(**{**same, **changed}, by=engineer)

    same = {
        "subject": factories.remote_subject(),
        "suite": factories.suite(engineer, calls=1),
        "backend": factories.remote_backend(engineer, provider.url),
    }
    base = planned()
    runs.cancel(run_id=base.pk, by=engineer)
    found = [keys(base)]
    for changed in (
        {"subject": factories.remote_subject("another")},
        {"subject": factories.remote_subject(temperature=0.5)},
        {"suite": factories.suite(engineer, name="other", calls=1)},
        {"backend": factories.remote_backend(engineer, provider.url, timeout_s=6)},
    ):
        run = planned(**changed)
        runs.cancel(run_id=run.pk, by=engineer)
        found.append(keys(run))

    assert len(set.union(*found)) == len(found)


def test_two_cases_with_equal_texts_are_two_attempts(engineer: User, provider: Provider) -> None:
    from rollouts.services import suites

    row = factories.call_case("one")
    data = factories.jsonl([row, {**row, "example_id": "two"}])
    run = runs.plan(
        subject=factories.remote_subject(),
        suite=suites.seal(name="twins", data=data, by=engineer),
        backend=factories.remote_backend(engineer, provider.url),
        by=engineer,
        reuse=True,
    )
    worked(run)

    assert len(provider.seen) == 2


class Shard(threading.Thread):
    def __init__(self, run: EvalRun) -> None:
        super().__init__()
        self._run = run
        self.start()

    def run(self) -> None:
        try:
            runs.work_shard(self._run.pk)
        finally:
            connections.close_all()


def test_two_workers_that_want_the_same_attempt_at_once_make_one_call(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(right(seen).body, hang=True)
    one, two = plan(calls=3, reuse=True), plan(calls=3, samples=2, reuse=True)
    first = Shard(one)
    provider.wait_for(3)
    second = Shard(two)
    provider.wait_for(6)  # sample 1 of each case; sample 0 waits for the other worker's answer

    provider.release()
    first.join(20)
    second.join(20)

    assert len(provider.seen) == 6
    assert states(one) == {RolloutState.SCORED: 3} and states(two) == {RolloutState.SCORED: 6}
    assert {rollout.answered_by_id for rollout in one.rollouts.all()} == {
        rollout.answered_by_id for rollout in two.rollouts.filter(sample_index=0)
    }


def test_who_waited_for_an_answer_that_failed_asks_for_itself(
    plan: Plan, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "WAIT_S", 0.02)
    provider.answer = lambda seen: Reply(b"bad", status=400, hang=True) if seen.number == 1 else right(seen)
    one, two = plan(calls=1, reuse=True), plan(calls=1, samples=2, reuse=True)
    first = Shard(one)
    provider.wait_for(1)
    second = Shard(two)
    provider.wait_for(2)  # its sample 1

    provider.release()
    first.join(20)
    second.join(20)

    assert states(one) == {RolloutState.MASKED: 1}
    assert states(two) == {RolloutState.SCORED: 2}
    assert len(provider.seen) == 3


def test_waiting_for_another_workers_answer_is_no_lost_work(
    plan: Plan, provider: Provider, settings: Any
) -> None:
    settings.SHARD_SECONDS = 1
    provider.answer = lambda seen: Reply(right(seen).body, hang=True)
    one, two = plan(calls=2, reuse=True), plan(calls=2, samples=2, reuse=True)
    first = Shard(one)
    provider.wait_for(2)
    Rollout.objects.filter(run=two, sample_index=1).update(state=RolloutState.CANCELLED)

    runs.work_shard(two.pk)  # its time runs out while it waits

    waited = two.rollouts.filter(sample_index=0)
    assert set(waited.values_list("state", "lost_workers", "claim")) == {(RolloutState.QUEUED, 0, None)}
    provider.release()
    first.join(20)
    runs.work_shard(two.pk)
    assert states(two) == {RolloutState.SCORED: 2, RolloutState.CANCELLED: 2}
    assert len(provider.seen) == 2


def test_a_run_with_reused_answers_makes_as_many_calls_as_it_has_answers_of_its_own(
    plan: Plan, provider: Provider
) -> None:
    worked(plan(calls=3))
    run = worked(plan(calls=3, samples=3, reuse=True))

    own = run.rollouts.filter(answered_by__rollout__run=run).count()
    assert own == 6
    assert ModelCall.objects.filter(invocation__rollout__run=run).count() == own


def test_a_saved_backend_revision_is_another_endpoint_for_answers(engineer: User, provider: Provider) -> None:
    values = {
        "name": "scripted",
        "kind": "openai_compatible",
        "config": {"base_url": provider.url},
        "by": engineer,
    }

    assert backends.save(**values).digest != backends.save(**values, timeout_s=7).digest
