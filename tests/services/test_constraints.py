"""What the database itself keeps, whoever writes. Runs, rollouts and calls have theirs in tests/engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db.models import F, ProtectedError
from django.utils import timezone

from promotion.models import Alias, AliasMove, Approval, Candidate, Export, GateResult, RegistryEntry, Track
from rollouts.models import Artifact, AuditEvent, Backend, BaseModel, Case, Look, Subject, Suite
from tests import factories
from tests.factories import House

pytestmark = pytest.mark.django_db


@pytest.fixture
def house() -> House:
    return factories.house(champion=True)


def copied(row: Any, **changes: Any) -> None:
    """Write the row a second time under another key."""
    row.pk = None
    for field, value in changes.items():
        setattr(row, field, value)
    row.save(force_insert=True)


def another_entry(house: House) -> RegistryEntry:
    assert house.champion is not None
    entry = RegistryEntry.objects.get(pk=house.champion.pk)
    copied(entry, candidate=house.candidate("another"), number=7)
    return entry


FORBIDDEN: dict[str, Callable[[House], Any]] = {
    "two backends of one revision": lambda h: copied(Backend.objects.get()),
    "a backend without concurrency": lambda h: Backend.objects.update(concurrency=0),
    "a backend without attempts": lambda h: Backend.objects.update(max_attempts=0),
    "two suites of one digest": lambda h: copied(Suite.objects.get(), version=2),
    "two suites of one version": lambda h: copied(Suite.objects.get(), digest="0" * 64),
    "a suite without cases": lambda h: Suite.objects.update(case_count=0),
    "two cases of one key": lambda h: copied(Case.objects.first(), position=99),
    "two cases at one place": lambda h: copied(Case.objects.first(), key="other"),
    "two looks of one subject": lambda h: [h.evaluated(), copied(Look.objects.first(), number=9)],
    "two looks of one number": lambda h: [
        h.evaluated(),
        copied(Look.objects.first(), subject=factories.remote_subject()),
    ],
    "two bases of one file": lambda h: copied(BaseModel.objects.get(), name="other"),
    "two bases of one name": lambda h: copied(
        BaseModel.objects.get(), artifact=factories.store.put([b"another file"])
    ),
    "a subject that is base and remote": lambda h: [h.evaluated(), Subject.objects.update(remote_model="m")],
    "a subject that is nothing": lambda h: [h.evaluated(), Subject.objects.update(base=None, adapter=None)],
    "an adapter without a base": lambda h: [
        h.evaluated(),
        Subject.objects.update(base=None, remote_model="m"),
    ],
    "two subjects of one digest": lambda h: [h.evaluated(), copied(Subject.objects.first())],
    "an event numbered 0": lambda h: copied(
        AuditEvent.objects.first(), sequence=0, hash="1" * 64, previous_hash="2" * 64
    ),
    "a fork of the chain": lambda h: AuditEvent(
        **{**AuditEvent.objects.values().last(), "sequence": 999, "hash": "1" * 64}
    ).save(force_insert=True),
    "two tracks of one name": lambda h: copied(Track.objects.get()),
    "a signature that means nothing": lambda h: Approval.objects.update(meaning=""),
    "a rejection without a reason": lambda h: Approval.objects.update(decision="reject", comment=""),
    "two champions": lambda h: copied(Alias.objects.get(), entry=another_entry(h)),
    "an alias that moves to where it is": lambda h: copied(AliasMove.objects.get(), old=h.champion),
    "two entries of one number": lambda h: copied(
        RegistryEntry.objects.get(), candidate=h.candidate("another")
    ),
    "two entries of one candidate": lambda h: copied(RegistryEntry.objects.get(), number=2),
    "an entry numbered 0": lambda h: copied(
        RegistryEntry.objects.get(), candidate=h.candidate("another"), number=0
    ),
    "two exports of one name": lambda h: copied(Export.objects.get()),
    "two results at one place": lambda h: [h.evaluated(), copied(GateResult.objects.first())],
    "an outcome that there is not": lambda h: [
        h.evaluated(),
        copied(GateResult.objects.first(), position=99, outcome="splendid"),
    ],
    "two candidates of one name": lambda h: copied(
        Candidate.objects.get(), adapter_source_sha256="0" * 64, state="built"
    ),
}


@pytest.mark.parametrize("attempt", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_the_database_refuses(house: House, attempt: Callable[[House], Any]) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        attempt(house)


def test_the_same_copies_are_accepted_where_nothing_is_broken(house: House) -> None:
    """So that the refusals above are about what they name, and not about copying."""
    copied(Backend.objects.get(), revision=2)
    copied(Suite.objects.get(), version=2, digest="0" * 64)
    copied(Case.objects.first(), key="other", position=99)
    copied(BaseModel.objects.get(), name="other", artifact=factories.store.put([b"another file"]))
    copied(Track.objects.get(), name="other")
    copied(Alias.objects.get(), name="challenger")
    another = another_entry(house)
    copied(AliasMove.objects.get(), old=house.champion, new=another)
    copied(Export.objects.get(), name="other.gguf")
    Approval.objects.update(decision="reject", comment="No.", meaning="")
    last = AuditEvent.objects.values().last()
    assert last is not None
    AuditEvent(**{**last, "sequence": 999, "previous_hash": last["hash"], "hash": "1" * 64}).save(
        force_insert=True
    )


def test_what_others_point_to_is_not_deleted(house: House) -> None:
    house.evaluated()

    for row in (
        Artifact.objects.first(),
        Suite.objects.get(),
        Backend.objects.get(),
        house.engineer,
        house.track,
    ):
        with pytest.raises(ProtectedError):
            row.delete()


def test_a_withdrawn_name_stays_taken_and_its_bytes_are_free(house: House) -> None:
    candidate = house.candidate()
    Candidate.objects.filter(pk=candidate.pk).update(state="withdrawn", revision=F("revision") + 1)
    again = Candidate.objects.get(pk=candidate.pk)

    copied(again, name="again", state="built", created_at=timezone.now())

    assert Candidate.objects.filter(adapter_source_sha256=candidate.adapter_source_sha256).count() == 2
