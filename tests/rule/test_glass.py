"""The glass stands in for signatures and for nothing else, is broken by few, seen by many, and reviewed by another."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import Group, User
from django.core import mail
from django.db import IntegrityError, transaction
from django.utils import timezone

from promotion import bundle
from promotion.gates import Outcome
from promotion.models import BrokenGlass, Candidate, CandidateState, Evidence, RegistryEntry
from promotion.services import gating, glass, registry, waivers
from promotion.services.proofs import WrongPassword
from rollouts.errors import Conflict, InvalidInput, NotAllowed, NotFound, StaleEvidence
from rollouts.models import AuditEvent
from tests import factories
from tests.factories import House, sign
from tests.rule.worlds import REASON, break_glass, breakable, breaker, state_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def house() -> House:
    return breakable()


@pytest.fixture
def admin(house: House) -> User:
    """An administrator without a part in anything."""
    return breaker()


def outcome_of(candidate: Candidate) -> Any:
    with transaction.atomic():
        locked = gating.locked_candidate(candidate.pk)
        return gating.approvals_outcome(locked, gating.freeze(locked)[0])


def assert_refused(error: type[Exception], match: str, candidate: Candidate, by: User, **words: Any) -> None:
    """The attempt raises, is in the audit history, and wrote nothing else."""
    before = (state_of(candidate), BrokenGlass.objects.count(), AuditEvent.objects.count())

    with pytest.raises(error, match=match):
        break_glass(candidate, by, **words)

    assert (state_of(candidate), BrokenGlass.objects.count(), AuditEvent.objects.count() - 1) == before
    last = AuditEvent.objects.order_by("-sequence")[0]
    assert (last.action, last.actor) == ("candidate.glass_refused", f"user:{by.get_username()}")


# the act


def test_it_stands_in_for_the_signatures_that_are_missing(house: House, admin: User) -> None:
    candidate = house.evaluated()
    sign(candidate, house.approver)

    broken = break_glass(candidate, admin)

    assert state_of(candidate) == CandidateState.APPROVED
    found = outcome_of(candidate)
    assert found.outcome is Outcome.PASSED
    assert (
        found.reason == f"breaker broke the glass: 1 more approver did not sign {broken.evidence_digest[:8]}."
    )
    assert (found.numbers["signed_by"], found.numbers["broke_glass"]) == (["approver"], "breaker")


def test_it_says_who_why_how_and_until_when_it_is_reviewed(house: House, admin: User) -> None:
    User.objects.filter(pk=admin.pk).update(first_name="Ada", last_name="Min")
    candidate = house.evaluated()

    broken = break_glass(candidate, admin)

    assert (broken.printed_name, broken.reason, broken.method) == ("Ada Min", REASON, "password")
    assert broken.evidence_digest == factories.digest_of(candidate) == broken.evidence.digest
    assert broken.review_due_at - broken.broken_at == timedelta(hours=72)
    assert timedelta(0) <= broken.broken_at - broken.authenticated_at < timedelta(seconds=5)
    assert broken.verdict == ""


def test_the_publication_is_sent_and_the_entry_says_it(
    house: House, admin: User, sent: list[Any], django_capture_on_commit_callbacks: Any
) -> None:
    candidate = house.evaluated()
    with django_capture_on_commit_callbacks(execute=True):
        broken = break_glass(candidate, admin)
    assert sent[-1] == ("promotion.tasks.publish", (candidate.pk,))

    entry = registry.publish(candidate.pk)

    assert entry is not None and not entry.ungated
    assert entry.record["broken_glass"] == {
        "person": "breaker",
        "printed_name": "breaker",
        "reason": REASON,
        "method": "password",
        "authenticated_at": broken.authenticated_at.isoformat(),
        "broken_at": broken.broken_at.isoformat(),
        "review_due_at": broken.review_due_at.isoformat(),
        "evidence_digest": broken.evidence_digest,
    }
    assert entry.record["signatures"] == []
    last = entry.record["gates"][-1]
    assert last["outcome"] == "passed" and last["reason"].startswith("breaker broke the glass")


def test_an_entry_that_was_signed_says_that_no_glass_was_broken(house: House) -> None:
    entry = registry.publish(house.approved().pk)

    assert entry is not None and entry.record["broken_glass"] is None


def test_it_is_in_the_history_with_what_was_missing(house: House, admin: User) -> None:
    candidate = house.evaluated()
    broken = break_glass(candidate, admin)

    event = AuditEvent.objects.order_by("-sequence")[0]
    assert (event.action, event.actor) == ("candidate.glass_broken", "user:breaker")
    said = bytes(event.data).decode()
    for part in (REASON, broken.evidence_digest, "Waits for 2 more approvers", "review_due_at", "password"):
        assert part in said


# who may not


@pytest.mark.parametrize("role", ["engineer", "approver", "auditor"])
def test_only_administrators_break_it(house: House, role: str) -> None:
    other = factories.person("other", role)
    assert_refused(NotAllowed, "may not break the glass: that needs administrator", house.evaluated(), other)


def test_a_superusers_right_is_not_enough(house: House) -> None:
    root = User.objects.create_superuser("root", password=factories.PASSWORD)

    assert_refused(NotAllowed, "may not break the glass", house.evaluated(), root)


def test_who_lost_the_role_a_moment_ago_may_not(house: House, admin: User) -> None:
    candidate = house.evaluated()
    remembered = User.objects.get(pk=admin.pk)
    assert {group.name for group in remembered.groups.all()} == {"administrator"}
    admin.groups.clear()

    assert_refused(NotAllowed, "may not break the glass", candidate, remembered)


def test_who_is_inactive_may_not(house: House, admin: User) -> None:
    candidate = house.evaluated()
    User.objects.filter(pk=admin.pk).update(is_active=False)

    assert_refused(NotAllowed, "may not break the glass", candidate, admin)


def test_who_wrote_or_locked_the_policy_may_not(house: House) -> None:
    candidate = house.evaluated()

    for who in (house.administrator, User.objects.get(username="locker")):
        assert_refused(NotAllowed, "may not break the glass: they submitted", candidate, who)


def test_without_separation_of_duties_they_may() -> None:
    house = breakable(separated=False)
    candidate = house.evaluated()

    break_glass(candidate, house.administrator)

    assert state_of(candidate) == CandidateState.APPROVED


@pytest.mark.parametrize("password", ["", "wrong", factories.PASSWORD.upper()])
def test_the_password_is_asked(house: House, admin: User, password: str) -> None:
    assert_refused(WrongPassword, "The password is wrong", house.evaluated(), admin, password=password)


@pytest.mark.parametrize(
    ("reason", "says"), [("", "at least 20"), ("It is urgent.   " + " " * 20, "at least 20")]
)
def test_it_says_why_at_some_length(house: House, admin: User, reason: str, says: str) -> None:
    assert_refused(InvalidInput, says, house.evaluated(), admin, reason=reason)


def test_the_reason_is_bounded(house: House, admin: User) -> None:
    assert_refused(InvalidInput, "at most 4000", house.evaluated(), admin, reason="x" * 4001)


# for what


def test_a_policy_that_does_not_say_so_lets_nobody() -> None:
    house = factories.house(approvers=2)

    assert_refused(Conflict, "lets nobody break the glass", house.evaluated(), breaker())


def test_a_baseline_is_signed(house: House, admin: User) -> None:
    baseline = house.candidate("first", baseline=True)
    gating.judge_if_measured(baseline.pk)

    assert_refused(Conflict, "lets nobody break the glass", baseline, admin)


def test_no_gate_is_passed_over(house: House, admin: User) -> None:
    candidate = house.evaluated("cand", wrong=15)
    assert state_of(candidate) == CandidateState.BLOCKED

    assert_refused(Conflict, "is blocked", candidate, admin)


def test_a_waiver_that_ran_out_since_is_no_open_gate(house: House, admin: User) -> None:
    candidate = house.evaluated("cand", wrong=10)
    asked = waivers.request(
        candidate_id=candidate.pk,
        gate="generalization_accuracy_floor",
        suite_digest=house.suite.digest,
        reason="r",
        days=1,
        by=house.engineer,
    )
    waivers.grant(waiver_id=asked.pk, by=house.approver)
    assert state_of(candidate) == CandidateState.IN_REVIEW

    with time_machine.travel(timezone.now() + timedelta(days=2), tick=False):
        assert_refused(Conflict, "breaking the glass passes over none", candidate, admin)


@pytest.mark.parametrize(
    "state",
    ["built", "evaluating", "approved", "publishing", "publish_failed", "promoted", "rejected", "withdrawn"],
)
def test_only_a_candidate_in_review_is_promoted_so(house: House, admin: User, state: str) -> None:
    candidate = house.evaluated()
    Candidate.objects.filter(pk=candidate.pk).update(state=state)

    assert_refused(Conflict, "only for a candidate in review", candidate, admin)


def test_a_stale_digest_is_refused(house: House, admin: User) -> None:
    candidate = house.evaluated()
    shown = factories.digest_of(candidate)
    Candidate.objects.filter(pk=candidate.pk).update(revision=candidate.revision + 1)

    assert_refused(StaleEvidence, "Read it again", candidate, admin, digest=shown)


def test_nobody_breaks_the_glass_for_what_is_not_there(house: House, admin: User) -> None:
    with pytest.raises(NotFound):
        break_glass(Candidate(pk=4711), admin, digest="0" * 64)


def test_it_is_broken_once_for_one_evidence(house: House, admin: User) -> None:
    candidate = house.evaluated()
    break_glass(candidate, admin)
    Candidate.objects.filter(pk=candidate.pk).update(state=CandidateState.IN_REVIEW)

    assert_refused(Conflict, "once already", candidate, admin)


# what ends it


def test_another_evidence_is_another_glass(house: House, admin: User) -> None:
    candidate = house.evaluated()
    break_glass(candidate, admin)
    Candidate.objects.filter(pk=candidate.pk).update(revision=candidate.revision + 1)

    assert registry.publish(candidate.pk) is None
    assert state_of(candidate) == CandidateState.IN_REVIEW
    assert not RegistryEntry.objects.exists()


def test_it_expires_as_a_signature_does(house: House, admin: User) -> None:
    candidate = house.evaluated()
    break_glass(candidate, admin)

    with time_machine.travel(timezone.now() + timedelta(days=31), tick=False):
        assert registry.publish(candidate.pk) is None
    assert state_of(candidate) == CandidateState.IN_REVIEW


@pytest.mark.parametrize("lost", ["role", "account"])
def test_it_does_not_outlive_the_right_of_whoever_broke_it(house: House, admin: User, lost: str) -> None:
    candidate = house.evaluated()
    break_glass(candidate, admin)
    if lost == "role":
        admin.groups.clear()
    else:
        User.objects.filter(pk=admin.pk).update(is_active=False)

    assert registry.publish(candidate.pk) is None
    assert state_of(candidate) == CandidateState.IN_REVIEW


def test_gates_are_judged_once_more_at_the_promotion(house: House, admin: User) -> None:
    candidate = house.evaluated()
    break_glass(candidate, admin)
    Candidate.objects.filter(pk=candidate.pk).update(gguf=factories.store.put([b"other bytes"]))

    assert registry.publish(candidate.pk) is None
    assert state_of(candidate) == CandidateState.BLOCKED


# the alarm


@pytest.fixture
def addresses(house: House, admin: User) -> set[str]:
    """Everybody has an address; gives those of active approvers, administrators and auditors."""
    for person in User.objects.all():
        User.objects.filter(pk=person.pk).update(email=f"{person.username}@example.org")
    factories.person("gone", "approver", active=False)
    User.objects.filter(username="gone").update(email="gone@example.org")
    people = ("approver", "approver-2", "administrator", "locker", "breaker", "auditor")
    return {f"{name}@example.org" for name in people}


def test_all_who_must_know_are_told_and_see_nobodys_address(
    house: House, admin: User, addresses: set[str], sent: Any, django_capture_on_commit_callbacks: Any
) -> None:
    candidate = house.evaluated()

    with django_capture_on_commit_callbacks(execute=True):
        break_glass(candidate, admin)

    assert {address for letter in mail.outbox for address in letter.to} == addresses
    assert all(len(letter.recipients()) == 1 for letter in mail.outbox)
    letter = mail.outbox[0]
    assert str(candidate) in letter.subject and REASON in letter.body and "breaker" in letter.body


def test_who_may_not_see_the_track_is_not_told(
    house: House, admin: User, addresses: set[str], sent: Any, django_capture_on_commit_callbacks: Any
) -> None:
    house.track.readers.add(Group.objects.create(name="team-a"))
    candidate = house.evaluated()

    with django_capture_on_commit_callbacks(execute=True):
        break_glass(candidate, admin)

    told = {address for letter in mail.outbox for address in letter.to}
    assert told == addresses - {"approver@example.org", "approver-2@example.org"}


def test_one_line_at_error_names_the_act_and_the_ids(
    house: House, admin: User, sent: Any, caplog: Any, django_capture_on_commit_callbacks: Any
) -> None:
    candidate = house.evaluated()

    with django_capture_on_commit_callbacks(execute=True):
        broken = break_glass(candidate, admin)

    (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert (line.action, line.candidate, line.glass) == ("candidate.glass_broken", candidate.pk, broken.pk)


def test_a_mail_server_that_is_away_undoes_nothing_and_is_logged(
    house: House,
    admin: User,
    addresses: set[str],
    sent: Any,
    caplog: Any,
    settings: Any,
    django_capture_on_commit_callbacks: Any,
) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 9
    candidate = house.evaluated()

    with django_capture_on_commit_callbacks(execute=True):
        break_glass(candidate, admin)

    assert state_of(candidate) == CandidateState.APPROVED
    assert any("was not sent by e-mail" in record.getMessage() for record in caplog.records)


def test_nothing_is_said_of_what_was_rolled_back(
    house: House, admin: User, sent: Any, django_capture_on_commit_callbacks: Any
) -> None:
    candidate = house.evaluated()

    with django_capture_on_commit_callbacks(execute=True), pytest.raises(StaleEvidence):
        break_glass(candidate, admin, digest="0" * 64)

    assert mail.outbox == []


# the review afterwards


@pytest.fixture
def broken(house: House, admin: User) -> BrokenGlass:
    return break_glass(house.evaluated(), admin)


def judge(
    broken: BrokenGlass, by: User, verdict: str = "upheld", comment: str = "It could not wait."
) -> BrokenGlass:
    return glass.review_glass(glass_id=broken.pk, by=by, verdict=verdict, comment=comment)


@pytest.mark.parametrize("verdict", ["upheld", "condemned"])
def test_an_approver_without_a_part_reviews_it(house: House, broken: BrokenGlass, verdict: str) -> None:
    assert glass.due(broken) is not None

    found = judge(broken, house.approver, verdict)

    found.refresh_from_db()
    assert (found.verdict, found.reviewed_by, found.review_comment) == (
        verdict,
        house.approver,
        "It could not wait.",
    )
    assert glass.due(found) is None
    event = AuditEvent.objects.order_by("-sequence")[0]
    assert (event.action, event.actor) == ("candidate.glass_reviewed", "user:approver")


def test_it_is_overdue_after_its_time(broken: BrokenGlass) -> None:
    early, late = glass.due(broken), glass.due(broken, broken.review_due_at + timedelta(seconds=1))
    assert early is not None and late is not None
    assert (early.overdue, late.overdue) == (False, True)


@pytest.mark.parametrize("role", ["engineer", "administrator", "auditor"])
def test_only_approvers_review_it(broken: BrokenGlass, role: str) -> None:
    with pytest.raises(NotAllowed, match="needs approver"):
        judge(broken, factories.person("other", role))

    assert AuditEvent.objects.order_by("-sequence")[0].action == "candidate.glass_refused"


def test_who_broke_it_does_not_review_it(house: House, broken: BrokenGlass, admin: User) -> None:
    admin.groups.add(Group.objects.get(name="approver"))

    with pytest.raises(NotAllowed, match="they broke the glass"):
        judge(broken, User.objects.get(pk=admin.pk))


def test_who_has_a_part_in_it_does_not_review_it_whatever_the_policy_says() -> None:
    house = breakable(separated=False)
    found = break_glass(house.evaluated(), breaker())
    house.engineer.groups.add(Group.objects.get(name="approver"))

    with pytest.raises(NotAllowed, match="may not review this: they submitted"):
        judge(found, User.objects.get(pk=house.engineer.pk))


@pytest.mark.parametrize("comment", ["", " \n", "x" * 4001])
def test_a_verdict_says_why(house: House, broken: BrokenGlass, comment: str) -> None:
    with pytest.raises(InvalidInput, match="comment"):
        judge(broken, house.approver, comment=comment)


@pytest.mark.parametrize("verdict", ["", "fine"])
def test_a_verdict_is_one_of_two(house: House, broken: BrokenGlass, verdict: str) -> None:
    with pytest.raises(InvalidInput, match="verdict"):
        judge(broken, house.approver, verdict)


def test_it_is_reviewed_once(house: House, broken: BrokenGlass) -> None:
    judge(broken, house.approver)

    with pytest.raises(Conflict, match="reviewed already and is upheld"):
        judge(broken, house.approver_2, "condemned")


def test_what_is_not_there_is_not_reviewed(house: House) -> None:
    with pytest.raises(NotFound):
        glass.review_glass(glass_id=4711, by=house.approver, verdict="upheld", comment="x")


def test_condemned_before_it_was_published_it_is_not(house: House, broken: BrokenGlass) -> None:
    judge(broken, house.approver, "condemned")

    assert state_of(broken.candidate) == CandidateState.IN_REVIEW
    assert registry.publish(broken.candidate_id) is None
    # and can still be signed, as anything in review
    for approver in (house.approver, house.approver_2):
        sign(broken.candidate, approver)
    assert state_of(broken.candidate) == CandidateState.APPROVED


def test_condemned_afterwards_nothing_rolls_back(house: House, broken: BrokenGlass) -> None:
    entry = registry.publish(broken.candidate_id)
    assert entry is not None

    judge(broken, house.approver, "condemned")

    assert state_of(broken.candidate) == CandidateState.PROMOTED
    assert RegistryEntry.objects.get() == entry


def test_the_database_keeps_its_review_for_another_person(broken: BrokenGlass) -> None:
    broken.verdict, broken.review_comment = "upheld", "Fine."
    broken.reviewed_by, broken.reviewed_at = broken.broken_by, timezone.now()

    with pytest.raises(IntegrityError), transaction.atomic():
        broken.save()


# the bundle


def test_a_stranger_judges_it_alike_from_the_bundle(house: House, broken: BrokenGlass) -> None:
    made = bundle.bundle_of(Evidence.objects.get(digest=broken.evidence_digest))

    regated = bundle.regate(made)

    assert made["broken_glass"]["person"] == "breaker"
    assert regated.blocked_by == [] and regated.signatures is not None
    assert regated.signatures.reason.startswith("breaker broke the glass")
    assert bundle.regate({**made, "broken_glass": None}).blocked_by != []


@pytest.mark.parametrize(
    "wrong", [[], "x", {"person": "x"}, {"person": 1, "evidence_digest": "", "broken_at": ""}]
)
def test_a_bundle_with_a_glass_of_another_shape_is_refused(broken: BrokenGlass, wrong: Any) -> None:
    made = bundle.bundle_of(Evidence.objects.get(digest=broken.evidence_digest))

    with pytest.raises(InvalidInput, match="broken_glass"):
        bundle.regate({**made, "broken_glass": wrong})
