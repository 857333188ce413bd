"""A signature is for bytes: what changes nothing keeps it, any change ends it, and there is no way back to it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from promotion.models import Candidate, CandidateState, Decision, RegistryEntry, Waiver
from promotion.services import gating, policies, registry, waivers
from promotion.services.signatures import withdraw_signature
from rollouts.models import EvalRun
from rollouts.services import backends, runs
from tests import factories
from tests.disputes.conftest import capture
from tests.factories import House, sign
from tests.rule.worlds import state_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sent")]
Act = Callable[[House, Candidate], Any]
FLOOR = "generalization_accuracy_floor"


@pytest.fixture
def house() -> House:
    return factories.house(approvers=2)


def signed_by(candidate: Candidate) -> list[str]:
    """Who counts as having signed the evidence of this moment."""
    with transaction.atomic():
        locked = gating.locked_candidate(candidate.pk)
        names: list[str] = gating.approvals_outcome(locked, gating.freeze(locked)[0]).numbers["signed_by"]
    return names


def run_of(candidate: Candidate) -> EvalRun:
    return EvalRun.objects.get(label=candidate.name)


# what changes nothing


def judges_again(house: House, candidate: Candidate) -> None:
    gating.judge_again(candidate_id=candidate.pk, by=house.engineer)


def asks_for_the_evaluation_again(house: House, candidate: Candidate) -> None:
    assert gating.start_evaluation(candidate_id=candidate.pk, backend=house.backend, by=house.engineer) == []


def saves_a_draft_twice(house: House, candidate: Candidate) -> None:
    document = factories.policy_document([house.suite], approvers=1)
    for _ in range(2):
        policies.draft(track=house.track, document=document, by=house.administrator)


def saves_the_same_backend(house: House, candidate: Candidate) -> None:
    backend = house.backend
    assert backends.save(name=backend.name, kind=backend.kind, config={}, by=house.administrator) == backend


def seals_the_same_suite(house: House, candidate: Candidate) -> None:
    assert factories.suite(house.administrator, calls=20) == house.suite


def scores_again_to_the_same(house: House, candidate: Candidate) -> None:
    capture(run_of(candidate))
    runs.rescore(run_id=run_of(candidate).pk, by=house.engineer)


def starts_another_candidate(house: House, candidate: Candidate) -> None:
    house.evaluated("another")


def takes_another_signature_back(house: House, candidate: Candidate) -> None:
    sign(candidate, house.approver_2)
    withdraw_signature(candidate_id=candidate.pk, by=house.approver_2, reason="r")


@pytest.mark.parametrize(
    "act",
    [
        judges_again,
        asks_for_the_evaluation_again,
        saves_a_draft_twice,
        saves_the_same_backend,
        seals_the_same_suite,
        scores_again_to_the_same,
        starts_another_candidate,
        takes_another_signature_back,
    ],
    ids=lambda act: act.__name__,
)
def test_what_changes_nothing_keeps_signatures(house: House, act: Act) -> None:
    candidate = house.evaluated()
    sign(candidate, house.approver)
    digest = factories.digest_of(candidate)

    act(house, candidate)

    assert signed_by(candidate) == ["approver"]
    assert factories.digest_of(candidate) == digest
    sign(candidate, house.approver_2)
    assert state_of(candidate) == CandidateState.APPROVED


def test_a_waiver_that_is_only_asked_for_keeps_signatures(house: House) -> None:
    """The request stands beside the evidence until somebody grants it."""
    candidate = house.evaluated()
    sign(candidate, house.approver)
    Waiver.objects.create(
        candidate=candidate,
        gate=FLOOR,
        suite_digest=house.suite.digest,
        measurement_digest="0" * 64,
        reason="r",
        requested_by=house.engineer,
        requested_at=timezone.now(),
        expires_at=timezone.now() + timedelta(days=1),
    )

    assert signed_by(candidate) == ["approver"]


# what changes something, and back


def reopened_and_closed_alike(house: House, candidate: Candidate) -> None:
    run = run_of(candidate)
    runs.run_again(run_id=run.pk, by=house.engineer)
    rollout = run.rollouts.get(state="queued")
    factories.give(rollout, "right")
    rollout.save()
    assert runs.close_if_done(run.pk)


def another_policy_and_the_first_one_again(house: House, candidate: Candidate) -> None:
    first = house.policy.document
    for number, document in enumerate([{**first, "note": "for a moment"}, first]):
        draft = policies.draft(track=house.track, document=document, by=house.administrator)
        policies.lock(policy_id=draft.pk, by=factories.person(f"locker-{number}", "administrator"))
    house.measure(candidate)


def sent_back_and_judged_again(house: House, candidate: Candidate) -> None:
    sign(candidate, house.approver_2, decision=Decision.REQUEST_CHANGES, comment="Explain the drop.")
    gating.judge_again(candidate_id=candidate.pk, by=house.engineer)


def sent_back_and_evaluated_again(house: House, candidate: Candidate) -> None:
    sign(candidate, house.approver_2, decision=Decision.REQUEST_CHANGES, comment="Explain the drop.")
    house.measure(candidate)


@pytest.mark.parametrize(
    "there_and_back",
    [
        reopened_and_closed_alike,
        another_policy_and_the_first_one_again,
        sent_back_and_judged_again,
        sent_back_and_evaluated_again,
    ],
    ids=lambda act: act.__name__,
)
def test_there_and_back_again_needs_every_signature_anew(house: House, there_and_back: Act) -> None:
    candidate = house.evaluated("cand", {}, masked=1)
    sign(candidate, house.approver)

    there_and_back(house, candidate)
    gating.judge_if_measured(candidate.pk)
    if state_of(candidate) != CandidateState.IN_REVIEW or not gating.is_current(candidate):
        gating.judge_now(candidate.pk)

    assert state_of(candidate) == CandidateState.IN_REVIEW
    assert signed_by(candidate) == []
    sign(candidate, house.approver_2)
    assert state_of(candidate) == CandidateState.IN_REVIEW
    sign(candidate, house.approver)
    assert state_of(candidate) == CandidateState.APPROVED


def test_a_waiver_granted_and_ended_and_granted_again_needs_every_signature_anew(house: House) -> None:
    candidate = house.evaluated("cand", wrong=10)
    for number in range(2):
        asked = waivers.request(
            candidate_id=candidate.pk,
            gate=FLOOR,
            suite_digest=house.suite.digest,
            reason="r",
            days=1,
            by=house.engineer,
        )
        waivers.grant(waiver_id=asked.pk, by=factories.person(f"granter-{number}", "approver"))
        assert signed_by(candidate) == []
        sign(candidate, house.approver)
        assert signed_by(candidate) == ["approver"]
        if number == 0:
            waivers.end(waiver_id=asked.pk, by=house.engineer, reason="r")
            assert state_of(candidate) == CandidateState.BLOCKED


@pytest.mark.parametrize(
    "change",
    [reopened_and_closed_alike, another_policy_and_the_first_one_again],
    ids=lambda act: act.__name__,
)
def test_between_the_change_and_the_judging_nothing_can_be_promoted(house: House, change: Act) -> None:
    """Nothing is reset later, so there is no moment at which what was signed before still counts."""
    candidate = house.evaluated("cand", {}, masked=1)
    for approver in (house.approver, house.approver_2):
        sign(candidate, approver)

    change_without_judging(house, candidate, change)

    assert registry.publish(candidate.pk) is None
    assert not RegistryEntry.objects.exists()
    assert state_of(candidate) in (CandidateState.IN_REVIEW, CandidateState.BLOCKED)


def change_without_judging(house: House, candidate: Candidate, change: Act) -> None:
    if change is another_policy_and_the_first_one_again:
        draft = policies.draft(
            track=house.track, document={**house.policy.document, "note": "new"}, by=house.administrator
        )
        policies.lock(policy_id=draft.pk, by=factories.person("locker", "administrator"))
    else:
        change(house, candidate)
