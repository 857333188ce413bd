"""A waiver is of one gate and of what was measured, by two persons of whom neither has a part in it, for a time."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import Group, User
from django.db import IntegrityError, transaction
from django.utils import timezone

from promotion import evidence
from promotion.gates import GATES
from promotion.models import Candidate, CandidateState, Evidence, Waiver
from promotion.services import gating, policies, registry, waivers
from rollouts.errors import Conflict, InvalidInput, NotAllowed, NotFound, StaleEvidence
from rollouts.models import AuditEvent, EvalRun
from rollouts.services import runs
from tests import factories
from tests.factories import House, floor, sign
from tests.threads import in_threads

pytestmark = pytest.mark.django_db
GATE = "generalization_accuracy_floor"


@pytest.fixture
def house() -> House:
    """20 cases, of which 10 right are too few for the floor of 0.60, and a ceiling of masked ones."""
    return factories.house(gates=GATES_OF_HOUSE)


GATES_OF_HOUSE: list[dict[str, Any]] = [
    {"gate": GATE, "metric": "decision", "min": "0.60", "alpha": "0.05"},
    {"gate": "arena_json_validity_min", "metric": "json_valid", "min": "0.60", "alpha": "0.05"},
]


@pytest.fixture
def blocked(house: House) -> Candidate:
    candidate = house.evaluated(wrong=10)
    assert candidate.state == CandidateState.BLOCKED
    return candidate


def ask(house: House, candidate: Candidate, by: User | None = None, **values: Any) -> Waiver:
    values = {
        "gate": GATE,
        "suite_digest": house.suite.digest,
        "reason": "Known, and harmless here.",
        "days": 7,
        **values,
    }
    return waivers.request(candidate_id=candidate.pk, by=by or house.engineer, **values)


def granted(house: House, candidate: Candidate, by: User | None = None, **values: Any) -> Waiver:
    return waivers.grant(waiver_id=ask(house, candidate, **values).pk, by=by or house.approver)


def outcomes(candidate: Candidate) -> dict[str, str]:
    newest = Evidence.objects.filter(candidate=candidate).order_by("-id")[0]
    return {result.gate: result.outcome for result in newest.gate_results.all()}


def facts() -> dict[str, Any]:
    """Everything that a waiver could write, except audit events."""
    return {
        "waivers": list(Waiver.objects.order_by("id").values()),
        "evidence": list(Evidence.objects.order_by("id").values_list("digest", flat=True)),
        "candidates": list(Candidate.objects.order_by("id").values("pk", "state", "revision")),
    }


class Refused:
    """The attempt raises, is in the audit history, and wrote nothing else."""

    def __init__(self, error: type[Exception], match: str, by: User, candidate: Candidate) -> None:
        self.raises = pytest.raises(error, match=match)
        self.by, self.candidate = by, candidate

    def __enter__(self) -> None:
        self.before, self.events = facts(), AuditEvent.objects.count()
        self.raises.__enter__()

    def __exit__(self, *error: Any) -> bool:
        swallowed = bool(self.raises.__exit__(*error))
        assert facts() == self.before
        last = AuditEvent.objects.order_by("-sequence")[0]
        assert AuditEvent.objects.count() == self.events + 1
        assert (last.action, last.actor) == ("candidate.waiver_refused", f"user:{self.by.get_username()}")
        assert (last.subject_type, last.subject_id) == ("promotion.Candidate", str(self.candidate.pk))
        return swallowed


# two persons, one gate


def test_a_request_waives_nothing(house: House, blocked: Candidate) -> None:
    before = factories.digest_of(blocked)

    waiver = ask(house, blocked, reason="  Known, and harmless here.  ")

    blocked.refresh_from_db()
    assert (blocked.state, outcomes(blocked)[GATE]) == (CandidateState.BLOCKED, "failed")
    assert gating.is_current(blocked) and factories.digest_of(blocked) == before
    assert (waivers.state_of(waiver), waiver.reason) == ("requested", "Known, and harmless here.")
    assert waiver.expires_at - waiver.requested_at == timedelta(days=7)


def test_a_granted_waiver_opens_its_gate_and_no_other(house: House, blocked: Candidate) -> None:
    revision = blocked.revision

    waiver = granted(house, blocked)

    blocked.refresh_from_db()
    assert (blocked.state, blocked.revision) == (CandidateState.IN_REVIEW, revision + 1)
    assert outcomes(blocked)[GATE] == "waived"
    assert waivers.state_of(waiver) == "granted"
    assert (waiver.requested_by, waiver.granted_by) == (house.engineer, house.approver)
    other = house.evaluated("other", bad_json=10)
    granted(house, other)
    other.refresh_from_db()
    assert (other.state, outcomes(other)["arena_json_validity_min"]) == (CandidateState.BLOCKED, "failed")


def test_what_the_gate_itself_said_stays_readable(house: House, blocked: Candidate) -> None:
    failed = Evidence.objects.filter(candidate=blocked)[0].gate_results.get(gate=GATE)

    granted(house, blocked)

    waived = Evidence.objects.filter(candidate=blocked)[0].gate_results.get(gate=GATE)
    assert waived.numbers == failed.numbers and failed.reason in waived.reason
    assert "engineer" in waived.reason and "approver" in waived.reason


def test_a_not_evaluated_gate_can_be_waived(house: House) -> None:
    candidate = house.evaluated(masked=10)
    assert outcomes(candidate)[GATE] == "not_evaluated"

    granted(house, candidate)

    assert outcomes(candidate)[GATE] == "waived"


def test_a_waived_candidate_is_promoted_by_people_without_a_part_in_the_waiver(
    house: House, blocked: Candidate
) -> None:
    granted(house, blocked)

    with pytest.raises(NotAllowed, match="approver may not sign"):
        sign(blocked, house.approver)
    sign(blocked, house.approver_2)
    entry = registry.publish(blocked.pk)

    assert entry is not None
    (record,) = [gate for gate in entry.record["gates"] if gate["gate"] == GATE]
    assert record["outcome"] == "waived"


def test_an_approver_who_requested_one_does_not_sign(house: House, blocked: Candidate) -> None:
    third = factories.person("third", "approver")
    waiver = ask(house, blocked, by=house.approver)
    waivers.grant(waiver_id=waiver.pk, by=third)

    for involved in (house.approver, third):
        with pytest.raises(NotAllowed, match="may not sign"):
            sign(blocked, involved)


def test_signatures_given_before_a_grant_no_longer_count(house: House) -> None:
    candidate = house.evaluated(wrong=10)
    shown = factories.digest_of(candidate)
    granted(house, candidate)

    with pytest.raises(StaleEvidence):
        sign(candidate, house.approver_2, digest=shown)


def test_both_acts_are_in_the_history_with_what_they_were_for(house: House, blocked: Candidate) -> None:
    waiver = granted(house, blocked)

    actors = {}
    for action in ("candidate.waiver_requested", "candidate.waiver_granted"):
        event = AuditEvent.objects.get(action=action)
        data = json.loads(bytes(event.data))
        assert (event.subject_id, data["waiver"], data["gate"]) == (str(blocked.pk), waiver.pk, GATE)
        assert data["measured"] == waiver.measurement_digest and data["reason"] == waiver.reason
        actors[action] = event.actor
    assert list(actors.values()) == ["user:engineer", "user:approver"]
    granted_event = json.loads(bytes(AuditEvent.objects.get(action="candidate.waiver_granted").data))
    assert granted_event["evidence"] == factories.digest_of(blocked)


# the wrong person


@pytest.mark.parametrize("role", ["auditor", "administrator", None])
def test_only_engineers_and_approvers_request(house: House, blocked: Candidate, role: str | None) -> None:
    by = factories.person("someone", *([role] if role else []))

    with Refused(NotAllowed, "may not request a waiver", by, blocked):
        ask(house, blocked, by=by)


@pytest.mark.parametrize("role", ["engineer", "auditor", None])
def test_only_approvers_and_administrators_grant(house: House, blocked: Candidate, role: str | None) -> None:
    waiver = ask(house, blocked)
    by = factories.person("someone", *([role] if role else []))

    with Refused(NotAllowed, "may not grant a waiver", by, blocked):
        waivers.grant(waiver_id=waiver.pk, by=by)


@pytest.mark.parametrize("role", ["approver", "administrator"])
def test_approvers_and_administrators_without_a_part_grant(
    house: House, blocked: Candidate, role: str
) -> None:
    waiver = waivers.grant(waiver_id=ask(house, blocked).pk, by=factories.person("someone", role))

    assert waivers.state_of(waiver) == "granted"


def test_nobody_grants_their_own_request(house: House, blocked: Candidate) -> None:
    waiver = ask(house, blocked, by=house.approver)

    with Refused(NotAllowed, "they requested it", house.approver, blocked):
        waivers.grant(waiver_id=waiver.pk, by=house.approver)


def test_nobody_with_a_part_in_the_candidate_grants(house: House, blocked: Candidate) -> None:
    """The administrator wrote and locked the policy; the engineer submitted, sealed and measured."""
    waiver = ask(house, blocked, by=house.approver)
    house.engineer.groups.add(Group.objects.get(name="approver"))

    for by in (house.administrator, User.objects.get(pk=house.engineer.pk)):
        with Refused(NotAllowed, "have a part in this candidate", by, blocked):
            waivers.grant(waiver_id=waiver.pk, by=by)


def test_who_asked_for_one_waiver_does_not_grant_another_of_the_same_candidate(house: House) -> None:
    """Two people could otherwise grant each other what they like."""
    candidate = house.evaluated(bad_json=10)
    mine = ask(house, candidate, by=house.approver)
    theirs = ask(house, candidate, by=house.approver_2, gate="arena_json_validity_min")

    with Refused(NotAllowed, "have a part in this candidate", house.approver, candidate):
        waivers.grant(waiver_id=theirs.pk, by=house.approver)
    waivers.end(waiver_id=mine.pk, by=house.approver, reason="Not needed.")
    waivers.grant(waiver_id=theirs.pk, by=house.approver)


def test_who_granted_one_waiver_may_grant_another(house: House) -> None:
    candidate = house.evaluated(bad_json=10)

    granted(house, candidate)
    granted(house, candidate, gate="arena_json_validity_min")

    candidate.refresh_from_db()
    assert candidate.state == CandidateState.IN_REVIEW


def test_roles_are_those_of_the_moment_not_of_the_session(house: House, blocked: Candidate) -> None:
    waiver, by = ask(house, blocked), house.approver
    by.groups.clear()

    with Refused(NotAllowed, "may not grant a waiver", by, blocked):
        waivers.grant(waiver_id=waiver.pk, by=by)


def test_an_inactive_person_does_nothing(house: House, blocked: Candidate) -> None:
    waiver = ask(house, blocked, by=house.approver)
    for person in (house.engineer, house.approver, house.approver_2):
        User.objects.filter(pk=person.pk).update(is_active=False)
        person.refresh_from_db()

    with Refused(NotAllowed, "may not request", house.engineer, blocked):
        ask(house, blocked, gate="arena_json_validity_min")
    with Refused(NotAllowed, "may not grant", house.approver_2, blocked):
        waivers.grant(waiver_id=waiver.pk, by=house.approver_2)
    with Refused(NotAllowed, "may not", house.approver, blocked):
        waivers.end(waiver_id=waiver.pk, by=house.approver, reason="Mine.")


def test_the_database_lets_nobody_grant_their_own(house: House, blocked: Candidate) -> None:
    waiver = ask(house, blocked)

    with pytest.raises(IntegrityError), transaction.atomic():
        Waiver.objects.filter(pk=waiver.pk).update(granted_by=waiver.requested_by, granted_at=timezone.now())


# the wrong gate


@pytest.mark.parametrize("gate", [name for name, gate in GATES.items() if not gate.waivable])
def test_what_says_that_the_rest_is_true_cannot_be_waived(
    house: House, blocked: Candidate, gate: str
) -> None:
    with Refused(InvalidInput, f"{gate} cannot be waived", house.engineer, blocked):
        ask(house, blocked, gate=gate)


def test_the_gates_that_cannot_be_waived_are_these() -> None:
    assert {name for name, gate in GATES.items() if not gate.waivable} == {
        "human_approval_record",
        "candidate_artifact_hash",
        "sealed_eval_hash",
        "deployed_artifact_gauntlet",
        "evaluated_artifact",
        "export_parity",
        "dataset_hash",
        "incumbent_artifact_hash",
    }


def test_a_gate_that_passes_has_nothing_to_waive(house: House, blocked: Candidate) -> None:
    with Refused(Conflict, "nothing to waive", house.engineer, blocked):
        ask(house, blocked, gate="arena_json_validity_min")


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"gate": "beauty"}, "is not a gate"),
        ({"gate": "masked_ceiling"}, "has no masked_ceiling"),
        ({"suite_digest": ""}, "without a suite"),
        ({"suite_digest": "b" * 64}, "on suite bbbbbbbbbbbb"),
        ({"reason": "  "}, "must say why"),
        ({"reason": "x" * 4001}, "at most 4000"),
        ({"days": 0}, "from 1 to 30"),
        ({"days": 31}, "from 1 to 30"),
    ],
)
def test_a_request_says_which_gate_why_and_for_how_long(
    house: House, blocked: Candidate, values: dict[str, Any], match: str
) -> None:
    with Refused(InvalidInput, match, house.engineer, blocked):
        ask(house, blocked, **values)


def test_a_gate_that_failed_itself_cannot_be_waived(house: House, blocked: Candidate) -> None:
    """What a gate cannot read is no measurement that anybody could answer for."""
    policy = house.policy
    policy.document["gates"][3]["min"] = "unset"
    type(policy).objects.filter(pk=policy.pk).update(document=policy.document)

    with Refused(Conflict, "itself failed, which cannot be waived", house.engineer, blocked):
        ask(house, blocked)


@pytest.mark.parametrize("state", ["built", "evaluating", "approved", "promoted", "rejected", "withdrawn"])
def test_only_what_is_judged_and_undecided_has_gates_to_waive(
    house: House, blocked: Candidate, state: str
) -> None:
    waiver = ask(house, blocked)
    Candidate.objects.filter(pk=blocked.pk).update(state=state)

    with Refused(Conflict, f"is {state}", house.engineer, blocked):
        ask(house, blocked, gate="arena_json_validity_min")
    with Refused(Conflict, f"is {state}", house.approver, blocked):
        waivers.grant(waiver_id=waiver.pk, by=house.approver)


def test_a_baseline_has_no_gates_to_waive(house: House) -> None:
    baseline = house.candidate("first", baseline=True)
    assert gating.judge_if_measured(baseline.pk)

    with Refused(InvalidInput, "has no generalization_accuracy_floor", house.engineer, baseline):
        ask(house, baseline)


def test_what_is_not_there_is_not_found(house: House) -> None:
    with pytest.raises(NotFound):
        waivers.request(candidate_id=4711, gate=GATE, reason="r", days=1, by=house.engineer)
    with pytest.raises(NotFound):
        waivers.grant(waiver_id=4711, by=house.approver)
    with pytest.raises(NotFound):
        waivers.end(waiver_id=4711, by=house.approver, reason="r")


def test_a_gate_has_one_open_waiver(house: House, blocked: Candidate) -> None:
    waiver = ask(house, blocked)

    with Refused(Conflict, "requested or granted already", house.approver, blocked):
        ask(house, blocked, by=house.approver)
    waivers.end(waiver_id=waiver.pk, by=house.engineer, reason="Said badly.")
    assert ask(house, blocked, by=house.approver).pk != waiver.pk


def test_a_waiver_is_granted_once(house: House, blocked: Candidate) -> None:
    waiver = granted(house, blocked)

    with Refused(Conflict, "is granted; only a requested one", house.approver_2, blocked):
        waivers.grant(waiver_id=waiver.pk, by=house.approver_2)


# bound to what was measured


def again(house: House, candidate: Candidate) -> None:
    """Something is measured anew: the masked rollouts of its run, which all stay masked but one."""
    run = EvalRun.objects.get(label=candidate.name)
    runs.run_again(run_id=run.pk, by=house.engineer)
    factories.finish_run(run, dict.fromkeys(_masked_keys(run), "wrong"), wrong=0)


def _masked_keys(run: EvalRun) -> list[str]:
    return list(run.rollouts.filter(state__in=["queued"]).values_list("case__key", flat=True))


def test_a_waiver_of_other_measurements_simply_does_not_apply(house: House) -> None:
    candidate = house.evaluated(masked=10)
    waiver = granted(house, candidate)
    assert outcomes(candidate)[GATE] == "waived"

    again(house, candidate)
    gating.judge_now(candidate.pk)

    candidate.refresh_from_db()
    waiver.refresh_from_db()
    assert (candidate.state, outcomes(candidate)[GATE]) == (CandidateState.BLOCKED, "failed")
    # nothing was reset: it is as it was granted, of what was measured then
    assert waivers.state_of(waiver) == "granted"
    document = evidence.build(candidate).document
    assert evidence.measurement_digest(document) != waiver.measurement_digest
    assert document["waivers"] == []


def test_a_request_of_other_measurements_cannot_be_granted(house: House) -> None:
    candidate = house.evaluated(masked=10)
    waiver = ask(house, candidate)
    again(house, candidate)
    gating.judge_now(candidate.pk)

    with Refused(Conflict, "Something was measured since", house.approver, candidate):
        waivers.grant(waiver_id=waiver.pk, by=house.approver)
    assert waivers.state_of(ask(house, candidate)) == "requested"


def test_another_version_of_the_policy_leaves_a_waiver_of_the_same_measurements(house: House) -> None:
    candidate = house.evaluated(wrong=10)
    waiver = granted(house, candidate)
    entry = {**floor(GATE, house.suite.digest, "decision", "0.55")}
    draft = policies.draft(
        track=house.track,
        document=factories.policy_document([house.suite], extra=[entry]),
        by=house.administrator,
    )
    policies.lock(policy_id=draft.pk, by=factories.person("second", "administrator"))

    document = evidence.build(candidate).document

    # the runs were planned before this lock, so nothing of it is measured yet
    assert [w["measurement_digest"] for w in document["waivers"]] == [waiver.measurement_digest]


# for a time


def test_a_waiver_runs_out_by_itself(house: House, blocked: Candidate) -> None:
    waiver = granted(house, blocked, days=3)
    before = factories.digest_of(blocked)

    with time_machine.travel(waiver.expires_at + timedelta(seconds=1)):
        assert waivers.state_of(waiver) == "expired"
        _, unmet = gating.unmet(Candidate.objects.get(pk=blocked.pk))
        assert any(reason.startswith(GATE) for reason in unmet)
        gating.judge_now(blocked.pk)

    blocked.refresh_from_db()
    assert blocked.state == CandidateState.BLOCKED
    assert factories.digest_of(blocked) == before, "running out is judged, not stored"


def test_a_candidate_whose_waiver_ran_out_after_the_signature_is_not_promoted(
    house: House, blocked: Candidate
) -> None:
    waiver = granted(house, blocked, days=1)
    sign(blocked, house.approver_2)
    blocked.refresh_from_db()
    assert blocked.state == CandidateState.APPROVED

    with time_machine.travel(waiver.expires_at + timedelta(seconds=1)):
        assert registry.publish(blocked.pk) is None

    blocked.refresh_from_db()
    assert blocked.state == CandidateState.BLOCKED


def test_one_that_ran_out_does_not_keep_the_gate_from_being_waived_anew(
    house: House, blocked: Candidate
) -> None:
    old = granted(house, blocked, days=1)

    with time_machine.travel(old.expires_at + timedelta(seconds=1)):
        gating.judge_now(blocked.pk)
        new = granted(house, blocked, days=1)
        old.refresh_from_db()

        assert (waivers.state_of(old), old.ended_by) == ("ended", None)
        assert waivers.state_of(new) == "granted"
        blocked.refresh_from_db()
        assert blocked.state == CandidateState.IN_REVIEW


def test_a_request_that_ran_out_is_not_granted(house: House, blocked: Candidate) -> None:
    waiver = ask(house, blocked, days=1)

    with (
        time_machine.travel(waiver.expires_at + timedelta(seconds=1)),
        Refused(Conflict, "is expired", house.approver, blocked),
    ):
        waivers.grant(waiver_id=waiver.pk, by=house.approver)


# ending


@pytest.mark.parametrize("who", ["engineer", "approver", "approver_2", "administrator"])
def test_whoever_asked_and_whoever_could_grant_end_it(house: House, blocked: Candidate, who: str) -> None:
    waiver = ask(house, blocked)

    ended = waivers.end(waiver_id=waiver.pk, by=getattr(house, who), reason="  Not now.  ")

    assert (waivers.state_of(ended), ended.ended_by) == ("ended", getattr(house, who))
    event = AuditEvent.objects.get(action="candidate.waiver_ended")
    assert json.loads(bytes(event.data))["why"] == "Not now."
    blocked.refresh_from_db()
    assert blocked.state == CandidateState.BLOCKED


def test_others_end_nothing(house: House, blocked: Candidate) -> None:
    waiver = ask(house, blocked)

    for by in (house.auditor, factories.person("e2", "engineer"), factories.person("nobody")):
        with Refused(NotAllowed, "may not end another's waiver", by, blocked):
            waivers.end(waiver_id=waiver.pk, by=by, reason="Not now.")


def test_an_ended_waiver_blocks_again_and_takes_the_signatures_with_it() -> None:
    house = factories.house(gates=GATES_OF_HOUSE, approvers=2)
    candidate = house.evaluated(wrong=10)
    waiver = granted(house, candidate)
    signature = sign(candidate, house.approver_2)
    candidate.refresh_from_db()
    assert candidate.state == CandidateState.IN_REVIEW

    waivers.end(waiver_id=waiver.pk, by=house.administrator, reason="It is not harmless.")

    revision = candidate.revision
    candidate.refresh_from_db()
    assert (candidate.state, candidate.revision) == (CandidateState.BLOCKED, revision + 1)
    assert outcomes(candidate)[GATE] == "failed"
    third = factories.person("third", "approver")
    waivers.grant(waiver_id=ask(house, candidate).pk, by=third)
    assert signature.evidence_digest != factories.digest_of(candidate)


def test_ending_one_after_the_approval_stops_the_promotion(house: House, blocked: Candidate) -> None:
    waiver = granted(house, blocked)
    sign(blocked, house.approver_2)

    waivers.end(waiver_id=waiver.pk, by=house.administrator, reason="It is not harmless.")

    assert registry.publish(blocked.pk) is None
    blocked.refresh_from_db()
    assert blocked.state == CandidateState.BLOCKED


def test_what_is_promoted_keeps_its_waiver(house: House, blocked: Candidate) -> None:
    waiver = granted(house, blocked)
    sign(blocked, house.approver_2)
    assert registry.publish(blocked.pk) is not None

    with Refused(Conflict, "its waivers stand as they did", house.approver, blocked):
        waivers.end(waiver_id=waiver.pk, by=house.approver, reason="Too late.")


def test_a_waiver_ends_once_and_with_a_reason(house: House, blocked: Candidate) -> None:
    waiver = ask(house, blocked)

    for reason, match in ((" ", "must say why"), ("x" * 4001, "at most 4000")):
        with Refused(InvalidInput, match, house.engineer, blocked):
            waivers.end(waiver_id=waiver.pk, by=house.engineer, reason=reason)
    waivers.end(waiver_id=waiver.pk, by=house.engineer, reason="Not needed.")
    with Refused(Conflict, "has ended already", house.engineer, blocked):
        waivers.end(waiver_id=waiver.pk, by=house.engineer, reason="Again.")
    with Refused(Conflict, "is ended; only a requested one", house.approver, blocked):
        waivers.grant(waiver_id=waiver.pk, by=house.approver)


def test_hostile_reasons_are_kept_as_they_were_written(house: House, blocked: Candidate) -> None:
    hostile = '<script>alert(1)</script> \u202eAPPROVED\u202c \x1b[31m "}{{ request }}'

    granted(house, blocked, reason=hostile)

    newest = Evidence.objects.filter(candidate=blocked)[0]
    assert evidence.document_of(newest)["waivers"][0]["reason"] == hostile


# at once


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("sent")
def test_two_grants_at_once_are_one() -> None:
    house = factories.house(gates=GATES_OF_HOUSE)
    for number in range(3):
        candidate = house.evaluated(f"cand-{number}", wrong=10)
        waiver = ask(house, candidate)
        revision = Candidate.objects.get(pk=candidate.pk).revision

        results = in_threads(
            *[
                lambda by=by: waivers.grant(waiver_id=waiver.pk, by=by)  # noqa: B023
                for by in (house.approver, house.approver_2)
            ]
        )

        won = [result for result in results if isinstance(result, Waiver)]
        lost = [result for result in results if isinstance(result, Conflict)]
        assert (len(won), len(lost)) == (1, 1), results
        waiver.refresh_from_db()
        candidate.refresh_from_db()
        assert waiver.granted_by == won[0].granted_by
        assert (candidate.state, candidate.revision) == (CandidateState.IN_REVIEW, revision + 1)
        assert (
            AuditEvent.objects.filter(action="candidate.waiver_granted", subject_id=str(candidate.pk)).count()
            == 1
        )


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("sent")
def test_a_grant_and_a_new_measurement_at_once_never_waive_what_was_not_measured() -> None:
    house = factories.house(gates=GATES_OF_HOUSE)
    for number in range(3):
        candidate = house.evaluated(f"cand-{number}", masked=10)
        run = EvalRun.objects.get(label=candidate.name)
        waiver = ask(house, candidate)

        grant_result, reopened = in_threads(
            lambda: waivers.grant(waiver_id=waiver.pk, by=house.approver),  # noqa: B023
            lambda: runs.run_again(run_id=run.pk, by=house.engineer),  # noqa: B023
        )

        assert isinstance(grant_result, Waiver | Conflict), grant_result
        assert isinstance(reopened, EvalRun), reopened
        assert evidence.build(Candidate.objects.get(pk=candidate.pk)).document["waivers"] == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("sent")
def test_two_requests_at_once_are_one() -> None:
    house = factories.house(gates=GATES_OF_HOUSE)
    candidate = house.evaluated(wrong=10)

    results = in_threads(
        *[lambda by=by: ask(house, candidate, by=by) for by in (house.engineer, house.approver)]
    )

    assert sorted(type(result).__name__ for result in results) == ["Conflict", "Waiver"]
    assert Waiver.objects.count() == 1
