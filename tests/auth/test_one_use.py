"""An act is used once, also by two requests at the same moment."""

from __future__ import annotations

import json
from functools import partial

import pytest
from django.contrib.sessions.backends.db import SessionStore
from django.test import RequestFactory
from django.urls import reverse

from promotion.models import Approval, Candidate
from promotion.services.proofs import Act
from promotion.web import proving
from rollouts.models import AuditEvent
from tests.auth.conftest import client_of, give_passkey, options_on, sign_url, words
from tests.factories import House
from tests.threads import in_threads

pytestmark = pytest.mark.django_db(transaction=True)


def test_of_many_requests_one_gets_the_act() -> None:
    session = SessionStore()
    session[proving.PENDING] = Act("sign", 1, "passkey", {}, 1, nonce="n").as_json()
    session["theme"] = "kept"
    session.save()

    def take() -> Act | None:
        request = RequestFactory().post("/")
        request.session = SessionStore(session.session_key)
        request.session.get(proving.PENDING)  # read before, as the middleware does
        return proving.take(request)

    found = in_threads(*[take] * 6)

    assert sorted(type(act).__name__ for act in found) == ["Act", *["NoneType"] * 5]
    assert dict(SessionStore(session.session_key).items()) == {"theme": "kept"}


def test_an_answer_that_is_sent_twice_at_once_signs_once(house: House, candidate: Candidate) -> None:
    passkey, client = give_passkey(house.approver), client_of(house.approver)
    sent = client.post(sign_url(candidate), {**words(candidate), "method": "passkey"})
    answer = json.dumps(passkey.get(options_on(client.get(sent["Location"]))))
    address = reverse("promotion:sign-passkey-confirm", args=[candidate.pk])
    twins = [client_of(house.approver) for _ in range(4)]
    for twin in twins:
        twin.cookies["sessionid"] = client.cookies["sessionid"].value

    answers = in_threads(*[partial(twin.post, address, {"credential": answer}) for twin in twins])

    assert sorted(response.status_code for response in answers) == [302, 403, 403, 403]
    assert Approval.objects.filter(candidate=candidate).count() == 1
    refusals = AuditEvent.objects.filter(action="candidate.signature_refused")
    assert [json.loads(bytes(event.data))["code"] for event in refusals] == ["act_refused"] * 3
