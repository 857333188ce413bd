"""A signature is for bytes, by the right person, with the password asked again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import Group, User
from django.db import IntegrityError, transaction
from django.utils import timezone

from promotion import evidence
from promotion.models import (
    Approval,
    Candidate,
    CandidateState,
    Decision,
    Evidence,
    GateResult,
    Meaning,
    RegistryEntry,
)
from promotion.services import approvals, gating, policies, registry
from promotion.services.proofs import Password, WrongPassword
from rollouts.errors import Conflict, InvalidInput, NotAllowed, NotFound, StaleEvidence
from rollouts.models import AuditEvent, EvalRun
from rollouts.services import runs
from tests import factories
from tests.factories import House, sign

pytestmark = pytest.mark.django_db


@pytest.fixture
def house() -> House:
    return factories.house()


@pytest.fixture
def two() -> House:
    """A policy that asks for two approvers."""
    return factories.house(approvers=2)


def facts() -> dict[str, Any]:
    """Everything that a signature could write, except audit events."""
    return {
        "approvals": Approval.objects.count(),
        "evidence": list(Evidence.objects.order_by("id").values_list("digest", flat=True)),
        "results": GateResult.objects.count(),
        "candidates": list(
            Candidate.objects.order_by("id").values("pk", "state", "revision", "last_sent_at")
        ),
        "entries": RegistryEntry.objects.count(),
    }


def assert_refused(error: type[Exception], match: str, candidate: Candidate, by: User, **words: Any) -> None:
    """The attempt raises, is in the audit history, and wrote nothing else."""
    before, events = facts(), AuditEvent.objects.count()

    with pytest.raises(error, match=match):
        sign(candidate, by, **words)

    assert facts() == before
    last = AuditEvent.objects.order_by("-sequence")[0]
    assert AuditEvent.objects.count() == events + 1
    assert (last.action, last.actor) == ("candidate.signature_refused", f"user:{by.get_username()}")
    assert (last.subject_type, last.subject_id) == ("promotion.Candidate", str(candidate.pk))


# a good signature


def test_a_signature_says_who_what_and_when(house: House) -> None:
    candidate = house.evaluated()
    User.objects.filter(pk=house.approver.pk).update(first_name="Ann", last_name="Approver")

    approval = sign(candidate, house.approver, comment="  Looks right.  ")

    assert approval.evidence_digest == factories.digest_of(candidate) == approval.evidence.digest
    assert approval.policy_digest == house.policy.digest
    assert (approval.printed_name, approval.role, approval.method) == ("Ann Approver", "approver", "password")
    assert (approval.meaning, approval.comment) == (Meaning.AUTHORISES, "Looks right.")
    assert timedelta(0) <= approval.signed_at - approval.authenticated_at < timedelta(seconds=5)


def test_enough_signatures_approve_and_send_the_publication(
    house: House, django_capture_on_commit_callbacks: Any, sent: list[Any]
) -> None:
    candidate = house.evaluated()

    with django_capture_on_commit_callbacks(execute=True):
        sign(candidate, house.approver)

    candidate.refresh_from_db()
    assert candidate.state == CandidateState.APPROVED
    assert sent == [("promotion.tasks.publish", (candidate.pk,))]
    assert AuditEvent.objects.filter(action="candidate.signed").count() == 1


def test_a_policy_that_asks_for_two_waits_for_the_second(two: House) -> None:
    candidate = two.evaluated()

    sign(candidate, two.approver)
    candidate.refresh_from_db()
    assert candidate.state == CandidateState.IN_REVIEW

    sign(candidate, two.approver_2)
    candidate.refresh_from_db()
    assert candidate.state == CandidateState.APPROVED


def test_the_same_approver_twice_counts_once(two: House) -> None:
    candidate = two.evaluated()
    sign(candidate, two.approver)

    assert_refused(Conflict, "has signed this evidence already", candidate, two.approver)

    candidate.refresh_from_db()
    assert candidate.state == CandidateState.IN_REVIEW


def test_the_database_keeps_one_standing_signature_a_person_and_digest(two: House) -> None:
    candidate = two.evaluated()
    approval = sign(candidate, two.approver)
    approval.pk = None

    with pytest.raises(IntegrityError), transaction.atomic():
        approval.save(force_insert=True)


# who may not sign


@pytest.mark.parametrize("who", ["engineer", "administrator", "auditor"])
def test_a_person_of_another_group_may_not_sign(house: House, who: str) -> None:
    candidate = house.evaluated()

    assert_refused(NotAllowed, "may not sign: that needs approver", candidate, getattr(house, who))


def test_a_person_in_no_group_may_not_sign(house: House) -> None:
    assert_refused(NotAllowed, "may not sign", house.evaluated(), factories.person("nobody"))


def test_an_inactive_person_may_not_sign_even_with_an_open_session(house: House) -> None:
    candidate = house.evaluated()
    remembered = User.objects.get(pk=house.approver.pk)
    User.objects.filter(pk=house.approver.pk).update(is_active=False)
    assert remembered.is_active

    assert_refused(NotAllowed, "may not sign", candidate, remembered)


def test_who_lost_the_role_a_moment_ago_may_not_sign(house: House) -> None:
    candidate = house.evaluated()
    remembered = User.objects.get(pk=house.approver.pk)
    from promotion.permissions import groups_of

    assert groups_of(remembered) == {"approver"}
    house.approver.groups.clear()

    assert_refused(NotAllowed, "may not sign", candidate, remembered)


def also_approver(person: User) -> User:
    person.groups.add(Group.objects.get(name="approver"))
    return User.objects.get(pk=person.pk)


def test_the_submitter_may_not_sign(house: House) -> None:
    submitter = factories.person("submitter", "engineer", "approver")
    candidate = factories.built_candidate(house.track, house.base, submitter)
    house.measure(candidate)

    assert_refused(NotAllowed, "submitter may not sign: they submitted", candidate, submitter)


def test_who_started_the_runs_may_not_sign(house: House) -> None:
    starter = factories.person("starter", "engineer", "approver")
    candidate = house.candidate()
    for run in gating.start_evaluation(candidate_id=candidate.pk, backend=house.backend, by=starter):
        factories.finish_run(run)
    gating.judge_if_measured(candidate.pk)

    assert_refused(NotAllowed, "starter may not sign", candidate, starter)


def test_who_started_the_champions_run_may_not_sign() -> None:
    house = factories.house(champion=True)
    starter = factories.person("starter", "engineer", "approver")
    candidate = house.candidate()
    started = gating.start_evaluation(candidate_id=candidate.pk, backend=house.backend, by=house.engineer)
    for run in started:
        if run.label != candidate.name:
            EvalRun.objects.filter(pk=run.pk).update(created_by=starter)
        factories.finish_run(run)
    gating.judge_if_measured(candidate.pk)

    assert_refused(NotAllowed, "starter may not sign", candidate, starter)


def test_who_sealed_the_suite_may_not_sign(house: House) -> None:
    sealer = factories.person("sealer", "engineer", "approver")
    house.suite.sealed_by = sealer
    house.suite.save(update_fields=["sealed_by"])

    assert_refused(NotAllowed, "sealer may not sign", house.evaluated(), sealer)


def test_who_wrote_the_policy_may_not_sign(house: House) -> None:
    author = also_approver(house.administrator)

    assert_refused(NotAllowed, "administrator may not sign", house.evaluated(), author)


def test_without_separation_of_duties_the_submitter_may_sign() -> None:
    house = factories.house()
    document = factories.policy_document([house.suite])
    document["approval"]["separation_of_duties"] = False
    draft = policies.draft(track=house.track, document=document, by=house.administrator)
    policies.lock(policy_id=draft.pk, by=house.approver)
    submitter = also_approver(house.engineer)
    candidate = house.evaluated()

    sign(candidate, submitter)

    candidate.refresh_from_db()
    assert candidate.state == CandidateState.APPROVED


# authentication and words


@pytest.mark.parametrize("password", ["", "wrong", factories.PASSWORD.upper(), factories.PASSWORD + " "])
def test_the_password_is_asked_at_every_signature(house: House, password: str) -> None:
    assert_refused(
        WrongPassword, "The password is wrong", house.evaluated(), house.approver, password=password
    )


def test_a_refusal_never_records_the_password(house: House) -> None:
    candidate = house.evaluated()
    with pytest.raises(WrongPassword):
        sign(candidate, house.approver, password="hunter2-typo")

    assert not any(b"hunter2-typo" in bytes(event.data) for event in AuditEvent.objects.all())


@pytest.mark.parametrize("meaning", ["", "approve", Meaning.ADOPTS_BASELINE])
def test_a_signature_says_what_it_means(house: House, meaning: str) -> None:
    assert_refused(InvalidInput, "meaning", house.evaluated(), house.approver, meaning=meaning)


def test_a_baseline_is_signed_as_one(house: House) -> None:
    baseline = house.candidate("first", baseline=True)
    gating.judge_if_measured(baseline.pk)

    assert_refused(InvalidInput, "adopts_baseline", baseline, house.approver, meaning=Meaning.AUTHORISES)


def test_a_decision_is_one_of_three(house: House) -> None:
    assert_refused(InvalidInput, "decision", house.evaluated(), house.approver, decision="maybe")


@pytest.mark.parametrize("decision", [Decision.REJECT, Decision.REQUEST_CHANGES])
@pytest.mark.parametrize("comment", ["", "   \n"])
def test_a_refusal_says_why(house: House, decision: str, comment: str) -> None:
    assert_refused(
        InvalidInput,
        "comment: must say why",
        house.evaluated(),
        house.approver,
        decision=decision,
        comment=comment,
    )


def test_a_comment_is_bounded(house: House) -> None:
    assert_refused(
        InvalidInput, "comment: must be at most 4000", house.evaluated(), house.approver, comment="x" * 4001
    )


def test_nobody_signs_what_is_not_there(house: House) -> None:
    with pytest.raises(NotFound):
        approvals.sign(
            candidate_id=4711, evidence_digest="0" * 64, by=house.approver, proof=Password(factories.PASSWORD)
        )


# the bytes


def test_a_stale_digest_is_refused_and_nothing_is_written(house: House) -> None:
    candidate = house.evaluated()
    shown = factories.digest_of(candidate)
    Candidate.objects.filter(pk=candidate.pk).update(revision=candidate.revision + 1)

    assert_refused(StaleEvidence, "Read it again before you sign", candidate, house.approver, digest=shown)


@pytest.mark.parametrize("digest", ["", "0" * 64, "not a digest"])
def test_a_digest_that_was_never_shown_is_refused(house: House, digest: str) -> None:
    with pytest.raises(StaleEvidence):
        approvals.sign(
            candidate_id=house.evaluated().pk,
            evidence_digest=digest,
            by=house.approver,
            proof=Password(factories.PASSWORD),
            meaning="authorises",
        )


def test_the_digest_of_another_candidate_is_refused(house: House) -> None:
    first, second = house.evaluated("one"), house.evaluated("two")

    assert_refused(
        StaleEvidence, "changed since it was shown", first, house.approver, digest=factories.digest_of(second)
    )


def change_revision(house: House, candidate: Candidate) -> None:
    Candidate.objects.filter(pk=candidate.pk).update(revision=candidate.revision + 1)


def reopen_a_run(house: House, candidate: Candidate) -> None:
    run = EvalRun.objects.filter(label=candidate.name).latest("id")
    runs.run_again(run_id=run.pk, by=house.engineer)


def lock_another_policy(house: House, candidate: Candidate) -> None:
    document = factories.policy_document([house.suite], approvers=2)
    draft = policies.draft(track=house.track, document=document, by=house.administrator)
    policies.lock(policy_id=draft.pk, by=factories.person("second-admin", "administrator"))


def change_the_verification(house: House, candidate: Candidate) -> None:
    Candidate.objects.filter(pk=candidate.pk).update(verification={"status": "verified", "reason": "another"})


@pytest.mark.parametrize(
    "change", [change_revision, reopen_a_run, lock_another_policy, change_the_verification]
)
def test_a_signature_is_void_once_the_evidence_is_another(two: House, change: Any) -> None:
    candidate = two.evaluated("cand", {}, masked=1)
    assert candidate.state == CandidateState.IN_REVIEW
    sign(candidate, two.approver)

    change(two, candidate)
    with transaction.atomic():
        locked = gating.locked_candidate(candidate.pk)
        frozen, _ = gating.freeze(locked)
        outcome = gating.approvals_outcome(locked, frozen)

    assert outcome.numbers["signed_by"] == []


def test_signatures_before_changes_were_asked_for_do_not_come_back(two: House) -> None:
    candidate = two.evaluated()
    sign(candidate, two.approver)
    sign(candidate, two.approver_2, decision=Decision.REQUEST_CHANGES, comment="Explain the drop.")
    candidate.refresh_from_db()
    assert candidate.state == CandidateState.BLOCKED

    gating.start_evaluation(candidate_id=candidate.pk, backend=two.backend, by=two.engineer)
    assert gating.judge_if_measured(candidate.pk)
    candidate.refresh_from_db()
    assert candidate.state == CandidateState.IN_REVIEW
    sign(candidate, two.approver_2)

    candidate.refresh_from_db()
    assert candidate.state == CandidateState.IN_REVIEW  # one of two: the old signature was for other bytes
    sign(candidate, two.approver)
    candidate.refresh_from_db()
    assert candidate.state == CandidateState.APPROVED


def test_a_candidate_sent_back_and_judged_again_needs_every_signature_anew(two: House) -> None:
    candidate = two.evaluated()
    sign(candidate, two.approver)
    sign(candidate, two.approver_2, decision=Decision.REQUEST_CHANGES, comment="Explain the drop.")
    gating.judge_again(candidate_id=candidate.pk, by=two.engineer)

    sign(candidate, two.approver_2)

    candidate.refresh_from_db()
    assert candidate.state == CandidateState.IN_REVIEW


def test_looking_and_refused_attempts_do_not_change_the_digest(two: House) -> None:
    candidate = two.evaluated()
    before = evidence.build(gating.locked_candidate(candidate.pk)).digest
    with pytest.raises(WrongPassword):
        sign(candidate, two.approver, password="no")
    sign(candidate, two.approver, comment="An approval is not evidence.")

    assert evidence.build(gating.locked_candidate(candidate.pk)).digest == before


# time


def test_a_signature_that_expired_no_longer_counts(two: House) -> None:
    candidate = two.evaluated()
    sign(candidate, two.approver)

    with time_machine.travel(timezone.now() + timedelta(days=31), tick=False):
        sign(candidate, two.approver_2)
        candidate.refresh_from_db()
        assert candidate.state == CandidateState.IN_REVIEW

    # nothing was stored about expiry: at an earlier time the same rows are enough
    with transaction.atomic():
        locked = gating.locked_candidate(candidate.pk)
        frozen, _ = gating.freeze(locked)
        assert sorted(gating.approvals_outcome(locked, frozen).numbers["signed_by"]) == [
            "approver",
            "approver-2",
        ]


def test_an_approval_that_expires_before_its_publication_is_refused_then(house: House) -> None:
    candidate = house.approved()

    with time_machine.travel(timezone.now() + timedelta(days=31), tick=False):
        assert registry.publish(candidate.pk) is None

    candidate.refresh_from_db()
    assert candidate.state == CandidateState.IN_REVIEW
    assert not RegistryEntry.objects.exists()


def test_a_signature_of_someone_since_deactivated_no_longer_counts(house: House) -> None:
    candidate = house.approved()
    User.objects.filter(pk=house.approver.pk).update(is_active=False)

    assert registry.publish(candidate.pk) is None

    candidate.refresh_from_db()
    assert candidate.state == CandidateState.IN_REVIEW


def test_a_withdrawn_signature_no_longer_counts(house: House) -> None:
    candidate = house.approved()
    Approval.objects.update(withdrawn_at=timezone.now())

    assert registry.publish(candidate.pk) is None
    assert not RegistryEntry.objects.exists()


# states


@pytest.mark.parametrize(
    "state",
    [
        "built",
        "evaluating",
        "blocked",
        "approved",
        "publishing",
        "publish_failed",
        "promoted",
        "rejected",
        "withdrawn",
    ],
)
def test_only_a_candidate_in_review_is_signed(house: House, state: str) -> None:
    candidate = house.evaluated()
    Candidate.objects.filter(pk=candidate.pk).update(state=state)

    assert_refused(
        Conflict,
        f"is {state.replace('_', ' ')}; only a candidate in review is signed",
        candidate,
        house.approver,
    )


def test_a_blocked_candidate_cannot_be_signed_past_its_gates(house: House) -> None:
    candidate = house.evaluated("cand", wrong=15)
    assert candidate.state == CandidateState.BLOCKED

    assert_refused(Conflict, "is blocked", candidate, house.approver)


def test_rejecting_ends_a_candidate(house: House) -> None:
    candidate = house.evaluated()

    approval = sign(candidate, house.approver, decision=Decision.REJECT, comment="It flatters the user.")

    candidate.refresh_from_db()
    assert candidate.state == CandidateState.REJECTED
    assert approval.meaning == ""
    assert AuditEvent.objects.filter(action="candidate.reject").count() == 1
    with pytest.raises(Conflict):
        gating.start_evaluation(candidate_id=candidate.pk, backend=house.backend, by=house.engineer)


def test_a_rejection_is_no_approval(two: House) -> None:
    candidate = two.evaluated()
    sign(candidate, two.approver, decision=Decision.REQUEST_CHANGES, comment="No.")

    with transaction.atomic():
        locked = gating.locked_candidate(candidate.pk)
        frozen, _ = gating.freeze(locked)
        assert gating.approvals_outcome(locked, frozen).numbers["signed_by"] == []


# baseline


def test_a_baseline_needs_two_different_approvers_whatever_the_policy_says(house: House) -> None:
    baseline = house.candidate("first", baseline=True)
    gating.judge_if_measured(baseline.pk)

    sign(baseline, house.approver)
    baseline.refresh_from_db()
    assert baseline.state == CandidateState.IN_REVIEW
    assert_refused(Conflict, "has signed this evidence already", baseline, house.approver)

    sign(baseline, house.approver_2)
    baseline.refresh_from_db()
    assert baseline.state == CandidateState.APPROVED


def test_the_submitter_of_a_baseline_may_not_sign_it(house: House) -> None:
    submitter = factories.person("submitter", "engineer", "approver")
    baseline = factories.built_candidate(house.track, house.base, submitter, baseline=True)
    gating.judge_if_measured(baseline.pk)

    assert_refused(NotAllowed, "submitter may not sign", baseline, submitter)


def test_an_adopted_baseline_is_marked_ungated(house: House) -> None:
    entry = house.adopt()

    assert (entry.number, entry.ungated) == (1, True)
    assert len(entry.record["signatures"]) == 2
    assert {part["meaning"] for part in entry.record["signatures"]} == {
        "I adopt this model as the ungated baseline"
    }
