"""A worker that vanishes loses its work, and what it brings later is a fact that is never scored."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, connection, connections, transaction
from django.utils import timezone

from rollouts.engine import claims
from rollouts.models import (
    CallState,
    Claim,
    EvalRun,
    Invocation,
    InvocationState,
    ModelCall,
    Rollout,
    RolloutState,
    RunState,
)
from rollouts.services import runs
from tests.engine.conftest import calls_of
from tests.engine.scripted import Provider, Reply, completion, right

pytestmark = pytest.mark.django_db(transaction=True)
Plan = Callable[..., EvalRun]


def vanish(claim_id: int) -> None:
    """The lease of a claim ran out a moment ago."""
    Claim.objects.filter(pk=claim_id).update(lease_expires_at=timezone.now() - timedelta(seconds=1))


def claim_and_vanish(run: EvalRun, *, limit: int = 100) -> Claim:
    """A worker that claimed work, began it and died."""
    claim = claims.open_claim(run_id=run.pk, worker="gone:1", exclusive=False)
    assert claim is not None
    with transaction.atomic():
        taken = claims.take(claim_id=claim.pk, run_id=run.pk, limit=limit)
        assert taken
        for row in taken:
            Invocation.objects.create(rollout_id=row.rollout_id, claim=claim, started_at=timezone.now())
    vanish(claim.pk)
    return claim


class SlowWorker:
    """A real shard in a thread whose requests hang at the provider until `let_go`."""

    def __init__(self, run: EvalRun, provider: Provider) -> None:
        self._provider, self._run = provider, run
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        try:
            self.finished = runs.work_shard(self._run.pk)
        finally:
            connections.close_all()

    def let_go(self) -> int:
        self._provider.release()
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.finished


def test_an_expired_lease_gives_the_work_back(plan: Plan, provider: Provider) -> None:
    run = plan(calls=3)
    gone = claim_and_vanish(run, limit=2)
    assert Rollout.objects.filter(state=RolloutState.RUNNING).count() == 2

    assert claims.expire_leases() == [run.pk]

    gone.refresh_from_db()
    assert gone.lost and gone.ended_at is not None
    assert set(Rollout.objects.values_list("state", "claim")) == {(RolloutState.QUEUED, None)}
    assert sorted(Rollout.objects.values_list("lost_workers", flat=True)) == [0, 1, 1]
    assert runs.work_shard(run.pk) == 3


def test_what_a_lost_worker_had_not_begun_goes_back_as_it_was(plan: Plan) -> None:
    run = plan(calls=2)
    claim = claims.open_claim(run_id=run.pk, worker="gone:1", exclusive=False)
    assert claim is not None
    with transaction.atomic():
        claims.take(claim_id=claim.pk, run_id=run.pk, limit=2)
    vanish(claim.pk)

    claims.expire_leases()

    assert set(Rollout.objects.values_list("state", "lost_workers")) == {(RolloutState.QUEUED, 0)}


def test_what_lost_a_worker_is_given_last_and_before_its_last_chance_alone(plan: Plan) -> None:
    run = plan(calls=6)
    ids = list(run.rollouts.order_by("id").values_list("id", flat=True))
    Rollout.objects.filter(pk__in=ids[:2]).update(lost_workers=2)
    Rollout.objects.filter(pk=ids[2]).update(lost_workers=1)
    claim = claims.open_claim(run_id=run.pk, worker="here:1", exclusive=False)
    assert claim is not None

    def taken(limit: int) -> list[int]:
        with transaction.atomic():
            return [row.rollout_id for row in claims.take(claim_id=claim.pk, run_id=run.pk, limit=limit)]

    assert taken(2) == ids[3:5]
    assert taken(5) == [ids[5], ids[2]]
    assert taken(5) == ids[:1]
    assert taken(5) == []  # the other suspect waits until this one has ended
    Rollout.objects.filter(pk=ids[0]).update(state="masked", failure_kind="server", claim=None)
    assert taken(5) == ids[1:2]


def test_suspects_are_finished_one_after_the_other(plan: Plan, provider: Provider) -> None:
    run = plan(calls=4)
    Rollout.objects.update(lost_workers=2)

    assert runs.work_shard(run.pk) == 4

    assert set(Rollout.objects.values_list("state", flat=True)) == {RolloutState.SCORED}


def test_a_lease_that_still_holds_is_left_alone(plan: Plan) -> None:
    run = plan(calls=1)
    claim = claims.open_claim(run_id=run.pk, worker="here:1", exclusive=False)
    assert claim is not None
    with transaction.atomic():
        claims.take(claim_id=claim.pk, run_id=run.pk, limit=1)

    assert claims.expire_leases() == []

    assert Rollout.objects.get().state == RolloutState.RUNNING


def test_a_killed_workers_calls_read_lost(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(right(seen).body, hang=True)
    run = plan(calls=1)
    slow = SlowWorker(run, provider)
    provider.wait_for(1)
    vanish(Claim.objects.get().pk)

    claims.expire_leases()

    call = ModelCall.objects.get()
    assert (call.state, call.response_id, call.status) == (CallState.LOST, None, None)
    assert call.finished_at is not None
    assert Invocation.objects.get().state == InvocationState.LOST
    slow.let_go()


def test_a_late_result_is_kept_and_the_next_workers_is_scored(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(completion("too late"), hang=True) if seen.nth == 1 else right(seen)
    run = plan(calls=1)
    slow = SlowWorker(run, provider)
    provider.wait_for(1)
    vanish(Claim.objects.get().pk)
    claims.expire_leases()

    assert runs.work_shard(run.pk) == 1
    scored = Rollout.objects.values().get()
    assert slow.let_go() == 0

    assert Rollout.objects.values().get() == scored
    assert (scored["state"], scored["exact"]) == (RolloutState.SCORED, True)
    assert list(Invocation.objects.order_by("id").values_list("state", flat=True)) == [
        InvocationState.LATE,
        InvocationState.FINISHED,
    ]
    late = calls_of(Rollout.objects.get())[0]
    assert (late.state, late.status) == (CallState.ANSWERED, 200)
    run.refresh_from_db()
    assert (run.state, run.planned, run.scored) == (RunState.SCORED, 1, 1)


def test_a_late_result_is_not_scored_even_while_nobody_has_taken_the_work(
    plan: Plan, provider: Provider
) -> None:
    provider.answer = lambda seen: Reply(right(seen).body, hang=seen.nth == 1)
    run = plan(calls=1)
    slow = SlowWorker(run, provider)
    provider.wait_for(1)
    vanish(Claim.objects.get().pk)
    claims.expire_leases()

    slow.let_go()

    rollout = Rollout.objects.get()
    assert (rollout.state, rollout.answer) == (RolloutState.QUEUED, None)
    assert Invocation.objects.get().state == InvocationState.LATE
    assert runs.work_shard(run.pk) == 1


def test_a_worker_without_lease_does_not_try_again(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(b"down", status=500, hang=True)
    run = plan(calls=1)
    slow = SlowWorker(run, provider)
    provider.wait_for(1)
    vanish(Claim.objects.get().pk)
    claims.expire_leases()

    slow.let_go()

    assert len(provider.seen) == 1
    call = ModelCall.objects.get()
    assert (call.state, call.error_kind) == (CallState.FAILED, "server")
    assert Invocation.objects.get().state == InvocationState.LOST


def test_a_working_shard_renews_its_lease_while_it_waits(
    plan: Plan, provider: Provider, settings: Any
) -> None:
    settings.LEASE_SECONDS = 1
    provider.answer = lambda seen: Reply(right(seen).body, hang=True)
    run = plan(calls=1)
    slow = SlowWorker(run, provider)
    provider.wait_for(1)
    first = Claim.objects.get().lease_expires_at
    deadline = timezone.now() + timedelta(seconds=10)

    while (renewed := Claim.objects.get().lease_expires_at) == first and timezone.now() < deadline:
        threading.Event().wait(0.05)

    assert renewed > first
    assert slow.let_go() == 1


def test_three_lost_workers_leave_a_rollout_unscored(plan: Plan, provider: Provider) -> None:
    run = plan(calls=2)
    for _ in range(5):  # they take turns: the one that was not lost comes first
        claim_and_vanish(run, limit=1)
        claims.expire_leases()

    rollout = Rollout.objects.order_by("id")[0]
    assert (rollout.state, rollout.failure_kind, rollout.lost_workers) == (
        RolloutState.UNSCORED,
        "worker_lost",
        3,
    )
    assert runs.work_shard(run.pk) == 1
    run.refresh_from_db()
    assert (run.state, run.scored, run.unscored) == (RunState.SCORED, 1, 1)


def test_what_three_workers_lost_can_be_run_again(plan: Plan, engineer: Any) -> None:
    run = plan(calls=1)
    for _ in range(3):
        claim_and_vanish(run)
        claims.expire_leases()
    runs.close_if_done(run.pk)

    runs.run_again(run_id=run.pk, by=engineer)
    runs.work_shard(run.pk)

    run.refresh_from_db()
    assert (run.scored, run.unscored) == (1, 0)


def test_the_sweep_takes_expired_work_and_sends_for_it_in_one_go(plan: Plan, sent: list[Any]) -> None:
    run = plan(calls=1)
    claim_and_vanish(run)
    EvalRun.objects.update(last_sent_at=timezone.now() - timedelta(hours=1))
    sent.clear()

    runs.sweep()

    assert set(sent) == {("rollouts.tasks.work_shard", (run.pk,))}
    assert Rollout.objects.get().state == RolloutState.QUEUED


def test_a_lost_worker_is_replaced_while_others_still_work_on_the_run(plan: Plan, sent: list[Any]) -> None:
    run = plan(calls=2)
    claim_and_vanish(run, limit=1)
    busy = claims.open_claim(run_id=run.pk, worker="busy:1", exclusive=False)
    assert busy is not None
    sent.clear()

    runs.sweep()

    assert sent == [("rollouts.tasks.work_shard", (run.pk,))]


def test_a_worker_that_begins_takes_back_what_others_lost_before_a_sweep_gets_its_turn(
    plan: Plan, provider: Provider
) -> None:
    run = plan(calls=2)
    gone = claim_and_vanish(run)

    assert runs.work_shard(run.pk) == 2

    gone.refresh_from_db()
    assert gone.lost


def test_the_same_lost_work_is_given_back_once(plan: Plan) -> None:
    run = plan(calls=1)
    claim_and_vanish(run)

    assert claims.expire_leases() == [run.pk]
    assert claims.expire_leases() == []

    assert Rollout.objects.get().lost_workers == 1


def test_an_exclusive_backend_has_one_worker_at_a_time(plan: Plan) -> None:
    run = plan(calls=2)
    first = claims.open_claim(run_id=run.pk, worker="one:1", exclusive=True)
    assert first is not None

    assert claims.open_claim(run_id=run.pk, worker="two:2", exclusive=True) is None

    claims.end_claim(first.pk)
    assert claims.open_claim(run_id=run.pk, worker="two:2", exclusive=True) is not None


def test_a_run_with_nothing_queued_gives_no_claim(plan: Plan) -> None:
    run = plan(calls=1)
    runs.work_shard(run.pk)

    assert claims.open_claim(run_id=run.pk, worker="late:1", exclusive=False) is None


def test_an_ended_claim_cannot_be_held_again(plan: Plan) -> None:
    run = plan(calls=1)
    claim = claims.open_claim(run_id=run.pk, worker="one:1", exclusive=False)
    assert claim is not None and claims.hold(claim.pk)

    claims.end_claim(claim.pk)

    assert not claims.hold(claim.pk)


def test_a_shard_that_breaks_gives_its_work_back_at_once(
    plan: Plan, provider: Provider, monkeypatch: pytest.MonkeyPatch, sent: list[Any]
) -> None:
    from rollouts.backends.openai_compatible import OpenAICompatible

    run = plan(calls=2)
    sent.clear()
    with monkeypatch.context() as broken:
        broken.setattr(OpenAICompatible, "read", lambda self, body: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            runs.work_shard(run.pk)

    assert set(Rollout.objects.values_list("state", flat=True)) == {RolloutState.QUEUED}
    assert sent == []  # the sweep sends again, and does not do so without end
    assert not Claim.objects.filter(ended_at__isnull=True).exists()
    assert runs.work_shard(run.pk) == 2


def test_one_execution_of_a_rollout_runs_at_a_time(plan: Plan) -> None:
    run = plan(calls=1)
    rollout, now = Rollout.objects.get(), timezone.now()
    one, two = (
        Claim.objects.create(run=run, worker="w", created_at=now, lease_expires_at=now) for _ in range(2)
    )
    Invocation.objects.create(rollout=rollout, claim=one, started_at=now)

    with pytest.raises(IntegrityError), transaction.atomic():
        Invocation.objects.create(rollout=rollout, claim=two, started_at=now)


@pytest.fixture
def poison() -> Any:
    """The database refuses to store the answer "poison"."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute(
                "CREATE TRIGGER poison BEFORE UPDATE ON rollouts_rollout WHEN NEW.answer = 'poison' "
                "BEGIN SELECT RAISE(ABORT, 'poison'); END"
            )
        else:
            cursor.execute(
                "CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'poison'; END $$; "
                "CREATE TRIGGER poison BEFORE UPDATE ON rollouts_rollout FOR EACH ROW "
                "WHEN (NEW.answer = 'poison') "
                "EXECUTE FUNCTION poison()"
            )
    yield
    with connection.cursor() as cursor:
        on = "" if connection.vendor == "sqlite" else " ON rollouts_rollout; DROP FUNCTION poison"
        cursor.execute(f"DROP TRIGGER poison{on}")


def test_a_result_that_the_database_refuses_fails_alone_and_the_run_still_ends(
    plan: Plan, provider: Provider, poison: None
) -> None:
    provider.answer = lambda seen: Reply(completion("poison")) if seen.case == "named-call-3" else right(seen)
    run = plan(calls=8, concurrency=8)

    for _ in range(3):
        with pytest.raises(DatabaseError, match="poison"):
            runs.work_shard(run.pk)

    run.refresh_from_db()
    assert (run.state, run.scored, run.unscored) == (RunState.SCORED, 7, 1)
    bad = Rollout.objects.get(state=RolloutState.UNSCORED)
    assert (bad.case.key, bad.failure_kind, bad.answer) == ("named-call-3", "worker_lost", None)
    assert len(provider.requests_of("named-call-3")) == 3
    assert len(provider.seen) == 10
