"""One key, one effect."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import time_machine
from django.db import connection, connections, transaction
from django.utils import timezone

from promotion.models import Track
from rollouts import idempotency
from rollouts.errors import Conflict
from rollouts.idempotency import Answer
from rollouts.models import AuditEvent, IdempotencyRecord, Suite
from tests.api.conftest import Api, token_of
from tests.factories import call_case, jsonl, person

TRACK = {"name": "t", "purpose": "p"}


@pytest.fixture
def api(db: None) -> Api:
    return Api(token_of(person("ada", "administrator", "engineer")))


def test_the_same_key_and_request_are_answered_again_and_done_once(api: Api):
    first = api.send("POST", "tracks", TRACK, Idempotency_Key="k1")
    again = api.send("POST", "tracks", {"purpose": "p", "name": "t"}, Idempotency_Key="k1")
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert again["Location"] == first["Location"] == "/api/v1/tracks/t"
    assert again["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first
    assert Track.objects.count() == 1
    assert AuditEvent.objects.filter(action="track.created").count() == 1


def test_the_same_key_with_another_request_is_a_422(api: Api):
    api.post("tracks", TRACK, Idempotency_Key="k1")
    for path, body in (("tracks", {**TRACK, "name": "u"}), ("tracks/t", TRACK), ("backends", TRACK)):
        if path != "tracks/t":
            assert (
                api.problem(422, "POST", path, body, Idempotency_Key="k1")["code"] == "idempotency_conflict"
            )
    assert Track.objects.count() == 1


def test_a_key_belongs_to_its_person(api: Api):
    other = Api(token_of(person("bob", "administrator")))
    api.post("tracks", TRACK, Idempotency_Key="k1")
    other.post("tracks", {**TRACK, "name": "u"}, Idempotency_Key="k1")


def test_a_failed_request_leaves_its_key_free(api: Api):
    api.problem(400, "POST", "tracks", {**TRACK, "purpose": " "}, Idempotency_Key="k1")
    assert not IdempotencyRecord.objects.exists()
    api.post("tracks", TRACK, Idempotency_Key="k1")


def test_a_key_is_forgotten_after_a_day(api: Api):
    api.post("tracks", TRACK, Idempotency_Key="k1")
    with time_machine.travel(timezone.now() + idempotency.KEPT_FOR + timedelta(seconds=1)):
        api.post("tracks", {**TRACK, "name": "u"}, Idempotency_Key="k1")
    assert IdempotencyRecord.objects.count() == 1


@pytest.mark.parametrize("key", ["", "a b", "ü", "x" * 201, "\t"])
def test_a_key_that_is_none_is_refused(api: Api, key: str):
    assert api.problem(400, "POST", "tracks", TRACK, Idempotency_Key=key)["field"] == "Idempotency-Key"
    assert not Track.objects.exists()


def test_a_form_is_the_same_request_if_its_files_are_the_same(api: Api, tmp_path: Path):
    file = tmp_path / "cases.jsonl"
    file.write_bytes(jsonl([call_case("one")]))
    first = api.upload("suites?name=s", {"file": file}, Idempotency_Key="k")
    again = api.upload("suites?name=s", {"file": file}, Idempotency_Key="k")
    assert again["Idempotency-Replayed"] == "true"
    assert again.json() == first.json()
    file.write_bytes(jsonl([call_case("two")]))
    api.upload("suites?name=s", {"file": file}, Idempotency_Key="k", status=422)
    assert Suite.objects.count() == 1


def test_a_person_who_lost_the_role_gets_no_answer_again(api: Api):
    api.post("tracks", TRACK, Idempotency_Key="k1")
    person_row = IdempotencyRecord.objects.get().user
    person_row.groups.clear()
    api.problem(403, "POST", "tracks", TRACK, Idempotency_Key="k1")


def test_taking_a_token_keeps_no_secret(api: Api):
    from tests.factories import PASSWORD

    Api().post("auth/token", {"username": "ada", "password": PASSWORD}, Idempotency_Key="k1")
    assert not IdempotencyRecord.objects.exists()


def test_the_record_exists_exactly_if_the_effect_does(api: Api):
    ada = person("eve")

    def effect_then_fail() -> Answer:
        Track.objects.create(name="half", purpose="p", created_at=timezone.now())
        raise Conflict("The second half cannot be done.")

    with pytest.raises(Conflict):
        idempotency.once(user=ada, key="k", request_digest="d", effect=effect_then_fail)
    assert not Track.objects.filter(name="half").exists()
    assert not IdempotencyRecord.objects.filter(user=ada).exists()


@pytest.mark.django_db(transaction=True)
def test_many_requests_at_once_with_one_key_have_one_effect():
    """The first one is held inside its effect until the others are on their way."""
    ada = person("ada")
    done, started = [], threading.Barrier(5)

    def effect() -> Answer:
        Track.objects.create(name="once", purpose="p", created_at=timezone.now())
        done.append(1)
        return Answer(201, {}, {"n": len(done)})

    def send(_: int) -> tuple[Answer, bool]:
        try:
            started.wait(timeout=20)
            return idempotency.once(user=ada, key="k", request_digest="d", effect=effect)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(send, range(5)))
    assert done == [1]
    assert sorted(replayed for _, replayed in answers) == [False, True, True, True, True]
    assert {answer.body["n"] for answer, _ in answers} == {1}


@pytest.mark.django_db(transaction=True)
def test_one_that_waited_does_the_work_if_the_first_failed():
    ada = person("ada")
    inside, other_waits = threading.Event(), threading.Event()

    def fails() -> Answer:
        inside.set()
        other_waits.wait(timeout=1)
        raise Conflict("Not now.")

    def first() -> None:
        try:
            with pytest.raises(Conflict):
                idempotency.once(user=ada, key="k", request_digest="d", effect=fails)
        finally:
            connections.close_all()

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(timeout=20)
    answer, replayed = idempotency.once(
        user=ada, key="k", request_digest="d", effect=lambda: Answer(201, {}, 1)
    )
    thread.join()
    assert (answer.body, replayed) == (1, False)
    assert not connection.in_atomic_block
    with transaction.atomic():
        assert IdempotencyRecord.objects.get().status == 201
