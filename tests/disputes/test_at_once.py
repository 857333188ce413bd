"""Two who decide at once, and a run that closes meanwhile: one outcome, and no run is left with the case as it was."""

from __future__ import annotations

from typing import Any

import pytest

from promotion.audit.verify import verify_chain
from promotion.management.commands.verify_audit import stored_events
from promotion.models import Candidate, Dispute
from promotion.services import disputes
from rollouts.errors import Conflict
from rollouts.models import Amendment, EvalRun
from rollouts.services import runs
from tests import factories
from tests.disputes.conftest import NO_TOOL, RESOLUTION, capture, case_of, raised, run_of
from tests.factories import House, digest_of
from tests.threads import in_threads

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("sent")]


def test_of_two_acceptances_at_once_one_counts(house: House, candidate: Candidate) -> None:
    dispute = raised(house, candidate)

    def accept(by: Any) -> Any:
        return disputes.accept(dispute_id=dispute.pk, by=by, resolution=RESOLUTION)

    results = in_threads(lambda: accept(house.approver), lambda: accept(house.approver_2))

    assert sorted(type(result).__name__ for result in results) == ["Conflict", "Dispute"], results
    assert Amendment.objects.count() == 1
    assert verify_chain(stored_events()).bad_sequence is None


def test_an_acceptance_and_a_withdrawal_at_once_are_one_of_both(house: House, candidate: Candidate) -> None:
    dispute = raised(house, candidate)

    results = in_threads(
        lambda: disputes.accept(dispute_id=dispute.pk, by=house.approver, resolution=RESOLUTION),
        lambda: disputes.withdraw(dispute_id=dispute.pk, by=house.engineer),
    )

    assert sorted(type(result).__name__ for result in results) == ["Conflict", "Dispute"], results
    dispute.refresh_from_db()
    assert (case_of(house).amended_expected == NO_TOOL) is (dispute.state == "accepted")


def test_a_run_that_closes_meanwhile_is_scored_by_the_amended_case(
    house: House, candidate: Candidate
) -> None:
    dispute = raised(house, candidate)
    again = runs.plan(
        subject=run_of("cand").subject,
        suite=house.suite,
        backend=house.backend,
        by=house.engineer,
        label="open",
    )
    for rollout in again.rollouts.all():
        factories.give(rollout, "right")
        rollout.save()
    capture(again)

    results = in_threads(
        lambda: disputes.accept(dispute_id=dispute.pk, by=house.approver, resolution=RESOLUTION),
        lambda: runs.close_if_done(again.pk),
    )

    assert isinstance(results[0], Dispute)
    assert results[1] is True
    assert EvalRun.objects.get(pk=again.pk).state == "scored"
    assert again.rollouts.get(case__key="named-call-0").exact is False


def test_acceptance_judges_the_candidates_again_that_count_the_case(
    house: House, candidate: Candidate
) -> None:
    before = digest_of(candidate)

    disputes.accept(dispute_id=raised(house, candidate).pk, by=house.approver, resolution=RESOLUTION)

    assert digest_of(candidate) != before
    candidate.refresh_from_db()
    assert candidate.state == "in_review"


def test_of_two_who_dispute_a_case_at_once_one_is_first(house: House, candidate: Candidate) -> None:
    results = in_threads(
        lambda: raised(house, candidate), lambda: raised(house, candidate, by=house.approver)
    )

    assert sorted(type(result).__name__ for result in results) == ["Conflict", "Dispute"], results
    assert isinstance(next(result for result in results if isinstance(result, Conflict)), Conflict)
    assert Dispute.objects.count() == 1
