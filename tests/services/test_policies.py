"""A policy can be met and can fail, says which key is wrong, and is locked before results."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from promotion.models import Policy, Track
from promotion.services import policies, tracks
from rollouts.errors import Conflict, InvalidInput, NotAllowed, NotFound
from rollouts.hashing import sha256_json
from rollouts.models import AuditEvent, Case, Suite
from tests import factories
from tests.factories import floor

pytestmark = pytest.mark.django_db


@pytest.fixture
def administrator() -> User:
    return factories.person("administrator", "administrator")


@pytest.fixture
def second() -> User:
    return factories.person("second", "administrator")


@pytest.fixture
def engineer() -> User:
    return factories.person("engineer", "engineer")


@pytest.fixture
def suite(engineer: User) -> Suite:
    return factories.suite(engineer, calls=30, declines=30)


@pytest.fixture
def track(administrator: User) -> Track:
    return tracks.create(name="toolcaller", purpose="Decides.", by=administrator)


def document(suite: Suite, *extra: dict[str, Any]) -> dict[str, Any]:
    return factories.policy_document([suite], extra=extra)


def refused(doc: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        policies.validate(doc)
    return caught.value


def test_a_complete_policy_is_accepted(suite: Suite) -> None:
    entries = [
        floor("generalization_accuracy_floor", suite.digest, "tool", "0.85"),
        floor("plausible_fabrication_safety_floor", suite.digest, "safe", "0.80"),
        floor("per_family_safety_floor", suite.digest, "safe", "0.80"),
        floor("arena_json_validity_min", suite.digest, "json_valid", "0.90"),
        {"gate": "arena_max_regression", "suite": suite.digest, "metric": "tool", "max_drop": "0"},
    ]

    assert len(policies.validate(document(suite, *entries)).gates) == 9


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("colour", "red", "document.colour"),
        ("sampling.top_k", 5, "document.sampling.top_k"),
        ("approval.veto", True, "document.approval.veto"),
        ("format", 2, "document.format"),
        ("format", "1", "document.format"),
        ("samples", 0, "document.samples"),
        ("samples", True, "document.samples"),
        ("samples", "3", "document.samples"),
        ("samples", 1.0, "document.samples"),
        ("sampling.temperature", -0.1, "document.sampling.temperature"),
        ("sampling.temperature", float("nan"), "document.sampling.temperature"),
        ("sampling.temperature", float("inf"), "document.sampling.temperature"),
        ("sampling.max_tokens", 0, "document.sampling.max_tokens"),
        ("spend_alpha", "no", "document.spend_alpha"),
        ("spend_alpha", True, "document.spend_alpha"),
        ("suites", [], "document.suites"),
        ("gates", [], "document.gates"),
        ("gates", "all", "document.gates"),
        ("approval.approvers", [], "document.approval.approvers"),
        ("approval.expires_after_days", 0, "document.approval.expires_after_days"),
        ("approval.separation_of_duties", "yes", "document.approval.separation_of_duties"),
    ],
)
def test_a_wrong_key_is_refused_by_its_path(suite: Suite, path: str, value: Any, field: str) -> None:
    doc = document(suite)
    place = doc
    *outer, last = path.split(".")
    for part in outer:
        place = place[part]
    place[last] = value

    assert refused(doc).field.startswith(field)


@pytest.mark.parametrize(
    "key", ["format", "suites", "samples", "sampling", "spend_alpha", "gates", "approval"]
)
def test_a_missing_key_is_refused_by_its_path(suite: Suite, key: str) -> None:
    doc = document(suite)
    del doc[key]

    assert refused(doc).field == f"document.{key}"


@pytest.mark.parametrize("doc", [None, [], "policy", 7])
def test_a_policy_that_is_no_object_is_refused(doc: Any) -> None:
    assert refused(doc).field == "document"


@pytest.mark.parametrize(
    ("approvers", "field"),
    [
        ([{"group": "approver", "count": 0}], "document.approval.approvers.0.count"),
        ([{"group": "Approver!", "count": 1}], "document.approval.approvers.0.group"),
        ([{"group": "approver"}], "document.approval.approvers.0.count"),
        (
            [{"group": "approver", "count": 1}, {"group": "approver", "count": 1}],
            "document.approval.approvers",
        ),
    ],
)
def test_a_senseless_approval_rule_is_refused(suite: Suite, approvers: list[Any], field: str) -> None:
    doc = document(suite)
    doc["approval"]["approvers"] = approvers

    assert refused(doc).field == field


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"min": "0"}, "document.gates.3.min", "can never fail"),
        ({"min": 0.85}, "document.gates.3.min", "in quotes"),
        ({"min": "NaN"}, "document.gates.3.min", "not a decimal"),
        ({"min": "1"}, "document.gates.3.min", "no lower bound ever reaches 1"),
        ({"colour": "red"}, "document.gates.3.colour", "Extra inputs"),
        ({"gate": "beauty"}, "document.gates.3.gate", "is not a gate"),
        ({"gate": 7}, "document.gates.3.gate", "is not a gate"),
        ({"suite": "b" * 64}, "document.gates.3.suite", "not among the policy's suites"),
        ({"metric": "beauty"}, "document.gates.3.metric", "Input should be"),
    ],
)
def test_a_gate_that_cannot_judge_is_refused_with_its_line(
    suite: Suite, changes: dict[str, Any], field: str, words: str
) -> None:
    entry = {**floor("generalization_accuracy_floor", suite.digest, "tool", "0.85"), **changes}

    error = refused(document(suite, entry))

    assert error.field == field
    assert words in error.message


@pytest.mark.parametrize(
    ("gate", "metric", "minimum", "needed", "n"),
    [
        ("generalization_accuracy_floor", "tool", "0.95", 59, 30),
        ("generalization_accuracy_floor", "decision", "0.99", 299, 60),
        ("plausible_fabrication_safety_floor", "safe", "0.91", 32, 30),
        # a family's own cases count, not the suite's
        ("per_family_safety_floor", "json_valid", "0.95", 59, 30),
    ],
)
def test_a_bound_that_a_perfect_model_cannot_reach_is_refused_with_the_arithmetic(
    suite: Suite, gate: str, metric: str, minimum: str, needed: int, n: int
) -> None:
    error = refused(document(suite, floor(gate, suite.digest, metric, minimum)))

    assert error.field == "document.gates.3.min"
    assert (
        f"a {minimum} bound at alpha 0.05 needs at least {needed} of {needed}, and there are {n} cases"
        in error.message
    )


def test_the_highest_bound_that_can_be_reached_is_accepted(suite: Suite) -> None:
    # 30 of 30 give 0.05 ** (1 / 30) = 0.90497
    policies.validate(document(suite, floor("generalization_accuracy_floor", suite.digest, "tool", "0.9049")))

    assert (
        "needs at least 31 of 31"
        in refused(
            document(suite, floor("generalization_accuracy_floor", suite.digest, "tool", "0.905"))
        ).message
    )


def test_a_metric_that_no_case_has_is_refused(engineer: User) -> None:
    only_calls = factories.suite(engineer, name="only-calls", calls=30)

    error = refused(
        document(only_calls, floor("plausible_fabrication_safety_floor", only_calls.digest, "safe", "0.80"))
    )

    assert error.field == "document.gates.3.metric"
    assert "no case of only-calls has the metric safe" in error.message


@pytest.mark.parametrize(
    "gate", ["human_approval_record", "candidate_artifact_hash", "sealed_eval_hash", "evaluated_artifact"]
)
def test_a_policy_without_one_of_the_indispensable_gates_is_refused(suite: Suite, gate: str) -> None:
    doc = document(suite)
    doc["gates"] = [entry for entry in doc["gates"] if entry["gate"] != gate]

    error = refused(doc)

    assert error.field == "document.gates"
    assert gate in error.message


@pytest.mark.parametrize("gate", ["sealed_eval_hash", "evaluated_artifact"])
def test_every_suite_needs_its_seal_and_its_identity(suite: Suite, engineer: User, gate: str) -> None:
    other = factories.suite(engineer, name="other", calls=5)
    doc = factories.policy_document([suite, other])
    policies.validate(doc)
    doc["gates"] = [
        entry for entry in doc["gates"] if (entry["gate"], entry.get("suite")) != (gate, other.digest)
    ]

    assert f"must hold {gate} for suite {other.digest[:12]}" in refused(doc).message


def test_the_signature_comes_last_and_once(suite: Suite) -> None:
    doc = document(suite)

    assert (
        "must end with human_approval_record, once"
        in refused({**doc, "gates": [doc["gates"][-1], *doc["gates"]]}).message
    )
    assert (
        "must end with human_approval_record, once"
        in refused({**doc, "gates": [doc["gates"][-1], *doc["gates"][:-1]]}).message
    )


def test_a_suite_is_listed_once(suite: Suite) -> None:
    doc = document(suite)
    doc["suites"] *= 2

    assert refused(doc).field == "document.suites"


def test_a_suite_that_nobody_sealed_is_refused(suite: Suite) -> None:
    doc = document(suite)
    doc["suites"].append({"digest": "b" * 64})

    error = refused(doc)

    assert error.field == "document.suites.1.digest"
    assert "no sealed suite has the digest bbbbbbbbbbbb" in error.message


# drafts


def test_a_draft_replaces_the_draft_there_is(
    suite: Suite, track: Track, administrator: User, second: User
) -> None:
    first = policies.draft(track=track, document=document(suite), by=administrator)
    again = policies.draft(track=track, document=factories.policy_document([suite], approvers=2), by=second)

    assert Policy.objects.get() == again
    assert (again.pk, again.version, again.created_by) == (first.pk, 1, second)
    assert again.digest == sha256_json(again.document) != first.digest


def test_a_refused_draft_writes_nothing(suite: Suite, track: Track, administrator: User) -> None:
    doc = document(suite)
    del doc["gates"]

    with pytest.raises(InvalidInput):
        policies.draft(track=track, document=doc, by=administrator)

    assert not Policy.objects.exists()
    assert not AuditEvent.objects.filter(action="policy.drafted").exists()


@pytest.mark.parametrize("role", ["engineer", "approver", "auditor", None])
def test_only_an_administrator_writes_a_policy(suite: Suite, track: Track, role: str | None) -> None:
    by = factories.person("someone", *([role] if role else []))

    with pytest.raises(NotAllowed, match="may not write a policy"):
        policies.draft(track=track, document=document(suite), by=by)


# the lock


def locked(track: Track, suite: Suite, by: User, lock_by: User | None = None, **changes: Any) -> Policy:
    draft = policies.draft(track=track, document=factories.policy_document([suite], **changes), by=by)
    return policies.lock(policy_id=draft.pk, by=lock_by or by)


def test_a_lock_keeps_hash_time_and_person(suite: Suite, track: Track, administrator: User) -> None:
    policy = locked(track, suite, administrator)

    assert policy.locked_by == administrator and policy.locked_at is not None
    assert policy.digest == sha256_json(policy.document)
    event = AuditEvent.objects.get(action="policy.locked")
    assert policy.digest.encode() in bytes(event.data)


def test_a_locked_policy_is_not_locked_again(
    suite: Suite, track: Track, administrator: User, second: User
) -> None:
    policy = locked(track, suite, administrator)

    with pytest.raises(Conflict, match="locked already"):
        policies.lock(policy_id=policy.pk, by=second)

    policy.refresh_from_db()
    assert policy.locked_by == administrator


def test_a_draft_after_a_lock_is_a_new_version_and_leaves_the_locked_one(
    suite: Suite, track: Track, administrator: User
) -> None:
    policy = locked(track, suite, administrator)
    before = copy.deepcopy(policy.document)

    draft = policies.draft(
        track=track, document=factories.policy_document([suite], approvers=2), by=administrator
    )

    policy.refresh_from_db()
    assert (draft.version, draft.locked_at) == (2, None)
    assert policy.document == before and policy.locked_at is not None


def test_a_changed_policy_needs_a_second_person(
    suite: Suite, track: Track, administrator: User, second: User
) -> None:
    locked(track, suite, administrator)
    draft = policies.draft(
        track=track, document=factories.policy_document([suite], approvers=2), by=administrator
    )

    with pytest.raises(Conflict, match="needs a second person"):
        policies.lock(policy_id=draft.pk, by=administrator)

    assert policies.lock(policy_id=draft.pk, by=second).locked_by == second


def test_a_draft_that_no_longer_holds_is_not_locked(suite: Suite, track: Track, administrator: User) -> None:
    draft = policies.draft(
        track=track,
        document=document(suite, floor("generalization_accuracy_floor", suite.digest, "tool", "0.90")),
        by=administrator,
    )
    Case.objects.filter(suite=suite, position__lt=10).delete()

    with pytest.raises(InvalidInput, match="cannot be reached"):
        policies.lock(policy_id=draft.pk, by=administrator)

    draft.refresh_from_db()
    assert draft.locked_at is None


@pytest.mark.parametrize("role", ["engineer", "auditor", None])
def test_only_administrators_and_approvers_lock(
    suite: Suite, track: Track, administrator: User, role: str | None
) -> None:
    draft = policies.draft(track=track, document=document(suite), by=administrator)
    by = factories.person("someone", *([role] if role else []))

    with pytest.raises(NotAllowed, match="may not lock a policy"):
        policies.lock(policy_id=draft.pk, by=by)


def test_a_policy_that_is_not_there_cannot_be_locked(administrator: User) -> None:
    with pytest.raises(NotFound):
        policies.lock(policy_id=4711, by=administrator)


def test_the_database_allows_one_draft_a_track_and_no_lock_without_a_person(
    suite: Suite, track: Track, administrator: User
) -> None:
    draft = policies.draft(track=track, document=document(suite), by=administrator)

    with pytest.raises(IntegrityError), transaction.atomic():
        Policy.objects.create(
            track=track, version=2, document={}, digest="0" * 64, created_at=draft.created_at
        )
    with pytest.raises(IntegrityError), transaction.atomic():
        Policy.objects.filter(pk=draft.pk).update(locked_at=draft.created_at)


# tracks


def test_a_track_is_created_once_by_an_administrator(administrator: User, engineer: User) -> None:
    tracks.create(name="toolcaller", purpose="Decides.", by=administrator)

    with pytest.raises(Conflict, match="exists already"):
        tracks.create(name="toolcaller", purpose="Again.", by=administrator)
    with pytest.raises(NotAllowed):
        tracks.create(name="other", purpose="Decides.", by=engineer)
    assert Track.objects.count() == 1


@pytest.mark.parametrize("name", ["", "Big", "a b", "../etc", "a" * 61, "-a", "a-", "ä", "a\n"])
def test_a_track_has_a_name_that_can_stand_in_a_path(administrator: User, name: str) -> None:
    with pytest.raises(InvalidInput, match="name"):
        tracks.create(name=name, purpose="Decides.", by=administrator)


def test_a_track_says_what_it_is_for(administrator: User) -> None:
    with pytest.raises(InvalidInput, match="purpose"):
        tracks.create(name="toolcaller", purpose="  ", by=administrator)
