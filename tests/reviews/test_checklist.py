"""The policy's checklist: ticked by each signer for one evidence digest, partly answered by the evidence."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

from promotion import checklist
from promotion.models import Candidate, ChecklistAnswer
from promotion.services import gating, reviews
from rollouts.errors import Conflict, InvalidInput, NotAllowed, StaleEvidence
from rollouts.models import AuditEvent
from tests import factories
from tests.factories import digest_of
from tests.reviews.conftest import CHECKLIST, FLOOR, policy
from tests.web.conftest import html, signed_in

pytestmark = pytest.mark.django_db
ACCEPTED = "The data is declared in the paper; it comes with the next round."


@pytest.fixture
def listed(house: factories.House) -> Candidate:
    policy(house, FLOOR, checklist=CHECKLIST)
    return house.evaluated("cand")


def tick(candidate: Candidate, by: Any, item: str = "read-flips", **more: Any) -> None:
    reviews.tick(candidate_id=candidate.pk, item=item, by=by, **{"digest": digest_of(candidate), **more})


def test_nobody_approves_before_every_item_is_settled(house: factories.House, listed: Candidate) -> None:
    with pytest.raises(Conflict) as refused:
        factories.sign(listed, house.approver)

    assert refused.value.blocked_by == [
        '"I read every lost case." is not ticked',
        '"The training data is declared." is answered with no by the evidence, and you wrote no note',
    ]


def test_a_settled_checklist_stands_in_the_signature(house: factories.House, listed: Candidate) -> None:
    tick(listed, house.approver)
    tick(listed, house.approver, "data", note=ACCEPTED)

    approval = factories.sign(listed, house.approver)

    assert [(item["key"], item["answer"], item["note"]) for item in approval.checklist] == [
        ("read-flips", True, ""),
        ("no-waivers", True, ""),
        ("data", False, ACCEPTED),
    ]
    assert approval.checklist[0]["text"] == "I read every lost case."


def test_a_tick_is_its_persons_own(house: factories.House, listed: Candidate) -> None:
    tick(listed, house.approver_2)
    tick(listed, house.approver_2, "data", note=ACCEPTED)

    with pytest.raises(Conflict, match="is not ticked"):
        factories.sign(listed, house.approver)


def test_new_evidence_needs_new_ticks(house: factories.House, listed: Candidate) -> None:
    tick(listed, house.approver)
    tick(listed, house.approver, "data", note=ACCEPTED)
    Candidate.objects.filter(pk=listed.pk).update(revision=9)
    gating.judge_now(listed.pk)

    with pytest.raises(Conflict, match="is not ticked"):
        factories.sign(listed, house.approver)


def test_a_tick_of_evidence_that_is_gone_is_refused(house: factories.House, listed: Candidate) -> None:
    shown = digest_of(listed)
    Candidate.objects.filter(pk=listed.pk).update(revision=9)
    gating.judge_now(listed.pk)

    with pytest.raises(StaleEvidence):
        tick(listed, house.approver, digest=shown)


def test_the_same_tick_again_changes_nothing(house: factories.House, listed: Candidate) -> None:
    tick(listed, house.approver)
    tick(listed, house.approver)

    assert ChecklistAnswer.objects.count() == 1
    assert AuditEvent.objects.filter(action="review.ticked").count() == 1


def test_a_tick_can_be_taken_back(house: factories.House, listed: Candidate) -> None:
    tick(listed, house.approver)
    for _ in range(2):
        reviews.untick(candidate_id=listed.pk, item="read-flips", digest=digest_of(listed), by=house.approver)

    assert not ChecklistAnswer.objects.exists()
    assert AuditEvent.objects.filter(action="review.unticked").count() == 1


def test_what_the_evidence_answers_with_yes_is_not_ticked(house: factories.House, listed: Candidate) -> None:
    with pytest.raises(Conflict, match="itself answers this with yes"):
        tick(listed, house.approver, "no-waivers")


def test_what_the_evidence_answers_with_no_needs_a_note(house: factories.House, listed: Candidate) -> None:
    with pytest.raises(InvalidInput, match="note: must say why"):
        tick(listed, house.approver, "data", note="  ")


@pytest.mark.parametrize(("item", "note"), [("unknown", ""), ("read-flips", "x" * 2001)])
def test_an_unknown_item_and_a_long_note_are_refused(
    house: factories.House, listed: Candidate, item: str, note: str
) -> None:
    with pytest.raises(InvalidInput):
        tick(listed, house.approver, item, note=note)


@pytest.mark.parametrize("role", ["engineer", "auditor", "administrator"])
def test_only_who_could_sign_ticks(house: factories.House, listed: Candidate, role: str) -> None:
    with pytest.raises(NotAllowed):
        tick(listed, getattr(house, role))


def test_what_is_promoted_is_not_ticked_any_more(house: factories.House) -> None:
    first = Candidate.objects.get(name="first")

    with pytest.raises(Conflict, match="is promoted"):
        tick(first, house.approver)


def test_every_question_names_what_it_is_answered_from() -> None:
    assert all(checklist.basis(question) for question in checklist.QUESTIONS)
    assert checklist.basis(checklist.REVIEWER) == ""


def test_the_page_ticks_and_unticks(house: factories.House, listed: Candidate) -> None:
    client, address = signed_in(house.approver), reverse("promotion:checklist", args=[listed.pk])
    page = reverse("promotion:candidate", args=[listed.pk])
    given = {"item": "read-flips", "digest": digest_of(listed)}
    assert "2 of 3 left for you" in html(client.get(page))

    assert client.post(address, given)["Location"] == f"{page}#checklist"
    assert "1 of 3 left for you" in html(client.get(page))
    client.post(address, given | {"do": "untick"})
    assert "2 of 3 left for you" in html(client.get(page))
    assert "answered from the datasets that the candidate declares" in html(client.get(page))


def test_a_refused_note_is_kept_on_the_page(house: factories.House, listed: Candidate) -> None:
    given = {"item": "data", "digest": digest_of(listed), "note": "n" * 2001}

    answer = signed_in(house.approver).post(reverse("promotion:checklist", args=[listed.pk]), given)

    assert answer.status_code == 422
    assert "must be at most 2000 characters." in html(answer)
    assert "n" * 2001 in html(answer)


def test_a_stale_tick_is_412_on_the_page(house: factories.House, listed: Candidate) -> None:
    given = {"item": "read-flips", "digest": "0" * 64}

    assert (
        signed_in(house.approver).post(reverse("promotion:checklist", args=[listed.pk]), given).status_code
        == 412
    )


def test_who_does_not_sign_reads_the_checklist(house: factories.House, listed: Candidate) -> None:
    page = html(signed_in(house.auditor).get(reverse("promotion:candidate", args=[listed.pk])))

    assert "answered by each who signs" in page
    assert "Accept it with this note" not in page
