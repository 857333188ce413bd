"""Disputes over REST: two tokens of two persons, and what a stranger is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from promotion.models import Candidate, Dispute
from rollouts.models import Amendment, AuditEvent
from tests.api.conftest import Api, quiet_edges, token_of
from tests.disputes.conftest import NO_TOOL, REASON, RESOLUTION, raised, rollout_of
from tests.factories import House, digest_of

__all__ = ["quiet_edges"]
pytestmark = pytest.mark.django_db


def at(candidate: Candidate, *parts: Any) -> str:
    return "/".join(["candidates", str(candidate.pk), "disputes", *map(str, parts)])


def wanted(house: House, candidate: Candidate, **changes: Any) -> dict[str, Any]:
    return {
        "suite": house.suite.digest,
        "case": "named-call-0",
        "evidence": digest_of(candidate),
        "expected": NO_TOOL,
        "reason": REASON,
        **changes,
    }


def api_of(person: Any) -> Api:
    return Api(token_of(person))


def test_a_dispute_is_raised_and_accepted_by_two_tokens(house: House, candidate: Candidate) -> None:
    engineer, approver = api_of(house.engineer), api_of(house.approver)

    made = engineer.post(at(candidate), wanted(house, candidate))
    assert (made["state"], made["raised_by"], made["resolved_by"]) == ("open", "engineer", None)
    assert made["expected_after"] == NO_TOOL
    effects = {side["who"]: {m["metric"]: m for m in side["metrics"]} for side in made["effects"]}
    assert [effects["candidate"]["decision"][name] for name in ("right_now", "right_then")] == [9, 10]
    assert [effects["champion"]["decision"][name] for name in ("right_now", "right_then")] == [10, 9]
    done = approver.post(at(candidate, made["id"], "accept"), {"resolution": RESOLUTION}, status=200)

    assert (done["state"], done["resolved_by"], done["effects"]) == ("accepted", "approver", [])
    events = AuditEvent.objects.filter(action__startswith="dispute.").order_by("sequence")
    assert [event.actor.split(":")[:2] for event in events] == [["token", "engineer"], ["token", "approver"]]


def test_cases_and_rollouts_show_what_was_amended(house: House, candidate: Candidate) -> None:
    engineer = api_of(house.engineer)
    dispute = raised(house, candidate)
    cases = engineer.get(f"suites/{house.suite.digest}/cases")["results"]
    assert {case["amended_expected"] for case in cases} == {None}

    api_of(house.approver).post(at(candidate, dispute.pk, "accept"), {"resolution": RESOLUTION}, status=200)

    shown = engineer.get(f"rollouts/{rollout_of('first').pk}")
    assert shown["case"]["amended_expected"] == NO_TOOL
    assert shown["case"]["content"]["expected"]["tool"] == "read_file"
    (kept,) = shown["amended_scores"]
    assert (kept["before"]["exact"], kept["after"]["exact"]) == (True, False)
    assert (kept["proposed_by"], kept["accepted_by"]) == ("engineer", "approver")


def test_the_list_is_of_one_candidate_and_by_state(house: House, candidate: Candidate) -> None:
    engineer = api_of(house.engineer)
    one, other = raised(house, candidate), raised(house, candidate, "named-call-1")
    engineer.post(at(candidate, one.pk, "withdraw"), status=200)

    assert [row["id"] for row in engineer.get(at(candidate))["results"]] == [other.pk, one.pk]
    assert [row["id"] for row in engineer.get(at(candidate) + "?state=open")["results"]] == [other.pk]
    first = Candidate.objects.get(name="first")
    assert engineer.get(at(first))["results"] == []
    engineer.problem(404, "GET", at(first, one.pk))


@pytest.mark.parametrize(
    ("changes", "status", "field"),
    [
        ({"expected": "no_tool"}, 400, "expected"),
        ({"expected": {"decision": "maybe"}}, 400, "expected.decision"),
        ({"case": "none"}, 400, "case"),
        ({"evidence": "0" * 64}, 412, None),
        ({"reason": "short"}, 400, "reason"),
        ({"rollout": 1}, 400, "rollout"),
        ({"score": 1}, 400, "score"),
    ],
)
def test_what_cannot_be_raised_names_its_field(
    house: House, candidate: Candidate, changes: dict[str, Any], status: int, field: str | None
) -> None:
    problem = api_of(house.engineer).problem(
        status, "POST", at(candidate), wanted(house, candidate, **changes)
    )

    assert problem["field"] == field
    assert not Dispute.objects.exists()


def test_the_same_person_is_refused_and_the_refusal_kept_with_a_key_too(
    house: House, candidate: Candidate
) -> None:
    dispute = raised(house, candidate, by=house.approver)
    path = at(candidate, dispute.pk, "accept")

    api_of(house.approver).problem(
        403, "POST", path, {"resolution": RESOLUTION}, **{"Idempotency-Key": "one"}
    )

    refused = AuditEvent.objects.filter(action="dispute.refused").latest("sequence")
    assert json.loads(bytes(refused.data))["code"] == "not_allowed"
    assert not Amendment.objects.exists()


def test_an_acceptance_with_a_key_happens_once(house: House, candidate: Candidate) -> None:
    dispute, approver = raised(house, candidate), api_of(house.approver)
    path, body = at(candidate, dispute.pk, "accept"), {"resolution": RESOLUTION}

    first = approver.post(path, body, status=200, **{"Idempotency-Key": "k"})
    again = approver.post(path, body, status=200, **{"Idempotency-Key": "k"})

    assert again == first
    assert Amendment.objects.count() == 1
    approver.problem(409, "POST", path, body)


def test_if_match_decides_only_what_was_read(house: House, candidate: Candidate) -> None:
    dispute, approver = raised(house, candidate), api_of(house.approver)
    path = at(candidate, dispute.pk)
    etag = approver.send("GET", path)["ETag"]

    approver.problem(
        412, "POST", f"{path}/decline", {"resolution": RESOLUTION}, **{"If-Match": '"1-accepted"'}
    )
    approver.post(f"{path}/decline", {"resolution": RESOLUTION}, status=200, **{"If-Match": etag})

    assert Dispute.objects.get().state == "declined"
