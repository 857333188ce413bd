"""Backends are saved with every part checked, and every refusal names its path."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from rollouts import store
from rollouts.errors import InvalidInput
from rollouts.models import AuditEvent, Backend
from rollouts.services import backends, transcripts
from tests import factories
from tests.backends.conftest import Install

pytestmark = pytest.mark.django_db

REMOTE = {"kind": "openai_compatible", "config": {"base_url": "https://host/v1"}}
AZURE_CONFIG = {"endpoint": "https://h", "deployment": "d", "api_version": "2024-10-21"}
TRANSCRIPT = b'{"replies": [{"text": "x"}]}\n'


@pytest.fixture
def engineer() -> User:
    return factories.person("engineer", "engineer")


def save(by: User, **changes: Any) -> Backend:
    values: dict[str, Any] = {"name": "b", "by": by, **REMOTE}
    return backends.save(**{**values, **changes})


def dual(**changes: Any) -> dict[str, Any]:
    return {"kind": "dual", "config": {"target": REMOTE, "generator": REMOTE, **changes}}


def test_every_kind_is_saved_and_read_again(engineer: User, install: Install) -> None:
    install("class P:\n    def attempt(self, messages, sampling):\n        return ''\n", p="P")
    digest = transcripts.save(data=TRANSCRIPT, by=engineer).digest
    for kind, config, key_env in (
        ("azure_openai", AZURE_CONFIG, "ASSAY_KEY_AZURE"),
        ("llama_cpp", {}, ""),
        ("scripted", {"transcript_sha256": digest}, ""),
        ("plugin:p", {}, ""),
        ("dual", dual()["config"], ""),
    ):
        saved = save(engineer, name=kind.replace(":", "-"), kind=kind, config=config, key_env=key_env)
        again = save(engineer, name=saved.name, kind=kind, config=saved.config, key_env=key_env)
        assert again == saved, kind


def test_requests_per_minute_are_none_or_a_bounded_whole_number(engineer: User) -> None:
    assert save(engineer).requests_per_minute is None
    assert save(engineer, requests_per_minute=1).requests_per_minute == 1
    assert save(engineer, requests_per_minute=1_000_000).revision == 3
    for wrong in (0, -1, 1_000_001, 1.5, True, "60"):
        with pytest.raises(InvalidInput) as refused:
            save(engineer, requests_per_minute=wrong)
        assert refused.value.field == "requests_per_minute"


def test_the_digest_covers_the_requests_per_minute(engineer: User) -> None:
    saved = [save(engineer, requests_per_minute=limit) for limit in (None, 1, 2, 2, None)]

    assert [row.revision for row in saved] == [1, 2, 3, 3, 4]
    assert len({row.digest for row in saved}) == 3 and saved[0].digest == saved[4].digest


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kind": "azure_openai", "config": AZURE_CONFIG}, "key_env"),
        ({"kind": "azure_openai", "config": AZURE_CONFIG, "key_env": "AZURE_KEY"}, "key_env"),
        ({**dual(), "key_env": "ASSAY_KEY_A"}, "key_env"),
        (dual(target={**REMOTE, "key_env": "OPENAI_API_KEY"}), "config.target.key_env"),
        (dual(generator={**REMOTE, "key_env": "ASSAY_SECRET_KEY"}), "config.generator.key_env"),
        (dual(generator={**REMOTE, "key_env": "ASSAY_KEY_"}), "config.generator.key_env"),
        (dual(target={"kind": "azure_openai", "config": AZURE_CONFIG}), "config.target.key_env"),
        (dual(target=dual()), "config.target.kind"),
        (dual(target={"kind": "nothing"}), "config.target.kind"),
        (
            dual(target={"kind": "openai_compatible", "config": {"base_url": "x"}}),
            "config.target.config.base_url",
        ),
        ({"kind": "scripted", "config": {"transcript_sha256": "0" * 64}}, "config.transcript_sha256"),
        ({"kind": "scripted", "config": {"transcript_sha256": "x"}}, "config.transcript_sha256"),
        (
            dual(generator={"kind": "scripted", "config": {"transcript_sha256": "0" * 64}}),
            "config.generator.config.transcript_sha256",
        ),
        ({"kind": ""}, "kind"),
        ({"kind": "mock"}, "kind"),
        ({"kind": "plugin:none"}, "kind"),
    ],
)
def test_a_wrong_backend_is_refused_by_its_path(engineer: User, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        save(engineer, **changes)

    assert refused.value.field == field
    assert not Backend.objects.exists() and not AuditEvent.objects.exists()


def test_an_unknown_kind_is_never_another_one_and_names_those_there_are(engineer: User) -> None:
    with pytest.raises(InvalidInput, match="azure_openai, dual, llama_cpp, openai_compatible, scripted"):
        save(engineer, kind="mock")


def test_nested_keys_are_names_with_the_prefix(engineer: User) -> None:
    saved = save(engineer, **dual(target={**REMOTE, "key_env": "ASSAY_KEY_T"}))

    assert saved.config["target"]["key_env"] == "ASSAY_KEY_T" and saved.key_env == ""


def test_a_nested_key_itself_is_refused_and_not_repeated(engineer: User) -> None:
    with pytest.raises(InvalidInput) as refused:
        save(engineer, **dual(target={**REMOTE, "key_env": "sk-abcdef1234567890"}))

    assert "sk-abcdef" not in refused.value.message


def test_a_file_that_is_no_transcript_cannot_be_replayed(engineer: User) -> None:
    stored = store.put([b"GGUF"])

    with pytest.raises(InvalidInput, match="there is no such transcript") as refused:
        save(engineer, kind="scripted", config={"transcript_sha256": stored.pk})
    with pytest.raises(InvalidInput) as unknown:
        save(engineer, kind="scripted", config={"transcript_sha256": "0" * 64})
    assert refused.value.field == "config.transcript_sha256"
    assert refused.value.message == unknown.value.message, "nobody is told what else is stored"


def test_a_plug_in_s_broken_load_is_said_when_it_is_saved(engineer: User, install: Install) -> None:
    install("raise RuntimeError('no CUDA')", p="P")

    with pytest.raises(InvalidInput, match="no CUDA"):
        save(engineer, kind="plugin:p", config={})


# the command


def command(*args: str) -> str:
    out = io.StringIO()
    call_command("save_backend", *args, "--as", "engineer", stdout=out)
    return out.getvalue()


def test_the_command_saves_every_field(engineer: User) -> None:
    config = json.dumps(REMOTE["config"])
    limits = ["--requests-per-minute", "60", "--prompt-price", "5", "--completion-price", "0"]

    assert "b revision 1 saved" in command("b", "openai_compatible", "--config", config, *limits)
    saved = Backend.objects.get()
    assert (saved.requests_per_minute, saved.prompt_price, saved.completion_price) == (60, 5, 0)


@pytest.mark.parametrize(
    ("kind", "config", "said"),
    [
        ("mock", "{}", "Use one of: azure_openai"),
        ("dual", "{}", "config.target: "),
        ("llama_cpp", '{"threads": 0}', "config.threads: "),
        ("llama_cpp", "[]", "config: "),
    ],
)
def test_the_command_says_what_is_wrong(engineer: User, kind: str, config: str, said: str) -> None:
    with pytest.raises(CommandError, match=said):
        command("b", kind, "--config", config)
