"""Messages and signals may be lost: the sweep finds what they would have done, and does nothing twice."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from promotion import tasks
from promotion.models import Candidate, CandidateState, Evidence
from promotion.services import gating, sweeping
from rollouts.errors import Conflict, NotAllowed
from rollouts.models import AuditEvent, RunState
from rollouts.services import runs
from tests import factories
from tests.factories import House

Sent = list[tuple[str, tuple[Any, ...]]]


@pytest.fixture
def house(transactional_db: None, sent: Sent) -> House:
    made = factories.house(calls=5, gates=[])
    sent.clear()
    return made


def in_state(house: House, state: str, *, sent_ago_s: float | None) -> Candidate:
    candidate = house.candidate()
    at = None if sent_ago_s is None else timezone.now() - timedelta(seconds=sent_ago_s)
    Candidate.objects.filter(pk=candidate.pk).update(state=state, last_sent_at=at)
    return candidate


@pytest.mark.parametrize(
    ("state", "task"),
    [
        (CandidateState.SUBMITTED, "promotion.tasks.build"),
        (CandidateState.APPROVED, "promotion.tasks.publish"),
        (CandidateState.PUBLISHING, "promotion.tasks.publish"),
    ],
)
@pytest.mark.parametrize("sent_ago_s", [None, 3600])
def test_work_whose_message_was_lost_is_sent_again(
    house: House, sent: Sent, state: str, task: str, sent_ago_s: float | None
) -> None:
    candidate = in_state(house, state, sent_ago_s=sent_ago_s)

    sweeping.sweep()
    sweeping.sweep()

    assert sent == [(task, (candidate.pk,))]


@pytest.mark.parametrize(
    "state", ["build_failed", "built", "blocked", "in_review", "publish_failed", "promoted", "rejected"]
)
def test_what_waits_for_a_person_is_not_sent(house: House, sent: Sent, state: str) -> None:
    in_state(house, state, sent_ago_s=3600)

    sweeping.sweep()

    assert sent == []


def test_what_was_sent_a_moment_ago_is_not_sent_again(house: House, sent: Sent) -> None:
    in_state(house, CandidateState.SUBMITTED, sent_ago_s=0)

    sweeping.sweep()

    assert sent == []


def evaluating(house: House) -> tuple[Candidate, Any]:
    candidate = house.candidate()
    (run,) = gating.start_evaluation(candidate_id=candidate.pk, backend=house.backend, by=house.engineer)
    return candidate, run


def state_of(candidate: Candidate) -> str:
    return Candidate.objects.get(pk=candidate.pk).state


def test_a_candidate_is_judged_when_its_last_run_closes(house: House) -> None:
    candidate, run = evaluating(house)

    factories.finish_run(run)

    assert state_of(candidate) == CandidateState.IN_REVIEW


def test_a_judging_that_breaks_does_not_undo_the_close_and_the_sweep_makes_good_for_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate, run = evaluating(house)
    with monkeypatch.context() as broken:
        broken.setattr(gating, "judge_now", lambda *_, **__: 1 / 0)
        factories.finish_run(run)
    assert (run.state, state_of(candidate)) == (RunState.SCORED, CandidateState.EVALUATING)

    sweeping.sweep()

    assert state_of(candidate) == CandidateState.IN_REVIEW


def test_the_sweep_does_not_judge_while_a_run_is_active(house: House) -> None:
    candidate, _ = evaluating(house)

    sweeping.sweep()

    assert state_of(candidate) == CandidateState.EVALUATING
    assert not Evidence.objects.filter(candidate=candidate).exists()


def test_the_sweep_shows_a_built_baseline_for_its_signatures(house: House) -> None:
    baseline = house.candidate("first", baseline=True)

    tasks.sweep()
    tasks.sweep()

    assert state_of(baseline) == CandidateState.IN_REVIEW
    assert AuditEvent.objects.filter(action="candidate.judged").count() == 1


def test_a_failed_run_lets_its_candidate_be_judged_as_blocked(house: House) -> None:
    candidate, run = evaluating(house)
    runs.fail(run.pk, code="server_changed", detail="no")

    sweeping.sweep()

    assert state_of(candidate) == CandidateState.BLOCKED


def test_one_broken_candidate_does_not_keep_the_others_from_being_judged(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, first_run = evaluating(house)
    second = house.candidate("second")
    (second_run,) = gating.start_evaluation(candidate_id=second.pk, backend=house.backend, by=house.engineer)
    judge = gating.judge_now

    def broken(candidate_id: int, **words: Any) -> Any:
        if candidate_id == first.pk:
            raise ZeroDivisionError
        return judge(candidate_id, **words)

    with monkeypatch.context() as down:
        down.setattr(gating, "judge_now", lambda *_, **__: 1 / 0)
        factories.finish_run(first_run)
        factories.finish_run(second_run)
    monkeypatch.setattr(gating, "judge_now", broken)

    sweeping.sweep()

    assert (state_of(first), state_of(second)) == (CandidateState.EVALUATING, CandidateState.IN_REVIEW)


# judging on request


def test_judging_again_waits_for_active_runs(house: House) -> None:
    candidate, run = evaluating(house)

    with pytest.raises(Conflict, match="waits for 1 active runs"):
        gating.judge_again(candidate_id=candidate.pk, by=house.engineer)

    factories.finish_run(run)
    assert gating.judge_again(candidate_id=candidate.pk, by=house.engineer).candidate == candidate


@pytest.mark.parametrize(
    ("who", "may"), [("engineer", True), ("approver", True), ("auditor", False), ("administrator", False)]
)
def test_engineers_and_approvers_judge_again(house: House, who: str, may: bool) -> None:
    candidate = house.evaluated()
    before = AuditEvent.objects.filter(action="candidate.judged").count()

    if not may:
        with pytest.raises(NotAllowed):
            gating.judge_again(candidate_id=candidate.pk, by=getattr(house, who))
    else:
        gating.judge_again(candidate_id=candidate.pk, by=getattr(house, who))

    assert AuditEvent.objects.filter(action="candidate.judged").count() == before + may


@pytest.mark.parametrize(
    "state",
    ["submitted", "built", "approved", "publishing", "publish_failed", "promoted", "rejected", "withdrawn"],
)
def test_a_candidate_whose_state_has_nothing_to_judge_is_left_as_it_is(house: House, state: str) -> None:
    candidate = house.evaluated()
    Candidate.objects.filter(pk=candidate.pk).update(state=state)
    before = Candidate.objects.values().get(pk=candidate.pk)

    with pytest.raises(Conflict):
        gating.judge_again(candidate_id=candidate.pk, by=house.engineer)

    assert Candidate.objects.values().get(pk=candidate.pk) == before
