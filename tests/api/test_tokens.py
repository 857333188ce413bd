"""Tokens: taken with the password, shown once, ended by their person, named in the audit history."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client, RequestFactory
from django.utils import timezone
from knox.models import AuthToken

from rollouts import audit
from rollouts.api.middleware import ApiMiddleware
from rollouts.models import AuditEvent
from tests.api.conftest import Api, problem_of
from tests.factories import PASSWORD, person

PBKDF2 = "django.contrib.auth.hashers.PBKDF2PasswordHasher"


@pytest.fixture
def ada(db: None) -> User:
    return person("ada", "administrator")


def take(name: str = "ada", password: str = PASSWORD) -> Any:
    return Api().post("auth/token", {"username": name, "password": password})


def test_a_password_gives_a_token_that_works_and_no_session(ada: User):
    made = take()
    assert Api(made["token"]).get("tracks")["results"] == []
    assert made["token"].startswith(made["key"])
    assert not Session.objects.exists()


def test_only_the_hash_of_a_token_is_kept(ada: User):
    made = take()
    row = AuthToken.objects.get()
    assert made["token"] not in (row.digest, row.token_key)


@pytest.mark.parametrize(
    ("name", "password"), [("ada", "wrong"), ("nobody", PASSWORD), ("sleeper", PASSWORD)]
)
def test_a_wrong_password_an_unknown_and_an_inactive_person_read_the_same(
    ada: User, name: str, password: str
):
    person("sleeper", "engineer", active=False)
    found = Api().problem(401, "POST", "auth/token", {"username": name, "password": password})
    assert (found["code"], found["detail"]) == (
        "wrong_credentials",
        "User name and password do not belong together.",
    )


def test_guessing_is_slowed_down_by_name_and_by_address(ada: User):
    answers = [
        Api().send(
            "POST", "auth/token", {"username": "ADA", "password": "guess"}, X_Forwarded_For=f"10.0.0.{n}"
        )
        for n in range(11)
    ]
    assert [answer.status_code for answer in answers] == [401] * 10 + [429]
    assert problem_of(answers[-1], 429)["code"] == "throttled"
    assert int(answers[-1]["Retry-After"]) > 0


def test_a_deactivated_person_s_token_works_no_more(ada: User):
    api = Api(take()["token"])
    User.objects.update(is_active=False)
    api.problem(401, "GET", "tracks")


def test_a_token_ends_after_its_time(ada: User, settings: Any):
    api = Api(take()["token"])
    with time_machine.travel(timezone.now() + settings.REST_KNOX["TOKEN_TTL"] + timedelta(seconds=1)):
        api.problem(401, "GET", "tracks")


def test_tokens_are_listed_without_their_secrets(ada: User):
    first, second = take(), take()
    person("other", "engineer")
    take("other")
    found = Api(second["token"]).get("auth/tokens")["results"]
    assert [(row["key"], row["current"]) for row in found] == [(second["key"], True), (first["key"], False)]
    assert set(found[0]) == {"key", "created_at", "expires_at", "current"}


def test_a_person_ends_the_present_token_or_another_of_theirs(ada: User):
    first, second = take(), take()
    assert Api(second["token"]).send("DELETE", f"auth/tokens/{first['key']}").status_code == 204
    Api(first["token"]).problem(401, "GET", "tracks")
    assert Api(second["token"]).send("DELETE", "auth/token").status_code == 204
    Api(second["token"]).problem(401, "GET", "tracks")


def test_another_s_token_is_a_404(ada: User):
    person("other", "engineer")
    mine, theirs = take(), take("other")
    Api(mine["token"]).problem(404, "DELETE", f"auth/tokens/{theirs['key']}")
    assert AuthToken.objects.filter(token_key=theirs["key"]).exists()


def test_what_a_token_does_is_recorded_as_the_token_s(ada: User):
    made = take()
    Api(made["token"]).post("tracks", {"name": "t", "purpose": "p"})
    assert AuditEvent.objects.get(action="track.created").actor == f"token:ada:{made['key'][:8]}"
    assert AuditEvent.objects.get(action="token.issued").actor == "user:ada"


NEW = "another-long-pass-phrase"


def on_the_page(ada: User) -> None:
    client = Client()
    client.force_login(ada, backend="django.contrib.auth.backends.ModelBackend")
    typed = {"oldpassword": PASSWORD, "password1": NEW, "password2": NEW}
    assert client.post("/accounts/password/change/", typed).status_code == 302


def by_hand(ada: User) -> None:
    ada.set_password(NEW)
    ada.save()


def taken_away(ada: User) -> None:
    ada.set_unusable_password()
    ada.save()


def deactivated_and_back(ada: User) -> None:
    for active in (False, True):
        ada.is_active = active
        ada.save()


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (on_the_page, "password changed"),
        (by_hand, "password changed"),
        (taken_away, "password changed"),
        (deactivated_and_back, "account deactivated"),
    ],
)
def test_all_tokens_of_a_person_end_with_the_password_and_with_the_account(ada: User, act: Any, reason: str):
    first, second, others = take(), take(), AuthToken.objects.create(person("otto", "auditor"))[1]

    act(ada)

    for made in (first, second):
        Api(made["token"]).problem(401, "GET", "tracks")
    assert Api(others).get("tracks")["results"] == []
    event = AuditEvent.objects.get(action="token.ended")
    told = json.loads(bytes(event.data))
    assert (event.actor, event.subject_label, told["reason"]) == ("system:accounts", "ada", reason)
    assert told["keys"] == sorted(made["key"][:8] for made in (first, second))


def test_what_changes_no_password_keeps_the_tokens(ada: User, settings: Any):
    made = take()

    ada.first_name = "Ada"
    ada.save()
    Client().login(username="ada", password=PASSWORD)  # the day of the last sign-in is kept
    settings.PASSWORD_HASHERS = [PBKDF2, *settings.PASSWORD_HASHERS]
    Client().login(username="ada", password=PASSWORD)  # the same password, as Django now keeps it

    ada.refresh_from_db()
    assert ada.password.startswith("pbkdf2_sha256$") and ada.last_login is not None
    assert Api(made["token"]).get("tracks")["results"] == []
    assert not AuditEvent.objects.filter(action="token.ended").exists()


def test_a_password_that_is_changed_while_a_token_is_taken_gives_none(
    ada: User, monkeypatch: pytest.MonkeyPatch
):
    def then_changed(*arguments: Any, **credentials: Any) -> Any:
        found = authenticate(*arguments, **credentials)
        by_hand(User.objects.get(pk=ada.pk))
        return found

    monkeypatch.setattr("promotion.services.tokens.authenticate", then_changed)

    Api().problem(401, "POST", "auth/token", {"username": "ada", "password": PASSWORD})
    assert not AuthToken.objects.exists()


def test_no_token_leaks_into_what_the_same_thread_does_next(ada: User):
    made = take()
    Api(made["token"]).post("tracks", {"name": "t", "purpose": "p"})
    assert audit.actor_of(ada) == "user:ada"


def test_a_request_that_fails_leaves_no_token_either(ada: User, monkeypatch: Any):
    seen = []

    def explode(request: Any) -> None:
        audit.acts_with_token(audit.Token(user_id=ada.pk, key="abc"))
        seen.append(audit.actor_of(ada))
        raise SystemExit

    with pytest.raises(SystemExit):
        ApiMiddleware(explode)(RequestFactory().get("/"))
    assert seen == ["token:ada:abc"]
    assert audit.actor_of(ada) == "user:ada"


def test_a_token_left_by_anything_is_gone_when_a_request_begins(ada: User):
    audit.acts_with_token(audit.Token(user_id=ada.pk, key="left-over"))
    seen = []
    ApiMiddleware(lambda request: seen.append(audit.actor_of(ada)) or Response())(RequestFactory().get("/"))
    assert seen == ["user:ada"]


def test_a_token_names_its_own_person_only(ada: User):
    other = person("other", "engineer")
    audit.acts_with_token(audit.Token(user_id=ada.pk, key="abc"))
    try:
        assert audit.actor_of(other) == "user:other"
    finally:
        audit.acts_with_token(None)


def Response() -> Any:
    from django.http import HttpResponse

    return HttpResponse()
