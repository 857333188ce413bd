"""Signing by single sign-on: the provider has just asked anew, for this act, and named this person."""

from __future__ import annotations

import time
from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.test import Client
from django.urls import reverse

from promotion.models import Approval, Candidate
from rollouts.models import AuditEvent
from tests import factories
from tests.auth.conftest import (
    CALLBACK,
    Journey,
    bind,
    client_of,
    page_text,
    refused,
    sign_url,
    start_sso,
    without_password,
    words,
)
from tests.auth.scripted_provider import CLIENT_ID, SECRET, ScriptedProvider
from tests.factories import House
from tests.web.conftest import html
from tests.web.test_review_verdict import between

pytestmark = pytest.mark.django_db
SUBJECT = "f3b1"


@pytest.fixture
def client(house: House, provider: ScriptedProvider) -> Client:
    """Of an approver who has nothing but single sign-on."""
    bind(without_password(house.approver), SUBJECT)
    provider.claims = {"sub": SUBJECT}
    return client_of(house.approver)


def answer(provider: ScriptedProvider, journey: Journey, **claims: Any) -> None:
    provider.claims |= {"nonce": journey.query["nonce"], **claims}


def signed_in_as(client: Client) -> str | None:
    return client.session.get("_auth_user_id")


def test_the_provider_is_told_to_ask_anew(
    candidate: Candidate, client: Client, provider: ScriptedProvider
) -> None:
    journey = start_sso(client, candidate)

    assert journey.to.startswith(f"{provider.url}/authorize?")
    assert (journey.query["prompt"], journey.query["max_age"]) == ("login", "0")
    assert journey.query["client_id"] == CLIENT_ID and journey.query["code_challenge_method"] == "S256"
    assert journey.query["redirect_uri"] == f"http://localhost{CALLBACK}"
    assert not Approval.objects.filter(candidate=candidate).exists()


def test_a_sign_in_at_the_provider_signs(
    house: House, candidate: Candidate, client: Client, provider: ScriptedProvider
) -> None:
    journey = start_sso(client, candidate)
    at = int(time.time())
    answer(provider, journey, auth_time=at)

    response = journey.come_back()

    assert response["Location"] == reverse("promotion:candidate", args=[candidate.pk])
    approval = Approval.objects.get(candidate=candidate)
    assert (approval.approver, approval.method) == (house.approver, "oidc")
    assert approval.authenticated_at.timestamp() == at
    assert provider.asked[0]["client_secret"] == SECRET and "code_verifier" in provider.asked[0]
    assert "confirmed by single sign-on" in page_text(client, candidate)


def test_the_sign_box_of_who_has_only_sso_has_no_password(candidate: Candidate, client: Client) -> None:
    page = page_text(client, candidate)

    assert 'name="password"' not in page
    assert (
        '<input type="hidden" name="method" value="oidc">' in page
        and "Acme asks you to sign in again" in page
    )
    assert "Change password" not in page


def test_who_has_several_ways_chooses_one(
    house: House, candidate: Candidate, provider: ScriptedProvider
) -> None:
    bind(house.approver, SUBJECT)

    page = page_text(client_of(house.approver), candidate)

    assert 'type="radio" name="method" value="password"' in page
    assert 'type="radio" name="method" value="oidc"' in page and 'value="passkey"' not in page
    assert "checked" not in page[page.index('id="sign"') : page.index('name="decision"')]


@pytest.mark.parametrize(
    "claims, said",
    [
        ({"auth_time": None}, "no auth_time that is a whole number"),
        ({"auth_time": str(int(time.time()))}, "no auth_time that is a whole number"),
        ({"auth_time": True}, "no auth_time that is a whole number"),
        ({"auth_time": int(time.time()) - 3600}, "earlier sign-in"),
        ({"auth_time": int(time.time()) + 3600}, "later than now"),
        ({"nonce": "of another act"}, "answered for another act"),
        ({"nonce": None}, "answered for another act"),
        ({"sub": "another"}, "as somebody else than approver"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_the_provider_must_not_answer_is_refused(
    house: House,
    candidate: Candidate,
    client: Client,
    provider: ScriptedProvider,
    claims: dict[str, Any],
    said: str,
) -> None:
    journey = start_sso(client, candidate)
    answer(provider, journey)
    provider.claims |= claims

    response = journey.come_back()

    assert response["Location"] == f"{reverse('promotion:candidate', args=[candidate.pk])}#sign"
    assert refused("sso_refused")
    first, second = (between(page_text(client, candidate), 'id="sign"', "</section>") for _ in range(2))
    assert said in first and "Fit for use.</textarea>" in first
    assert said not in second, "the box says it once; the history keeps it"
    assert signed_in_as(client) == str(house.approver.pk)


def test_another_persons_account_there_signs_nothing_and_signs_nobody_in(
    house: House, candidate: Candidate, client: Client, provider: ScriptedProvider
) -> None:
    bind(house.approver_2, "another")
    journey = start_sso(client, candidate)
    answer(provider, journey, sub="another")

    journey.come_back()

    assert refused("sso_refused")
    assert signed_in_as(client) == str(house.approver.pk)


def test_an_id_token_that_was_made_for_somebody_else_is_refused(
    candidate: Candidate, client: Client, provider: ScriptedProvider
) -> None:
    for wrong in (
        {"aud": "another client"},
        {"iss": "https://another.example"},
        {"exp": int(time.time()) - 9},
    ):
        journey = start_sso(client, candidate)
        provider.claims = {"sub": SUBJECT}
        answer(provider, journey, **wrong)
        journey.come_back()
        assert refused("sso_refused")


def test_a_normal_sign_in_never_signs(
    candidate: Candidate, client: Client, provider: ScriptedProvider
) -> None:
    start_sso(client, candidate)
    sign_in = Journey(client).leave(client.post(reverse("promotion:sso-login")))
    assert "prompt" not in sign_in.query
    answer(provider, sign_in) if "nonce" in sign_in.query else None

    sign_in.come_back()

    assert not Approval.objects.filter(candidate=candidate).exists()


def test_the_address_cannot_turn_a_sign_in_into_an_act(client: Client, provider: ScriptedProvider) -> None:
    address = reverse("promotion:sso-login")
    journey = Journey(client).leave(
        client.post(
            f"{address}?process=redirect&auth_params=prompt%3Dnone&scope=admin", {"process": "connect"}
        )
    )
    assert "prompt" not in journey.query and "admin" not in journey.query["scope"]
    assert client.post("/accounts/oidc/sso/login/?process=connect").status_code == 404


def test_an_answer_counts_once(candidate: Candidate, client: Client, provider: ScriptedProvider) -> None:
    journey = start_sso(client, candidate)
    answer(provider, journey)
    journey.come_back()
    Approval.objects.filter(candidate=candidate).delete()

    response = journey.come_back()

    assert not Approval.objects.filter(candidate=candidate).exists()
    assert response.status_code == 302


def test_an_answer_with_another_state_is_refused_and_ends_the_act(
    candidate: Candidate, client: Client, provider: ScriptedProvider
) -> None:
    journey = start_sso(client, candidate)
    answer(provider, journey)

    client.get(CALLBACK, {"state": "guessed", "code": "c"})

    assert refused("sso_refused")
    assert "did not confirm that it was you" in page_text(client, candidate)
    journey.come_back()
    assert refused("act_refused")


def test_an_answer_in_another_session_is_refused(
    house: House, candidate: Candidate, client: Client, provider: ScriptedProvider
) -> None:
    journey = start_sso(client, candidate)
    answer(provider, journey)
    journey.client = client_of(house.approver)

    journey.come_back()

    assert not Approval.objects.filter(candidate=candidate).exists()


def test_a_later_act_takes_the_place_of_an_earlier_one(
    candidate: Candidate, client: Client, provider: ScriptedProvider
) -> None:
    earlier = start_sso(client, candidate)
    later = start_sso(client, candidate, comment="Read once more.")
    answer(provider, earlier)
    earlier.come_back()
    assert refused("act_refused")
    answer(provider, later)

    later.come_back()

    assert Approval.objects.get(candidate=candidate).comment == "Read once more."


def test_cancelled_at_the_provider_the_comment_is_kept(
    candidate: Candidate, client: Client, provider: ScriptedProvider
) -> None:
    journey = start_sso(client, candidate, comment="Long thought about.")
    events = AuditEvent.objects.count()

    journey.come_back(error="access_denied")

    page = page_text(client, candidate)
    assert "You cancelled at the provider." in page and "Long thought about.</textarea>" in page
    assert AuditEvent.objects.count() == events
    assert "pending_act" not in client.session


@pytest.mark.parametrize("error", ["login_required", "server_error", "<script>"])
def test_an_error_of_the_provider_is_a_refusal(
    candidate: Candidate, client: Client, provider: ScriptedProvider, error: str
) -> None:
    start_sso(client, candidate).come_back(error=error)

    assert refused("sso_refused")
    assert "Acme did not confirm that it was you." in page_text(client, candidate)


def test_a_provider_that_is_away_is_said_and_the_comment_kept(
    candidate: Candidate, client: Client, provider: ScriptedProvider
) -> None:
    provider.close()

    response = client.post(sign_url(candidate), {**words(candidate), "method": "oidc"})

    assert response.status_code == 502 and "Acme does not answer." in html(response)
    assert "Fit for use.</textarea>" in html(response)


def test_a_provider_that_goes_away_meanwhile_is_said(
    candidate: Candidate, client: Client, provider: ScriptedProvider
) -> None:
    journey = start_sso(client, candidate)
    provider.close()

    assert journey.come_back().status_code == 502
    assert not Approval.objects.filter(candidate=candidate).exists()


def test_evidence_that_changed_meanwhile_is_refused_with_what_changed(
    house: House, candidate: Candidate, client: Client, provider: ScriptedProvider
) -> None:
    journey = start_sso(client, candidate)
    factories.sign(candidate, house.approver_2, decision="request_changes", meaning="", comment="Look again.")
    factories.gating.judge_now(candidate.pk)
    answer(provider, journey)

    journey.come_back()

    page = page_text(client, candidate)
    assert "the evidence changed since the page you answered" in page and "revision went from" in page
    assert not Approval.objects.filter(approver=house.approver).filter(candidate=candidate).exists()


def test_wrong_passwords_of_others_keep_nobody_from_single_sign_on(
    house: House, candidate: Candidate, client: Client, provider: ScriptedProvider
) -> None:
    stranger = Client()
    for _ in range(20):
        stranger.post(reverse("account_login"), {"login": "approver", "password": "wrong"})
    other = client_of(house.approver_2)
    for _ in range(8):
        other.post(sign_url(candidate), {**words(candidate), "password": "wrong"})
    journey = start_sso(client, candidate)
    answer(provider, journey)

    journey.come_back()

    assert Approval.objects.get(candidate=candidate).method == "oidc"


def test_an_api_token_goes_no_part_of_the_way(
    house: House, candidate: Candidate, provider: ScriptedProvider
) -> None:
    from knox.models import AuthToken

    bind(house.approver, SUBJECT)
    _, token = AuthToken.objects.create(house.approver)
    bearer = Client(headers={"Authorization": f"Token {token}"})
    for method in ("oidc", "passkey", "password"):
        sent = {**words(candidate), "method": method, "password": factories.PASSWORD}
        response = bearer.post(sign_url(candidate), sent)
        assert response.status_code == 302 and response["Location"].startswith(reverse("account_login"))
    assert not Approval.objects.filter(candidate=candidate).exists()


def test_who_is_bound_to_nothing_there_cannot_sign_by_it(
    house: House, candidate: Candidate, provider: ScriptedProvider
) -> None:
    response = client_of(house.approver).post(sign_url(candidate), {**words(candidate), "method": "oidc"})

    assert response.status_code == 422
    assert not SocialAccount.objects.exists()
