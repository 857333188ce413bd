"""Several reviewers, tabs and scripts at once: one row each, and no signature past a question."""

from __future__ import annotations

from functools import partial

import pytest

from promotion.models import (
    Approval,
    Candidate,
    ChecklistAnswer,
    PanelOpening,
    ReviewVisit,
    RiskSummary,
    Thread,
)
from promotion.services import reviews, risk_summaries, threads
from rollouts.errors import AssayError, Conflict
from rollouts.models import AuditEvent
from tests import factories
from tests.factories import digest_of
from tests.reviews.conftest import CHECKLIST, FLOOR, lost, policy
from tests.reviews.test_must_open import panels
from tests.threads import in_threads

pytestmark = pytest.mark.django_db(transaction=True)
AT_ONCE, ROUNDS = 20, 5


@pytest.fixture
def house(transactional_db: None) -> factories.House:
    made = factories.house(calls=20, declines=20, champion=True)
    policy(made, FLOOR, checklist=CHECKLIST[:1])
    return made


@pytest.fixture
def flipped(house: factories.House) -> Candidate:
    return house.evaluated("cand", lost(house, 3))


def test_the_same_opening_posted_20_times_at_once_is_one_row_and_one_event(
    house: factories.House, flipped: Candidate
) -> None:
    key = panels(flipped)[0].key

    results = in_threads(
        *[partial(reviews.open_panel, candidate_id=flipped.pk, panel=key, by=house.approver)] * AT_ONCE
    )

    assert {type(result) for result in results} == {PanelOpening}
    assert PanelOpening.objects.count() == 1
    assert AuditEvent.objects.filter(action="review.opened").count() == 1


def test_the_same_tick_and_visit_at_once_are_one_row(house: factories.House, flipped: Candidate) -> None:
    about = {"candidate_id": flipped.pk, "digest": digest_of(flipped), "by": house.approver}

    ticks = in_threads(*[partial(reviews.tick, item="read-flips", **about)] * AT_ONCE)
    visits = in_threads(*[partial(reviews.mark_seen, **about)] * AT_ONCE)

    assert ticks + visits == [None] * AT_ONCE * 2
    assert (ChecklistAnswer.objects.count(), ReviewVisit.objects.count()) == (1, 1)
    for action in ("review.ticked", "review.seen"):
        assert AuditEvent.objects.filter(action=action).count() == 1


def test_a_thread_that_was_started_after_the_page_was_read_blocks_approval(
    house: factories.House, flipped: Candidate
) -> None:
    reviews.tick(candidate_id=flipped.pk, item="read-flips", digest=digest_of(flipped), by=house.approver)
    shown = digest_of(flipped)
    threads.start(candidate_id=flipped.pk, anchor="page", text="One more thing.", by=house.approver_2)

    with pytest.raises(Conflict, match="the thread on the candidate as a whole is not resolved"):
        factories.sign(flipped, house.approver, digest=shown)


def test_of_a_question_and_an_approval_at_once_the_approval_is_first_or_refused(
    house: factories.House,
) -> None:
    policy(house, FLOOR)
    for number in range(ROUNDS):
        candidate = house.evaluated(f"cand-{number}")
        signed, asked = in_threads(
            partial(factories.sign, candidate, house.approver),
            partial(
                threads.start, candidate_id=candidate.pk, anchor="page", text="Why?", by=house.approver_2
            ),
        )

        assert isinstance(asked, Thread)
        if isinstance(signed, Approval):
            order = AuditEvent.objects.filter(
                subject_id=str(candidate.pk), action__in=["candidate.signed", "candidate.thread_started"]
            ).order_by("sequence")
            assert [event.action for event in order] == ["candidate.signed", "candidate.thread_started"]
        else:
            assert isinstance(signed, Conflict), signed


def test_of_new_words_and_an_approval_at_once_no_approval_stands_on_the_old_words(
    house: factories.House,
) -> None:
    policy(house, FLOOR)
    for number in range(ROUNDS):
        candidate = house.evaluated(f"cand-{number}")
        shown = digest_of(candidate)
        signed, written = in_threads(
            partial(factories.sign, candidate, house.approver, digest=shown),
            partial(
                risk_summaries.write,
                candidate_id=candidate.pk,
                text="Other words.",
                digest=shown,
                by=house.engineer,
            ),
        )

        outcomes = {type(signed), type(written)}
        assert isinstance(signed, Approval) != isinstance(written, RiskSummary), (signed, written)
        assert any(issubclass(outcome, AssayError) for outcome in outcomes)
