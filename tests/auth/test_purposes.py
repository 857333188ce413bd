"""What was confirmed for one purpose signs nothing: an act of breaking the glass is none of signing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from promotion.models import Approval, BrokenGlass, Candidate
from rollouts.models import AuditEvent
from tests import factories
from tests.auth.conftest import client_of, give_passkey, options_on
from tests.factories import House
from tests.rule.worlds import REASON, breakable
from tests.web.conftest import html

pytestmark = pytest.mark.django_db


@pytest.fixture
def house(db: None) -> House:
    return breakable(calls=3, gates=[])


@pytest.fixture
def person(house: House) -> User:
    """Somebody who may both sign and break the glass, so that only the purpose is in the way."""
    return factories.person("both", "approver", "administrator")


def confirmed_glass(client: Client, candidate: Candidate, passkey: Any) -> dict[str, Any]:
    """A passkey's answer to the act of breaking the glass, which waits for it."""
    words = {"evidence_digest": factories.digest_of(candidate), "reason": REASON, "method": "passkey"}
    begun = client.post(reverse("promotion:break-glass-now", args=[candidate.pk]), words)
    assert begun.status_code == 302, html(begun)
    answer: dict[str, Any] = passkey.get(options_on(client.get(begun["Location"])))
    return answer


def test_an_act_of_breaking_the_glass_signs_nothing_and_is_used_up(house: House, person: User) -> None:
    candidate, passkey, client = house.evaluated(), give_passkey(person), client_of(person)
    answer = json.dumps(confirmed_glass(client, candidate, passkey))

    refused = client.post(
        reverse("promotion:sign-passkey-confirm", args=[candidate.pk]), {"credential": answer}
    )

    assert refused.status_code == 403
    last = AuditEvent.objects.order_by("-sequence")[0]
    assert (last.action, json.loads(bytes(last.data))["code"]) == (
        "candidate.signature_refused",
        "act_refused",
    )
    again = client.post(
        reverse("promotion:break-glass-passkey-confirm", args=[candidate.pk]), {"credential": answer}
    )
    assert again.status_code == 403
    assert not Approval.objects.exists() and not BrokenGlass.objects.exists()


def test_the_page_that_asks_for_a_signature_shows_no_act_of_another_purpose(
    house: House, person: User
) -> None:
    candidate, passkey, client = house.evaluated(), give_passkey(person), client_of(person)
    confirmed_glass(client, candidate, passkey)

    page = client.get(reverse("promotion:sign-passkey", args=[candidate.pk]))

    assert page.status_code == 302 and page["Location"].endswith("#sign")
