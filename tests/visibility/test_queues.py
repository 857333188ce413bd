"""What waits for a person on the first page and beside a review: nothing of a track that they may not see (any more)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.urls import reverse

from promotion import selectors
from promotion.evidence import document_of
from promotion.models import Candidate, Dispute, Evidence
from promotion.services import disputes, policies, threads, tracks, waivers
from promotion.web.waiting import disputes_to_decide, threads_to_answer
from promotion.web.waivers import to_grant
from tests import factories
from tests.factories import House
from tests.web.conftest import _surroundings as _surroundings
from tests.web.conftest import html, signed_in

pytestmark = pytest.mark.django_db
TEAM = "assistants-team"
SECRET = "Only the assistants' team knows of this."
QUEUES: dict[str, Callable[[User], Iterable[Any]]] = {
    "to sign": lambda person: selectors.in_review(person, 9),
    "candidates of mine": lambda person: selectors.engineers_turn(person, 9),
    "policies to lock": lambda person: selectors.drafts(person, 9),
    "waivers to grant": lambda person: to_grant(person, 9),
    "disputes to decide": lambda person: disputes_to_decide(person, 9),
    "threads to answer": lambda person: threads_to_answer(person, 9),
}


@dataclass(slots=True)
class Busy:
    """A track of one team. `name` is a person of it for whom something of every kind waits there."""

    house: House
    name: str
    disputed: Candidate

    def leave(self) -> User:
        self.person().groups.remove(Group.objects.get(name=TEAM))
        return self.person()

    def person(self) -> User:
        """As the database knows them: an instance remembers its groups."""
        return User.objects.get(username=self.name)


@pytest.fixture
def busy(db: None) -> Busy:
    house = factories.house(calls=4, declines=2, gates=[])
    team, person = Group.objects.create(name=TEAM), factories.person("leaver", "engineer", "approver")
    for one in (house.engineer, person):
        one.groups.add(team)
    mine = factories.built_candidate(house.track, house.base, person, name="mine")
    theirs = house.evaluated("theirs", wrong=1)
    thread = threads.start(candidate_id=theirs.pk, anchor="page", text="Why?", by=person)
    threads.reply(candidate_id=theirs.pk, thread_id=thread.pk, text="Look here.", by=house.engineer)
    case = house.suite.cases.order_by("id")[0]
    disputes.raise_dispute(
        candidate_id=theirs.pk,
        case_id=case.pk,
        evidence_digest=factories.digest_of(theirs),
        expected={"decision": "no_tool"},
        reason=SECRET,
        by=house.engineer,
    )
    draft = policies.draft(track=house.track, document=_stricter(house), by=house.administrator)
    house.policy = policies.lock(policy_id=draft.pk, by=house.approver)
    blocked = house.evaluated("blocked", masked=3)
    waivers.request(
        candidate_id=blocked.pk,
        gate="masked_ceiling",
        suite_digest=house.suite.digest,
        reason=SECRET,
        days=3,
        by=house.engineer,
    )
    policies.draft(track=house.track, document=_stricter(house, note=SECRET), by=house.administrator)
    tracks.set_readers(track=house.track, groups=[TEAM], by=house.administrator)
    assert (mine.state, theirs.state, blocked.state) == ("built", "in_review", "blocked")
    return Busy(house, person.username, theirs)


def _stricter(house: House, note: str = "") -> dict[str, Any]:
    gate = {"gate": "masked_ceiling", "suite": house.suite.digest, "max_percent": "1"}
    return factories.policy_document([house.suite], extra=[gate]) | {"note": note}


@pytest.mark.parametrize("queue", QUEUES)
def test_who_left_the_team_is_asked_for_nothing_of_its_track(busy: Busy, queue: str) -> None:
    assert len(list(QUEUES[queue](busy.person()))) == 1, (
        "it waits for who is of the team, or nothing is proven"
    )

    assert list(QUEUES[queue](busy.leave())) == []


def test_the_first_page_names_the_track_to_its_team_alone(busy: Busy) -> None:
    def page(person: User) -> str:
        return html(signed_in(person).get(reverse("promotion:home")))

    assert page(busy.person()).count(busy.house.track.name) > len(QUEUES)

    left = page(busy.leave())
    assert busy.house.track.name not in left and "theirs" not in left


# a suite that two tracks share


@pytest.fixture
def shared(busy: Busy) -> Candidate:
    """A candidate that everybody sees, judged by the suite of the disputed case."""
    house = busy.house
    track = tracks.create(name="open-to-all", purpose="p", by=house.administrator)
    document = factories.policy_document([house.suite])
    draft = policies.draft(track=track, document=document, by=house.administrator)
    locked = policies.lock(policy_id=draft.pk, by=house.administrator)
    return replace(house, track=track, policy=locked).evaluated("shared")


def seen_of(candidate: Candidate, person: User) -> list[bool]:
    document = document_of(Evidence.objects.get(digest=factories.digest_of(candidate)))
    return [dispute.seen for dispute in disputes.disputes_about(document, person)]


def test_a_dispute_raised_where_one_may_not_look_counts_and_is_not_shown(
    busy: Busy, shared: Candidate
) -> None:
    assert seen_of(shared, busy.person()) == [True]

    assert seen_of(shared, busy.leave()) == [False]


def test_the_review_says_that_there_is_a_dispute_and_nothing_of_it(busy: Busy, shared: Candidate) -> None:
    def page(person: User) -> str:
        return html(signed_in(person).get(reverse("promotion:candidate", args=[shared.pk])))

    address = reverse("promotion:dispute", args=[busy.disputed.pk, Dispute.objects.get().pk])
    assert address in page(busy.person())

    left = page(busy.leave())
    assert address not in left and busy.house.track.name not in left and SECRET not in left
