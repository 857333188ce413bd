"""The chain: every change appends one event, nothing is changed or removed, and a stranger can prove it."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction

from promotion.audit.verify import verify_chain
from promotion.management.commands.verify_audit import stored_events
from promotion.models import AliasMove, Evidence, GateResult, RegistryEntry
from rollouts import append_only, audit
from rollouts.audit import GENESIS, Fields, hash_of
from rollouts.errors import InvalidInput, NotAllowed
from rollouts.models import AuditEvent, Suite
from tests import factories
from tests.factories import House

pytestmark = pytest.mark.django_db


@pytest.fixture
def engineer() -> User:
    return factories.person("engineer", "engineer")


@pytest.fixture
def suite(engineer: User) -> Suite:
    return factories.suite(engineer)


def record(suite: Suite, actor: User | str = "system:test", **data: Any) -> AuditEvent:
    with transaction.atomic():
        return audit.record("run.failed", subject=suite, actor=actor, **data)


def chain(suite: Suite, events: int) -> list[tuple[Fields, str]]:
    """The stored chain with `events` more events, in memory."""
    for number in range(events):
        record(suite, number=number)
    return list(stored_events())


# what an event holds


def test_an_event_says_who_did_what_to_what(suite: Suite, engineer: User) -> None:
    event = record(suite, engineer, code="x", reason="because")

    assert (event.actor, event.action) == ("user:engineer", "run.failed")
    assert (event.subject_type, event.subject_id, event.subject_label) == (
        "rollouts.Suite",
        str(suite.pk),
        "named v1",
    )
    assert bytes(event.data) == b'{"code":"x","reason":"because"}'


def test_events_count_from_one_without_gaps_and_each_holds_the_one_before(suite: Suite) -> None:
    for number in range(3):
        record(suite, number=number)

    events = list(AuditEvent.objects.order_by("sequence"))
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert [event.previous_hash for event in events] == [GENESIS, *(event.hash for event in events[:-1])]


def test_an_event_belongs_to_the_transaction_of_its_change(suite: Suite) -> None:
    before = AuditEvent.objects.count()

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        audit.record("run.failed", subject=suite, actor="system:test")
        raise ZeroDivisionError

    assert AuditEvent.objects.count() == before


@pytest.mark.django_db(transaction=True)
def test_an_event_outside_a_transaction_is_a_fault(suite: Suite) -> None:
    with pytest.raises(AssertionError, match="belongs into the transaction"):
        audit.record("run.failed", subject=suite, actor="system:test")


def test_only_registered_actions_are_recorded(suite: Suite) -> None:
    with pytest.raises(AssertionError, match="not a registered audit action"), transaction.atomic():
        audit.record("run.improved", subject=suite, actor="system:test")


def test_data_without_a_canonical_form_is_refused(suite: Suite) -> None:
    with pytest.raises(InvalidInput):
        record(suite, value=float("nan"))


def test_a_label_without_end_is_cut_and_still_verifies(suite: Suite) -> None:
    suite.name = "n" * 500

    event = record(suite, "u" * 500)

    assert (len(event.actor), len(event.subject_label)) == (200, 200)
    assert verify_chain(stored_events()).bad_sequence is None


@pytest.mark.parametrize("text", ["tab\tnul\u2400", "é \u202e ✓", "a" * 100_000, '"quoted\\"'])
def test_any_text_survives_storage(suite: Suite, text: str) -> None:
    record(suite, reason=text)

    assert json.loads(bytes(AuditEvent.objects.latest("sequence").data))["reason"] == text
    assert verify_chain(stored_events()).bad_sequence is None


# the chain


def test_a_good_chain_verifies_and_gives_its_head(suite: Suite) -> None:
    rows = chain(suite, 5)

    report = verify_chain(rows)

    assert (report.bad_sequence, report.events, report.head) == (None, len(rows), rows[-1][1])


def test_an_empty_chain_verifies() -> None:
    assert (verify_chain([]).events, verify_chain([]).head) == (0, GENESIS)


@pytest.mark.parametrize("field", Fields._fields)
def test_a_changed_field_is_found_at_its_row(suite: Suite, field: str) -> None:
    rows = chain(suite, 5)
    fields, stored = rows[3]
    value = getattr(fields, field)
    other = value + (b" " if isinstance(value, bytes) else "x" if isinstance(value, str) else 1)
    rows[3] = (fields._replace(**{field: other}), stored)

    assert verify_chain(rows).bad_sequence == 4


def test_a_changed_row_with_its_hash_computed_anew_is_found_at_the_next(suite: Suite) -> None:
    rows = chain(suite, 5)
    forged = rows[3][0]._replace(actor="user:somebody-else")
    rows[3] = (forged, hash_of(forged))

    report = verify_chain(rows)

    assert (report.bad_sequence, report.reason) == (5, "it does not continue the event before it")


def test_text_moved_from_one_field_to_the_next_is_found(suite: Suite) -> None:
    rows = chain(suite, 5)
    fields, stored = rows[3]
    moved = fields._replace(subject_type=fields.subject_type + fields.subject_id, subject_id="")
    rows[3] = (moved, stored)

    assert verify_chain(rows).bad_sequence == 4


@pytest.mark.parametrize("gone", [0, 2, 4])
def test_a_removed_row_is_found(suite: Suite, gone: int) -> None:
    rows = chain(suite, 5)
    del rows[gone]

    report = verify_chain(rows)

    assert report.bad_sequence == gone + 1
    assert report.reason == f"event {gone + 1} is missing; {gone + 2} follows"


def test_a_removed_row_whose_followers_were_renumbered_is_found(suite: Suite) -> None:
    rows = chain(suite, 5)
    del rows[2]
    rows = [
        (fields._replace(sequence=number), stored) for number, (fields, stored) in enumerate(rows, start=1)
    ]

    assert verify_chain(rows).bad_sequence == 3


def test_reordered_rows_are_found(suite: Suite) -> None:
    rows = chain(suite, 5)
    rows[2], rows[3] = rows[3], rows[2]

    assert verify_chain(rows).bad_sequence == 3


def test_the_command_names_the_first_bad_row(suite: Suite) -> None:
    chain(suite, 4)
    out = io.StringIO()
    call_command("verify_audit", stdout=out)
    assert out.getvalue().startswith(f"{AuditEvent.objects.count()} events hold; head ")

    with append_only.lifted(connection):
        AuditEvent.objects.filter(sequence=3).update(actor="user:nobody")

    with pytest.raises(CommandError, match="breaks at event 3: its content was changed"):
        call_command("verify_audit", stdout=out)


# append-only


@pytest.fixture
def promoted() -> House:
    house = factories.house(champion=True)
    house.evaluated()
    return house


TABLES = [AuditEvent, Evidence, GateResult, RegistryEntry, AliasMove]


@pytest.mark.parametrize("model", TABLES)
@pytest.mark.parametrize("verb", ["UPDATE", "DELETE"])
def test_the_database_refuses_to_change_or_remove_what_is_append_only(
    promoted: House, model: Any, verb: str
) -> None:
    before = list(model.objects.order_by("pk").values())
    assert before
    table, key = model._meta.db_table, model._meta.pk.column
    sql = f"DELETE FROM {table}" if verb == "DELETE" else f"UPDATE {table} SET {key} = {key}"

    with (
        pytest.raises(DatabaseError, match=f"append-only table {table}"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(sql)

    assert list(model.objects.order_by("pk").values()) == before


def test_the_database_refuses_to_rename_or_delete_a_person(engineer: User) -> None:
    """Evidence and history name people, and duties are kept apart by the name."""
    people = User.objects.filter(pk=engineer.pk)
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        people.update(username="somebody-else")
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        engineer.delete()
    people.update(first_name="Mara", is_active=False)
    assert people.get().username == "engineer"


@pytest.mark.postgres
@pytest.mark.parametrize("model", TABLES)
def test_postgresql_refuses_to_truncate_what_is_append_only(promoted: House, model: Any) -> None:
    connection.check_constraints()  # settles the deferred foreign keys of this test's own rows

    with (
        pytest.raises(DatabaseError, match="append-only table"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(f"TRUNCATE {model._meta.db_table} CASCADE")


def test_missing_triggers_are_named_and_installed_again(suite: Suite) -> None:
    assert append_only.missing(connection) == []
    on = "" if connection.vendor == "sqlite" else " ON rollouts_auditevent"
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TRIGGER rollouts_auditevent_no_delete{on}")

    assert append_only.missing(connection) == ["rollouts_auditevent_no_delete"]

    append_only.install(connection)
    assert append_only.missing(connection) == []


@pytest.mark.postgres
def test_a_disabled_trigger_counts_as_missing(suite: Suite) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE rollouts_auditevent DISABLE TRIGGER rollouts_auditevent_no_update")

    assert append_only.missing(connection) == ["rollouts_auditevent_no_update"]


# refusals


@pytest.mark.django_db(transaction=True)
def test_a_refusal_is_recorded_after_the_rollback_of_what_was_refused(suite: Suite, engineer: User) -> None:
    with (
        pytest.raises(NotAllowed, match="not you"),
        audit.refusals("candidate.signature_refused", subject=suite, actor=engineer),
        transaction.atomic(),
    ):
        Suite.objects.filter(pk=suite.pk).update(source="changed")
        audit.record("run.failed", subject=suite, actor=engineer)
        raise NotAllowed("not you")

    suite.refresh_from_db()
    assert suite.source == "named.jsonl"
    event = AuditEvent.objects.latest("sequence")
    assert event.action == "candidate.signature_refused"
    assert json.loads(bytes(event.data)) == {"code": "not_allowed", "reason": "not you"}
    assert not AuditEvent.objects.filter(action="run.failed").exists()


def test_a_fault_of_ours_is_no_refusal(suite: Suite, engineer: User) -> None:
    before = AuditEvent.objects.count()

    with (
        pytest.raises(ZeroDivisionError),
        audit.refusals("candidate.signature_refused", subject=suite, actor=engineer),
    ):
        raise ZeroDivisionError

    assert AuditEvent.objects.count() == before


def test_the_road_to_a_promotion_is_in_the_history(promoted: House) -> None:
    from promotion.services import registry

    candidate = promoted.approved("next")
    registry.publish(candidate.pk)

    mine = AuditEvent.objects.filter(subject_type="promotion.Candidate", subject_id=str(candidate.pk))
    assert list(mine.order_by("sequence").values_list("action", flat=True)) == [
        "candidate.evaluation_started",
        "candidate.judged",
        "candidate.signed",
        "candidate.publishing",
        "candidate.promoted",
    ]
    assert verify_chain(stored_events()).bad_sequence is None


def test_every_action_has_a_sentence() -> None:
    assert all(sentence.endswith(".") for sentence in audit.ACTIONS.values())
