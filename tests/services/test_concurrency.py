"""Two at once: one outcome, whoever was first. PostgreSQL has row locks; on SQLite writers take turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from promotion.audit.verify import verify_chain
from promotion.management.commands.verify_audit import stored_events
from promotion.models import (
    Alias,
    AliasMove,
    Approval,
    Candidate,
    CandidateState,
    Export,
    Policy,
    RegistryEntry,
)
from promotion.services import candidates, gating, policies, registry
from rollouts import audit, store
from rollouts.errors import AssayError, Conflict, InvalidTransition, StaleEvidence
from rollouts.models import Artifact, AuditEvent, EvalRun, Look, Suite
from rollouts.services import backends, runs, suites
from tests import factories
from tests.factories import House, sign
from tests.threads import in_threads

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("sent")]
ROUNDS = 5


@pytest.fixture
def house() -> House:
    return factories.house(calls=5, gates=[])


@pytest.fixture
def two() -> House:
    return factories.house(calls=5, gates=[], approvers=2)


def of_kind(results: list[Any], kind: type) -> list[Any]:
    return [result for result in results if isinstance(result, kind)]


def test_events_recorded_at_once_are_one_chain(house: House) -> None:
    before = AuditEvent.objects.count()

    def record_ten() -> None:
        for number in range(10):
            with transaction.atomic():
                audit.record("run.failed", subject=house.suite, actor="system:test", number=number)

    assert in_threads(*[record_ten] * 8) == [None] * 8

    report = verify_chain(stored_events())
    assert (report.bad_sequence, report.events) == (None, before + 80)


def test_a_record_that_waits_for_the_chain_sees_the_time_after_the_wait(house: House) -> None:
    in_threads(*[lambda: _record_one(house)] * 8)

    times = list(AuditEvent.objects.order_by("sequence").values_list("at_us", flat=True))
    assert times == sorted(times)


def _record_one(house: House) -> None:
    with transaction.atomic():
        audit.record("run.failed", subject=house.suite, actor="system:test")


def test_two_approvers_at_once_are_two(two: House) -> None:
    for number in range(ROUNDS):
        candidate = two.evaluated(f"cand-{number}")

        results = in_threads(lambda: sign(candidate, two.approver), lambda: sign(candidate, two.approver_2))  # noqa: B023

        assert len(of_kind(results, Approval)) == 2
        candidate.refresh_from_db()
        assert candidate.state == CandidateState.APPROVED


def test_one_approver_twice_at_once_is_one(two: House) -> None:
    for number in range(ROUNDS):
        candidate = two.evaluated(f"cand-{number}")

        results = in_threads(*[lambda: sign(candidate, two.approver)] * 3)  # noqa: B023

        assert (len(of_kind(results, Approval)), len(of_kind(results, Conflict))) == (1, 2)
        candidate.refresh_from_db()
        assert candidate.state == CandidateState.IN_REVIEW
        assert Approval.objects.filter(candidate=candidate).count() == 1


def test_a_signature_and_a_change_at_once_never_approve_the_changed(house: House) -> None:
    for number in range(ROUNDS):
        candidate = house.evaluated(f"cand-{number}", masked=1)
        run = EvalRun.objects.get(label=candidate.name)

        signed, reopened = in_threads(
            lambda: sign(candidate, house.approver),  # noqa: B023
            lambda: runs.run_again(run_id=run.pk, by=house.engineer),  # noqa: B023
        )

        assert isinstance(reopened, EvalRun)
        assert isinstance(signed, Approval | StaleEvidence | Conflict)
        assert registry.publish(candidate.pk) is None
        assert not RegistryEntry.objects.filter(candidate=candidate).exists()


def test_a_signature_and_a_withdrawal_at_once_end_in_one_of_both_orders(house: House) -> None:
    for number in range(ROUNDS):
        candidate = house.evaluated(f"cand-{number}")

        results = in_threads(
            lambda: sign(candidate, house.approver),  # noqa: B023
            lambda: candidates.withdraw(candidate_id=candidate.pk, by=house.engineer, reason="x"),  # noqa: B023
        )

        candidate.refresh_from_db()
        assert candidate.state == CandidateState.WITHDRAWN
        assert not of_kind(results[1:], Exception)
        assert registry.publish(candidate.pk) is None


def test_one_candidate_published_at_once_is_published_once(house: House) -> None:
    candidate = house.approved()

    results = in_threads(*[lambda: registry.publish(candidate.pk)] * 4)

    assert not of_kind(results, Exception)
    entry = RegistryEntry.objects.get()
    assert {result.pk for result in results if result is not None} == {entry.pk}
    assert Export.objects.get().entry == Alias.objects.get().entry == AliasMove.objects.get().new == entry
    files = [path for path in Path(registry.settings.EXPORTS_DIR).rglob("*") if path.is_file()]
    assert files == [registry.export_path(candidate)]
    assert AuditEvent.objects.filter(action="candidate.promoted").count() == 1


def test_of_two_baselines_promoted_at_once_one_becomes_the_champion(house: House) -> None:
    names = ["one", "two"]
    for name in names:
        house.candidate(name, baseline=True)
    baselines = list(Candidate.objects.filter(name__in=names))
    for baseline in baselines:
        gating.judge_if_measured(baseline.pk)
        sign(baseline, house.approver)
        sign(baseline, house.approver_2)

    results = in_threads(*[lambda key=baseline.pk: registry.publish(key) for baseline in baselines])

    assert not of_kind(results, Exception)
    entry = RegistryEntry.objects.get()
    assert Alias.objects.get().entry == entry
    other = next(baseline for baseline in baselines if baseline.pk != entry.candidate_id)
    other.refresh_from_db()
    assert other.state == CandidateState.BLOCKED
    assert not registry.export_path(other).exists()


def test_two_candidates_promoted_at_once_leave_one_champion_and_the_other_to_be_signed_anew(
    house: House,
) -> None:
    first, second = house.approved("one"), house.approved("two")

    results = in_threads(lambda: registry.publish(first.pk), lambda: registry.publish(second.pk))

    assert not of_kind(results, Exception)
    entry = RegistryEntry.objects.get()
    assert Alias.objects.get().entry == entry
    other = second if entry.candidate_id == first.pk else first
    other.refresh_from_db()
    assert other.state == CandidateState.IN_REVIEW  # its evidence now names a champion: the signature is void
    files = [path for path in Path(registry.settings.EXPORTS_DIR).rglob("*") if path.is_file()]
    assert files == [registry.export_path(entry.candidate)]


def test_one_candidate_evaluated_twice_at_once_is_planned_once(house: House) -> None:
    candidate = house.candidate()

    results = in_threads(
        *[
            lambda: gating.start_evaluation(
                candidate_id=candidate.pk, backend=house.backend, by=house.engineer
            )
        ]
        * 3
    )

    assert len(of_kind(results, list)) == 1 and len(of_kind(results, InvalidTransition)) == 2
    assert EvalRun.objects.count() == 1


def test_two_candidates_evaluated_at_once_share_the_champions_run() -> None:
    house = factories.house(calls=5, gates=[], champion=True)
    pair = [house.candidate(name) for name in ("one", "two")]

    results = in_threads(
        *[
            lambda c=c: gating.start_evaluation(candidate_id=c.pk, backend=house.backend, by=house.engineer)
            for c in pair
        ]
    )

    # who was slower may be told that the champion is being measured already; nothing is measured twice
    assert all(isinstance(result, list | Conflict) for result in results)
    assert EvalRun.objects.filter(label="first").count() == 1


def test_one_run_closed_at_once_closes_once(house: House) -> None:
    candidate = house.candidate()
    (run,) = gating.start_evaluation(candidate_id=candidate.pk, backend=house.backend, by=house.engineer)
    factories.finish_run(run)
    EvalRun.objects.filter(pk=run.pk).update(state="running", finished_at=None)
    before = AuditEvent.objects.filter(action="run.scored").count()

    assert in_threads(*[lambda: runs.close_if_done(run.pk)] * 4) == [True] * 4

    assert AuditEvent.objects.filter(action="run.scored").count() == before + 1
    assert Look.objects.count() == 1


def test_one_judging_at_once_freezes_one_evidence(house: House) -> None:
    candidate = house.candidate()
    (run,) = gating.start_evaluation(candidate_id=candidate.pk, backend=house.backend, by=house.engineer)
    factories.finish_run(run)

    results = in_threads(*[lambda: gating.judge_now(candidate.pk)] * 4)

    assert not of_kind(results, Exception)
    assert len({evidence.pk for evidence in results}) == 1
    candidate.refresh_from_db()
    assert candidate.state == CandidateState.IN_REVIEW


def test_one_draft_locked_at_once_is_locked_once(house: House) -> None:
    draft = policies.draft(
        track=house.track,
        document=factories.policy_document([house.suite], approvers=2),
        by=house.administrator,
    )

    results = in_threads(*[lambda: policies.lock(policy_id=draft.pk, by=house.approver)] * 3)

    assert (len(of_kind(results, Policy)), len(of_kind(results, Conflict))) == (1, 2)


def test_two_drafts_at_once_are_one(house: House) -> None:
    documents = [factories.policy_document([house.suite], approvers=count) for count in (2, 3, 4)]

    results = in_threads(
        *[
            lambda d=d: policies.draft(track=house.track, document=d, by=house.administrator)
            for d in documents
        ]
    )

    assert not of_kind(results, Exception)
    assert Policy.objects.filter(track=house.track, locked_at=None).count() == 1


def test_one_suite_sealed_at_once_is_one_suite(house: House) -> None:
    data = factories.jsonl([factories.call_case(f"new-{number}") for number in range(50)])

    results = in_threads(*[lambda: suites.seal(name="new", data=data, by=house.engineer)] * 4)

    assert not of_kind(results, Exception), results
    assert len({suite.pk for suite in results}) == 1
    assert Suite.objects.get(name="new").cases.count() == 50


def test_two_versions_of_a_suite_sealed_at_once_get_two_numbers(house: House) -> None:
    versions = [factories.jsonl([factories.call_case(f"v{number}")]) for number in range(4)]

    results = in_threads(*[lambda d=d: suites.seal(name="new", data=d, by=house.engineer) for d in versions])

    assert not of_kind(results, Exception), results
    assert sorted(suite.version for suite in results) == [1, 2, 3, 4]


def test_one_backend_saved_at_once_is_one_revision(house: House) -> None:
    results = in_threads(
        *[
            lambda: backends.save(
                name="new", kind="openai_compatible", config={"base_url": "http://h/v1"}, by=house.engineer
            )
        ]
        * 4
    )

    assert not of_kind(results, Exception), results
    assert {(b.pk, b.revision) for b in results} == {(results[0].pk, 1)}


def test_equal_bytes_stored_at_once_are_stored_once(house: House) -> None:
    results = in_threads(*[lambda: store.put([b"x" * 100_000])] * 6)

    assert not of_kind(results, Exception)
    assert Artifact.objects.filter(pk=results[0].pk).count() == 1
    assert factories.stored_bytes(results[0]) == b"x" * 100_000


def test_one_name_taken_at_once_is_a_conflict_for_the_slower(house: House) -> None:
    results = in_threads(
        *[lambda: factories.tracks.create(name="new", purpose="x", by=house.administrator)] * 3
    )

    assert len(of_kind(results, AssayError)) == 2 and len(of_kind(results, Conflict)) == 2
