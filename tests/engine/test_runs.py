"""An eval run from its plan to its close: counted exactly, whatever happens in between."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from rollouts import selectors, store
from rollouts.errors import Conflict, InvalidInput, InvalidTransition
from rollouts.models import (
    AuditEvent,
    Backend,
    Case,
    EvalRun,
    Invocation,
    InvocationState,
    Look,
    ModelCall,
    Rollout,
    RolloutState,
    RunState,
)
from rollouts.services import runs
from rollouts.services.subjects import local_subject
from tests import factories
from tests.engine.conftest import rollout_of
from tests.engine.scripted import Provider, Reply, right
from tests.threads import in_threads

pytestmark = pytest.mark.django_db(transaction=True)
Plan = Callable[..., EvalRun]
Sent = list[tuple[str, tuple[Any, ...]]]


def states(run: EvalRun) -> dict[str, int]:
    return {state: number for state, number in selectors.progress(run.pk).states.items() if number}


def actions() -> list[str]:
    return list(AuditEvent.objects.filter(action__startswith="run.").values_list("action", flat=True))


# planning


def test_a_plan_writes_every_rollout_before_the_first_call(plan: Plan, provider: Provider) -> None:
    run = plan(calls=3, declines=2, samples=2)

    assert states(run) == {"queued": 10}
    assert (run.planned, run.state, provider.seen) == (10, RunState.QUEUED, [])
    assert len(set(Rollout.objects.values_list("case_id", "sample_index"))) == 10
    assert run.suite_digest == run.suite.digest


def test_a_plan_sends_after_commit_and_not_before(plan: Plan, sent: Sent) -> None:
    with transaction.atomic():
        run = plan(calls=1)
        before = list(sent)

    assert before == []
    assert sent == [("rollouts.tasks.work_shard", (run.pk,))]


def test_a_plan_that_rolls_back_sends_nothing(plan: Plan, sent: Sent) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        plan(calls=1)
        raise ZeroDivisionError

    assert sent == [] and not EvalRun.objects.exists()


def test_the_plan_digest_depends_on_subject_suite_backend_and_samples(
    plan: Plan, engineer: User, provider: Provider
) -> None:
    first = plan(calls=2)
    others = [
        plan(calls=2, model="other"),
        plan(calls=3),
        plan(calls=2, samples=2),
        plan(calls=2, timeout_s=9, model="third"),
    ]
    runs.cancel(run_id=first.pk, by=engineer)
    again = plan(calls=2)

    assert again.plan_digest == first.plan_digest
    assert len({run.plan_digest for run in [first, *others]}) == 5


def test_the_same_measurement_is_active_once(plan: Plan) -> None:
    first = plan(calls=1)

    with pytest.raises(Conflict, match=f"Run {first.pk} measures the same already"):
        plan(calls=1)

    assert EvalRun.objects.count() == 1


@pytest.mark.parametrize("samples", [0, -1, 101])
def test_the_number_of_samples_is_bounded(plan: Plan, samples: int) -> None:
    with pytest.raises(InvalidInput, match="samples"):
        plan(calls=1, samples=samples)

    assert not EvalRun.objects.exists()


def test_a_backend_serves_only_its_kind_of_subject(engineer: User, provider: Provider) -> None:
    suite = factories.suite(engineer)
    base = factories.base_model(engineer)
    local = local_subject(base=base, adapter=None, adapter_source_sha256="", sampling=factories.SAMPLING)

    for subject, backend in (
        (factories.remote_subject(), factories.local_backend(engineer)),
        (local, factories.remote_backend(engineer, provider.url)),
    ):
        with pytest.raises(InvalidInput, match="cannot serve this subject"):
            runs.plan(subject=subject, suite=suite, backend=backend, by=engineer)

    assert not EvalRun.objects.exists()


def test_cases_that_were_changed_in_the_database_show_in_the_runs_suite_digest(
    plan: Plan, engineer: User
) -> None:
    suite = factories.suite(engineer, calls=2)
    case = Case.objects.get(suite=suite, position=0)
    Case.objects.filter(pk=case.pk).update(content={**case.content, "expected": {"decision": "no_tool"}})

    run = plan(calls=2)

    assert run.suite_id == suite.pk
    assert run.suite_digest != suite.digest


# working and closing


def test_a_run_is_worked_to_its_end_and_accounts_for_every_rollout(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(b"no", status=400) if seen.case == "named-call-0" else right(seen)
    run = plan(calls=3, declines=2)

    assert runs.work_shard(run.pk) == 5

    run.refresh_from_db()
    assert run.state == RunState.SCORED
    assert (run.planned, run.scored, run.masked, run.unscored, run.cancelled) == (5, 4, 1, 0, 0)
    assert run.started_at is not None and run.finished_at is not None and run.started_at <= run.finished_at
    assert actions() == ["run.planned", "run.scored"]
    assert run.server_facts == {"server": "remote", "base_url": provider.url, "model": "scripted-model"}


def test_working_on_a_closed_run_does_no_harm(plan: Plan, provider: Provider) -> None:
    run = plan(calls=2)
    runs.work_shard(run.pk)
    before = list(Rollout.objects.order_by("id").values())

    assert runs.work_shard(run.pk) == 0

    assert list(Rollout.objects.order_by("id").values()) == before
    assert len(provider.seen) == 2
    assert actions() == ["run.planned", "run.scored"]


def test_a_run_that_is_not_there_is_no_work(transactional_db: None) -> None:
    assert runs.work_shard(4711) == 0


def test_two_shards_at_once_never_work_on_the_same_rollout(plan: Plan, provider: Provider) -> None:
    run = plan(calls=40, concurrency=3)

    finished = in_threads(
        lambda: runs.work_shard(run.pk), lambda: runs.work_shard(run.pk), lambda: runs.work_shard(run.pk)
    )

    run.refresh_from_db()
    assert sum(finished) == 40
    assert (run.state, run.scored) == (RunState.SCORED, 40)
    assert sorted(seen.case for seen in provider.seen) == sorted(f"named-call-{n}" for n in range(40))
    assert (
        Invocation.objects.filter(state=InvocationState.FINISHED).count() == Invocation.objects.count() == 40
    )
    assert actions() == ["run.planned", "run.scored"]


def test_calls_in_flight_never_exceed_the_backends_concurrency(plan: Plan, provider: Provider) -> None:
    import threading
    import time

    lock, now, most = threading.Lock(), [0], [0]

    def slow(seen: Any) -> Reply:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.02)
        with lock:
            now[0] -= 1
        return right(seen)

    provider.answer = slow
    run = plan(calls=20, concurrency=3)

    runs.work_shard(run.pk)

    assert most[0] == 3


def test_a_shard_takes_no_new_work_after_its_time_and_sends_for_the_next(
    plan: Plan, provider: Provider, sent: Sent, settings: Any
) -> None:
    settings.SHARD_SECONDS = 0
    run = plan(calls=3)
    sent.clear()

    assert runs.work_shard(run.pk) == 0

    assert states(run) == {"queued": 3}
    assert sent == [("rollouts.tasks.work_shard", (run.pk,))]
    settings.SHARD_SECONDS = 60
    assert runs.work_shard(run.pk) == 3


@pytest.mark.parametrize(
    "counts",
    [
        {"scored": 1},
        {"scored": 3},
        {"masked": 1},
        {"unscored": None},
        {"scored": None, "masked": None},
        {"planned": 3},
    ],
)
def test_the_database_refuses_a_close_that_does_not_account_for_all(
    plan: Plan, counts: dict[str, Any]
) -> None:
    run = plan(calls=2)
    runs.work_shard(run.pk)

    with pytest.raises(IntegrityError), transaction.atomic():
        EvalRun.objects.filter(pk=run.pk).update(**counts)


@pytest.mark.parametrize(
    "values", [{"state": "scored"}, {"state": "failed"}, {"finished_at": timezone.now()}, {"state": "paused"}]
)
def test_the_database_refuses_a_run_that_is_half_finished(plan: Plan, values: dict[str, Any]) -> None:
    run = plan(calls=1)

    with pytest.raises(IntegrityError), transaction.atomic():
        EvalRun.objects.filter(pk=run.pk).update(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"state": "queued"},  # scores of what is not scored
        {"state": "masked", "failure_kind": "server"},
        {"exact": None},
        {"score": 1.5},
        {
            "state": "masked",
            "decision": None,
            "json_valid": None,
            "tool": None,
            "exact": None,
            "safe": None,
        },  # no kind
        {
            "state": "running",
            "decision": None,
            "json_valid": None,
            "tool": None,
            "exact": None,
            "safe": None,
        },  # no claim
        {"state": "lost"},
    ],
)
def test_the_database_refuses_a_rollout_that_contradicts_itself(plan: Plan, values: dict[str, Any]) -> None:
    run = plan(calls=1)
    runs.work_shard(run.pk)

    with pytest.raises(IntegrityError), transaction.atomic():
        Rollout.objects.filter(run=run).update(**values)


def test_a_sample_of_a_case_is_one_rollout(plan: Plan) -> None:
    run = plan(calls=1)

    with pytest.raises(IntegrityError), transaction.atomic():
        Rollout.objects.create(run=run, case=Case.objects.get(), sample_index=0)


def test_the_queries_of_a_shard_do_not_grow_with_every_rollout(plan: Plan) -> None:
    """The loop's own queries; what the writer thread does is grouped and not counted here."""
    numbers = []
    for calls in (4, 40):
        run = plan(calls=calls, model=f"model-{calls}")
        with CaptureQueriesContext(connection) as queries:
            runs.work_shard(run.pk)
        numbers.append(len(queries))

    assert numbers[0] == numbers[1]


# looks


def test_a_look_is_counted_once_per_subject_when_its_run_closes(plan: Plan, engineer: User) -> None:
    for model in ("one", "two", "one"):
        run = plan(calls=1, model=model)
        runs.work_shard(run.pk)

    assert list(Look.objects.order_by("number").values_list("subject__remote_model", "number")) == [
        ("one", 1),
        ("two", 2),
    ]


def test_a_cancelled_run_is_no_look(plan: Plan, engineer: User) -> None:
    run = plan(calls=1)

    runs.cancel(run_id=run.pk, by=engineer)

    assert not Look.objects.exists()


def test_looks_are_counted_per_suite(plan: Plan) -> None:
    for calls in (1, 2):
        runs.work_shard(plan(calls=calls).pk)

    assert list(Look.objects.values_list("number", flat=True)) == [1, 1]


# cancel


def test_cancelling_keeps_what_is_scored_and_ends_the_rest(
    plan: Plan, provider: Provider, engineer: User
) -> None:
    provider.answer = lambda seen: Reply(right(seen).body, hang=seen.number > 2)
    run = plan(calls=5, concurrency=1)

    def cancel_in_flight() -> None:
        provider.wait_for(3)
        runs.cancel(run_id=run.pk, by=engineer)
        provider.release()

    in_threads(lambda: runs.work_shard(run.pk), cancel_in_flight)

    run.refresh_from_db()
    assert run.state == RunState.CANCELLED and run.finished_at is not None
    assert states(run) == {"scored": 2, "cancelled": 3}
    assert len(provider.seen) < 5  # one more may have been claimed ahead, but not all
    assert actions() == ["run.planned", "run.cancelled"]


def test_what_comes_in_after_a_cancel_is_kept_and_not_scored(
    plan: Plan, provider: Provider, engineer: User
) -> None:
    provider.answer = lambda seen: Reply(right(seen).body, hang=True)
    run = plan(calls=1)

    def cancel_in_flight() -> None:
        provider.wait_for(1)
        runs.cancel(run_id=run.pk, by=engineer)
        provider.release()

    in_threads(lambda: runs.work_shard(run.pk), cancel_in_flight)

    rollout = Rollout.objects.get()
    assert (rollout.state, rollout.answer, rollout.decision) == (RolloutState.CANCELLED, None, None)
    assert Invocation.objects.get().state == InvocationState.LATE
    assert ModelCall.objects.get().state == "answered"


def test_a_cancelled_rollout_says_cancelled_even_after_two_lost_workers(
    plan: Plan, provider: Provider, engineer: User
) -> None:
    provider.answer = lambda seen: Reply(right(seen).body, hang=True)
    run = plan(calls=1)
    Rollout.objects.update(lost_workers=2)

    def cancel_in_flight() -> None:
        provider.wait_for(1)
        runs.cancel(run_id=run.pk, by=engineer)
        provider.release()

    in_threads(lambda: runs.work_shard(run.pk), cancel_in_flight)

    rollout = Rollout.objects.get()
    assert (rollout.state, rollout.failure_kind) == (RolloutState.CANCELLED, "cancelled")


@pytest.mark.parametrize("end", ["scored", "cancelled", "failed"])
def test_a_finished_run_cannot_be_cancelled(plan: Plan, engineer: User, end: str) -> None:
    run = plan(calls=1)
    {
        "scored": lambda: runs.work_shard(run.pk),
        "cancelled": lambda: runs.cancel(run_id=run.pk, by=engineer),
        "failed": lambda: runs.fail(run.pk, code="config", detail="no"),
    }[end]()

    with pytest.raises(InvalidTransition, match=f"is {end}, so it cannot become cancelled"):
        runs.cancel(run_id=run.pk, by=engineer)


# run again


def test_running_again_touches_only_what_failed(
    plan: Plan, provider: Provider, engineer: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.answer = lambda seen: Reply(b"no", status=400) if seen.case == "named-call-1" else right(seen)
    run = plan(calls=3)
    runs.work_shard(run.pk)
    untouched = list(Rollout.objects.exclude(state="masked").order_by("id").values())
    provider.answer = right

    runs.run_again(run_id=run.pk, by=engineer)
    assert states(run) == {"queued": 1, "scored": 2}
    runs.work_shard(run.pk)

    run.refresh_from_db()
    assert (run.state, run.scored, run.masked) == (RunState.SCORED, 3, 0)
    again = rollout_of(run, "named-call-1")
    assert (again.state, again.failure_kind, again.failure_reason) == (RolloutState.SCORED, "", "")
    assert list(Rollout.objects.exclude(pk=again.pk).order_by("id").values()) == untouched
    assert Invocation.objects.filter(rollout=again).count() == 2
    assert [seen.case for seen in provider.seen].count("named-call-0") == 1
    assert actions() == ["run.planned", "run.scored", "run.reopened", "run.scored"]


def test_running_again_is_no_second_look(plan: Plan, provider: Provider, engineer: User) -> None:
    provider.answer = lambda seen: Reply(b"no", status=400)
    run = plan(calls=1)
    runs.work_shard(run.pk)
    runs.run_again(run_id=run.pk, by=engineer)
    runs.work_shard(run.pk)

    assert Look.objects.get().number == 1


def test_a_run_without_failures_is_not_run_again(plan: Plan, engineer: User) -> None:
    run = plan(calls=1)
    runs.work_shard(run.pk)

    with pytest.raises(Conflict, match="no masked, unscored or cancelled"):
        runs.run_again(run_id=run.pk, by=engineer)

    run.refresh_from_db()
    assert (run.state, run.scored) == (RunState.SCORED, 1)


def test_a_cancelled_run_is_gone_on_with_and_keeps_what_was_scored(plan: Plan, engineer: User) -> None:
    run = plan(calls=3)
    kept = run.rollouts.order_by("id").first()
    factories.give(kept, "right")
    kept.save()
    runs.cancel(run_id=run.pk, by=engineer)

    runs.run_again(run_id=run.pk, by=engineer)
    runs.work_shard(run.pk)

    run.refresh_from_db()
    assert (run.state, run.scored, run.cancelled) == (RunState.SCORED, 3, 0)
    assert run.reopened_by == [engineer.username]
    assert not kept.invocations.exists()


@pytest.mark.parametrize("state", ["queued", "failed"])
def test_only_a_closed_or_cancelled_run_is_run_again(plan: Plan, engineer: User, state: str) -> None:
    run = plan(calls=1)
    if state == "failed":
        runs.fail(run.pk, code="config", detail="no")

    with pytest.raises(InvalidTransition):
        runs.run_again(run_id=run.pk, by=engineer)


def test_a_run_is_not_reopened_beside_an_active_one_of_the_same_measurement(
    plan: Plan, provider: Provider, engineer: User
) -> None:
    provider.answer = lambda seen: Reply(b"no", status=400)
    first = plan(calls=1)
    runs.work_shard(first.pk)
    second = plan(calls=1)

    with pytest.raises(Conflict, match=f"Run {second.pk} measures the same already"):
        runs.run_again(run_id=first.pk, by=engineer)

    first.refresh_from_db()
    assert (first.state, first.masked) == (RunState.SCORED, 1)
    assert Rollout.objects.get(run=first).state == RolloutState.MASKED


# what makes a run invalid


def test_a_server_that_changes_during_a_run_fails_it_and_is_asked_nothing(
    plan: Plan, provider: Provider
) -> None:
    run = plan(calls=2)
    EvalRun.objects.filter(pk=run.pk).update(
        server_facts={"server": "remote", "base_url": "http://another/v1", "model": "scripted-model"}
    )

    runs.work_shard(run.pk)

    run.refresh_from_db()
    assert (run.state, run.error_code) == (RunState.FAILED, "server_changed")
    assert run.error_detail == "The server changed during the run: base_url."
    assert provider.seen == []
    assert actions() == ["run.planned", "run.failed"]
    assert states(run) == {"queued": 2}


def test_a_missing_model_file_fails_the_run_with_what_to_do(engineer: User) -> None:
    base = factories.base_model(engineer)
    subject = local_subject(base=base, adapter=None, adapter_source_sha256="", sampling=factories.SAMPLING)
    run = runs.plan(
        subject=subject,
        suite=factories.suite(engineer),
        backend=factories.local_backend(engineer),
        by=engineer,
    )
    store.path_of(base.artifact_id).unlink()

    runs.work_shard(run.pk)

    run.refresh_from_db()
    assert (run.state, run.error_code) == (RunState.FAILED, "file_missing")
    assert "Restore it from a backup" in run.error_detail


def test_a_servers_last_words_are_kept_whatever_they_hold(plan: Plan) -> None:
    run = plan(calls=1)

    runs.fail(run.pk, code="start_failed", detail="it said: \x00\ud800!")

    run.refresh_from_db()
    assert (run.state, run.error_detail) == (RunState.FAILED, "it said: \u2400?!")


@pytest.mark.llama
def test_a_model_file_with_other_bytes_is_not_served(engineer: User) -> None:
    base = factories.base_model(engineer)
    subject = local_subject(base=base, adapter=None, adapter_source_sha256="", sampling=factories.SAMPLING)
    run = runs.plan(
        subject=subject,
        suite=factories.suite(engineer),
        backend=factories.local_backend(engineer),
        by=engineer,
    )
    store.path_of(base.artifact_id).write_bytes(b"GGUF tampered")

    runs.work_shard(run.pk)

    run.refresh_from_db()
    assert (run.state, run.error_code) == (RunState.FAILED, "file_changed")


@pytest.mark.llama
def test_a_model_that_the_server_cannot_load_fails_the_run_with_its_words(engineer: User) -> None:
    base = factories.base_model(engineer)
    subject = local_subject(base=base, adapter=None, adapter_source_sha256="", sampling=factories.SAMPLING)
    run = runs.plan(
        subject=subject,
        suite=factories.suite(engineer),
        backend=factories.local_backend(engineer),
        by=engineer,
    )

    runs.work_shard(run.pk)

    run.refresh_from_db()
    assert (run.state, run.error_code) == (RunState.FAILED, "start_failed")
    assert "The model server ended with" in run.error_detail


# the sweep


def make_stale(run: EvalRun) -> None:
    EvalRun.objects.filter(pk=run.pk).update(last_sent_at=timezone.now() - timedelta(hours=1))


def test_the_sweep_sends_again_for_a_run_whose_message_was_lost(plan: Plan, sent: Sent) -> None:
    run = plan(calls=2)
    sent.clear()
    make_stale(run)

    runs.sweep()

    assert ("rollouts.tasks.work_shard", (run.pk,)) in sent
    run.refresh_from_db()
    assert timezone.now() - run.last_sent_at < timedelta(minutes=1)


def test_the_sweep_leaves_alone_what_was_sent_a_moment_ago(plan: Plan, sent: Sent) -> None:
    plan(calls=2)
    sent.clear()

    runs.sweep()

    assert sent == []


def test_the_sweep_leaves_alone_what_a_worker_holds(plan: Plan, provider: Provider, sent: Sent) -> None:
    provider.answer = lambda seen: Reply(right(seen).body, hang=True)
    run = plan(calls=1)
    sent.clear()

    def sweep_meanwhile() -> None:
        provider.wait_for(1)
        make_stale(run)
        runs.sweep()
        provider.release()

    in_threads(lambda: runs.work_shard(run.pk), sweep_meanwhile)

    assert sent == []
    assert len(provider.seen) == 1


def test_the_sweep_closes_a_run_whose_worker_died_before_it_could(
    plan: Plan, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = plan(calls=1)
    with monkeypatch.context() as gone:  # the worker is gone after its last write
        gone.setattr(runs, "close_if_done", lambda run_id: False)
        gone.setattr(runs, "_continue", lambda run_id: None)
        runs.work_shard(run.pk)
    assert EvalRun.objects.get().state == RunState.RUNNING
    make_stale(run)

    runs.sweep()

    run.refresh_from_db()
    assert (run.state, run.scored) == (RunState.SCORED, 1)


def test_a_run_whose_backend_is_gone_is_sent_and_fails_where_it_is_looked_at(plan: Plan, sent: Sent) -> None:
    broken, good = plan(calls=1, model="broken"), plan(calls=1, model="good", timeout_s=9)
    Backend.objects.filter(pk=broken.backend_id).update(kind="a_plugin_that_is_gone")
    for run in (broken, good):
        make_stale(run)
    sent.clear()

    runs.sweep()

    assert sorted(sent) == [("rollouts.tasks.work_shard", (run.pk,)) for run in (broken, good)]
    assert runs.work_shard(broken.pk) == 0
    broken.refresh_from_db()
    assert (broken.state, broken.error_code) == (RunState.FAILED, "backend_unusable")


def test_the_sweep_is_silent_about_finished_runs(plan: Plan, sent: Sent) -> None:
    run = plan(calls=1)
    runs.work_shard(run.pk)
    make_stale(run)
    sent.clear()

    runs.sweep()

    assert sent == [] and actions() == ["run.planned", "run.scored"]


def test_the_task_is_the_service(plan: Plan) -> None:
    from rollouts import tasks

    run = plan(calls=1)

    tasks.work_shard(run.pk)
    tasks.work_shard(run.pk)
    tasks.sweep()

    run.refresh_from_db()
    assert (run.state, run.scored) == (RunState.SCORED, 1)
