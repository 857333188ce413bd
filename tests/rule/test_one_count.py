"""How many have signed is one count: the sign box, the verdict, home and the gate take it from one place."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group, User

from promotion import selectors
from promotion.models import Approval, Candidate
from promotion.services import gating, policies, signatures
from promotion.web.home import home_of
from promotion.web.review import review
from tests import factories
from tests.factories import House, sign
from tests.web.conftest import html, signed_in

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sent")]


def _stands(signed: Approval) -> None:
    """Nothing happens to it."""


def _is_withdrawn(signed: Approval) -> None:
    signatures.withdraw_signature(candidate_id=signed.candidate_id, by=signed.approver, reason="Too early.")


def _is_given_anew(signed: Approval) -> None:
    _is_withdrawn(signed)
    sign(Candidate.objects.get(pk=signed.candidate_id), signed.approver)


def _expires(signed: Approval) -> None:
    Approval.objects.filter(pk=signed.pk).update(signed_at=signed.signed_at - timedelta(days=60))


def _is_put_out_by_a_script(signed: Approval) -> None:
    User.groups.through.objects.filter(user_id=signed.approver_id).delete()


@pytest.mark.parametrize(
    ("happens", "counts"),
    [(_stands, 1), (_is_withdrawn, 0), (_is_given_anew, 1), (_expires, 0), (_is_put_out_by_a_script, 0)],
)
def test_box_home_and_gate_say_the_same_number(happens: Callable[[Approval], None], counts: int) -> None:
    house = factories.house(approvers=2)
    candidate = house.evaluated()
    happens(sign(candidate, house.approver))
    candidate = selectors.candidate_by_id(candidate.pk, house.auditor)

    evidence = selectors.latest_evidence(candidate)
    assert evidence is not None
    assert len(gating.approvals_outcome(candidate, evidence).numbers["signed_by"]) == counts
    assert review(candidate, house.approver_2, {}).sign.rule == f"needs 2 approvers; has {counts}"
    signer = User.objects.get(pk=house.approver.pk)
    box = review(candidate, signer, {}).sign
    assert box.allowed is (counts == 0 and signer.groups.exists()), "whose signature ended signs anew"
    (waits,) = home_of(house.approver_2).to_sign
    assert (waits.signed, waits.needed) == (counts, 2)


@pytest.mark.parametrize("reads_as", ["engineer", "auditor"])
def test_whoever_the_rule_asks_for_finds_it_on_home_and_signs_whatever_their_role(reads_as: str) -> None:
    house: House = factories.house()
    Group.objects.create(name="safety")
    person = factories.person("rosa", "safety", reads_as)
    document = {**house.policy.document, "approval": {**house.policy.document["approval"]}}
    document["approval"]["approvers"] = [{"group": "safety", "count": 1}]
    drafted = policies.draft(track=house.track, document=document, by=house.administrator)
    policies.lock(policy_id=drafted.pk, by=house.approver_2)
    candidate = house.evaluated("waits")

    client = signed_in(person)
    page = html(client.get("/"))

    assert [row.candidate for row in home_of(person).to_sign] == [candidate]
    assert f"/candidates/{candidate.pk}/" in page and "To sign" in page

    words = {
        "decision": "approve",
        "meaning": "authorises",
        "method": "password",
        "password": factories.PASSWORD,
    }
    words["evidence_digest"] = factories.digest_of(candidate)
    answer = client.post(f"/candidates/{candidate.pk}/sign/", words, follow=True)

    assert answer.status_code == 200 and "Recorded: you signed waits" in html(answer)
    assert Approval.objects.get().approver == person
