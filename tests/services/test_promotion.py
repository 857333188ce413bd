"""The promotion saga: everything or nothing, once, with exactly the bytes that were evaluated."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from promotion.models import Alias, AliasMove, Candidate, CandidateState, Export, RegistryEntry
from promotion.services import gating, registry, sweeping
from rollouts import selectors, store
from rollouts.hashing import sha256_file
from rollouts.models import AuditEvent, EvalRun
from tests import factories
from tests.factories import House

pytestmark = pytest.mark.django_db


@pytest.fixture
def house() -> House:
    return factories.house()


def exported(candidate: Candidate) -> list[Path]:
    """Every file in the export folder, hidden ones and halves included."""
    root = Path(registry.settings.EXPORTS_DIR)
    return sorted(path for path in root.rglob("*") if path.is_file())


def nothing_published(candidate: Candidate) -> bool:
    rows = (
        RegistryEntry.objects.filter(candidate=candidate).exists()
        or Export.objects.exists()
        or Alias.objects.exists()
    )
    return not rows and not AliasMove.objects.exists() and exported(candidate) == []


def published_once(candidate: Candidate) -> bool:
    entry = RegistryEntry.objects.get(candidate=candidate)
    path = registry.export_path(candidate)
    return (
        exported(candidate) == [path]
        and sha256_file(path) == entry.gguf_id == candidate.gguf_id
        and Export.objects.get().entry == entry
        and Alias.objects.get().entry == entry
        and AliasMove.objects.get().new == entry
        and Candidate.objects.get(pk=candidate.pk).state == CandidateState.PROMOTED
        and actions("candidate.promoted") == 1
    )


def actions(action: str) -> int:
    return AuditEvent.objects.filter(action=action).count()


# a good promotion


def test_an_approved_candidate_is_promoted(house: House) -> None:
    candidate = house.approved()

    entry = registry.publish(candidate.pk)

    assert published_once(candidate)
    assert entry is not None and (entry.number, entry.ungated) == (1, False)
    assert registry.export_path(candidate).name == "cand-f16.gguf"
    assert os.stat(registry.export_path(candidate)).st_mode & 0o777 == 0o644


def test_the_entry_records_digests_gates_and_signatures_as_they_stood(house: House) -> None:
    candidate = house.approved()
    shown = factories.digest_of(candidate)

    entry = registry.publish(candidate.pk)

    assert entry is not None
    record = entry.record
    assert (record["evidence_digest"], record["policy_digest"]) == (shown, house.policy.digest)
    assert (record["gguf_sha256"], record["base_sha256"]) == (candidate.gguf_id, house.base.artifact_id)
    assert {part["outcome"] for part in record["gates"]} == {"passed"}
    assert record["gates"][-1]["gate"] == "human_approval_record"
    (signature,) = record["signatures"]
    assert (signature["person"], signature["role"], signature["evidence_digest"]) == (
        "approver",
        "approver",
        shown,
    )


def test_the_manifest_names_base_source_and_verification_by_digest(house: House) -> None:
    candidate = house.approved()
    registry.publish(candidate.pk)

    manifest = Export.objects.get().manifest

    assert manifest["sha256"] == candidate.gguf_id
    assert manifest["base"] == {"name": "base", "sha256": house.base.artifact_id}
    assert manifest["source"]["adapter_model.safetensors"] == candidate.adapter_weights_id
    assert manifest["verification"]["status"] == "verified"
    assert str(registry.settings.EXPORTS_DIR) not in str(manifest)


def test_publishing_twice_promotes_once(house: House) -> None:
    candidate = house.approved()

    first = registry.publish(candidate.pk)
    assert registry.publish(candidate.pk) is None

    assert first is not None and published_once(candidate)


def test_a_second_champion_gets_the_next_number_and_the_alias(house: House) -> None:
    first, second = house.approved("one"), house.approved("two")

    registry.publish(first.pk)
    # the second was judged without a champion; now there is one, so its evidence is another
    assert registry.publish(second.pk) is None
    house.measure(second)
    factories.sign(second, house.approver)
    entry = registry.publish(second.pk)

    assert entry is not None and entry.number == 2
    assert Alias.objects.get().entry == entry
    moves = AliasMove.objects.order_by("id").values_list("old__number", "new__number")
    assert list(moves) == [(None, 1), (1, 2)]


@pytest.mark.parametrize(
    "state",
    [
        "submitted",
        "built",
        "evaluating",
        "blocked",
        "in_review",
        "publish_failed",
        "promoted",
        "rejected",
        "withdrawn",
    ],
)
def test_only_an_approved_candidate_is_published(house: House, state: str) -> None:
    candidate = house.approved()
    Candidate.objects.filter(pk=candidate.pk).update(state=state)

    assert registry.publish(candidate.pk) is None

    assert nothing_published(candidate)
    assert Candidate.objects.get(pk=candidate.pk).state == state


def test_the_task_and_the_sweep_do_the_same(
    house: House, sent: list[Any], django_capture_on_commit_callbacks: Any
) -> None:
    from promotion import tasks

    candidate = house.approved()
    Candidate.objects.update(last_sent_at=None)
    with django_capture_on_commit_callbacks(execute=True):
        sweeping.sweep()
    assert sent == [("promotion.tasks.publish", (candidate.pk,))]

    tasks.publish(candidate.pk)
    tasks.publish(candidate.pk)

    assert published_once(candidate)


# a kill at any point


def kill_after_begin(candidate: Candidate) -> None:
    registry._begin(candidate.pk)


def kill_after_write(candidate: Candidate) -> None:
    begun = registry._begin(candidate.pk)
    assert begun is not None
    registry._write_export(begun, registry.export_path(begun))


def kill_before_commit(candidate: Candidate) -> None:
    kill_after_write(candidate)

    class Killed(BaseException):
        pass

    with pytest.raises(Killed), transaction.atomic():
        registry._promote(candidate.pk, registry.export_path(candidate))
        raise Killed


def kill_after_promotion(candidate: Candidate) -> None:
    registry.publish(candidate.pk)


KILLS = [kill_after_begin, kill_after_write, kill_before_commit, kill_after_promotion]


@pytest.mark.parametrize("kill", KILLS)
def test_a_kill_anywhere_and_another_call_leave_one_entry_and_one_file(
    house: House, kill: Callable[[Candidate], None]
) -> None:
    candidate = house.approved()
    kill(candidate)

    registry.publish(candidate.pk)

    assert published_once(candidate)
    assert actions("candidate.publishing") == 1


@pytest.mark.parametrize("kill", KILLS[:3])
def test_the_sweep_finds_what_a_kill_left(
    house: House, kill: Callable[[Candidate], None], sent: list[Any], django_capture_on_commit_callbacks: Any
) -> None:
    candidate = house.approved()
    kill(candidate)
    Candidate.objects.update(last_sent_at=None)

    with django_capture_on_commit_callbacks(execute=True):
        sweeping.sweep()

    assert sent == [("promotion.tasks.publish", (candidate.pk,))]


def test_half_a_file_under_the_exports_name_is_replaced(house: House) -> None:
    candidate = house.approved()
    path = registry.export_path(candidate)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF of")

    registry.publish(candidate.pk)

    assert published_once(candidate)


def test_no_entry_is_written_without_its_file(house: House) -> None:
    candidate = house.approved()
    kill_after_write(candidate)
    registry.export_path(candidate).unlink()

    assert registry._promote(candidate.pk, registry.export_path(candidate)) is None
    assert nothing_published(candidate)

    registry.publish(candidate.pk)
    assert published_once(candidate)


# evidence and signatures are checked again


def change_evidence(house: House, candidate: Candidate) -> None:
    Candidate.objects.filter(pk=candidate.pk).update(revision=99)


def make_a_gate_fail(house: House, candidate: Candidate) -> None:
    run = EvalRun.objects.get(label=candidate.name)
    EvalRun.objects.filter(pk=run.pk).update(server_facts={"server": "remote"})


def deactivate_the_approver(house: House, candidate: Candidate) -> None:
    # as a script of the house's would, past the application: what it does of itself is in tests/rule/test_coming_back.py
    User.objects.filter(pk=house.approver.pk).update(is_active=False)


CHANGES = [
    (change_evidence, CandidateState.IN_REVIEW),
    (make_a_gate_fail, CandidateState.BLOCKED),
    (deactivate_the_approver, CandidateState.IN_REVIEW),
]


@pytest.mark.parametrize(("change", "state"), CHANGES)
@pytest.mark.parametrize("kill", [None, *KILLS[:3]])
def test_what_changed_after_the_approval_is_refused_wherever_publishing_stood(
    house: House, kill: Callable[[Candidate], None] | None, change: Any, state: str
) -> None:
    candidate = house.approved()
    if kill is not None:
        kill(candidate)
    change(house, candidate)

    assert registry.publish(candidate.pk) is None

    assert nothing_published(candidate)
    candidate.refresh_from_db()
    assert candidate.state == state
    assert actions("candidate.promotion_refused") == 1


@pytest.mark.parametrize(("change", "state"), CHANGES)
def test_what_changes_while_the_file_is_written_is_refused(
    house: House, monkeypatch: pytest.MonkeyPatch, change: Any, state: str
) -> None:
    candidate = house.approved()
    rename = os.replace

    def rename_and_change(source: Any, target: Any) -> None:
        rename(source, target)
        change(house, candidate)

    monkeypatch.setattr(os, "replace", rename_and_change)

    assert registry.publish(candidate.pk) is None

    assert nothing_published(candidate)
    candidate.refresh_from_db()
    assert candidate.state == state


def test_a_refused_candidate_can_be_signed_and_published_again(house: House) -> None:
    candidate = house.approved()
    change_evidence(house, candidate)
    registry.publish(candidate.pk)
    gating.judge_now(candidate.pk)

    factories.sign(candidate, house.approver)
    registry.publish(candidate.pk)

    assert published_once(candidate)


def test_a_candidate_cancelled_out_of_its_runs_is_not_promoted(house: House) -> None:
    candidate = house.approved()
    EvalRun.objects.filter(label="cand").update(state="failed")

    assert registry.publish(candidate.pk) is None
    assert nothing_published(candidate)
    assert selectors.progress(EvalRun.objects.get(label="cand").pk).states["scored"] == 20


# the disk


class FullDisk:
    """The nth write of a kind finds no space."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, function: str, nth: int) -> None:
        self.calls, self.nth = 0, nth
        real = getattr(os, function)

        def limited(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == self.nth:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args, **kwargs)

        monkeypatch.setattr(os, function, limited)


@pytest.mark.parametrize(("function", "nth"), [("fsync", 1), ("replace", 1), ("fsync", 2)])
def test_a_full_disk_publishes_nothing_and_can_be_tried_again(
    house: House, monkeypatch: pytest.MonkeyPatch, function: str, nth: int
) -> None:
    candidate = house.approved()
    with monkeypatch.context() as patched:
        disk = FullDisk(patched, function, nth)
        assert registry.publish(candidate.pk) is None
        assert disk.calls >= nth

    candidate.refresh_from_db()
    assert candidate.state == CandidateState.PUBLISH_FAILED
    assert "No space left on device" in candidate.error_detail and "Free space" in candidate.error_detail
    assert nothing_published(candidate)
    assert actions("candidate.publish_failed") == 1

    registry.retry_publish(candidate_id=candidate.pk, by=house.engineer)
    registry.publish(candidate.pk)
    assert published_once(candidate)


def test_an_export_folder_that_cannot_be_made_is_a_failed_publication(
    house: House, settings: Any, tmp_path: Path
) -> None:
    candidate = house.approved()
    (tmp_path / "file").write_text("no folder")
    settings.EXPORTS_DIR = tmp_path / "file"

    assert registry.publish(candidate.pk) is None

    candidate.refresh_from_db()
    assert candidate.state == CandidateState.PUBLISH_FAILED
    assert not RegistryEntry.objects.exists()


def test_bytes_that_were_changed_in_the_store_are_not_published(house: House) -> None:
    candidate = house.approved()
    store.path_of(candidate.gguf_id).write_bytes(b"GGUF of another model")

    assert registry.publish(candidate.pk) is None

    candidate.refresh_from_db()
    assert candidate.state == CandidateState.PUBLISH_FAILED
    assert "holds other bytes than were evaluated" in candidate.error_detail
    assert nothing_published(candidate)


@pytest.mark.parametrize("kill", [None, *KILLS[:3]])
def test_bytes_that_are_gone_from_the_store_are_a_failed_publication(
    house: House, kill: Callable[[Candidate], None] | None
) -> None:
    candidate = house.approved()
    if kill is not None:
        kill(candidate)
    kept = store.path_of(candidate.gguf_id)
    data = kept.read_bytes()
    kept.unlink()

    assert registry.publish(candidate.pk) is None
    assert nothing_published(candidate)

    kept.write_bytes(data)
    registry.retry_publish(candidate_id=candidate.pk, by=house.engineer)
    registry.publish(candidate.pk)
    assert published_once(candidate)


def test_a_stale_export_of_other_bytes_does_not_survive_a_refusal(house: House) -> None:
    candidate = house.approved()
    kill_after_write(candidate)
    store.path_of(candidate.gguf_id).unlink()
    registry.export_path(candidate).write_bytes(b"GGUF of somebody else")

    assert registry.publish(candidate.pk) is None

    assert nothing_published(candidate)


def test_retrying_checks_the_signatures_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    candidate = house.approved()
    with monkeypatch.context() as patched:
        FullDisk(patched, "replace", 1)
        registry.publish(candidate.pk)
    deactivate_the_approver(house, candidate)

    registry.retry_publish(candidate_id=candidate.pk, by=house.engineer)
    assert registry.publish(candidate.pk) is None

    assert nothing_published(candidate)
    candidate.refresh_from_db()
    assert candidate.state == CandidateState.IN_REVIEW


# what the database keeps


def test_an_entry_number_is_given_once_and_a_candidate_has_one_entry(house: House) -> None:
    candidate = house.approved()
    entry = registry.publish(candidate.pk)
    assert entry is not None
    other = house.candidate("other")

    for changes in ({"candidate": other}, {"number": 2}):
        copy = RegistryEntry.objects.get(pk=entry.pk)
        copy.pk = None
        for field, value in changes.items():
            setattr(copy, field, value)
        with pytest.raises(IntegrityError), transaction.atomic():
            copy.save(force_insert=True)
