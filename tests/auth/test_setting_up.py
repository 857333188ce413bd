"""How an administrator sets single sign-on up."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command

from promotion import settings as assay_settings
from tests import factories

ALL = {
    "ASSAY_OIDC_URL": "https://login.example/realms/a",
    "ASSAY_OIDC_CLIENT_ID": "assay",
    "ASSAY_OIDC_CLIENT_SECRET": "secret",
    "ASSAY_OIDC_NAME": "Acme",
}


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ALL:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_nothing_set_is_no_provider(unset: pytest.MonkeyPatch) -> None:
    assert assay_settings.env_oidc() is None


def test_all_set_is_one(unset: pytest.MonkeyPatch) -> None:
    for name, value in ALL.items():
        unset.setenv(name, value)
    found = assay_settings.env_oidc()
    assert found is not None
    assert (found["provider_id"], found["name"], found["client_id"], found["secret"]) == (
        "sso",
        "Acme",
        "assay",
        "secret",
    )
    assert found["settings"] == {"server_url": ALL["ASSAY_OIDC_URL"]}


@pytest.mark.parametrize("missing", ALL)
def test_a_part_is_refused_and_the_missing_named(unset: pytest.MonkeyPatch, missing: str) -> None:
    for name, value in ALL.items():
        unset.setenv(name, " " if name == missing else value)
    with pytest.raises(ImproperlyConfigured, match=f"all or none. Set {missing}."):
        assay_settings.env_oidc()


@pytest.mark.parametrize(
    "url, holds",
    [
        ("http://login.example", False),
        ("ftp://login.example", False),
        ("login.example", False),
        ("http://localhost.evil.example", False),
        ("http://localhost:8080", True),
        ("http://127.0.0.1:1/o", True),
    ],
)
def test_its_answers_come_over_tls_or_from_this_machine(
    unset: pytest.MonkeyPatch, url: str, holds: bool
) -> None:
    for name, value in {**ALL, "ASSAY_OIDC_URL": url}.items():
        unset.setenv(name, value)
    if holds:
        assert assay_settings.env_oidc()
        return
    with pytest.raises(ImproperlyConfigured, match="https"):
        assay_settings.env_oidc()


# people


def create(*args: str) -> str:
    out = io.StringIO()
    call_command("create_user", *args, stdout=out)
    return out.getvalue()


@pytest.mark.django_db
def test_a_person_is_made_without_a_password(unset: pytest.MonkeyPatch) -> None:
    said = create("ada", "--role", "approver", "--full-name", "Ada Lovelace", "--sso", "ada@example.com")

    ada = User.objects.get(username="ada")
    assert said == "ada is approver.\n"
    assert (ada.email, ada.has_usable_password(), ada.get_full_name()) == (
        "ada@example.com",
        False,
        "Ada Lovelace",
    )


@pytest.mark.django_db
def test_who_has_a_password_keeps_it(unset: pytest.MonkeyPatch) -> None:
    factories.person("ada", "engineer")

    create("ada", "--role", "approver", "--sso", "ada@example.com")

    ada = User.objects.get(username="ada")
    assert ada.check_password(factories.PASSWORD) and ada.email == "ada@example.com"


@pytest.mark.django_db
@pytest.mark.parametrize("wrong", ["ada", "ADA@example.com"])
def test_an_address_is_one_and_nobody_elses(unset: pytest.MonkeyPatch, wrong: str) -> None:
    create("ada", "--role", "approver", "--sso", "ada@example.com")

    with pytest.raises(CommandError):
        create("eve", "--role", "approver", "--sso", wrong)

    assert not User.objects.filter(username="eve").exists()
    create("ada", "--role", "engineer", "--sso", "ada@example.com")


def test_nothing_of_the_providers_stays_in_the_database(settings: Any) -> None:
    assert getattr(settings, "SOCIALACCOUNT_STORE_TOKENS", False) is False
