"""Passkeys are one's own: adding one asks anew who one is, and the history keeps both adding and removing."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from allauth.mfa.models import Authenticator
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from rollouts.models import AuditEvent
from tests import factories
from tests.auth.authenticator import SoftPasskey
from tests.auth.conftest import Journey, bind, client_of, give_passkey, options_on, without_password
from tests.auth.scripted_provider import ScriptedProvider
from tests.factories import House
from tests.web.conftest import html

pytestmark = pytest.mark.django_db
ADD, LIST = "/accounts/2fa/webauthn/add/", "/accounts/2fa/webauthn/"


def confirmed(client: Client) -> Client:
    response = client.post(reverse("account_reauthenticate"), {"password": factories.PASSWORD})
    assert response.status_code == 302
    return client


def add(client: Client, passkey: SoftPasskey, **form: str) -> Any:
    options = options_on(client.get(ADD))
    return client.post(ADD, {"name": "Laptop", "credential": json.dumps(passkey.create(options)), **form})


def test_a_passkey_is_added_after_the_password(house: House) -> None:
    client = client_of(house.approver)
    asked = client.get(ADD)
    assert (
        asked["Location"] == f"{reverse('account_reauthenticate')}?next=%2Faccounts%2F2fa%2Fwebauthn%2Fadd%2F"
    )

    response = add(confirmed(client), SoftPasskey())

    assert response["Location"] == LIST
    assert "Laptop" in html(client.get(LIST))
    event = AuditEvent.objects.get(action="person.passkey_added")
    assert (event.actor, json.loads(bytes(event.data))) == ("user:approver", {"passkey": "Laptop"})


def test_the_options_ask_for_verification_and_leave_out_what_one_has(house: House) -> None:
    passkey = give_passkey(house.approver)

    options = options_on(confirmed(client_of(house.approver)).get(ADD))["publicKey"]

    assert options["authenticatorSelection"]["userVerification"] == "required"
    assert [key["id"] for key in options["excludeCredentials"]] == [passkey.get({"publicKey": options})["id"]]


def test_the_confirmation_is_of_the_last_five_minutes(house: House) -> None:
    client = confirmed(client_of(house.approver))
    with time_machine.travel(timezone.now() + timedelta(minutes=6)):
        assert client.get(ADD).status_code == 302
        credential = {
            "name": "x",
            "credential": json.dumps(SoftPasskey().create({"publicKey": {"challenge": "AAAA"}})),
        }
        assert client.post(ADD, credential).status_code == 302
    assert not Authenticator.objects.exists()


def test_signing_in_alone_is_no_confirmation(house: House) -> None:
    client = Client()
    client.post(reverse("account_login"), {"login": "approver", "password": factories.PASSWORD})
    assert client.get(ADD).status_code == 302


def test_who_has_only_sso_confirms_there(house: House, provider: ScriptedProvider) -> None:
    bind(without_password(house.approver), "s-1")
    client = client_of(house.approver)
    asked = client.get(ADD)
    assert asked["Location"].startswith(reverse("promotion:sso-confirm"))
    page = html(client.get(asked["Location"]))
    assert f'name="next" value="{ADD}"' in page
    journey = Journey(client).leave(client.post(reverse("promotion:sso-confirm-start"), {"next": ADD}))
    assert journey.query["prompt"] == "login"
    provider.claims = {"sub": "s-1", "nonce": journey.query["nonce"]}

    assert journey.come_back()["Location"] == ADD

    assert add(client, SoftPasskey())["Location"] == LIST
    assert Authenticator.objects.filter(user=house.approver).count() == 1


@pytest.mark.parametrize("claims", [{"auth_time": 1}, {"sub": "s-2"}, {"nonce": "x"}], ids=str)
def test_what_the_provider_must_not_answer_confirms_nothing(
    house: House, provider: ScriptedProvider, claims: dict[str, Any]
) -> None:
    bind(without_password(house.approver), "s-1")
    client = client_of(house.approver)
    journey = Journey(client).leave(client.post(reverse("promotion:sso-confirm-start"), {"next": ADD}))
    provider.claims = {"sub": "s-1", "nonce": journey.query["nonce"], **claims}

    assert journey.come_back()["Location"] == reverse("promotion:sso-confirm")

    assert client.get(ADD).status_code == 302


def test_who_is_bound_to_no_provider_cannot_confirm_there(house: House, provider: ScriptedProvider) -> None:
    response = client_of(house.approver).post(reverse("promotion:sso-confirm-start"), {"next": ADD})
    assert response.status_code == 403


def test_who_has_no_way_to_confirm_adds_nothing(house: House) -> None:
    assert client_of(without_password(house.approver)).get(ADD).status_code == 403


@pytest.mark.parametrize("credential", ["", "{", "{}", "[]", '{"id": 1}', '{"rawId": "AA", "response": {}}'])
def test_what_is_no_passkey_is_not_added(house: House, credential: str) -> None:
    client = confirmed(client_of(house.approver))

    response = add(client, SoftPasskey(), credential=credential)

    assert response.status_code == 200 and 'role="alert"' in html(response)
    assert not Authenticator.objects.exists()


@pytest.mark.parametrize(
    "wrong",
    [
        SoftPasskey(verifies=False),
        SoftPasskey(origin="https://evil.example"),
        SoftPasskey(host="evil.example"),
    ],
    ids=["unverified", "origin", "host"],
)
def test_a_passkey_of_another_site_or_without_verification_is_not_added(
    house: House, wrong: SoftPasskey
) -> None:
    assert add(confirmed(client_of(house.approver)), wrong).status_code == 200
    assert not Authenticator.objects.exists()


def test_a_passkey_confirms_that_another_may_be_added(house: House) -> None:
    passkey = give_passkey(without_password(house.approver))
    client = client_of(house.approver)
    ask = reverse("mfa_reauthenticate_webauthn")
    assert client.get(ADD)["Location"].startswith(ask)

    answer = passkey.get(options_on(client.get(ask)))
    client.post(ask, {"credential": json.dumps(answer), "next": ADD})

    assert add(client, SoftPasskey())["Location"] == LIST


def test_one_removes_ones_own_only(house: House) -> None:
    give_passkey(house.approver_2)
    give_passkey(house.approver)
    theirs = Authenticator.objects.get(user=house.approver_2)
    own = Authenticator.objects.get(user=house.approver)
    client = confirmed(client_of(house.approver))

    assert client.post(f"{LIST}keys/{theirs.pk}/remove/").status_code == 404
    assert "will no longer confirm" in html(client.get(f"{LIST}keys/{own.pk}/remove/"))
    assert client.post(f"{LIST}keys/{own.pk}/remove/")["Location"] == LIST

    assert list(Authenticator.objects.all()) == [theirs]
    assert AuditEvent.objects.filter(action="person.passkey_removed").count() == 1


def test_a_passkey_is_no_second_factor_at_the_door(house: House) -> None:
    give_passkey(house.approver)
    client = Client()
    response = client.post(reverse("account_login"), {"login": "approver", "password": factories.PASSWORD})
    assert response["Location"] == "/" and client.get("/").status_code == 200


def test_strangers_are_sent_to_sign_in(db: None) -> None:
    for address in (LIST, ADD, f"{LIST}keys/1/remove/", reverse("promotion:sso-confirm")):
        assert Client().get(address)["Location"].startswith(reverse("account_login"))
