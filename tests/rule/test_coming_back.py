"""What was left and came back is a change: evidence, a signer's group, an account. No signature comes back with it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group, User
from django.urls import reverse

from promotion.models import Approval, Candidate, CandidateState, Evidence
from promotion.services import gating, registry, risk_summaries, signatures
from rollouts import store
from rollouts.errors import StaleEvidence
from rollouts.models import AuditEvent
from tests import factories
from tests.factories import House, digest_of, sign
from tests.rule.worlds import state_of
from tests.web.conftest import html, signed_in

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sent")]


@pytest.fixture
def two() -> House:
    """A policy that asks for two approvers."""
    return factories.house(approvers=2)


def summarise(house: House, candidate: Candidate, text: str) -> str:
    risk_summaries.write(candidate_id=candidate.pk, text=text, digest=digest_of(candidate), by=house.engineer)
    return digest_of(candidate)


# evidence


def test_words_that_come_back_are_other_evidence_than_the_first_time(two: House) -> None:
    candidate = two.evaluated()
    first = summarise(two, candidate, "Low.")
    sign(candidate, two.approver)
    summarise(two, candidate, "High.")

    again = summarise(two, candidate, "Low.")

    assert again != first
    with pytest.raises(StaleEvidence):
        sign(candidate, two.approver_2, digest=first)
    sign(candidate, two.approver_2)
    assert state_of(candidate) == CandidateState.IN_REVIEW, "the first signature is for the first time"
    sign(candidate, two.approver)
    assert state_of(candidate) == CandidateState.APPROVED


def test_what_came_back_is_current_and_can_be_signed_on_the_page(two: House) -> None:
    candidate = two.evaluated()
    for text in ("Low.", "High.", "Low."):
        summarise(two, candidate, text)
    candidate.refresh_from_db()

    page = html(signed_in(two.approver).get(reverse("promotion:candidate", args=[candidate.pk])))

    assert gating.is_current(candidate)
    assert f'name="evidence_digest" value="{digest_of(candidate)}"' in page


def test_a_file_that_was_away_and_is_back_makes_new_evidence() -> None:
    two = factories.house(approvers=2, champion=True)
    candidate = two.evaluated()
    first = digest_of(candidate)
    file = store.path_of(two.champion.candidate.gguf_id)
    file.rename(file.with_suffix(".away"))
    away = gating.judge_again(candidate_id=candidate.pk, by=two.engineer)
    file.with_suffix(".away").rename(file)

    back = gating.judge_again(candidate_id=candidate.pk, by=two.engineer)

    assert len({first, away.digest, back.digest}) == 3
    assert Evidence.objects.filter(candidate=candidate).order_by("-id")[0] == back


def test_judging_again_what_did_not_change_keeps_evidence_and_signatures(two: House) -> None:
    candidate = two.evaluated()
    signed = sign(candidate, two.approver)

    again = gating.judge_again(candidate_id=candidate.pk, by=two.engineer)

    assert again.digest == signed.evidence_digest
    sign(candidate, two.approver_2)
    assert state_of(candidate) == CandidateState.APPROVED


# people


def _leave(person: User) -> None:
    person.groups.remove(Group.objects.get(name="approver"))


def _is_taken_out(person: User) -> None:
    Group.objects.get(name="approver").user_set.remove(person)


def _loses_all(person: User) -> None:
    person.groups.clear()


def _all_are_taken_out(person: User) -> None:
    Group.objects.get(name="approver").user_set.set([User.objects.get(username="approver-2")])


def _group_is_deleted(person: User) -> None:
    Group.objects.get(name="approver").delete()


def _is_deactivated(person: User) -> None:
    person.is_active = False
    person.save()


@pytest.mark.parametrize(
    "leaves", [_leave, _is_taken_out, _loses_all, _all_are_taken_out, _group_is_deleted, _is_deactivated]
)
def test_a_signer_who_comes_back_signs_anew(two: House, leaves: Callable[[User], None]) -> None:
    candidate = two.evaluated()
    signed = sign(candidate, two.approver)

    leaves(two.approver)
    group, _ = Group.objects.get_or_create(name="approver")
    two.approver.is_active = True
    two.approver.save()
    group.user_set.add(two.approver, two.approver_2)

    signed.refresh_from_db()
    assert signed.withdrawn_at is not None and signed.withdrawn_reason.startswith("Its signer")
    ended = AuditEvent.objects.filter(action="candidate.signature_ended").get()
    assert ended.actor == "system:roles"
    sign(candidate, two.approver_2)
    assert state_of(candidate) == CandidateState.IN_REVIEW
    sign(candidate, two.approver)
    assert state_of(candidate) == CandidateState.APPROVED


def test_an_approved_candidate_goes_back_to_review_when_a_signer_leaves(two: House) -> None:
    candidate = two.approved()

    _leave(two.approver)

    assert state_of(candidate) == CandidateState.IN_REVIEW
    assert Approval.objects.filter(candidate=candidate, withdrawn_at__isnull=True).count() == 1


def test_a_signer_who_leaves_while_it_is_published_has_no_signature_after(two: House) -> None:
    candidate = two.approved()
    Candidate.objects.filter(pk=candidate.pk).update(state=CandidateState.PUBLISHING)

    _leave(two.approver)

    assert state_of(candidate) == CandidateState.PUBLISHING, "the publication asks again and moves it"
    assert Approval.objects.filter(candidate=candidate, withdrawn_at__isnull=True).count() == 1


def test_a_group_that_nothing_was_signed_in_ends_nothing(two: House) -> None:
    candidate = two.evaluated()
    two.approver.groups.add(Group.objects.get(name="engineer"))
    sign(candidate, two.approver)

    two.approver.groups.remove(Group.objects.get(name="engineer"))

    assert Approval.objects.get().withdrawn_at is None


def test_what_is_promoted_keeps_its_signatures_when_a_signer_leaves() -> None:
    house = factories.house(champion=True)

    _leave(house.approver)

    assert not Approval.objects.filter(withdrawn_at__isnull=False).exists()


# what an entry says


def _expires(signed: Approval) -> None:
    Approval.objects.filter(pk=signed.pk).update(signed_at=signed.signed_at - timedelta(days=60))


def _is_switched_off(signed: Approval) -> None:
    User.objects.filter(pk=signed.approver_id).update(is_active=False)


def _is_withdrawn(signed: Approval) -> None:
    signatures.withdraw_signature(candidate_id=signed.candidate_id, by=signed.approver, reason="Too early.")


def _lost_the_group(signed: Approval) -> None:
    _leave(signed.approver)


@pytest.mark.parametrize("ends", [_expires, _is_switched_off, _is_withdrawn, _lost_the_group])
def test_an_entry_names_the_signatures_that_counted_and_no_others(
    two: House, ends: Callable[[Approval], None]
) -> None:
    carol, candidate = factories.person("carol", "approver"), two.evaluated()
    ends(sign(candidate, two.approver))
    sign(candidate, two.approver_2)
    sign(candidate, carol)

    entry = registry.publish(candidate.pk)

    assert entry is not None
    assert [one["person"] for one in entry.record["signatures"]] == ["approver-2", "carol"]
    assert entry.record["gates"][-1]["reason"] == "Signed by approver-2, carol."
