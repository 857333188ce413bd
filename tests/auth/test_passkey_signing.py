"""A passkey signs one act: these words on this evidence, by this person, now, once."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from promotion.models import Approval, Candidate
from tests import factories
from tests.auth.authenticator import SoftPasskey
from tests.auth.conftest import (
    client_of,
    give_passkey,
    options_on,
    refused,
    sign_url,
    without_password,
    words,
)
from tests.factories import House
from tests.web.conftest import html

pytestmark = pytest.mark.django_db


@pytest.fixture
def passkey(house: House) -> SoftPasskey:
    return give_passkey(house.approver)


@pytest.fixture
def client(house: House, passkey: SoftPasskey) -> Client:
    return client_of(house.approver)


def begin(client: Client, candidate: Candidate, **changes: str) -> dict[str, Any]:
    """The options of the page that asks for the passkey."""
    sent = client.post(sign_url(candidate), {**words(candidate, **changes), "method": "passkey"})
    assert sent.status_code == 302, html(sent)
    return options_on(client.get(sent["Location"]))


def confirm(client: Client, candidate: Candidate, answer: Any) -> Any:
    address = reverse("promotion:sign-passkey-confirm", args=[candidate.pk])
    return client.post(address, {"credential": answer if isinstance(answer, str) else json.dumps(answer)})


def test_a_passkey_signs_and_the_signature_says_so(
    house: House, candidate: Candidate, client: Client, passkey: SoftPasskey
) -> None:
    options = begin(client, candidate)
    assert not Approval.objects.filter(candidate=candidate).exists()

    response = confirm(client, candidate, passkey.get(options))

    assert response.status_code == 302
    approval = Approval.objects.get(candidate=candidate)
    assert (approval.approver, approval.method, approval.meaning) == (house.approver, "passkey", "authorises")
    assert approval.comment == "Fit for use."
    assert timedelta(0) <= approval.signed_at - approval.authenticated_at < timedelta(seconds=5)


def test_the_page_says_what_is_signed_and_asks_for_verification(candidate: Candidate, client: Client) -> None:
    options = begin(client, candidate)

    page = html(client.get(reverse("promotion:sign-passkey", args=[candidate.pk])))

    digest = factories.digest_of(candidate)
    assert f"{digest[:4]} {digest[4:8]}" in page and "I authorise the release" in page
    assert options["publicKey"]["userVerification"] == "required"
    assert options["publicKey"]["rpId"] == "localhost"


def test_a_person_without_a_password_signs_by_passkey(
    house: House, candidate: Candidate, passkey: SoftPasskey
) -> None:
    client = client_of(without_password(house.approver))
    page = html(client.get(reverse("promotion:candidate", args=[candidate.pk])))
    assert 'name="password"' not in page and '<input type="hidden" name="method" value="passkey">' in page

    confirm(client, candidate, passkey.get(begin(client, candidate)))

    assert Approval.objects.get(candidate=candidate).method == "passkey"


@pytest.mark.parametrize("decision", ["request_changes", "reject"])
def test_the_other_decisions_go_the_same_way(
    candidate: Candidate, client: Client, passkey: SoftPasskey, decision: str
) -> None:
    options = begin(client, candidate, decision=decision, meaning="", comment="Not yet.")

    assert confirm(client, candidate, passkey.get(options)).status_code == 302

    assert Approval.objects.get(candidate=candidate).decision == decision


def test_a_replayed_answer_is_refused(candidate: Candidate, client: Client, passkey: SoftPasskey) -> None:
    answer = passkey.get(begin(client, candidate))
    assert confirm(client, candidate, answer).status_code == 302
    Approval.objects.filter(candidate=candidate).delete()

    assert confirm(client, candidate, answer).status_code == 403

    assert refused("act_refused")


def test_an_answer_to_an_earlier_act_does_not_sign_a_later_one(
    candidate: Candidate, client: Client, passkey: SoftPasskey
) -> None:
    earlier = passkey.get(begin(client, candidate))
    begin(client, candidate)

    response = confirm(client, candidate, earlier)

    assert response.status_code == 403 and "another act" in html(response)
    assert refused("passkey_refused")


def test_an_answer_for_another_decision_is_refused(
    candidate: Candidate, client: Client, passkey: SoftPasskey
) -> None:
    for_rejection = passkey.get(begin(client, candidate, decision="reject", meaning=""))
    begin(client, candidate)

    assert confirm(client, candidate, for_rejection).status_code == 403
    assert refused("passkey_refused")


def test_an_answer_for_another_digest_is_refused(
    house: House, candidate: Candidate, client: Client, passkey: SoftPasskey
) -> None:
    other = house.evaluated("other")
    for_other = passkey.get(begin(client, other))
    begin(client, candidate)

    assert confirm(client, candidate, for_other).status_code == 403
    assert refused("passkey_refused")


def test_an_act_is_confirmed_on_its_own_candidate_only(
    house: House, candidate: Candidate, client: Client, passkey: SoftPasskey
) -> None:
    other = house.evaluated("other")
    answer = passkey.get(begin(client, other))

    assert confirm(client, candidate, answer).status_code == 403
    assert refused("act_refused")


def test_another_persons_passkey_is_refused(house: House, candidate: Candidate, client: Client) -> None:
    theirs = give_passkey(house.approver_2)

    response = confirm(client, candidate, theirs.get(begin(client, candidate)))

    assert response.status_code == 403 and "not one of yours" in html(response)
    assert refused("passkey_refused")


def test_a_passkey_that_was_removed_is_refused(
    house: House, candidate: Candidate, client: Client, passkey: SoftPasskey
) -> None:
    options = begin(client, candidate)
    house.approver.authenticator_set.all().delete()

    assert confirm(client, candidate, passkey.get(options)).status_code == 403
    assert refused("passkey_refused")


@pytest.mark.parametrize(
    "wrong",
    [
        SoftPasskey(verifies=False),
        SoftPasskey(origin="https://localhost.evil.example"),
        SoftPasskey(origin="http://evil.example"),
        SoftPasskey(host="evil.example"),
    ],
    ids=["not verified", "another site like it", "another site", "for another host"],
)
def test_a_passkey_answers_here_and_verifies_the_person(
    house: House, candidate: Candidate, wrong: SoftPasskey
) -> None:
    give_passkey(house.approver, wrong)
    client = client_of(house.approver)

    assert confirm(client, candidate, wrong.get(begin(client, candidate))).status_code == 403
    assert refused("passkey_refused")


@pytest.mark.parametrize("minutes, holds", [(4, True), (6, False), (-1, False)])
def test_an_act_waits_five_minutes(
    candidate: Candidate, client: Client, passkey: SoftPasskey, minutes: int, holds: bool
) -> None:
    answer = passkey.get(begin(client, candidate))

    with time_machine.travel(timezone.now() + timedelta(minutes=minutes)):
        response = confirm(client, candidate, answer)

    assert response.status_code == (302 if holds else 403)
    assert holds or refused("act_refused")


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "{",
        "[]",
        "null",
        '"x"',
        "{}",
        '{"id": 1}',
        '{"id": "a", "rawId": "!", "type": "x", "response": {}}',
        "[" * 9999,
    ],
)
def test_what_is_no_answer_of_a_passkey_is_refused(candidate: Candidate, client: Client, answer: str) -> None:
    begin(client, candidate)

    assert confirm(client, candidate, answer).status_code == 403
    assert refused("passkey_refused")


def test_a_tampered_signature_is_refused(candidate: Candidate, client: Client, passkey: SoftPasskey) -> None:
    answer = passkey.get(begin(client, candidate))
    answer["response"]["signature"] = SoftPasskey().get(
        options_on(client.get(reverse("promotion:sign-passkey", args=[candidate.pk])))
    )["response"]["signature"]

    assert confirm(client, candidate, answer).status_code == 403
    assert refused("passkey_refused")


def test_what_the_service_would_refuse_is_refused_before_the_passkey_is_asked(
    house: House, candidate: Candidate
) -> None:
    give_passkey(house.engineer)
    client = client_of(house.engineer)

    response = client.post(sign_url(candidate), {**words(candidate), "method": "passkey"})

    assert response.status_code == 403
    assert refused("not_allowed")
    assert "pending_act" not in client.session


def test_evidence_that_changed_before_the_confirmation_is_refused(
    house: House, candidate: Candidate, client: Client, passkey: SoftPasskey
) -> None:
    answer = passkey.get(begin(client, candidate))
    factories.sign(candidate, house.approver_2, decision="request_changes", meaning="", comment="Look again.")
    factories.gating.judge_now(candidate.pk)

    response = confirm(client, candidate, answer)

    assert response.status_code == 412 and "Fit for use." in html(response)
    assert not Approval.objects.filter(approver=house.approver, candidate=candidate).exists()


def test_the_comment_is_kept_where_the_passkey_is_refused(candidate: Candidate, client: Client) -> None:
    begin(client, candidate, comment="Long thought about.")

    assert "Long thought about.</textarea>" in html(confirm(client, candidate, "{}"))


def test_who_has_no_passkey_is_told_so(house: House, candidate: Candidate) -> None:
    response = client_of(house.approver).post(sign_url(candidate), {**words(candidate), "method": "passkey"})

    assert response.status_code == 422 and "must be one that you have" in html(response)


def test_the_page_shows_nothing_where_nothing_waits(candidate: Candidate, client: Client) -> None:
    response = client.get(reverse("promotion:sign-passkey", args=[candidate.pk]), follow=True)

    assert "Nothing waits for your passkey." in html(response)


def test_an_act_of_a_session_is_not_anothers(
    house: House, candidate: Candidate, client: Client, passkey: SoftPasskey
) -> None:
    answer = passkey.get(begin(client, candidate))
    another_browser = client_of(house.approver)

    assert confirm(another_browser, candidate, answer).status_code == 403
    assert refused("act_refused")


def test_wrong_passwords_of_others_keep_nobody_from_their_passkey(
    house: House, candidate: Candidate, client: Client, passkey: SoftPasskey
) -> None:
    other = client_of(house.approver_2)
    for _ in range(8):
        other.post(sign_url(candidate), {**words(candidate), "password": "wrong"})
    for _ in range(8):
        client.post(sign_url(candidate), {**words(candidate), "password": "wrong"})

    assert confirm(client, candidate, passkey.get(begin(client, candidate))).status_code == 302
