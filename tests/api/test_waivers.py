"""Waivers over REST: two tokens of two persons, and what a stranger is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from promotion.models import Candidate, Waiver
from promotion.services import policies, waivers
from rollouts.models import AuditEvent
from tests import factories
from tests.api.conftest import Api

GATE = "generalization_accuracy_floor"
ROLES = ("engineer", "approver", "auditor", "administrator")


@pytest.fixture
def blocked(house: factories.House) -> Candidate:
    return house.evaluated(wrong=10)


def wanted(house: factories.House, candidate: Candidate) -> dict[str, Any]:
    return {
        "candidate": candidate.pk,
        "gate": GATE,
        "suite": house.suite.digest,
        "reason": "Known, and harmless here.",
        "days": 7,
    }


def asked(house: factories.House, candidate: Candidate) -> Waiver:
    return waivers.request(
        candidate_id=candidate.pk,
        gate=GATE,
        suite_digest=house.suite.digest,
        reason="Known.",
        days=7,
        by=house.engineer,
    )


def test_a_waiver_is_asked_for_and_granted_by_two_tokens(
    house: factories.House, blocked: Candidate, engineer: Api, acting: Any
) -> None:
    made = engineer.post("waivers", wanted(house, blocked))
    assert (made["state"], made["requested_by"], made["granted_by"]) == ("requested", "engineer", None)
    assert (made["suite"], made["applies"]) == (house.suite.digest, False)

    granted = acting(house.approver).post(f"waivers/{made['id']}/grant", status=200)

    assert (granted["state"], granted["granted_by"], granted["applies"]) == ("granted", "approver", True)
    assert engineer.get(f"candidates/{blocked.pk}")["state"] == "in_review"
    gates = engineer.get(f"candidates/{blocked.pk}/gates")["results"]
    assert {gate["gate"]: gate["outcome"] for gate in gates}[GATE] == "waived"
    events = AuditEvent.objects.filter(action__startswith="candidate.waiver_").order_by("sequence")
    assert [event.actor.split(":")[:2] for event in events] == [["token", "engineer"], ["token", "approver"]]


def test_an_ended_waiver_blocks_again(
    house: factories.House, blocked: Candidate, engineer: Api, acting: Any
) -> None:
    waiver = waivers.grant(waiver_id=asked(house, blocked).pk, by=house.approver)

    ended = engineer.post(f"waivers/{waiver.pk}/end", {"reason": "Not needed."}, status=200)

    assert (ended["state"], ended["ended_by"], ended["applies"]) == ("ended", "engineer", False)
    assert engineer.get(f"candidates/{blocked.pk}")["state"] == "blocked"


def test_the_list_is_filtered_by_candidate_and_state(
    house: factories.House, blocked: Candidate, auditor: Api
) -> None:
    first = asked(house, blocked)
    waivers.end(waiver_id=first.pk, by=house.engineer, reason="Said badly.")
    second = asked(house, blocked)
    other = asked(house, house.evaluated("other", wrong=10))

    def ids(query: str = "") -> list[int]:
        return [waiver["id"] for waiver in auditor.get(f"waivers{query}")["results"]]

    assert ids() == [other.pk, second.pk, first.pk]
    assert ids(f"?candidate={blocked.pk}") == [second.pk, first.pk]
    assert ids("?state=ended") == [first.pk]
    assert ids(f"?state=requested&candidate={blocked.pk}") == [second.pk]
    assert ids("?state=granted") == ids("?state=expired") == []
    assert auditor.problem(400, "GET", "waivers?state=beauty")["field"] == "state"


# who may


def refused(house: factories.House, candidate: Candidate) -> None:
    """The refusal is the newest event of the candidate's history."""
    event = AuditEvent.objects.order_by("-sequence")[0]
    assert (event.action, event.subject_id) == ("candidate.waiver_refused", str(candidate.pk))


@pytest.mark.parametrize("role", ROLES)
def test_who_may_ask(house: factories.House, blocked: Candidate, acting: Any, role: str) -> None:
    response = acting(getattr(house, role)).send("POST", "waivers", wanted(house, blocked))

    may = role in ("engineer", "approver")
    assert response.status_code == (201 if may else 403), response.content
    if not may:
        refused(house, blocked)


@pytest.mark.parametrize("role", [*ROLES, "free administrator"])
def test_who_may_grant(house: factories.House, blocked: Candidate, acting: Any, role: str) -> None:
    waiver = asked(house, blocked)
    by = factories.person("free", "administrator") if "free" in role else getattr(house, role)

    response = acting(by).send("POST", f"waivers/{waiver.pk}/grant")

    # the house's administrator wrote and locked the policy
    may = role in ("approver", "free administrator")
    assert response.status_code == (200 if may else 403), response.content
    if not may:
        refused(house, blocked)


@pytest.mark.parametrize("role", [*ROLES, "another engineer"])
def test_who_may_end(house: factories.House, blocked: Candidate, acting: Any, role: str) -> None:
    waiver = asked(house, blocked)
    by = factories.person("e2", "engineer") if "another" in role else getattr(house, role)

    response = acting(by).send("POST", f"waivers/{waiver.pk}/end", {"reason": "Not now."})

    may = role not in ("auditor", "another engineer")
    assert response.status_code == (200 if may else 403), response.content
    if not may:
        refused(house, blocked)


def test_without_a_role_or_a_token_nothing_is_read(
    house: factories.House, blocked: Candidate, acting: Any
) -> None:
    waiver = asked(house, blocked)
    nobody = acting(factories.person("nobody"))

    for path in ("waivers", f"waivers/{waiver.pk}"):
        nobody.problem(403, "GET", path)
        Api().problem(401, "GET", path)


def test_who_asked_does_not_grant(house: factories.House, blocked: Candidate, acting: Any) -> None:
    approver = acting(house.approver)
    made = approver.post("waivers", wanted(house, blocked))

    problem = approver.problem(403, "POST", f"waivers/{made['id']}/grant")

    assert "they requested it" in problem["detail"]
    refused(house, blocked)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("headers", [{}, {"Idempotency_Key": "k1"}], ids=["plain", "with a key"])
def test_a_refused_attempt_is_kept_although_the_request_was_rolled_back(
    acting: Any, headers: dict[str, str]
) -> None:
    house = factories.house()
    candidate = house.evaluated(wrong=10)
    waiver = asked(house, candidate)
    before = AuditEvent.objects.filter(action="candidate.waiver_refused").count()

    acting(house.administrator).problem(403, "POST", f"waivers/{waiver.pk}/grant", **headers)

    assert AuditEvent.objects.filter(action="candidate.waiver_refused").count() == before + 1
    refused(house, candidate)


# what is wrong


@pytest.mark.parametrize(
    ("changes", "status", "field"),
    [
        ({"candidate": 999_999}, 400, "candidate"),
        ({"gate": "beauty"}, 400, "gate"),
        ({"gate": "sealed_eval_hash"}, 400, "gate"),
        ({"suite": None}, 400, "gate"),
        ({"suite": "abc"}, 400, "suite"),
        ({"reason": " "}, 400, "reason"),
        ({"reason": "a\u0000b"}, 400, "reason"),
        ({"days": 0}, 400, "days"),
        ({"days": 31}, 400, "days"),
        ({"days": "7"}, 400, "days"),
        ({"colour": "red"}, 400, "colour"),
    ],
)
def test_what_is_wrong_is_named(
    house: factories.House, blocked: Candidate, engineer: Api, changes: Any, status: int, field: str
) -> None:
    body = {name: value for name, value in (wanted(house, blocked) | changes).items() if value is not None}

    problem = engineer.problem(status, "POST", "waivers", body)

    assert problem["field"] == field
    assert not Waiver.objects.exists()


def test_what_the_state_forbids_is_a_conflict(
    house: factories.House, blocked: Candidate, engineer: Api, acting: Any
) -> None:
    made = engineer.post("waivers", wanted(house, blocked))
    approver = acting(house.approver)

    engineer.problem(409, "POST", "waivers", wanted(house, blocked))
    approver.post(f"waivers/{made['id']}/grant", status=200)
    approver.problem(409, "POST", f"waivers/{made['id']}/grant")
    approver.problem(404, "POST", "waivers/999999/grant")
    approver.problem(404, "POST", "waivers/999999/end", {"reason": "r"})


def test_a_waiver_is_granted_as_it_was_read(house: factories.House, blocked: Candidate, acting: Any) -> None:
    waiver, approver = asked(house, blocked), acting(house.approver)
    seen = approver.send("GET", f"waivers/{waiver.pk}")["ETag"]
    waivers.end(waiver_id=waiver.pk, by=house.engineer, reason="Not needed.")

    approver.problem(412, "POST", f"waivers/{waiver.pk}/grant", If_Match=seen)

    again = asked(house, blocked)
    fresh = approver.send("GET", f"waivers/{again.pk}")["ETag"]
    granted = approver.send("POST", f"waivers/{again.pk}/grant", If_Match=fresh)
    assert granted.status_code == 200
    assert granted["ETag"] not in (seen, fresh)


def test_one_key_grants_once(house: factories.House, blocked: Candidate, acting: Any) -> None:
    waiver, approver = asked(house, blocked), acting(house.approver)

    first = approver.send("POST", f"waivers/{waiver.pk}/grant", Idempotency_Key="k1")
    again = approver.send("POST", f"waivers/{waiver.pk}/grant", Idempotency_Key="k1")

    assert first.json() == again.json() and again["Idempotency-Replayed"] == "true"
    assert AuditEvent.objects.filter(action="candidate.waiver_granted").count() == 1


# what a policy changes


def test_the_changes_of_a_policy_say_what_could_let_more_pass(house: factories.House, auditor: Api) -> None:
    looser = factories.policy_document([house.suite])
    draft = policies.draft(track=house.track, document=looser, by=house.administrator)

    found = auditor.get(f"policies/{draft.pk}/diff")

    assert (found["version"], found["against"], found["loosens"]) == (2, 1, True)
    (change,) = found["changes"]
    assert (change["kind"], change["suite"], change["loosens"]) == ("removed", house.suite.digest, True)
    assert change["what"] == f"{GATE}, decision"
    back = auditor.get(f"policies/{house.policy.pk}/diff?against=2")
    assert (back["against"], back["loosens"], back["changes"][0]["kind"]) == (2, False, "added")
    first = auditor.get(f"policies/{house.policy.pk}/diff")
    assert (first["against"], first["changes"]) == (None, [])
    auditor.problem(404, "GET", f"policies/{draft.pk}/diff?against=9")
    auditor.problem(404, "GET", "policies/999999/diff")


def test_what_a_lock_refuses_names_what_the_version_loosens(
    house: factories.House, administrator: Api
) -> None:
    draft = policies.draft(
        track=house.track, document=factories.policy_document([house.suite]), by=house.administrator
    )

    problem = administrator.problem(409, "POST", f"policies/{draft.pk}/lock")

    assert "needs a second person" in problem["detail"]
    assert json.dumps(problem["facts"]["loosened"]).count("removed generalization_accuracy_floor") == 1
