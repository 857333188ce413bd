"""Settings come from the environment through helpers that refuse what they cannot read."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connection

from promotion import checks
from promotion import settings as assay_settings
from rollouts import append_only

ROOT = Path(__file__).resolve().parents[2]
NAME = "ASSAY_TEST_VALUE"


def start(tmp_path: Path, *code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process of its own with these settings."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ASSAY_", "DATABASE_", "REDIS_", "DJANGO_"))
    }
    script = "; ".join(["import django", "from django.conf import settings", *code])
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        cwd=ROOT,
        env={
            **kept,
            "DJANGO_SETTINGS_MODULE": "promotion.settings",
            "ASSAY_VAR": str(tmp_path / "var"),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=60,
    )


# helpers


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("1", True),
        ("true", True),
        (" YES ", True),
        ("on", True),
        ("0", False),
        ("False", False),
        ("off", False),
    ],
)
def test_a_flag_is_read(monkeypatch: pytest.MonkeyPatch, value: str, found: bool) -> None:
    monkeypatch.setenv(NAME, value)

    assert assay_settings.env_bool(NAME, not found) is found


@pytest.mark.parametrize("value", ["", "  "])
def test_what_is_empty_is_the_default(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(NAME, value)

    assert assay_settings.env_bool(NAME, True) is True
    assert assay_settings.env_int(NAME, 7, least=1, most=9) == 7
    assert assay_settings.env_choice(NAME, "a", ("a", "b")) == "a"
    assert assay_settings.env_list(NAME, ["x"]) == ["x"]
    assert assay_settings.env_path(NAME, Path("/x")) == Path("/x")


@pytest.mark.parametrize("value", ["2", "yess", "enabled", "-1"])
def test_a_flag_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(NAME, value)

    with pytest.raises(ImproperlyConfigured, match=rf"{NAME} is '{value}'\. Use 1 or 0"):
        assay_settings.env_bool(NAME, True)


@pytest.mark.parametrize("value", ["0", "10", "1.5", "1e1", "-1", "five", "٣", "0x5", "1_0", "9" * 50])
def test_a_number_out_of_range_or_unreadable_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(NAME, value)

    with pytest.raises(ImproperlyConfigured, match="Use a whole number from 1 to 9"):
        assay_settings.env_int(NAME, 5, least=1, most=9)


@pytest.mark.parametrize(("value", "found"), [("1", 1), ("9", 9), (" 5 ", 5), ("007", 7)])
def test_a_number_in_range_is_read(monkeypatch: pytest.MonkeyPatch, value: str, found: int) -> None:
    monkeypatch.setenv(NAME, value)

    assert assay_settings.env_int(NAME, 3, least=1, most=9) == found


@pytest.mark.parametrize("value", ["c", "A", "a,b"])
def test_a_choice_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(NAME, value)

    with pytest.raises(ImproperlyConfigured, match="Use one of: a, b"):
        assay_settings.env_choice(NAME, "a", ("a", "b"))


def test_a_list_is_read_without_empty_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, " a, ,b,")

    assert assay_settings.env_list(NAME, []) == ["a", "b"]


def test_a_path_is_made_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "~/x/../y")

    assert assay_settings.env_path(NAME, Path("/")) == Path.home() / "y"


def test_the_secret_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "var" / "secret_key"

    first = assay_settings.kept_secret(file)

    assert len(first) > 40 and assay_settings.kept_secret(file) == first
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]


def test_two_processes_that_start_at_once_keep_one_secret(tmp_path: Path) -> None:
    file = tmp_path / "secret_key"
    code = f"import pathlib, promotion.settings as s; print(s.kept_secret(pathlib.Path({str(file)!r})))"
    environment = {**os.environ, "ASSAY_VAR": str(tmp_path / "var")}
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]

    found = {process.communicate(timeout=60)[0].strip() for process in running}

    assert found == {file.read_text()}


# the whole settings


def test_nothing_set_is_the_embedded_default(tmp_path: Path) -> None:
    done = start(
        tmp_path,
        "django.setup()",
        "print(settings.SQLITE, settings.CELERY_BROKER_URL, settings.DEBUG)",
        "print(settings.DATABASES['default']['NAME'])",
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "filesystem://", "False", str(tmp_path / "var" / "assay.sqlite3")]


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"ASSAY_ENV": "prod"}, "ASSAY_ENV is 'prod'. Use one of: embedded, production."),
        ({"ASSAY_ENV": "production"}, "ASSAY_SECRET_KEY is not set"),
        ({"ASSAY_DEBUG": "maybe"}, "ASSAY_DEBUG is 'maybe'"),
        ({"ASSAY_LEASE_SECONDS": "0"}, "ASSAY_LEASE_SECONDS is '0'. Use a whole number from 3 to 600."),
        ({"ASSAY_SWEEP_SECONDS": "soon"}, "ASSAY_SWEEP_SECONDS is 'soon'"),
        ({"ASSAY_LOG": "LOUD"}, "ASSAY_LOG is 'LOUD'"),
        ({"DATABASE_URL": "mongodb://host/db"}, "mongodb"),
    ],
)
def test_a_bad_setting_stops_the_start_and_is_named(
    tmp_path: Path, environment: dict[str, str], words: str
) -> None:
    done = start(tmp_path, "django.setup()", **environment)

    assert done.returncode != 0
    assert words in done.stderr


def test_production_with_its_settings_starts_and_is_strict(tmp_path: Path) -> None:
    done = start(
        tmp_path,
        "django.setup()",
        "print(settings.SESSION_COOKIE_SECURE, settings.SECURE_SSL_REDIRECT)",
        "print(settings.DEBUG, settings.SECRET_KEY)",
        ASSAY_ENV="production",
        ASSAY_SECRET_KEY="k" * 60,
    )

    assert done.stdout.split() == ["True", "True", "False", "k" * 60], done.stderr
    assert not (tmp_path / "var" / "secret_key").exists()


def test_redis_waits_longer_than_the_longest_task(tmp_path: Path) -> None:
    done = start(
        tmp_path,
        "django.setup()",
        "options = settings.CELERY_BROKER_TRANSPORT_OPTIONS",
        "print(options['visibility_timeout'] > settings.CELERY_TASK_TIME_LIMIT)",
        REDIS_URL="redis://127.0.0.1:6379/0",
    )

    assert done.stdout.strip() == "True", done.stderr


# system checks


def ids(found: list[Any]) -> list[str]:
    return [message.id for message in found]


def test_the_default_settings_raise_no_check(settings: Any) -> None:
    assert [message for message in run_checks() if message.id.startswith("assay")] == []


@pytest.mark.parametrize(("timeout", "fires"), [(1799, True), (1800, True), (1801, False), (None, False)])
def test_a_visibility_timeout_below_the_task_limit_is_an_error(
    settings: Any, timeout: int | None, fires: bool
) -> None:
    settings.CELERY_BROKER_TRANSPORT_OPTIONS = {} if timeout is None else {"visibility_timeout": timeout}
    settings.CELERY_TASK_TIME_LIMIT = 1800

    assert ids(checks.visibility_outlasts_tasks(None)) == (["assay.E001"] if fires else [])


@pytest.mark.parametrize(("seconds", "fires"), [(899, False), (900, True), (2000, True)])
def test_a_shard_that_could_outlive_its_task_is_an_error(settings: Any, seconds: int, fires: bool) -> None:
    settings.SHARD_SECONDS, settings.CELERY_TASK_TIME_LIMIT = seconds, 1800

    assert ids(checks.shards_fit_their_limits(None)) == (["assay.E002"] if fires else [])


@pytest.mark.parametrize("name", ["ARTIFACTS_DIR", "EXPORTS_DIR"])
def test_a_folder_that_cannot_be_made_is_an_error(settings: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    setattr(settings, name, tmp_path / "file" / "folder")

    (found,) = checks.folders_can_be_written(None)

    assert (found.id, name in found.msg) == ("assay.E003", True)


def test_a_folder_that_cannot_be_written_is_an_error(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "access", lambda *_: False
    )  # root may write anywhere, so the kernel cannot be asked

    assert ids(checks.folders_can_be_written(None)) == ["assay.E003", "assay.E003"]


def test_folders_are_made_where_they_are_missing(settings: Any, tmp_path: Path) -> None:
    settings.ARTIFACTS_DIR = tmp_path / "new" / "artifacts"

    assert checks.folders_can_be_written(None) == []
    assert settings.ARTIFACTS_DIR.is_dir()


@pytest.mark.parametrize(
    ("production", "sqlite", "redis", "found"),
    [
        (True, True, "", ["assay.W001", "assay.W002"]),
        (True, False, "", ["assay.W002"]),
        (True, True, "redis://h", ["assay.W001"]),
        (True, False, "redis://h", []),
        (False, True, "", []),
    ],
)
def test_production_on_embedded_parts_is_warned_of(
    settings: Any, production: bool, sqlite: bool, redis: str, found: list[str]
) -> None:
    settings.PRODUCTION, settings.SQLITE, settings.REDIS_URL = production, sqlite, redis

    assert ids(checks.production_is_distributed(None)) == found


@pytest.mark.django_db
def test_a_missing_trigger_is_an_error_that_says_what_to_do() -> None:
    assert checks.append_only_triggers_stand(None, databases=["default"]) == []
    on = "" if connection.vendor == "sqlite" else " ON rollouts_auditevent"
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TRIGGER rollouts_auditevent_no_update{on}")

    (found,) = checks.append_only_triggers_stand(None, databases=["default"])

    assert found.id == "assay.E004"
    assert "rollouts_auditevent_no_update" in found.msg and "manage.py migrate" in found.msg
    append_only.install(connection)


def test_the_checks_are_registered(settings: Any) -> None:
    settings.SHARD_SECONDS = settings.CELERY_TASK_TIME_LIMIT

    assert "assay.E002" in ids(run_checks())
