"""Signing in by the provider: an administrator made the account, the first sign-in binds it, a rename takes nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from rollouts.models import AuditEvent
from tests import factories
from tests.auth.conftest import Journey, bind, without_password
from tests.auth.scripted_provider import ScriptedProvider
from tests.web.conftest import html

pytestmark = pytest.mark.django_db
EMAIL = "ada@example.com"


@pytest.fixture
def ada(db: None) -> User:
    person = without_password(factories.person("ada", "approver"))
    person.email = EMAIL
    person.save(update_fields=["email"])
    return person


def sign_in(
    provider: ScriptedProvider, subject: str = "s-1", to: str = "", **claims: Any
) -> tuple[Client, Any]:
    client = Client()
    journey = Journey(client).leave(client.post(reverse("promotion:sso-login"), {"next": to}))
    provider.claims = {"sub": subject, "email": EMAIL, "email_verified": True, **claims}
    return client, journey.come_back()


def who(client: Client) -> str | None:
    found = User.objects.filter(pk=client.session.get("_auth_user_id") or 0).first()
    return found and found.username


def test_the_sign_in_page_offers_the_provider_where_one_is_set_up(
    db: None, provider: ScriptedProvider
) -> None:
    assert "Sign in with Acme" in html(Client().get(reverse("account_login")))


def test_and_nothing_where_none_is(db: None) -> None:
    assert "Sign in with" not in html(Client().get(reverse("account_login")))
    response = Client().post(reverse("promotion:sso-login"), follow=True)
    assert "not set up here" in html(response)
    assert Client().get("/accounts/oidc/sso/login/callback/").status_code == 404


def test_the_verified_address_binds_the_account_at_the_first_sign_in(
    ada: User, provider: ScriptedProvider
) -> None:
    client, response = sign_in(provider, to="/tracks/")

    assert who(client) == "ada" and response["Location"] == "/tracks/"
    assert SocialAccount.objects.get(user=ada).uid == "s-1"
    event = AuditEvent.objects.get(action="person.sso_bound")
    assert json.loads(bytes(event.data)) == {"provider": "sso", "sub": "s-1", "email": EMAIL}


def test_from_then_on_only_the_lasting_identifier_counts(ada: User, provider: ScriptedProvider) -> None:
    sign_in(provider)

    client, _ = sign_in(provider, email="changed@example.com", email_verified=False)

    assert who(client) == "ada"


def test_somebody_who_is_given_the_address_later_does_not_get_the_account(
    ada: User, provider: ScriptedProvider
) -> None:
    sign_in(provider)

    client, response = sign_in(provider, subject="s-2")

    assert who(client) is None and response.status_code == 403
    assert "bound to somebody else" in html(response)
    assert SocialAccount.objects.get().uid == "s-1"


def test_somebody_bound_elsewhere_stays_who_they_are(ada: User, provider: ScriptedProvider) -> None:
    bind(factories.person("bob", "engineer"), "s-bob")

    client, _ = sign_in(provider, subject="s-bob")

    assert who(client) == "bob"
    assert not SocialAccount.objects.filter(user=ada).exists()


@pytest.mark.parametrize(
    "claims",
    [
        {"email_verified": False},
        {"email_verified": "true"},
        {"email_verified": None},
        {"email": None},
        {"email": ""},
        {"email": [EMAIL]},
        {"email": "somebody@example.com"},
        {"email": None, "preferred_username": "ada"},
    ],
    ids=str,
)
def test_nothing_else_than_a_verified_address_finds_an_account(
    ada: User, provider: ScriptedProvider, claims: dict[str, Any]
) -> None:
    client, response = sign_in(provider, **claims)

    assert who(client) is None and response.status_code == 403
    assert "create_user NAME" in html(response)
    assert User.objects.count() == 1 and not SocialAccount.objects.exists()


def test_an_account_without_an_address_is_found_by_nobody(db: None, provider: ScriptedProvider) -> None:
    factories.person("old", "administrator")

    client, response = sign_in(provider, email="")

    assert who(client) is None and response.status_code == 403


def test_two_accounts_with_one_address_are_found_by_nobody(ada: User, provider: ScriptedProvider) -> None:
    User.objects.create_user("eve", email=EMAIL.upper())

    client, response = sign_in(provider)

    assert who(client) is None and response.status_code == 403


@pytest.mark.parametrize("bound", [True, False])
def test_an_inactive_account_is_not_signed_in(ada: User, provider: ScriptedProvider, bound: bool) -> None:
    if bound:
        bind(ada, "s-1")
    User.objects.filter(pk=ada.pk).update(is_active=False)

    client, _ = sign_in(provider)

    assert who(client) is None


def test_the_address_may_come_with_the_user_information(ada: User, provider: ScriptedProvider) -> None:
    provider.userinfo = {"email": EMAIL.title(), "email_verified": True}

    client, _ = sign_in(provider, email=None, email_verified=None)

    assert who(client) == "ada"


def test_user_information_about_another_is_refused(ada: User, provider: ScriptedProvider) -> None:
    provider.userinfo = {"sub": "s-9", "email": EMAIL, "email_verified": True}

    client, response = sign_in(provider)

    assert who(client) is None and response.status_code == 403


def test_cancelling_leads_back_to_the_sign_in_page(ada: User, provider: ScriptedProvider) -> None:
    client = Client()
    journey = Journey(client).leave(client.post(reverse("promotion:sso-login")))

    response = journey.come_back(error="access_denied")

    assert response["Location"] == reverse("account_login")
    assert "You cancelled at Acme." in html(client.get(reverse("account_login")))


def test_it_leads_to_no_other_site(ada: User, provider: ScriptedProvider) -> None:
    for to in ("https://evil.example/", "//evil.example/", "javascript:alert(1)"):
        _, response = sign_in(provider, to=to)
        assert response["Location"] == "/"


@pytest.mark.parametrize(
    "address",
    [
        "3rdparty/",
        "3rdparty/signup/",
        "social/signup/",
        "oidc/sso/login/",
        "2fa/",
        "2fa/authenticate/",
        "2fa/reauthenticate/",
        "2fa/totp/activate/",
        "2fa/recovery-codes/",
        "2fa/webauthn/keys/1/edit/",
        "2fa/webauthn/login/",
    ],
)
def test_pages_that_have_no_use_here_are_not_found(house: factories.House, address: str) -> None:
    from tests.web.conftest import signed_in

    assert signed_in(house.engineer).get(f"/accounts/{address}").status_code == 404
