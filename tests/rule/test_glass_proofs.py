"""The glass is broken by passkey and by single sign-on too, each act confirmed once and for itself."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from promotion.models import BrokenGlass, Candidate
from rollouts.models import AuditEvent
from tests import factories
from tests.auth.conftest import (
    CALLBACK,
    Journey,
    bind,
    client_of,
    give_passkey,
    options_on,
    without_password,
)
from tests.auth.conftest import provider as provider
from tests.auth.scripted_provider import ScriptedProvider
from tests.factories import House
from tests.rule.worlds import REASON, breakable, breaker
from tests.web.conftest import _surroundings as _surroundings
from tests.web.conftest import html

pytestmark = pytest.mark.django_db


@pytest.fixture
def house(db: None) -> House:
    return breakable()


@pytest.fixture
def candidate(house: House) -> Candidate:
    return house.evaluated()


@pytest.fixture
def admin(house: House) -> User:
    return without_password(breaker())


def begin(client: Client, candidate: Candidate, method: str, **changes: str) -> Any:
    data = {"evidence_digest": factories.digest_of(candidate), "reason": REASON, "method": method, **changes}
    return client.post(reverse("promotion:break-glass-now", args=[candidate.pk]), data)


def confirm(client: Client, candidate: Candidate, answer: Any) -> Any:
    address = reverse("promotion:break-glass-passkey-confirm", args=[candidate.pk])
    return client.post(address, {"credential": json.dumps(answer)})


def last_action() -> str:
    return AuditEvent.objects.order_by("-sequence")[0].action


def test_a_passkey_breaks_it_once(candidate: Candidate, admin: User) -> None:
    passkey, client = give_passkey(admin), client_of(admin)
    page = client.get(begin(client, candidate, "passkey")["Location"])
    assert REASON in html(page) and not BrokenGlass.objects.exists()
    answer = passkey.get(options_on(page))

    assert confirm(client, candidate, answer).status_code == 302

    assert BrokenGlass.objects.get().method == "passkey"
    assert confirm(client, candidate, answer).status_code == 403
    assert last_action() == "candidate.glass_refused" and BrokenGlass.objects.count() == 1


def test_anothers_passkey_breaks_nothing_and_the_reason_is_kept(candidate: Candidate, admin: User) -> None:
    give_passkey(admin)
    client = client_of(admin)
    page = client.get(begin(client, candidate, "passkey")["Location"])

    other = give_passkey(factories.person("other", "approver"))
    back = confirm(client, candidate, other.get(options_on(page)))

    assert REASON in html(client.get(back["Location"]))
    assert last_action() == "candidate.glass_refused" and not BrokenGlass.objects.exists()


def test_an_act_of_signing_breaks_no_glass(house: House, candidate: Candidate) -> None:
    """Each purpose has its own acts: what was confirmed for one is worth nothing for another."""
    passkey, client = give_passkey(house.approver), client_of(house.approver)
    words = {
        "evidence_digest": factories.digest_of(candidate),
        "decision": "approve",
        "meaning": "authorises",
    }
    words |= {"unopened_reason": "Nothing else was needed.", "method": "passkey"}
    sent = client.post(reverse("promotion:sign", args=[candidate.pk]), words)
    assert sent.status_code == 302, html(sent)
    answer = passkey.get(options_on(client.get(sent["Location"])))

    assert confirm(client, candidate, answer).status_code == 403

    assert not BrokenGlass.objects.exists() and not candidate.approvals.exists()


def test_what_would_be_refused_anyway_is_refused_before_the_passkey_is_asked(
    candidate: Candidate, admin: User
) -> None:
    give_passkey(admin)

    answer = begin(client_of(admin), candidate, "passkey", reason="Too short.")

    assert answer.status_code == 422 and last_action() == "candidate.glass_refused"


@pytest.fixture
def sso(admin: User, provider: ScriptedProvider) -> Client:
    bind(admin, "f3b1")
    provider.claims = {"sub": "f3b1"}
    return client_of(admin)


def test_a_new_sign_in_at_the_provider_breaks_it(
    candidate: Candidate, sso: Client, provider: ScriptedProvider
) -> None:
    journey = Journey(sso).leave(begin(sso, candidate, "oidc"))
    provider.claims |= {"nonce": journey.query["nonce"], "auth_time": int(time.time())}

    assert journey.come_back().status_code == 302

    assert BrokenGlass.objects.get().method == "oidc"


def test_an_old_sign_in_breaks_nothing_and_the_reason_is_kept(
    candidate: Candidate, sso: Client, provider: ScriptedProvider
) -> None:
    journey = Journey(sso).leave(begin(sso, candidate, "oidc"))
    provider.claims |= {"nonce": journey.query["nonce"], "auth_time": int(time.time()) - 3600}

    page = html(sso.get(journey.come_back()["Location"]))

    assert "earlier sign-in" in page and REASON in page
    assert last_action() == "candidate.glass_refused" and not BrokenGlass.objects.exists()


def test_cancelled_at_the_provider_nothing_happens(
    candidate: Candidate, sso: Client, provider: ScriptedProvider
) -> None:
    journey = Journey(sso).leave(begin(sso, candidate, "oidc"))

    back = sso.get(CALLBACK, {"state": journey.query["state"], "error": "access_denied"})

    assert REASON in html(sso.get(back["Location"]))
    assert not BrokenGlass.objects.exists()
