"""Transcripts are stored once, made from the calls of a run, and taken over REST."""

from __future__ import annotations

import io
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.utils import timezone

from rollouts import store
from rollouts.backends.transcript import MAX_TRANSCRIPT_BYTES, parse_transcript
from rollouts.errors import Conflict, InvalidInput, NotAllowed, NotFound
from rollouts.hashing import sha256_bytes
from rollouts.models import Artifact, AuditEvent, Claim, EvalRun, Invocation, ModelCall, Payload
from rollouts.services import runs, transcripts
from tests import factories
from tests.api.conftest import Api, token_of

pytestmark = pytest.mark.django_db

TRANSCRIPT = b'{"contains": "a", "replies": [{"text": "x"}, {"status": 500}]}\n{"replies": [{"text": "y"}]}\n'


@pytest.fixture
def engineer() -> User:
    return factories.person("engineer", "engineer")


@pytest.fixture(autouse=True)
def _quiet(sent: Any, settings: Any, tmp_path: Path) -> None:
    settings.FILE_UPLOAD_TEMP_DIR = str(tmp_path)
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}


# storing


def test_a_transcript_is_stored_once_and_recorded_once(engineer: User) -> None:
    first = transcripts.save(data=TRANSCRIPT, by=engineer)

    assert (first.digest, first.rows, first.replies) == (sha256_bytes(TRANSCRIPT), 2, 3)
    assert transcripts.save(data=TRANSCRIPT, by=engineer) == first == transcripts.read(first.digest)
    assert Artifact.objects.count() == AuditEvent.objects.filter(action="transcript.saved").count() == 1


def test_bytes_that_were_stored_for_another_reason_are_recorded_as_a_transcript_too(engineer: User) -> None:
    store.put([TRANSCRIPT])

    transcripts.save(data=TRANSCRIPT, by=engineer)
    assert AuditEvent.objects.filter(action="transcript.saved").count() == 1


def test_a_broken_transcript_is_refused_whole(engineer: User) -> None:
    with pytest.raises(InvalidInput, match="line 3"):
        transcripts.save(data=TRANSCRIPT + b"{", by=engineer)
    assert not Artifact.objects.exists() and not AuditEvent.objects.exists()


@pytest.mark.parametrize("role", ["approver", "auditor", None])
def test_only_engineers_and_administrators_store_transcripts(role: str | None) -> None:
    with pytest.raises(NotAllowed):
        transcripts.save(data=TRANSCRIPT, by=factories.person("p", *([role] if role else [])))


def test_what_is_not_stored_or_no_transcript_is_not_read(engineer: User) -> None:
    with pytest.raises(NotFound) as nothing:
        transcripts.read("0" * 64)
    with pytest.raises(NotFound) as other:
        transcripts.read(store.put([b"GGUF"]).pk)
    assert other.value.message == nothing.value.message, "what else is stored may be of a hidden track"


def test_the_command_prints_the_digest(engineer: User, tmp_path: Path) -> None:
    file, out = tmp_path / "t.jsonl", io.StringIO()
    file.write_bytes(TRANSCRIPT)

    call_command("save_transcript", str(file), "--as", "engineer", stdout=out)
    assert sha256_bytes(TRANSCRIPT) in out.getvalue()
    with pytest.raises(CommandError, match="No such file"):
        call_command("save_transcript", str(tmp_path / "none"), "--as", "engineer")


def test_what_is_too_large_for_a_transcript_is_refused_without_being_read(engineer: User) -> None:
    stored = store.put([b"GGUF"])
    Artifact.objects.update(size_bytes=MAX_TRANSCRIPT_BYTES + 1)
    store.path_of(stored.pk).unlink()

    with pytest.raises(NotFound):
        transcripts.read(stored.pk)


# from the calls of a run


def plan(engineer: User, name: str = "named") -> EvalRun:
    return runs.plan(
        subject=factories.remote_subject(),
        suite=factories.suite(engineer, name=name, calls=2),
        backend=factories.remote_backend(engineer, "http://127.0.0.1:9/v1"),
        by=engineer,
    )


def invocation(run: EvalRun, rollout: int = 0) -> Invocation:
    now = timezone.now()
    claim = Claim.objects.create(run=run, worker="w", created_at=now, lease_expires_at=now)
    return Invocation.objects.create(
        rollout=run.rollouts.order_by("id")[rollout], claim=claim, state="finished", started_at=now
    )


def payload(data: bytes) -> Payload:
    made, _ = Payload.objects.get_or_create(
        sha256=sha256_bytes(data), defaults={"size_bytes": len(data), "data": zlib.compress(data)}
    )
    return made


def call(
    of: Invocation, request: bytes, body: bytes | None, status: int | None = 200, error: str = "", **more: Any
) -> None:
    ModelCall.objects.create(
        **{
            "invocation": of,
            "turn": of.calls.count(),
            "dialect": "openai.chat",
            "state": "failed" if error else "answered",
            "status": status,
            "error_kind": error,
            "request": payload(request),
            "response": payload(body) if body is not None else None,
            "created_at": timezone.now(),
            **more,
        }
    )


def exported(run: EvalRun, *options: str) -> list[Any]:
    out = io.StringIO()
    call_command("export_transcript", str(run.pk), *options, stdout=out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_run_s_calls_become_rows_in_the_order_in_which_they_were_asked(engineer: User) -> None:
    run = plan(engineer)
    one, two = invocation(run), invocation(run, 1)
    call(one, b"request 1", b"slow", 429, "rate_limit")
    call(two, b"request 2", b"answer 2")
    call(one, b"request 1", "answer é".encode())

    assert exported(run) == [
        {
            "request_sha256": sha256_bytes(b"request 1"),
            "replies": [{"status": 429, "body": "slow"}, {"status": 200, "body": "answer é"}],
        },
        {"request_sha256": sha256_bytes(b"request 2"), "replies": [{"status": 200, "body": "answer 2"}]},
    ]


def test_what_broke_off_breaks_off_again_after_the_same_bytes(engineer: User) -> None:
    run = plan(engineer)
    of = invocation(run)
    call(of, b"r", b"par", 200, "truncated_stream")
    call(of, b"r", None, 200, "timeout")
    call(of, b"r", None, None, "connection")
    call(of, b"r", b"\xff", 200, "protocol")

    (row,) = exported(run)
    assert row["replies"] == [
        {"status": 200, "cut_after": 3, "body": "par\n"},
        {"status": 200, "cut_after": 0, "body": "\n"},
        {"drop": True},
        {"status": 200, "body_base64": "/w=="},
    ]


def test_calls_that_nobody_answered_and_judges_calls_are_left_out(engineer: User) -> None:
    run = plan(engineer)
    of = invocation(run)
    call(of, b"r", b"x")
    call(of, b"lost", None, None, state="lost")
    call(of, b"open", None, None, state="open")
    call(of, b"judged", b"y", purpose="judge")

    assert [row["request_sha256"] for row in exported(run)] == [sha256_bytes(b"r")]
    assert [row["request_sha256"] for row in exported(run, "--purpose", "judge")] == [sha256_bytes(b"judged")]


def test_an_answer_that_was_reused_from_another_run_is_among_them(engineer: User) -> None:
    first, second = plan(engineer, "one"), plan(engineer, "two")
    origin = invocation(first)
    call(origin, b"r", b"x")
    second.rollouts.update(answered_by=origin)

    assert exported(second) == exported(first) != []


def test_what_is_exported_is_a_transcript_of_the_same_answers(engineer: User) -> None:
    run = plan(engineer)
    of = invocation(run)
    for number in range(450):  # more than are read at once
        call(of, b"request %d" % number, b"answer %d" % number)

    parsed = parse_transcript("\n".join(transcripts.export(run)).encode())
    assert len(parsed.rows) == 450
    for number in (0, 199, 200, 449):
        row = parsed.row_for(b"request %d" % number)
        assert row is not None and row.replies[0].body == b"answer %d" % number


def test_a_plug_in_s_calls_cannot_be_replayed_over_http(engineer: User) -> None:
    run = plan(engineer)
    call(invocation(run), b"r", b"x", None, dialect="plugin")

    with pytest.raises(Conflict, match="dialect plugin"):
        list(transcripts.export(run))
    with pytest.raises(CommandError, match="dialect plugin"):
        exported(run)


def test_a_run_that_is_not_there_is_said(db: None) -> None:
    with pytest.raises(CommandError, match="no eval run 999"):
        call_command("export_transcript", "999")


# over REST


@pytest.fixture
def api(engineer: User) -> Api:
    return Api(token_of(engineer))


def test_a_transcript_is_stored_from_a_body_or_a_file_and_found_again(api: Api, tmp_path: Path) -> None:
    response = api.send("POST", "transcripts", raw=TRANSCRIPT, Content_Type="application/x-ndjson")
    made = response.json()
    digest = sha256_bytes(TRANSCRIPT)

    assert (response.status_code, response["Location"]) == (201, f"/api/v1/transcripts/{digest}")
    assert (made["digest"], made["rows"], made["replies"], made["size_bytes"]) == (
        digest,
        2,
        3,
        len(TRANSCRIPT),
    )
    assert api.get(f"transcripts/{digest}") == made
    file = tmp_path / "t.jsonl"
    file.write_bytes(TRANSCRIPT)
    assert api.upload("transcripts", {"file": file}).json() == made


def test_the_same_key_stores_a_transcript_once(api: Api, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes(TRANSCRIPT)
    first = api.upload("transcripts", {"file": file}, Idempotency_Key="k")
    again = api.upload("transcripts", {"file": file}, Idempotency_Key="k")

    assert again["Idempotency-Replayed"] == "true" and again.json() == first.json()
    file.write_bytes(b'{"replies": [{"text": "other"}]}')
    api.upload("transcripts", {"file": file}, Idempotency_Key="k", status=422)


def test_a_wrong_transcript_is_refused_over_rest_with_its_line(api: Api) -> None:
    found = api.problem(
        400, "POST", "transcripts", raw=b'{"replies": 7}', Content_Type="application/x-ndjson"
    )

    assert found["field"] == "line 1: replies"
    assert (
        api.problem(400, "POST", "transcripts?name=x", raw=b"{}", Content_Type="application/x-ndjson")[
            "field"
        ]
        == "name"
    )


def test_what_is_no_transcript_is_not_at_that_address(api: Api) -> None:
    api.problem(404, "GET", f"transcripts/{store.put([b'GGUF']).pk}")
    api.problem(404, "GET", f"transcripts/{'0' * 64}")


def test_transcripts_are_stored_by_who_may_register(engineer: User) -> None:
    stranger = Api(token_of(factories.person("a", "approver")))

    stranger.problem(403, "POST", "transcripts", raw=TRANSCRIPT, Content_Type="application/x-ndjson")


def test_a_backend_over_rest_has_its_requests_per_minute_and_names_unknown_kinds(api: Api) -> None:
    body = {"name": "b", "kind": "openai_compatible", "config": {"base_url": "https://h/v1"}}

    assert api.post("backends", body)["requests_per_minute"] is None
    assert api.post("backends", {**body, "requests_per_minute": 60})["requests_per_minute"] == 60
    for wrong in (0, "60", 60.0, True, 1_000_001):
        assert (
            api.problem(400, "POST", "backends", {**body, "requests_per_minute": wrong})["field"]
            == "requests_per_minute"
        )
    found = api.problem(400, "POST", "backends", {**body, "kind": "mock"})
    assert found["field"] == "kind" and "azure_openai, dual" in found["detail"]
    assert api.problem(400, "POST", "backends", {**body, "kind": 7})["field"] == "kind"
    assert api.problem(400, "GET", "backends?kind=mock")["field"] == "kind"
    nested = {"target": body, "generator": {"kind": "openai_compatible", "config": {"base_url": 7}}}
    found = api.problem(
        400,
        "POST",
        "backends",
        {**body, "kind": "dual", "config": {**nested, "target": {"kind": "llama_cpp"}}},
    )
    assert found["field"] == "config.generator.config.base_url"
