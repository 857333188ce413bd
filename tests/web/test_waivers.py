"""A waiver's pages: asked for on one, granted and ended on another, seen by everybody who reviews."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from promotion.models import Candidate, Waiver
from promotion.services import waivers
from rollouts.models import AuditEvent
from tests import factories
from tests.web.conftest import html, signed_in
from tests.web.world import HOSTILE

pytestmark = pytest.mark.django_db
GATE = "generalization_accuracy_floor"
ROLES = ("engineer", "approver", "auditor", "administrator")


@pytest.fixture
def blocked(house: factories.House) -> Candidate:
    return house.evaluated("cand", wrong=20)


@pytest.fixture
def asked(house: factories.House, blocked: Candidate) -> Waiver:
    return waivers.request(
        candidate_id=blocked.pk,
        gate=GATE,
        suite_digest=house.suite.digest,
        reason="Known, and harmless here.",
        days=7,
        by=house.engineer,
    )


def to(name: str, candidate: Candidate, waiver: Waiver | None = None) -> str:
    return reverse(f"promotion:{name}", args=[candidate.pk, *([waiver.pk] if waiver else [])])


def wanted(house: factories.House, **changes: Any) -> dict[str, Any]:
    return {"gate": f"{GATE}:{house.suite.digest}", "reason": "Known.", "days": "7", **changes}


def section(page: str) -> str:
    return page[page.index('id="exceptions-h"') : page.index("</section>", page.index('id="exceptions-h"'))]


# asking


def test_a_waiver_is_asked_for_on_its_page_and_granted_on_another(
    house: factories.House, blocked: Candidate
) -> None:
    engineer, approver = signed_in(house.engineer), signed_in(house.approver)
    assert to("waiver-ask", blocked) in html(engineer.get(to("candidate", blocked)))
    page = html(engineer.get(to("waiver-ask", blocked)))
    assert f"{GATE} on named" in page and "lower bound" in page

    made = engineer.post(to("waiver-request", blocked), wanted(house))

    waiver = Waiver.objects.get()
    assert made["Location"] == to("waiver", blocked, waiver)
    assert "Grant the waiver" in html(approver.get(to("waiver", blocked, waiver)))
    assert approver.post(to("waiver-grant", blocked, waiver))["Location"] == to("candidate", blocked)
    blocked.refresh_from_db()
    assert blocked.state == "in_review"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gate": ""}, "Choose the gate."),
        ({"gate": "beauty:"}, "Select a valid choice"),
        ({"gate": "sealed_eval_hash:x"}, "Select a valid choice"),
        ({"reason": "  "}, "Say why."),
        ({"reason": "x" * 4001}, "at most 4000"),
        ({"reason": "a\x00b"}, "Null characters"),
        ({"days": "31"}, "less than or equal to 30"),
        ({"days": "x"}, "whole number"),
    ],
)
def test_what_is_wrong_stands_at_its_field_and_what_was_typed_stays(
    house: factories.House, blocked: Candidate, changes: dict[str, str], sentence: str
) -> None:
    response = signed_in(house.engineer).post(
        to("waiver-request", blocked), wanted(house, **{"reason": "Typed.", **changes})
    )

    assert response.status_code == 422
    assert sentence in html(response)
    assert ("Typed." in html(response)) is ("reason" not in changes)
    assert not Waiver.objects.exists()


def test_only_gates_that_are_unmet_and_waivable_are_offered(
    house: factories.House, blocked: Candidate
) -> None:
    page = html(signed_in(house.engineer).get(to("waiver-ask", blocked)))

    assert f'value="{GATE}:{house.suite.digest}"' in page
    for gate in ("human_approval_record", "sealed_eval_hash", "candidate_artifact_hash"):
        assert f'value="{gate}' not in page


def test_what_is_asked_for_already_is_not_offered_again(
    house: factories.House, blocked: Candidate, asked: Waiver
) -> None:
    client = signed_in(house.engineer)

    assert "on its way" in html(client.get(to("waiver-ask", blocked)))
    assert to("waiver-ask", blocked) not in html(client.get(to("candidate", blocked)))
    assert client.post(to("waiver-request", blocked), wanted(house)).status_code == 422


def test_a_candidate_that_is_decided_has_nothing_to_ask_for(
    house: factories.House, blocked: Candidate
) -> None:
    Candidate.objects.filter(pk=blocked.pk).update(state="rejected")

    page = html(signed_in(house.engineer).get(to("waiver-ask", blocked)))

    assert "Only what is blocked or in review" in page and to("waiver-request", blocked) not in page
    assert signed_in(house.engineer).post(to("waiver-request", blocked), wanted(house)).status_code == 409


# who


@pytest.mark.parametrize("role", ROLES)
def test_who_may_ask(house: factories.House, blocked: Candidate, role: str) -> None:
    client, may = signed_in(getattr(house, role)), role in ("engineer", "approver")

    assert client.get(to("waiver-ask", blocked)).status_code == (200 if may else 403)
    assert (to("waiver-ask", blocked) in html(client.get(to("candidate", blocked)))) is may
    assert client.post(to("waiver-request", blocked), wanted(house)).status_code == (302 if may else 403)
    assert Waiver.objects.exists() is may
    if not may:
        assert AuditEvent.objects.order_by("-sequence")[0].action == "candidate.waiver_refused"


@pytest.mark.parametrize("role", ROLES)
def test_who_may_grant(house: factories.House, blocked: Candidate, asked: Waiver, role: str) -> None:
    """The administrator of the house wrote its policy; another one may."""
    client, may = signed_in(getattr(house, role)), role == "approver"

    page = html(client.get(to("waiver", blocked, asked)))
    assert ("Grant the waiver" in page) is may
    assert ("may not grant" in page) is not may
    assert client.post(to("waiver-grant", blocked, asked)).status_code == (302 if may else 403)
    asked.refresh_from_db()
    assert (asked.granted_at is not None) is may
    if not may:
        assert AuditEvent.objects.order_by("-sequence")[0].action == "candidate.waiver_refused"


@pytest.mark.parametrize("role", [*ROLES, "another engineer"])
def test_who_may_end(house: factories.House, blocked: Candidate, asked: Waiver, role: str) -> None:
    person = factories.person("e2", "engineer") if "another" in role else getattr(house, role)
    client, may = signed_in(person), role not in ("auditor", "another engineer")

    ends = f'action="{to("waiver-end", blocked, asked)}"'
    assert (ends in html(client.get(to("waiver", blocked, asked)))) is may
    response = client.post(to("waiver-end", blocked, asked), {"reason": "Not now."})
    assert response.status_code == (302 if may else 403)
    asked.refresh_from_db()
    assert (asked.ended_at is not None) is may


@pytest.mark.parametrize("name", ["waiver-request", "waiver-grant", "waiver-end"])
def test_the_verbs_are_no_addresses_to_visit_and_not_for_strangers(
    house: factories.House, blocked: Candidate, asked: Waiver, name: str
) -> None:
    address = to(name, blocked, None if name == "waiver-request" else asked)

    assert signed_in(house.approver).get(address).status_code == 405
    assert Client().post(address)["Location"].startswith(reverse("account_login"))
    assert signed_in(factories.person("nobody")).post(address).status_code == 403


def test_a_waiver_belongs_to_its_candidate(house: factories.House, blocked: Candidate, asked: Waiver) -> None:
    other = house.evaluated("other", wrong=20)
    client = signed_in(house.approver)

    assert client.get(to("waiver", other, asked)).status_code == 404
    assert client.post(to("waiver-grant", other, asked)).status_code == 404
    assert client.post(to("waiver-end", other, asked), {"reason": "r"}).status_code == 404
    asked.refresh_from_db()
    assert asked.granted_at is None and asked.ended_at is None


# as it stands


def test_ending_needs_a_reason_and_says_so_at_its_field(
    house: factories.House, blocked: Candidate, asked: Waiver
) -> None:
    response = signed_in(house.engineer).post(to("waiver-end", blocked, asked), {"reason": " "})

    assert response.status_code == 422 and "Say why." in html(response)
    asked.refresh_from_db()
    assert asked.ended_at is None


def test_what_the_state_forbids_is_said_on_the_page(
    house: factories.House, blocked: Candidate, asked: Waiver
) -> None:
    client = signed_in(house.approver)
    waivers.end(waiver_id=asked.pk, by=house.engineer, reason="Said badly.")

    granted = client.post(to("waiver-grant", blocked, asked))
    ended = client.post(to("waiver-end", blocked, asked), {"reason": "Again."})

    assert (granted.status_code, ended.status_code) == (409, 409)
    assert "only a requested one can be granted" in html(granted)
    assert "has ended already" in html(ended) and to("waiver-end", blocked, asked) not in html(ended)


def test_the_review_shows_waivers_and_whether_they_still_apply(
    house: factories.House, blocked: Candidate, asked: Waiver
) -> None:
    client = signed_in(house.auditor)
    assert "requested" in section(html(client.get(to("candidate", blocked))))

    waivers.grant(waiver_id=asked.pk, by=house.approver)
    counts = section(html(client.get(to("candidate", blocked))))
    assert 'class="open unsure"' in counts and "granted" in counts
    assert "<bdi>engineer</bdi>" in counts and "<bdi>approver</bdi>" in counts

    with time_machine.travel(asked.expires_at + timedelta(seconds=1)):
        expired = section(html(signed_in(house.auditor).get(to("candidate", blocked))))
    assert "expired" in expired and 'class="open unsure"' not in expired

    Waiver.objects.filter(pk=asked.pk).update(measurement_digest="0" * 64)
    other = section(html(client.get(to("candidate", blocked))))
    assert "granted, of other measurements" in other and 'class="open unsure"' not in other
    page = html(client.get(to("waiver", blocked, asked)))
    assert "it waives nothing of them" in page


def test_the_home_page_shows_what_waits_to_be_granted_to_those_who_could(
    house: factories.House, blocked: Candidate, asked: Waiver
) -> None:
    pages = {role: html(signed_in(getattr(house, role)).get("/")) for role in ROLES}

    shown = {role for role, page in pages.items() if to("waiver", blocked, asked) in page}
    assert shown == {"approver", "administrator"}
    waivers.grant(waiver_id=asked.pk, by=house.approver)
    assert to("waiver", blocked, asked) not in html(signed_in(house.approver).get("/"))


def test_hostile_reasons_are_text(house: factories.House, blocked: Candidate) -> None:
    waiver = waivers.request(
        candidate_id=blocked.pk,
        gate=GATE,
        suite_digest=house.suite.digest,
        reason=HOSTILE,
        days=7,
        by=house.engineer,
    )
    client = signed_in(house.approver)

    requested = [
        html(client.get(to(name, blocked, one))) for name, one in (("waiver", waiver), ("candidate", None))
    ]
    waivers.grant(waiver_id=waiver.pk, by=house.approver)
    granted = [
        html(client.get(to(name, blocked, one))) for name, one in (("waiver", waiver), ("candidate", None))
    ]

    for page in (*requested, *granted):
        assert "<script>alert" not in page and "<img src=x" not in page and "\u202e" not in page
    assert "⟦U+202E⟧" in requested[0] and "⟦U+202E⟧" in granted[0]


def test_the_number_of_queries_does_not_grow_with_waivers(
    house: factories.House, blocked: Candidate, asked: Waiver
) -> None:
    client = signed_in(house.approver)

    def count(address: str) -> int:
        client.get(address)
        with CaptureQueriesContext(connection) as captured:
            assert client.get(address).status_code == 200
        return len(captured)

    addresses = [to("candidate", blocked), to("waiver", blocked, asked), "/"]
    few = [count(address) for address in addresses]
    Waiver.objects.bulk_create(
        Waiver(
            candidate=blocked,
            gate=GATE,
            suite_digest=house.suite.digest,
            measurement_digest=f"{number:064x}",
            reason="r",
            requested_by=house.engineer,
            requested_at=asked.requested_at,
            expires_at=asked.expires_at,
        )
        for number in range(200)
    )
    assert [count(address) for address in addresses] == few
