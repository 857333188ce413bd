"""Who may say that a case expects the wrong thing, when, and who decides."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import IntegrityError, transaction

from promotion.models import Candidate, CandidateState, Dispute, DisputeState
from promotion.services import disputes, policies, reviews, tracks
from promotion.services.disputes import accept, decline, withdraw
from rollouts.errors import Conflict, InvalidInput, NotAllowed, NotFound, StaleEvidence
from rollouts.models import Amendment, AuditEvent, Case
from tests import factories
from tests.disputes.conftest import NO_TOOL, RESOLUTION, accepted, case_of, raised
from tests.factories import House, digest_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sent")]


def last_event() -> tuple[str, dict[str, Any]]:
    event = AuditEvent.objects.order_by("-sequence")[0]
    return event.action, json.loads(bytes(event.data))


# raising


def test_a_raised_dispute_keeps_both_expectations_and_changes_nothing(
    house: House, candidate: Candidate
) -> None:
    digest = digest_of(candidate)

    dispute = raised(house, candidate)

    case = case_of(house)
    assert dispute.expected_before == case.content["expected"]
    assert dispute.expected_after == NO_TOOL
    assert (case.amended_expected, case.expects_call) == (None, True)
    assert not Amendment.objects.exists()
    assert digest_of(candidate) == digest
    assert last_event() == (
        "dispute.raised",
        last_event()[1] | {"dispute": dispute.pk, "case": "named-call-0", "evidence": digest},
    )


def test_an_approver_may_raise_one_too(house: House, candidate: Candidate) -> None:
    assert raised(house, candidate, by=house.approver).raised_by == house.approver


@pytest.mark.parametrize("role", ["auditor", "administrator"])
def test_others_may_not_raise_one_and_the_attempt_is_kept(
    house: House, candidate: Candidate, role: str
) -> None:
    with pytest.raises(NotAllowed, match="may not dispute"):
        raised(house, candidate, by=getattr(house, role))

    assert not Dispute.objects.exists()
    assert last_event()[0] == "dispute.refused"


def test_who_may_not_see_the_candidate_finds_none(house: House, candidate: Candidate) -> None:
    house.track.readers.add(Group.objects.create(name="secret"))

    with pytest.raises(NotFound):
        raised(house, candidate)


def test_a_dispute_names_the_evidence_that_was_read(house: House, candidate: Candidate) -> None:
    with pytest.raises(StaleEvidence):
        raised(house, candidate, evidence_digest="0" * 64)


def test_only_a_judged_candidate_has_cases_to_dispute(house: House, candidate: Candidate) -> None:
    digest = digest_of(candidate)
    Candidate.objects.filter(pk=candidate.pk).update(state=CandidateState.WITHDRAWN)

    with pytest.raises(Conflict, match="blocked or in review"):
        raised(house, candidate, evidence_digest=digest)


def test_a_case_of_another_suite_is_none_of_the_evidence(house: House, candidate: Candidate) -> None:
    other = factories.suite(house.engineer, name="other")

    with pytest.raises(NotFound, match="no such case"):
        raised(house, candidate, case_id=Case.objects.filter(suite=other)[0].pk)


@pytest.mark.parametrize(
    ("expected", "field"),
    [
        ({"decision": "maybe"}, "expected.decision"),
        ({"decision": "call", "tool": "rm", "arguments": {}}, "expected.tool"),
        ({"decision": "no_tool", "tool": "read_file"}, "expected"),
        (["no_tool"], "expected"),
        ({"decision": "unsupported", "reason_code": "a\x00b"}, "expected.reason_code"),
    ],
)
def test_an_expectation_is_read_as_when_a_suite_is_sealed(
    house: House, candidate: Candidate, expected: Any, field: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        raised(house, candidate, expected=expected)

    assert caught.value.field == field
    assert "line" not in caught.value.message


def test_the_expectation_must_differ(house: House, candidate: Candidate) -> None:
    with pytest.raises(InvalidInput, match="must differ"):
        raised(house, candidate, expected=case_of(house).content["expected"])


@pytest.mark.parametrize("reason", ["too short", " " * 20, "x" * 4001])
def test_a_reason_has_10_to_4000_characters(house: House, candidate: Candidate, reason: str) -> None:
    with pytest.raises(InvalidInput, match="reason"):
        raised(house, candidate, reason=reason)


def test_a_case_is_in_one_open_dispute_at_a_time(house: House, candidate: Candidate) -> None:
    standing = raised(house, candidate)

    with pytest.raises(Conflict, match=f"dispute {standing.pk}"):
        raised(house, candidate, by=house.approver)

    assert raised(house, candidate, "named-call-1").state == DisputeState.OPEN


# deciding


@pytest.mark.parametrize("decide", [accept, decline])
def test_a_second_person_decides_and_says_why(house: House, candidate: Candidate, decide: Any) -> None:
    dispute = raised(house, candidate)

    decide(dispute_id=dispute.pk, by=house.approver, resolution=RESOLUTION)

    dispute.refresh_from_db()
    assert dispute.resolved_by == house.approver
    assert dispute.resolution == RESOLUTION
    action, data = last_event()
    assert action == f"dispute.{dispute.state}"
    assert (data["raised_by"], data["resolution"]) == (house.engineer.username, RESOLUTION)


@pytest.mark.parametrize("decide", [accept, decline])
def test_who_raised_it_never_decides_it(house: House, candidate: Candidate, decide: Any) -> None:
    dispute = raised(house, candidate, by=house.approver)

    with pytest.raises(NotAllowed, match="they raised it"):
        decide(dispute_id=dispute.pk, by=house.approver, resolution=RESOLUTION)

    assert last_event()[0] == "dispute.refused"
    assert Dispute.objects.get().state == DisputeState.OPEN


@pytest.mark.parametrize("decide", [accept, decline])
def test_who_submitted_the_candidate_never_decides(house: House, candidate: Candidate, decide: Any) -> None:
    dispute = raised(house, candidate, by=house.approver_2)
    house.engineer.groups.add(Group.objects.get(name="approver"))

    with pytest.raises(NotAllowed, match="submitted a model that the suite judges"):
        decide(dispute_id=dispute.pk, by=User.objects.get(username="engineer"), resolution=RESOLUTION)


def test_who_submitted_the_champion_never_decides(house: House, candidate: Candidate) -> None:
    champion = Candidate.objects.get(name="first")
    Candidate.objects.filter(pk=champion.pk).update(submitted_by=house.approver)
    dispute = raised(house, candidate)

    with pytest.raises(NotAllowed, match="submitted a model that the suite judges"):
        accept(dispute_id=dispute.pk, by=house.approver, resolution=RESOLUTION)


def other_track(house: House, *, on: Any) -> Candidate:
    """A candidate of the approver's in a track of its own, whose policy asks for the suite `on`."""
    track = tracks.create(name="other", purpose="Another product.", by=house.administrator)
    draft = policies.draft(track=track, document=factories.policy_document([on]), by=house.administrator)
    policies.lock(policy_id=draft.pk, by=house.approver_2)
    return factories.built_candidate(track, house.base, house.approver, name="theirs")


def test_who_submitted_a_sibling_that_the_suite_judges_never_decides(
    house: House, candidate: Candidate
) -> None:
    factories.built_candidate(house.track, house.base, house.approver, name="sibling")
    dispute = raised(house, candidate)

    with pytest.raises(NotAllowed, match="submitted a model that the suite judges"):
        accept(dispute_id=dispute.pk, by=house.approver, resolution=RESOLUTION)


def test_who_submitted_to_another_track_that_the_suite_judges_never_decides(
    house: House, candidate: Candidate
) -> None:
    theirs = other_track(house, on=house.suite)
    dispute = raised(house, candidate)

    with pytest.raises(NotAllowed, match="submitted a model that the suite judges"):
        decline(dispute_id=dispute.pk, by=house.approver, resolution=RESOLUTION)
    Candidate.objects.filter(pk=theirs.pk).update(state="withdrawn")
    decline(dispute_id=dispute.pk, by=house.approver, resolution=RESOLUTION)


def test_who_submitted_to_a_track_of_other_suites_decides(house: House, candidate: Candidate) -> None:
    other_track(house, on=factories.suite(house.engineer, name="elsewhere"))
    dispute = raised(house, candidate)

    accept(dispute_id=dispute.pk, by=house.approver, resolution=RESOLUTION)
    assert Dispute.objects.get().state == DisputeState.ACCEPTED


@pytest.mark.parametrize("role", ["engineer", "auditor"])
def test_deciding_needs_an_approver_or_an_administrator(
    house: House, candidate: Candidate, role: str
) -> None:
    dispute = raised(house, candidate, by=house.approver)

    with pytest.raises(NotAllowed):
        accept(dispute_id=dispute.pk, by=factories.person("other", role), resolution=RESOLUTION)
    accept(dispute_id=dispute.pk, by=house.administrator, resolution=RESOLUTION)


def test_a_decision_without_words_is_none(house: House, candidate: Candidate) -> None:
    dispute = raised(house, candidate)

    with pytest.raises(InvalidInput, match="resolution"):
        accept(dispute_id=dispute.pk, by=house.approver, resolution="  ok  ")


@pytest.mark.parametrize("decide", [accept, decline])
def test_what_is_decided_is_not_decided_again(house: House, candidate: Candidate, decide: Any) -> None:
    dispute = accepted(house, candidate)

    with pytest.raises(Conflict, match="accepted already"):
        decide(dispute_id=dispute.pk, by=house.approver_2, resolution=RESOLUTION)

    assert Amendment.objects.count() == 1


def test_a_declined_case_stays_as_it_is_and_may_be_disputed_again(house: House, candidate: Candidate) -> None:
    digest = digest_of(candidate)
    decline(dispute_id=raised(house, candidate).pk, by=house.approver, resolution=RESOLUTION)

    assert (case_of(house).amended_expected, digest_of(candidate)) == (None, digest)
    assert raised(house, candidate).state == DisputeState.OPEN


def test_only_who_raised_it_withdraws_it(house: House, candidate: Candidate) -> None:
    dispute = raised(house, candidate)

    with pytest.raises(NotAllowed, match="Only engineer"):
        withdraw(dispute_id=dispute.pk, by=house.approver)
    withdraw(dispute_id=dispute.pk, by=house.engineer)

    assert Dispute.objects.get().state == DisputeState.WITHDRAWN
    assert last_event()[0] == "dispute.withdrawn"
    with pytest.raises(Conflict, match="withdrawn already"):
        accept(dispute_id=dispute.pk, by=house.approver, resolution=RESOLUTION)


def test_a_dispute_is_decided_whatever_became_of_its_candidate(house: House, candidate: Candidate) -> None:
    """An open one stands in the way of every candidate whose evidence counts the case."""
    dispute = raised(house, candidate)
    Candidate.objects.filter(pk=candidate.pk).update(state=CandidateState.WITHDRAWN)

    accept(dispute_id=dispute.pk, by=house.approver, resolution=RESOLUTION)

    assert case_of(house).amended_expected == NO_TOOL


# what it stands in the way of


def test_an_open_dispute_is_found_for_every_candidate_whose_evidence_counts_the_case(
    house: House, candidate: Candidate
) -> None:
    dispute = raised(house, candidate)

    document = {"suites": [{"digest": house.suite.digest}]}
    assert disputes.open_disputes(candidate, document) == [dispute]
    assert disputes.open_disputes(candidate, {"suites": []}) == []
    assert reviews.open_disputes(candidate, document) == [dispute]


def test_nobody_approves_while_a_case_is_in_dispute(house: House, candidate: Candidate) -> None:
    dispute = raised(house, candidate)

    with pytest.raises(Conflict, match="disputed"):
        factories.sign(candidate, house.approver, unopened_reason="Nothing to open in this test.")
    decline(dispute_id=dispute.pk, by=house.approver_2, resolution=RESOLUTION)

    assert factories.sign(candidate, house.approver, unopened_reason="Nothing to open in this test.")


# the database


@pytest.mark.parametrize(
    ("values", "constraint"),
    [
        ({"state": "accepted"}, "dispute_resolved_iff_not_open"),
        ({"reason": ""}, "dispute_has_reason"),
        ({"state": "lost"}, "dispute_known_state"),
    ],
)
def test_the_database_keeps_the_rules_of_a_dispute(
    house: House, candidate: Candidate, values: dict[str, Any], constraint: str
) -> None:
    dispute = raised(house, candidate)

    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        Dispute.objects.filter(pk=dispute.pk).update(**values)


def test_the_database_knows_no_amendment_by_one_person(house: House, candidate: Candidate) -> None:
    with pytest.raises(IntegrityError, match="amendment_by_two_people"), transaction.atomic():
        Amendment.objects.create(
            case=case_of(house),
            expected_before={},
            expected_after={},
            reason="r",
            proposed_by=house.engineer,
            accepted_by=house.engineer,
            created_at=candidate.created_at,
        )
