"""A transcript is replayed over real HTTP, reply by reply, as it was recorded."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rollouts.backends import make
from rollouts.backends.base import Backend, BackendUnavailable, Opened, SubjectFiles
from rollouts.failures import CallFailed
from rollouts.hashing import sha256_bytes
from tests.backends.asking import TOOLS, answer, ask, request_of, send

Ask = Callable[..., Coroutine[Any, Any, Any]]


def rows(*replies: Any, **key: str) -> bytes:
    return json.dumps({**key, "replies": list(replies)}).encode() + b"\n"


def scripted(data: bytes, **config: Any) -> Backend:
    return make("scripted", {"transcript_sha256": sha256_bytes(data), **config}, lambda name: None)


@asynccontextmanager
async def replaying(data: bytes, tmp_path: Path, **config: Any) -> AsyncIterator[tuple[Backend, Opened]]:
    path = tmp_path / "transcript.jsonl"
    path.write_bytes(data)
    backend = scripted(data, **config)
    async with backend.open(SubjectFiles(remote_model="m", transcript_path=str(path))) as opened:
        yield backend, opened


def run(data: bytes, tmp_path: Path, work: Ask, **config: Any) -> Any:
    async def inside() -> Any:
        async with replaying(data, tmp_path, **config) as (backend, opened):
            return await work(backend, opened)

    return asyncio.run(inside())


def test_the_nth_request_gets_the_nth_reply_and_the_one_after_the_last_a_404_that_says_so(
    tmp_path: Path,
) -> None:
    async def three(backend: Backend, opened: Opened) -> list[tuple[int, bytes]]:
        return [await send(opened, request_of(backend)) for _ in range(3)]

    first, second, third = run(rows({"text": "one"}, {"status": 429, "body": "slow"}), tmp_path, three)
    assert (first[0], json.loads(first[1])["choices"][0]["message"]["content"]) == (200, "one")
    assert second == (429, b"slow")
    assert third[0] == 404 and b"The 2 replies of line 1 of the transcript are used up." in third[1]


def test_a_request_that_no_row_is_for_gets_a_404_with_its_digest(tmp_path: Path) -> None:
    async def one(backend: Backend, opened: Opened) -> tuple[int, bytes]:
        return await send(opened, request_of(backend))

    status, body = run(rows({"text": "x"}, contains="nowhere"), tmp_path, one)
    assert status == 404
    assert sha256_bytes(request_of(scripted(b"x")).body).encode() in body


def test_each_row_counts_for_itself_however_the_requests_interleave(tmp_path: Path) -> None:
    data = rows({"text": "a1"}, {"text": "a2"}, contains="A") + rows(
        {"text": "b1"}, {"text": "b2"}, contains="B"
    )

    async def four(backend: Backend, opened: Opened) -> list[str | None]:
        asked = [request_of(backend, messages=[{"role": "user", "content": text}]) for text in "ABAB"]
        return [(await ask(backend, opened, request)).text for request in asked]

    assert run(data, tmp_path, four) == ["a1", "b1", "a2", "b2"]


def test_every_server_that_is_opened_begins_at_the_first_reply(tmp_path: Path) -> None:
    async def one(backend: Backend, opened: Opened) -> str | None:
        return (await ask(backend, opened, request_of(backend))).text

    assert [run(rows({"text": "one"}), tmp_path, one) for _ in range(2)] == ["one", "one"]
    assert scripted(b"x").exclusive  # so that a run has one such server at a time


def test_a_recorded_stream_is_read_as_one(tmp_path: Path) -> None:
    events = [
        {"choices": [{"delta": {"content": "he"}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    ]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    reply = {"headers": {"Content-Type": "text/event-stream", "X-Id": "7"}, "body": body}

    async def one(backend: Backend, opened: Opened) -> Any:
        return (await ask(backend, opened, request_of(backend))).text

    assert run(rows(reply), tmp_path, one, stream=True) == "he"


def test_headers_and_status_are_those_of_the_recording(tmp_path: Path) -> None:
    async def one(backend: Backend, opened: Opened) -> Any:
        request = request_of(backend)
        async with (
            aiohttp.ClientSession(headers=opened.headers) as session,
            session.post(opened.base_url + request.path, data=request.body) as response,
        ):
            return response.status, response.headers["Retry-After"], response.headers["Content-Type"]

    assert run(rows({"status": 503, "headers": {"Retry-After": "2"}}), tmp_path, one) == (
        503,
        "2",
        "application/json",
    )


def test_an_answer_can_break_off_and_a_connection_can_be_dropped(tmp_path: Path) -> None:
    data = rows(
        {"body": "0123456789", "cut_after": 4}, {"body": "x", "cut_after": 0}, {"drop": True}, {"text": "ok"}
    )

    async def four(backend: Backend, opened: Opened) -> list[str]:
        failures = []
        for _ in range(3):
            try:
                await send(opened, request_of(backend))
            except aiohttp.ClientError as error:
                failures.append(type(error).__name__)
        assert (await ask(backend, opened, request_of(backend))).text == "ok"
        return failures

    assert run(data, tmp_path, four) == [
        "ClientPayloadError",
        "ClientPayloadError",
        "ServerDisconnectedError",
    ]


def test_a_reply_waits_as_long_as_it_says_and_no_other_waits_for_it(tmp_path: Path) -> None:
    data = rows({"text": "late", "delay_ms": 300}, contains="slow") + rows({"text": "soon"})

    async def two(backend: Backend, opened: Opened) -> list[tuple[str | None, float]]:
        async def timed(text: str) -> tuple[str | None, float]:
            start = time.perf_counter()
            request = request_of(backend, messages=[{"role": "user", "content": text}])
            return (await ask(backend, opened, request)).text, time.perf_counter() - start

        return list(await asyncio.gather(timed("slow"), timed("fast")))

    (late, waited), (soon, short) = run(data, tmp_path, two)
    assert (late, soon) == ("late", "soon")
    assert waited >= 0.3 > short


def test_only_the_run_that_started_it_is_answered(tmp_path: Path) -> None:
    async def stranger(backend: Backend, opened: Opened) -> int:
        for headers in ({}, {"Authorization": "Bearer x"}):
            status, _ = await send(Opened(opened.base_url, headers), request_of(backend))
            assert status == 401
        return (await send(opened, request_of(backend)))[0]

    assert run(rows({"text": "x"}), tmp_path, stranger) == 200


def test_nothing_listens_any_more_when_it_is_closed(tmp_path: Path) -> None:
    async def inside() -> None:
        async with replaying(rows({"text": "x"}), tmp_path) as (backend, opened):
            pass
        with pytest.raises(aiohttp.ClientConnectionError):
            await send(opened, request_of(backend))

    asyncio.run(inside())


def test_a_recorded_request_is_matched_to_the_byte(tmp_path: Path) -> None:
    asked = make("openai_compatible", {"base_url": "http://h/v1"}, lambda name: None)
    data = rows(
        {"body": answer("recorded").decode()},
        request_sha256=sha256_bytes(request_of(asked, 2, tools=TOOLS).body),
    )

    async def two(backend: Backend, opened: Opened) -> Any:
        with pytest.raises(CallFailed, match="No row"):
            await ask(backend, opened, request_of(backend, 1, tools=TOOLS))
        return await ask(backend, opened, request_of(backend, 2, tools=TOOLS))

    done = run(data, tmp_path, two)
    assert (done.text, done.prompt_tokens) == ("recorded", 11)


def test_a_local_model_s_requests_are_matched_without_a_model() -> None:
    local = make("llama_cpp", {}, lambda name: None)

    assert request_of(local, model="").body == request_of(scripted(b"x", send_model=False)).body
    assert request_of(local, model="").body != request_of(scripted(b"x")).body


def test_nothing_proves_that_recorded_answers_are_draws_of_their_own() -> None:
    assert scripted(b"x").independence == "unknown"
    assert scripted(b"x", sampling="independent").independence == "independent"


def test_its_facts_are_the_transcript_and_stay_so(tmp_path: Path) -> None:
    data = rows({"text": "x"})

    async def facts(backend: Backend, opened: Opened) -> Any:
        assert await backend.facts_after(SubjectFiles(), opened) == opened.facts
        return opened.facts

    assert run(data, tmp_path, facts) == {
        "server": "scripted",
        "transcript_sha256": sha256_bytes(data),
        "model": "m",
    }


@pytest.mark.parametrize(
    ("stored", "code"),
    [(b"other", "file_changed"), (None, "file_missing"), (b"no transcript", "config")],
)
def test_what_is_not_the_transcript_is_not_replayed(tmp_path: Path, stored: bytes | None, code: str) -> None:
    named = b"no transcript" if code == "config" else rows({"text": "x"})
    path = tmp_path / "transcript.jsonl"
    if stored is not None:
        path.write_bytes(stored)

    async def opened(files: SubjectFiles) -> None:
        async with scripted(named).open(files):
            raise AssertionError

    with pytest.raises(BackendUnavailable) as unavailable:
        asyncio.run(opened(SubjectFiles(transcript_path=str(path))))
    assert unavailable.value.code == code
    with pytest.raises(BackendUnavailable):
        asyncio.run(opened(SubjectFiles()))
