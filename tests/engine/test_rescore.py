"""Stored rollouts are scored again from what was captured: no call is made, and what changes is counted and audited."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection

from rollouts.capture import outcome
from rollouts.engine import runner
from rollouts.errors import Conflict, NotAllowed
from rollouts.models import AuditEvent, EvalRun, Rollout, RolloutState
from rollouts.services import runs
from tests import factories
from tests.engine.conftest import rollout_of
from tests.engine.scripted import Provider, Reply, completion, right

pytestmark = pytest.mark.django_db(transaction=True)
Plan = Callable[..., EvalRun]
SCORES = ("exact", "decision", "tool", "safe", "json_valid", "answer_class", "details", "reason_code")


def worked(run: EvalRun) -> EvalRun:
    runs.work_shard(run.pk)
    run.refresh_from_db()
    return run


def last_event() -> dict[str, Any]:
    return dict(json.loads(bytes(AuditEvent.objects.order_by("-sequence")[0].data)))


def test_scoring_again_with_the_same_scorer_changes_nothing(
    plan: Plan, engineer: User, provider: Provider
) -> None:
    provider.answer = lambda seen: (
        Reply(completion("no JSON \x00 at all")) if seen.number == 1 else right(seen)
    )
    run = worked(plan(calls=2, declines=2))
    before = list(run.rollouts.order_by("id").values())

    runs.rescore(run_id=run.pk, by=engineer)

    assert list(run.rollouts.order_by("id").values()) == before
    assert len(provider.seen) == 4
    assert (last_event()["answers"], last_event()["changed"]) == (4, 0)
    run.refresh_from_db()
    assert run.reopened_by == []


def test_what_a_broken_scorer_left_is_scored_without_a_call(
    plan: Plan, engineer: User, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(runner, "score", lambda *_: 1 / 0)
        run = worked(plan(calls=3))
    assert (run.scored, run.unscored) == (0, 3)

    runs.rescore(run_id=run.pk, by=engineer)

    run.refresh_from_db()
    assert (run.scored, run.unscored) == (3, 0)
    assert set(run.rollouts.values_list("state", "failure_kind", "exact")) == {("scored", "", True)}
    assert len(provider.seen) == 3
    assert last_event()["changed"] == 3
    assert run.reopened_by == [engineer.username]  # whoever changes scores may not sign


def test_running_again_what_the_scorer_failed_on_makes_no_call_either(
    plan: Plan, engineer: User, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(runner, "score", lambda *_: 1 / 0)
        run = worked(plan(calls=3))
    runs.run_again(run_id=run.pk, by=engineer)

    worked(run)

    assert (run.state, run.scored) == ("scored", 3)
    assert len(provider.seen) == 3


def test_a_tampered_score_is_put_right(plan: Plan, engineer: User, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(completion("wrong"))
    run = worked(plan(calls=1))
    Rollout.objects.filter(run=run).update(exact=True)

    runs.rescore(run_id=run.pk, by=engineer)

    assert rollout_of(run, "named-call-0").exact is False


def test_masked_rollouts_stay_masked(plan: Plan, engineer: User, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(b"no", status=400) if seen.number == 1 else right(seen)
    run = worked(plan(calls=2, concurrency=1))

    runs.rescore(run_id=run.pk, by=engineer)

    run.refresh_from_db()
    assert (run.scored, run.masked) == (1, 1)


def test_only_a_closed_run_is_scored_again(plan: Plan, engineer: User) -> None:
    run = plan(calls=1)

    with pytest.raises(Conflict):
        runs.rescore(run_id=run.pk, by=engineer)


def test_a_scorer_that_breaks_while_scoring_again_leaves_an_unscored_answer(
    plan: Plan, engineer: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = worked(plan(calls=1))
    monkeypatch.setattr(outcome, "score", lambda *_: 1 / 0)

    runs.rescore(run_id=run.pk, by=engineer)

    run.refresh_from_db()
    rollout = run.rollouts.get()
    assert (rollout.state, rollout.failure_kind, rollout.exact) == (RolloutState.UNSCORED, "scorer", None)
    assert rollout.answer is not None and rollout.answered_by_id is not None
    assert (run.scored, run.unscored) == (0, 1)


def test_an_auditor_cannot_score_again(plan: Plan) -> None:
    run = worked(plan(calls=1))

    with pytest.raises(NotAllowed):
        runs.rescore(run_id=run.pk, by=factories.person("auditor", "auditor"))


def test_scoring_again_takes_a_query_a_batch(
    plan: Plan, engineer: User, django_assert_max_num_queries: Any
) -> None:
    run = worked(plan(calls=40))
    assert connection is not None

    with django_assert_max_num_queries(25):
        runs.rescore(run_id=run.pk, by=engineer)
