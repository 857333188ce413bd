"""People who prove at the act who they are, a candidate to sign, and a provider that says what it is told."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import Client
from django.urls import reverse

from promotion.models import Approval, Candidate
from rollouts.models import AuditEvent
from tests import factories
from tests.auth.authenticator import SoftPasskey
from tests.auth.scripted_provider import ScriptedProvider, app
from tests.web.conftest import _surroundings as _surroundings
from tests.web.conftest import html, signed_in

CALLBACK = "/accounts/oidc/sso/login/callback/"
REASON = "Nothing else was needed for this test."


@pytest.fixture(autouse=True)
def _no_limits_of_other_tests() -> None:
    cache.clear()


@pytest.fixture
def house(db: None) -> factories.House:
    return factories.house(calls=20, declines=20, champion=True, approvers=2)


@pytest.fixture
def candidate(house: factories.House) -> Candidate:
    return house.evaluated()


@pytest.fixture
def provider(settings: Any) -> Iterator[ScriptedProvider]:
    scripted = ScriptedProvider()
    settings.SOCIALACCOUNT_PROVIDERS = app(scripted.url)
    yield scripted
    scripted.close()


def words(candidate: Candidate, **changes: str) -> dict[str, str]:
    """A good answer of the sign-off box, without how the person proves who they are."""
    return {
        "evidence_digest": factories.digest_of(candidate),
        "decision": "approve",
        "meaning": "authorises",
        "comment": "Fit for use.",
        "unopened_reason": REASON,
        **changes,
    }


def give_passkey(person: User, passkey: SoftPasskey | None = None) -> SoftPasskey:
    """A passkey of the person's, as the page that adds one leaves it."""
    passkey = passkey or SoftPasskey()
    credential = passkey.create({"publicKey": {"challenge": "AAAAAAAAAAAAAAAAAAAAAA"}})
    Authenticator.objects.create(
        user=person, type=Authenticator.Type.WEBAUTHN, data={"name": "Key", "credential": credential}
    )
    return passkey


def bind(person: User, subject: str) -> None:
    SocialAccount.objects.create(user=person, provider="sso", uid=subject)


def without_password(person: User) -> User:
    person.set_unusable_password()
    person.save(update_fields=["password"])
    return person


def client_of(person: User) -> Client:
    """Signed in, on the name that passkeys are for."""
    client = signed_in(person)
    client.defaults["HTTP_HOST"] = "localhost"
    return client


def options_on(page: Any) -> dict[str, Any]:
    found = re.search(r'<script id="passkey-options" type="application/json">(.*?)</script>', html(page))
    assert found is not None
    options: dict[str, Any] = json.loads(found[1])
    return options


@dataclass
class Journey:
    """The way to the provider and back."""

    client: Client
    to: str = ""
    query: dict[str, str] = field(default_factory=dict)

    def leave(self, page: Any) -> Journey:
        assert page.status_code == 200, page.status_code
        found = re.search(r'http-equiv="refresh" content="0;url=([^"]+)"', html(page))
        assert found is not None, html(page)
        self.to = found[1].replace("&amp;", "&")
        self.query = dict(parse_qsl(urlsplit(self.to).query))
        return self

    def come_back(self, **query: str) -> Any:
        query = query or {"code": "c"}
        return self.client.get(CALLBACK, {"state": self.query["state"], **query})


def sign_url(candidate: Candidate) -> str:
    return reverse("promotion:sign", args=[candidate.pk])


def start_sso(client: Client, candidate: Candidate, **changes: str) -> Journey:
    return Journey(client).leave(
        client.post(sign_url(candidate), {**words(candidate, **changes), "method": "oidc"})
    )


def page_text(client: Client, candidate: Candidate) -> str:
    return html(client.get(reverse("promotion:candidate", args=[candidate.pk])))


def refused(code: str) -> bool:
    """Nothing stands, and the history says why."""
    last = AuditEvent.objects.order_by("-sequence").first()
    assert last is not None
    assert not Approval.objects.exclude(meaning="adopts_baseline").exists()
    assert last.action == "candidate.signature_refused", last.action
    found = json.loads(bytes(last.data))
    assert found["code"] == code, found
    return True
