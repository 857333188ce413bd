"""Ways to get a signature, a pass or an entry that one should not get: each was possible once."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import Group
from django.db import connection
from django.utils import timezone

from promotion.models import CandidateState, Evidence, RegistryEntry
from promotion.services import candidates, gating, policies, proofs, registry
from rollouts.errors import Conflict, InvalidInput, NotAllowed
from rollouts.models import EvalRun
from rollouts.services import backends, runs, suites
from tests import factories
from tests.factories import House, digest_of, house, person, sign

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene(sent: list[Any]) -> House:
    return house()


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_what_was_checked_is_what_is_promoted_even_if_a_run_is_reopened_meanwhile(
    sent: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = house()
    candidate = scene.evaluated("c", masked=1)
    sign(candidate, scene.approver)
    signed, run = digest_of(candidate), EvalRun.objects.get()
    begun = registry._begin(candidate.pk)
    registry._write_export(begun, registry.export_path(candidate))
    reopened: list[str] = []
    checked = registry._checked

    def reopen() -> None:
        try:
            runs.run_again(run_id=run.pk, by=scene.engineer)
            reopened.append("done")
        finally:
            connection.close()

    threads: list[threading.Thread] = []

    def check_then_reopen(found: Any) -> Any:
        evidence = checked(found)
        thread = threading.Thread(target=reopen)
        thread.start()
        thread.join(1)
        threads.append(thread)
        assert not reopened, "the run is held until the promotion has committed"
        return evidence

    monkeypatch.setattr(registry, "_checked", check_then_reopen)

    entry = registry._promote(candidate.pk, registry.export_path(candidate))

    threads[0].join(30)
    assert entry is not None
    assert entry.evidence.digest == signed
    assert [gate["outcome"] for gate in entry.record["gates"]] == ["passed"] * len(entry.record["gates"])
    assert [found["person"] for found in entry.record["signatures"]] == ["approver"]


def test_a_second_baseline_does_not_replace_the_first(scene: House) -> None:
    first, second = scene.candidate("one", baseline=True), scene.candidate("two", baseline=True)
    for baseline in (first, second):
        gating.judge_if_measured(baseline.pk)
        sign(baseline, scene.approver)
    sign(first, scene.approver_2)
    assert registry.publish(first.pk) is not None

    sign(second, scene.approver_2)

    assert registry.publish(second.pk) is None
    second.refresh_from_db()
    assert second.state == CandidateState.BLOCKED
    assert RegistryEntry.objects.get().candidate == first


@pytest.mark.parametrize("status", ["failed", "not_verified"])
def test_a_baseline_whose_file_is_not_verified_is_not_adopted(scene: House, status: str) -> None:
    baseline = scene.candidate("one", baseline=True)
    baseline.verification = {"status": status, "reason": "no"}
    baseline.save(update_fields=["verification"])

    gating.judge_if_measured(baseline.pk)

    baseline.refresh_from_db()
    assert baseline.state == CandidateState.BLOCKED


def test_a_failing_run_cannot_be_reopened_and_cancelled_away(scene: House) -> None:
    candidate = scene.evaluated("c", wrong=10, masked=1)
    run = EvalRun.objects.get()
    runs.run_again(run_id=run.pk, by=scene.engineer)
    runs.cancel(run_id=run.pk, by=scene.engineer)
    again = runs.plan(subject=run.subject, suite=run.suite, backend=run.backend, by=scene.engineer)
    factories.finish_run(again)

    gating.judge_again(candidate_id=candidate.pk, by=scene.engineer)

    candidate.refresh_from_db()
    assert candidate.state == CandidateState.BLOCKED
    document = json.loads(bytes(Evidence.objects.filter(candidate=candidate).first().document))
    assert document["suites"][0]["candidate"] is None


def test_a_signature_ends_with_the_signers_membership(sent: list[Any]) -> None:
    scene = house(approvers=2)
    candidate = scene.evaluated()
    sign(candidate, scene.approver)
    scene.approver.groups.clear()

    sign(candidate, scene.approver_2)

    candidate.refresh_from_db()
    assert candidate.state == CandidateState.IN_REVIEW


def test_who_had_rollouts_run_again_may_not_sign(scene: House) -> None:
    both = person("both", "engineer", "approver")
    candidate = scene.evaluated("c", masked=1)
    run = EvalRun.objects.get()
    runs.run_again(run_id=run.pk, by=both)
    factories.finish_run(run)
    gating.judge_again(candidate_id=candidate.pk, by=scene.engineer)

    with pytest.raises(NotAllowed, match="both may not sign"):
        sign(candidate, both)


def test_who_locked_the_policy_may_not_sign(scene: House) -> None:
    draft = policies.draft(
        track=scene.track, document=scene.policy.document | {"note": "second"}, by=scene.administrator
    )
    policies.lock(policy_id=draft.pk, by=scene.approver)
    candidate = scene.evaluated()

    with pytest.raises(NotAllowed, match="locked its policy"):
        sign(candidate, scene.approver)


def test_a_superuser_signs_in_no_group_they_are_not_in(scene: House) -> None:
    candidate = scene.evaluated()
    root = person("root")
    root.is_superuser = True
    root.save()

    with pytest.raises(NotAllowed, match="needs approver"):
        sign(candidate, root)


def test_the_signing_password_cannot_be_guessed_without_end(scene: House) -> None:
    candidate = scene.evaluated()
    for _ in range(proofs.MAX_TRIES):
        with pytest.raises(proofs.WrongPassword):
            sign(candidate, scene.approver, password="guess")

    with pytest.raises(proofs.TooManyTries):
        sign(candidate, scene.approver)

    with time_machine.travel(timezone.now() + proofs.TRY_WINDOW + timedelta(seconds=1)):
        assert sign(candidate, scene.approver).pk


def test_an_expired_signature_can_be_given_anew(sent: list[Any]) -> None:
    scene = house(approvers=2)
    candidate = scene.evaluated()
    sign(candidate, scene.approver)

    with time_machine.travel(timezone.now() + timedelta(days=31)):
        sign(candidate, scene.approver_2)
        candidate.refresh_from_db()
        assert candidate.state == CandidateState.IN_REVIEW
        sign(candidate, scene.approver)

    candidate.refresh_from_db()
    assert candidate.state == CandidateState.APPROVED


def test_bytes_that_were_refused_come_back_under_no_other_configuration_text(scene: House) -> None:
    first = scene.candidate("one")
    second = scene.candidate("two")
    second.state, second.gguf = CandidateState.SUBMITTED, None
    second.save(update_fields=["state", "gguf"])

    candidates._built(second.pk, CandidateState.BUILT, gguf=first.gguf, verification={"status": "verified"})

    second.refresh_from_db()
    assert (second.state, second.gguf) == (CandidateState.BUILD_FAILED, None)
    assert "very bytes of toolcaller/one" in second.error_detail


def test_a_file_written_after_the_refusal_does_not_stay(scene: House) -> None:
    candidate = scene.approved()
    begun = registry._begin(candidate.pk)
    scene.approver.groups.remove(Group.objects.get(name="approver"))
    assert registry.publish(candidate.pk) is None
    path = registry.export_path(candidate)
    registry._write_export(begun, path)

    assert registry._promote(candidate.pk, path) is None

    assert not path.exists()


@pytest.mark.parametrize(
    "name", ["DATABASE_URL", "ASSAY_SECRET_KEY", "OPENAI_API_KEY", "ASSAY_KEY_", "ASSAY_KEY_a"]
)
def test_a_backend_names_no_variable_but_a_provider_key(scene: House, name: str) -> None:
    with pytest.raises(InvalidInput, match="begins with ASSAY_KEY_"):
        backends.save(
            name="thief",
            kind="openai_compatible",
            config={"base_url": "https://host/v1"},
            by=scene.engineer,
            key_env=name,
        )


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}},
        {"type": "object", "patternProperties": {"^(a+)+$": {}}},
        {"type": "object", "properties": {"a": {"anyOf": [{"items": {"pattern": "x"}}]}}},
    ],
)
def test_a_suite_brings_no_regular_expression_that_could_hang_a_worker(
    scene: House, schema: dict[str, Any]
) -> None:
    row = factories.call_case("c0") | {"tools": [{"name": "read_file", "parameters": schema}]}

    with pytest.raises(InvalidInput, match="can hang a worker"):
        suites.seal(name="hang", data=json.dumps(row).encode(), by=scene.engineer)


def test_a_run_that_measures_the_same_is_not_planned_twice(scene: House) -> None:
    candidate = scene.candidate()
    gating.start_evaluation(candidate_id=candidate.pk, backend=scene.backend, by=scene.engineer)
    run = EvalRun.objects.get()

    with pytest.raises(Conflict):
        runs.plan(subject=run.subject, suite=run.suite, backend=run.backend, by=scene.engineer)
