"""Whatever a provider does to one case of a run: it is typed, captured, bounded and masked, and the others finish."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from django.contrib.auth.models import User

from rollouts.engine import runner
from rollouts.models import (
    AuditEvent,
    Backend,
    CallState,
    EvalRun,
    ModelCall,
    Payload,
    Rollout,
    RolloutState,
    RunState,
)
from rollouts.services import backends, runs, suites
from tests import factories
from tests.engine.conftest import body_of, calls_of, rollout_of
from tests.engine.raw_provider import (
    RawProvider,
    Speak,
    Wire,
    answer_right,
    chunked,
    http,
    never_accepting,
    say,
    say_and_close,
)
from tests.engine.scripted import Seen, completion, refusing_url, tool_calls

pytestmark = pytest.mark.django_db(transaction=True)
Plan = Callable[..., EvalRun]
BAD = "named-call-1"  # of the three cases the one in the middle
PAGE = b"<!doctype html><html><body>Please log in</body></html>"
STREAM = ("Content-Type: text/event-stream",)


@pytest.fixture
def raw() -> Iterator[RawProvider]:
    with RawProvider().running() as running:
        yield running


@pytest.fixture
def plan_raw(engineer: User, raw: RawProvider) -> Plan:
    """plan_raw(speak) plans three cases of which BAD is treated by `speak`; with `rows`, cases of another scorer."""

    def make(
        speak: Speak | None = None,
        *,
        stream: bool = False,
        rows: list[dict[str, Any]] | None = None,
        scorer: str = "rules",
        url: str = "",
        **limits: Any,
    ) -> EvalRun:
        if speak is not None:
            raw.speak = lambda wire, seen: (speak if seen.case == BAD else answer_right)(wire, seen)
        values = {"concurrency": 3, "timeout_s": 5, "max_attempts": 3, **limits}
        backend = backends.save(
            name="raw",
            kind="openai_compatible",
            config={"base_url": url or raw.url, "stream": stream},
            by=engineer,
            **values,
        )
        suite = (
            factories.suite(engineer, calls=3)
            if rows is None
            else suites.seal(name="rows", data=factories.jsonl(rows), by=engineer, scorer=scorer)
        )
        return runs.plan(subject=factories.remote_subject(), suite=suite, backend=backend, by=engineer)

    return make


def worked(run: EvalRun) -> EvalRun:
    runs.work_shard(run.pk)
    run.refresh_from_db()
    return run


def contained(run: EvalRun, raw: RawProvider, kind: str, attempts: int) -> list[ModelCall]:
    """The failed attempts of the one bad case, after everything that holds of all of them was looked at."""
    worked(run)
    assert (run.state, run.scored, run.masked, run.unscored) == (RunState.SCORED, 2, 1, 0)
    failed = rollout_of(run, BAD)
    assert (failed.state, failed.failure_kind) == (RolloutState.MASKED, kind), failed.failure_reason
    assert 0 < len(failed.failure_reason) <= 2000
    assert (failed.answer, failed.exact, failed.decision, failed.json_valid) == (None, None, None, None)
    assert (failed.latency_ms, failed.prompt_tokens, failed.completion_tokens) == (None, None, None)
    calls = calls_of(failed)
    assert [(call.attempt, call.state, call.error_kind) for call in calls] == [
        (number, CallState.FAILED, kind) for number in range(1, attempts + 1)
    ]
    assert len(raw.requests_of(BAD)) == attempts
    assert [body_of(call.request_id) for call in calls] == [seen.body for seen in raw.requests_of(BAD)]
    for call in calls:
        assert 0 < len(call.error_text) <= 2000
        assert (call.prompt_tokens, call.completion_tokens, call.cost_microusd) == (None, None, None)
        assert call.latency_ms is not None and call.finished_at is not None
    return calls


def said(calls: list[ModelCall]) -> list[bytes]:
    return [body_of(call.response_id) for call in calls]


# answers that came whole


@pytest.mark.parametrize(
    ("body", "attempts"),
    [
        pytest.param(PAGE, 3, id="an HTML page"),
        pytest.param(b"", 3, id="nothing"),
        pytest.param(b"  \r\n", 3, id="blanks"),
        pytest.param(b"Internal error, sorry", 3, id="words"),
        pytest.param(b'[{"choices": []}]', 1, id="a JSON array"),
        pytest.param(b"17", 1, id="a JSON number"),
        pytest.param(b'{"error": {"message": "overloaded", "code": 503}}', 3, id="an error object"),
        pytest.param(b'{"error": "overloaded", "choices": null}', 3, id="an error that is a text"),
        pytest.param(b'{"choices": [null]}', 3, id="a choice that is null"),
        pytest.param(b'{"choices": [{"message": null}]}', 1, id="a message that is null"),
        pytest.param(b'{"a":' * 50_000, 3, id="nesting without end"),
        pytest.param(b'{"choices": ' + b"9" * 5000 + b"}", 3, id="a number of 5,000 digits"),
        pytest.param(b"\x00" * 1000, 3, id="a thousand NULs"),
        pytest.param(bytes(range(256)), 3, id="every byte there is"),
    ],
)
def test_a_200_that_is_no_answer_is_kept_byte_for_byte(
    plan_raw: Plan, raw: RawProvider, body: bytes, attempts: int
) -> None:
    run = plan_raw(say(http(body, headers=["Content-Type: text/html", "X-Trace: t-1"])))

    calls = contained(run, raw, "protocol", attempts)

    assert said(calls) == [body] * attempts
    assert {call.status for call in calls} == {200}
    assert all(call.response_headers["X-Trace"] == "t-1" for call in calls)


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent"])
def test_a_redirect_is_not_followed_and_the_key_goes_nowhere_else(
    plan_raw: Plan, raw: RawProvider, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_KEY_RAW", "sk-secret")
    with RawProvider().running() as elsewhere:
        there = f"Location: {elsewhere.url}/chat/completions"
        run = plan_raw(say(http(b"moved", status=status, headers=[there])), key_env="ASSAY_KEY_RAW")

        (call,) = contained(run, raw, "protocol", 1)

        assert elsewhere.connections == 0
    assert (call.status, said([call])) == (int(status[:3]), [b"moved"])


def test_an_error_beyond_all_measure_is_kept_and_its_text_cut(plan_raw: Plan, raw: RawProvider) -> None:
    body = b"no \x00 such \xff model " * 50_000
    run = plan_raw(say(http(body, status="404 Not Found")))

    (call,) = contained(run, raw, "bad_request", 1)

    assert (call.status, said([call])) == (404, [body])


def test_an_empty_answer_and_no_answer_are_told_apart(plan_raw: Plan, raw: RawProvider) -> None:
    def speak(wire: Wire, seen: Seen) -> None:
        wire.send(http(b"", status="500 Oops")) if seen.nth == 1 else wire.close()

    worked(plan_raw(speak, max_attempts=2))

    empty, nothing = calls_of(Rollout.objects.get(case__key=BAD))
    assert (empty.status, said([empty]), empty.error_kind) == (500, [b""], "server")
    assert (nothing.status, nothing.response_id, nothing.response_headers) == (None, None, None)
    assert nothing.error_kind == "connection"


# answers that broke off

BEGINNING = b'{"choices": [{"message": {"role": "assistant", "content": "A long answ'


@pytest.mark.parametrize("ending", ["closed", "reset"])
@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(http(BEGINNING, length=5000), id="before its length is reached"),
        pytest.param(chunked(BEGINNING, end=False), id="between two chunks"),
        pytest.param(chunked(BEGINNING, end=False) + b"ffff\r\nand so", id="inside a chunk"),
    ],
)
def test_what_came_of_an_answer_that_broke_off_is_kept(
    plan_raw: Plan, raw: RawProvider, broken: bytes, ending: str
) -> None:
    def speak(wire: Wire, seen: Seen) -> None:
        wire.send(broken)
        if ending == "closed":
            wire.close()
            return
        wire.pause(0.1)  # a reset throws away what was not read yet
        wire.reset()

    calls = contained(plan_raw(speak), raw, "truncated_stream", 3)

    for call in calls:
        assert (call.status, said([call])[0][: len(BEGINNING)]) == (200, BEGINNING)


def test_an_answer_that_ends_with_its_connection_is_whole(plan_raw: Plan, raw: RawProvider) -> None:
    def speak(wire: Wire, seen: Seen) -> None:
        wire.send(b"HTTP/1.1 200 OK\r\n\r\n" + completion(seen.right_answer))
        wire.close()

    run = worked(plan_raw(speak))

    assert (run.scored, run.masked) == (3, 0)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_compressed_answer_that_breaks_off_is_never_taken_for_a_whole_one(
    plan_raw: Plan, raw: RawProvider, encoding: str
) -> None:
    pack = gzip.compress if encoding == "gzip" else zlib.compress
    packed = pack(completion("an answer " * 500))[:-40]
    headers = [f"Content-Encoding: {encoding}"]

    worked(plan_raw(say(http(packed, headers=headers))))

    rollout = Rollout.objects.get(case__key=BAD)
    assert rollout.state == RolloutState.MASKED
    assert rollout.failure_kind in {"truncated_stream", "protocol"}


@pytest.mark.parametrize("encoding", ["br", "zstd"])
def test_an_encoding_that_nobody_asked_for_is_a_failure_of_the_protocol(
    plan_raw: Plan, raw: RawProvider, encoding: str
) -> None:
    run = plan_raw(say(http(b"\x28\xb5\x2f\xfd junk", headers=[f"Content-Encoding: {encoding}"])))
    worked(run)

    rollout = Rollout.objects.get(case__key=BAD)
    assert rollout.state == RolloutState.MASKED
    assert rollout.failure_kind in {"truncated_stream", "protocol"}
    assert (run.scored, run.masked) == (2, 1)


# streams


def event(text: str | None = None, **choice: Any) -> bytes:
    delta = {} if text is None else {"delta": {"content": text}}
    return b"data: " + json.dumps({"choices": [{"index": 0, **delta, **choice}]}).encode() + b"\n\n"


def streamed(text: str) -> bytes:
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    return b"".join(
        [
            *(event(text[start : start + 5]) for start in range(0, len(text), 5)),
            event(finish_reason="stop"),
            b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n",
        ]
    )


def stream_right(wire: Wire, seen: Seen) -> None:
    wire.send(chunked(streamed(seen.right_answer), headers=STREAM))


def test_a_whole_stream_is_scored_with_its_usage(plan_raw: Plan, raw: RawProvider) -> None:
    run = worked(plan_raw(stream_right, stream=True))

    rollout = rollout_of(run, BAD)
    assert (rollout.state, rollout.exact) == (RolloutState.SCORED, True)
    assert (rollout.prompt_tokens, rollout.completion_tokens) == (7, 3)
    assert json.loads(raw.seen[0].body)["stream_options"] == {"include_usage": True}


PART = event("The answer is") + event(" forty")


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        pytest.param(chunked(PART, headers=STREAM), "truncated_stream", id="before its finish reason"),
        pytest.param(
            chunked(PART, headers=STREAM, end=False), "truncated_stream", id="before its last chunk"
        ),
        pytest.param(chunked(PART + b"data: {", headers=STREAM), "truncated_stream", id="inside an event"),
        pytest.param(chunked(headers=STREAM), "truncated_stream", id="before its first event"),
        pytest.param(
            chunked(PART + b'data: {"error": {"message": "overloaded"}}\n\n', headers=STREAM),
            "server",
            id="with an error",
        ),
        pytest.param(
            chunked(PART + b'event: error\ndata: {"message": "overloaded"}\n\n', headers=STREAM),
            "server",
            id="with an event of an error",
        ),
        pytest.param(chunked(PART + PAGE + b"\n\n", headers=STREAM), "protocol", id="with a page inside"),
        pytest.param(chunked(b"data: [DONE]\n\n", headers=STREAM), "protocol", id="without a choice"),
    ],
)
def test_a_stream_that_ends_badly_keeps_the_text_that_came(
    plan_raw: Plan, raw: RawProvider, sent: bytes, kind: str
) -> None:
    run = plan_raw(say_and_close(sent), stream=True)

    calls = contained(run, raw, kind, 3)

    for call in calls:
        assert call.status == 200
        assert said([call])[0].startswith(PART) is (PART in sent)
        assert call.response_headers["Content-Type"] == "text/event-stream"


def test_a_stream_that_never_ends_is_a_timeout_that_keeps_the_text(plan_raw: Plan, raw: RawProvider) -> None:
    def drip(wire: Wire, seen: Seen) -> None:
        wire.send(chunked(event("and "), headers=STREAM, end=False))
        while wire.pause(0.05) and wire.send(b"%x\r\n%b\r\n" % (len(event("on ")), event("on "))):
            pass

    run = plan_raw(drip, stream=True, timeout_s=1, max_attempts=2)
    start = time.monotonic()

    calls = contained(run, raw, "timeout", 2)

    assert time.monotonic() - start < 10
    for call in calls:
        assert call.status == 200 and 1000 <= call.latency_ms < 5000
        assert call.first_byte_ms < call.latency_ms / 2
        assert said([call])[0].startswith(event("and ") + event("on "))


def test_a_stream_without_measure_is_left_at_the_limit(plan_raw: Plan, raw: RawProvider) -> None:
    def flood(wire: Wire, seen: Seen) -> None:
        wire.send(chunked(event("x"), headers=STREAM, end=False))
        block = event("x" * 100_000)
        while wire.send(b"%x\r\n%b\r\n" % (len(block), block)):
            pass

    (call,) = contained(plan_raw(flood, stream=True), raw, "protocol", 1)

    assert len(said([call])[0]) == runner.KEPT_OF_TOO_LARGE_BYTES
    assert "16 MiB" in call.error_text


# answers that are no HTTP


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n\r\n", id="another protocol"),
        pytest.param(b"HTTP/1.1 twohundred OK\r\n\r\n", id="a status that is no number"),
        pytest.param(b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n", id="a header that is none"),
        pytest.param(http(b"{}", headers=["Content-Length: 99"]), id="two lengths"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", id="a length below 0"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n", id="a header with NUL"),
        pytest.param(http(b"{}", headers=["X-Big: " + "v" * (1 << 20)]), id="a header of 1 MB"),
        pytest.param(
            http(b"{}", headers=[f"X-{number}: {'v' * 90}" for number in range(10_000)]),
            id="10,000 headers of 1 MB together",
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\n" + b"X-Endless: " * (1 << 17), id="a head that does not end"),
    ],
)
def test_a_head_that_cannot_be_read_is_a_failure_of_the_protocol(
    plan_raw: Plan, raw: RawProvider, sent: bytes
) -> None:
    calls = contained(plan_raw(say_and_close(sent)), raw, "protocol", 3)

    assert {(call.status, call.response_id, call.response_headers) for call in calls} == {(None, None, None)}


# no answer at all


def test_a_connection_that_is_refused_is_tried_as_often_as_is_allowed(plan_raw: Plan) -> None:
    run = worked(plan_raw(url=refusing_url(), max_attempts=2))

    assert (run.state, run.masked) == (RunState.SCORED, 3)
    assert set(ModelCall.objects.values_list("error_kind", "status", "response_id")) == {
        ("connection", None, None)
    }
    assert ModelCall.objects.count() == 6


@pytest.mark.parametrize("ending", ["closed", "reset"])
def test_a_connection_that_ends_without_an_answer_is_a_connection_failure(
    plan_raw: Plan, raw: RawProvider, ending: str
) -> None:
    run = plan_raw(lambda wire, seen: wire.close() if ending == "closed" else wire.reset())

    calls = contained(run, raw, "connection", 3)

    assert {(call.status, call.response_id, call.response_headers) for call in calls} == {(None, None, None)}


def test_a_connection_on_which_nothing_is_ever_said_is_a_timeout(plan_raw: Plan, raw: RawProvider) -> None:
    run = plan_raw(lambda wire, seen: wire.say_nothing(), timeout_s=1, max_attempts=2)
    start = time.monotonic()

    calls = contained(run, raw, "timeout", 2)

    assert time.monotonic() - start < 10
    assert {(call.status, call.response_id) for call in calls} == {(None, None)}
    assert all(1000 <= call.latency_ms < 5000 for call in calls)


def test_a_head_that_comes_byte_by_byte_is_a_timeout(plan_raw: Plan, raw: RawProvider) -> None:
    def drip(wire: Wire, seen: Seen) -> None:
        for byte in http(completion(seen.right_answer)):
            if not (wire.pause(0.1) and wire.send(bytes([byte]))):
                return

    calls = contained(plan_raw(drip, timeout_s=1, max_attempts=1), raw, "timeout", 1)

    assert calls[0].status is None


def test_informational_answers_without_end_are_a_timeout(plan_raw: Plan, raw: RawProvider) -> None:
    def go_on(wire: Wire, seen: Seen) -> None:
        while wire.pause(0.01) and wire.send(b"HTTP/1.1 100 Continue\r\n\r\n"):
            pass

    contained(plan_raw(go_on, timeout_s=1, max_attempts=1), raw, "timeout", 1)


def test_a_connection_that_is_never_made_is_a_connection_failure(
    plan_raw: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "CONNECT_TIMEOUT_S", 0.2)
    with never_accepting() as url:
        run = worked(plan_raw(url=url, timeout_s=60, max_attempts=1))

    assert (run.state, run.masked) == (RunState.SCORED, 3)
    calls = ModelCall.objects.all()
    assert {call.error_kind for call in calls} == {"connection"}
    assert all(call.latency_ms < 10_000 for call in calls)


# bodies without measure


@pytest.mark.parametrize("with_length", [True, False])
def test_a_body_beyond_16_mib_is_not_read_to_its_end(
    plan_raw: Plan, raw: RawProvider, with_length: bool
) -> None:
    body = completion("x" * (40 << 20))
    left: list[bool] = []

    def flood(wire: Wire, seen: Seen) -> None:
        left.append(wire.send(http(body) if with_length else chunked(body)))

    (call,) = contained(plan_raw(flood), raw, "protocol", 1)

    assert call.status == 200
    assert said([call])[0] == body[: runner.KEPT_OF_TOO_LARGE_BYTES]
    assert left == [False]  # the rest was never taken


def test_a_body_just_below_the_limit_is_an_answer(plan_raw: Plan, raw: RawProvider) -> None:
    text = "x" * ((16 << 20) - 1000)
    run = worked(plan_raw(say(http(completion(text)))))

    rollout = rollout_of(run, BAD)
    assert (rollout.state, rollout.answer_class, rollout.exact) == (RolloutState.SCORED, "not_json", False)
    assert rollout.answer == text


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_the_limit_holds_for_what_is_unpacked(plan_raw: Plan, raw: RawProvider, encoding: str) -> None:
    """A megabyte that unpacks to a gigabyte: it is left at 16 MiB, and memory with it."""
    packer = zlib.compressobj(9, wbits=31 if encoding == "gzip" else 15)
    block = b" " * (1 << 20)
    bomb = b"".join([*(packer.compress(block) for _ in range(1024)), packer.flush()])
    assert len(bomb) < 2 << 20
    run = plan_raw(say(http(bomb, headers=[f"Content-Encoding: {encoding}"])))

    tracemalloc.start()
    try:
        (call,) = contained(run, raw, "protocol", 1)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert "16 MiB" in call.error_text
    assert said([call])[0] == b" " * runner.KEPT_OF_TOO_LARGE_BYTES
    assert most < 128 << 20


def test_a_packed_answer_is_unpacked_and_scored(plan_raw: Plan, raw: RawProvider) -> None:
    def packed(wire: Wire, seen: Seen) -> None:
        wire.send(http(gzip.compress(completion(seen.right_answer)), headers=["Content-Encoding: gzip"]))

    run = worked(plan_raw(packed))

    assert (run.scored, rollout_of(run, BAD).exact) == (3, True)


# asked to wait


def once_then_right(first: bytes) -> Speak:
    return lambda wire, seen: wire.send(first) if seen.nth == 1 else answer_right(wire, seen)


def busy(retry_after: str, status: str = "429 Too Many Requests") -> bytes:
    return http(b"wait", status=status, headers=[f"Retry-After: {retry_after}"])


def pause_of(raw: RawProvider) -> float:
    first, second = raw.requests_of(BAD)
    return second.at - first.at


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Unavailable", "408 Timeout", "504 Timeout"])
def test_who_asks_for_two_seconds_is_not_asked_before(plan_raw: Plan, raw: RawProvider, status: str) -> None:
    run = worked(plan_raw(once_then_right(busy("2", status))))

    assert (run.scored, run.masked) == (3, 0)
    assert 2 <= pause_of(raw) < 6


def test_a_date_to_wait_for_is_honoured(plan_raw: Plan, raw: RawProvider) -> None:
    def speak(wire: Wire, seen: Seen) -> None:
        until = format_datetime(datetime.now(UTC) + timedelta(seconds=3), usegmt=True)
        once_then_right(busy(until))(wire, seen)

    run = worked(plan_raw(speak))

    assert run.scored == 3
    assert 1.5 <= pause_of(raw) < 6


@pytest.mark.parametrize(
    "asked",
    [
        "3600",
        "9" * 300,
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "Fri, 31 Dec 9999 23:59:59 -2359",
    ],
)
def test_who_asks_for_an_hour_is_asked_again_after_the_longest_wait(
    plan_raw: Plan, raw: RawProvider, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setattr(runner, "RETRY_AFTER_CLAMP_S", 0.3)
    run = worked(plan_raw(once_then_right(busy(asked))))

    assert (run.scored, run.masked) == (3, 0)
    assert 0.3 <= pause_of(raw) < 3


@pytest.mark.parametrize(
    "asked",
    [
        "soon",
        "",
        "-7",
        "1.5",
        "NaN",
        "1e9",
        "0x10",
        "\udcff\udcfe",
        "9" * 5000,
        "Fri, 32 Foo 2026 99:99:99 GMT",
        "Fri, 31 Dec 99999999999 23:59:59 GMT",
        "Fri, 31 Dec 2026 99999999999999999999:59:59 GMT",
        "Fri, 31 Dec 2026 23:59:59 +99999999999999",
    ],
)
def test_a_wish_to_wait_that_cannot_be_read_is_no_wish(plan_raw: Plan, raw: RawProvider, asked: str) -> None:
    run = worked(plan_raw(once_then_right(busy(asked))))

    assert (run.scored, run.masked) == (3, 0)
    assert pause_of(raw) < 3
    assert len(raw.seen) == 4  # nothing was asked twice but what failed


def test_the_waits_of_one_call_are_bounded_together(
    plan_raw: Plan, raw: RawProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "RETRY_AFTER_CLAMP_S", 0.2)
    start = time.monotonic()

    contained(plan_raw(say(busy("3600")), max_attempts=5), raw, "rate_limit", 5)

    assert 0.8 <= time.monotonic() - start < 6


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden", "400 Bad", "404 Gone", "422 No"])
def test_a_refusal_is_not_tried_again_whatever_it_asks_for(
    plan_raw: Plan, raw: RawProvider, status: str
) -> None:
    kind = "auth" if status[:3] in {"401", "403"} else "bad_request"

    (call,) = contained(plan_raw(say(busy("1", status))), raw, kind, 1)

    assert call.status == int(status[:3])


# answers that nothing was to come of


@pytest.mark.parametrize(
    "unasked",
    [
        pytest.param(http(completion("This belongs to nobody.")), id="an answer"),
        pytest.param(http(b"", status="408 Request Timeout"), id="a word that nobody has asked for long"),
    ],
)
def test_what_comes_unasked_on_an_idle_connection_is_nobody_s_answer(
    plan_raw: Plan, raw: RawProvider, unasked: bytes
) -> None:
    def speak(wire: Wire, seen: Seen) -> None:
        if seen.nth > 1:
            answer_right(wire, seen)
            return
        wire.send(busy("1"))
        wire.pause(0.2)  # now the connection waits for the second try
        wire.send(unasked)

    run = worked(plan_raw(speak, concurrency=1))

    assert (run.scored, run.masked) == (3, 0)
    assert set(run.rollouts.values_list("exact", flat=True)) == {True}
    assert [call.state for call in calls_of(rollout_of(run, BAD))] == [CallState.FAILED, CallState.ANSWERED]


def test_a_cookie_is_not_sent_back(plan_raw: Plan, raw: RawProvider) -> None:
    def speak(wire: Wire, seen: Seen) -> None:
        body = completion(seen.right_answer)
        wire.send(http(body, headers=["Set-Cookie: session=of-another-rollout; Path=/"]))

    raw.speak = speak
    worked(plan_raw(concurrency=1))

    assert len(raw.seen) == 3
    assert not any("Cookie" in seen.headers for seen in raw.seen)


def test_a_key_with_a_line_end_is_no_reason_to_lose_the_worker(
    plan_raw: Plan, raw: RawProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file that was mounted as a secret leaves it."""
    monkeypatch.setenv("ASSAY_KEY_RAW", "sk-secret\n")
    run = worked(plan_raw(key_env="ASSAY_KEY_RAW"))

    assert run.state in {RunState.SCORED, RunState.FAILED}
    assert not run.rollouts.filter(lost_workers__gt=0).exists()
    assert "sk-secret" not in run.error_detail
    assert all("\n" not in seen.headers.get("Authorization", "") for seen in raw.seen)


@pytest.mark.parametrize("status", ["401 Unauthorized", "200 OK"])
def test_a_key_that_the_provider_repeats_is_kept_nowhere(
    plan_raw: Plan, raw: RawProvider, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """Some gateways answer with the request they were sent; who may read a run need not know its key."""
    monkeypatch.setenv("ASSAY_KEY_RAW", "sk-very-secret")

    def speak(wire: Wire, seen: Seen) -> None:
        sent = seen.headers["Authorization"]
        assert sent == "Bearer sk-very-secret"
        wire.send(http(f"What is {sent}?".encode(), status=status, headers=[f"X-Sent: {sent}"]))

    run = worked(plan_raw(speak, key_env="ASSAY_KEY_RAW"))

    assert (run.scored, run.masked) == (2, 1)
    rows = [*ModelCall.objects.values(), *Rollout.objects.values(), *AuditEvent.objects.values()]
    kept = [str(row).encode() for row in rows] + [body_of(payload.pk) for payload in Payload.objects.all()]
    assert not any(b"sk-very-secret" in part for part in kept)
    assert b"What is Bearer " in said(calls_of(rollout_of(run, BAD)))[0]


# texts that databases and encoders stumble over


@pytest.mark.parametrize(
    "nasty",
    [
        *("a\x00b", "half \ud800 a pair", "\U0010ffff\ufffe", "'; DROP TABLE x; --", "\x1b[2J"),
        '{"decision": "call", "tool": "read_file", "arguments": {"path": 1e999}}',
        '{"decision": "call", "tool": "\\u0000", "arguments": {"\\ud800": "\\u0000"}}',
        '{"decision": "call", "tool": "read_file", "arguments": {"path": ' + "9" * 4000 + "}}",
    ],
)
def test_no_text_of_an_answer_stops_its_run(plan_raw: Plan, raw: RawProvider, nasty: str) -> None:
    body = json.loads(completion(nasty, finish_reason=f"stop{nasty}"))
    body |= {"id": nasty * 100, "model": nasty, "system_fingerprint": nasty}
    sent = json.dumps(body).encode()
    run = worked(plan_raw(say(http(sent, headers=["X-Odd: caf\udce9"]))))

    assert (run.scored, run.masked) == (3, 0)
    (call,) = calls_of(rollout_of(run, BAD))
    assert said([call]) == [sent]
    assert 0 < len(call.provider_response_id) <= 200


def search_row(key: str, **more: Any) -> dict[str, Any]:
    return {
        "example_id": key,
        "family": "tools",
        "messages": [{"role": "user", "content": f"{key}|find it"}],
        "tools": [{"name": "search", "description": "", "parameters": {"type": "object"}}],
        "checks": [{"op": "tool_called", "arg": "search"}],
        **more,
    }


def good_tool_case(wire: Wire, seen: Seen) -> None:
    last = json.loads(seen.body)["messages"][-1]
    wire.send(http(completion("done") if last["role"] == "tool" else tool_calls(("search", {"q": "x"}))))


def plan_tools(plan_raw: Plan, raw: RawProvider, speak: Speak, **limits: Any) -> EvalRun:
    """Three tool cases; BAD is treated by `speak`, the others call their tool and end."""
    run = plan_raw(rows=[search_row(key) for key in ("one", BAD, "three")], **limits)
    raw.speak = lambda wire, seen: (speak if seen.case == BAD else good_tool_case)(wire, seen)
    return run


@pytest.mark.parametrize(
    "nasty", ["a\x00b", "half \ud800 a pair", '{"q": "\\u0000"}', '{"q": "\\ud800"}', '{"q": 1e999}', ""]
)
def test_no_text_of_a_tool_call_stops_its_run(plan_raw: Plan, raw: RawProvider, nasty: str) -> None:
    def speak(wire: Wire, seen: Seen) -> None:
        calls = [("search", nasty), (nasty or "x", {"q": nasty})]
        wire.send(http(tool_calls(*calls) if seen.nth == 1 else completion("done")))

    run = worked(plan_tools(plan_raw, raw, speak))

    assert (run.scored, run.masked) == (3, 0)
    assert len(raw.requests_of(BAD)) == 2


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param("search", id="a text"),
        pytest.param({"name": "search"}, id="an object"),
        pytest.param(["search"], id="a list of texts"),
        pytest.param([{"id": "1"}], id="no function"),
        pytest.param([{"function": {"arguments": "{}"}}], id="no name"),
        pytest.param([{"function": {"name": "search", "arguments": {"q": 1}}}], id="arguments as an object"),
        pytest.param([{"type": "code", "function": {"name": "search"}}], id="another type"),
    ],
)
def test_malformed_tool_calls_are_the_providers_failure(plan_raw: Plan, raw: RawProvider, calls: Any) -> None:
    body = json.loads(completion(None))
    body["choices"][0]["message"]["tool_calls"] = calls
    sent = json.dumps(body).encode()
    run = plan_tools(plan_raw, raw, say(http(sent)))

    (call,) = contained(run, raw, "protocol", 1)

    assert said([call]) == [sent]


def calls_event(*calls: str) -> bytes:
    return f'data: {{"choices":[{{"index":0,"delta":{{"tool_calls":[{",".join(calls)}]}}}}]}}\n\n'.encode()


PIECE = '{"index":0,"id":"a","function":{"name":"search","arguments":"' + "x" * 60 + '"}}'


@pytest.mark.parametrize(
    ("stream", "state"),
    [
        pytest.param(calls_event(*['{"id":"a"}'] * 100_000), "masked", id="100,000 calls"),
        pytest.param(calls_event(PIECE) * 90_000, "scored", id="one call in 90,000 pieces"),
    ],
)
def test_reading_tool_calls_takes_time_in_proportion_to_their_bytes_and_not_to_its_square(
    plan_raw: Plan, raw: RawProvider, stream: bytes, state: str
) -> None:
    sent = chunked(stream + event(finish_reason="tool_calls"), headers=STREAM)
    run = plan_tools(
        plan_raw, raw, lambda wire, seen: wire.send(sent) if seen.nth == 1 else good_tool_case(wire, seen)
    )
    start = time.monotonic()

    worked(run)

    assert rollout_of(run, BAD).state == state
    assert time.monotonic() - start < 20


def test_very_many_good_tool_calls_are_answered_in_bounded_time(plan_raw: Plan, raw: RawProvider) -> None:
    def speak(wire: Wire, seen: Seen) -> None:
        body = tool_calls(*[("search", "{}")] * 20_000) if seen.nth == 1 else completion("done")
        wire.send(http(body))

    run = plan_tools(plan_raw, raw, speak)
    start = time.monotonic()

    worked(run)

    assert (run.state, run.scored) == (RunState.SCORED, 3)
    assert time.monotonic() - start < 20


# usage


@pytest.mark.parametrize(
    "usage",
    [
        pytest.param(None, id="missing"),
        pytest.param([1], id="a list"),
        pytest.param({"prompt_tokens": -1, "completion_tokens": -2}, id="negative"),
        pytest.param({"prompt_tokens": 1.5, "completion_tokens": 2.0}, id="fractions"),
        pytest.param({"prompt_tokens": 10**30, "completion_tokens": 2**63}, id="huge"),
        pytest.param({"prompt_tokens": 1e999, "completion_tokens": float("nan")}, id="no numbers"),
        pytest.param({"prompt_tokens": "11", "completion_tokens": True}, id="other types"),
    ],
)
def test_usage_that_cannot_be_is_unknown_and_the_answer_is_scored(
    plan_raw: Plan, raw: RawProvider, usage: Any
) -> None:
    prices = {"prompt_price": 1_000_000, "completion_price": 1_000_000}

    def speak(wire: Wire, seen: Seen) -> None:
        wire.send(http(completion(seen.right_answer, usage=usage)))

    run = worked(plan_raw(speak, **prices))

    rollout = rollout_of(run, BAD)
    (call,) = calls_of(rollout)
    assert (rollout.state, rollout.exact) == (RolloutState.SCORED, True)
    assert (call.prompt_tokens, call.completion_tokens, call.cost_microusd) == (None, None, None)
    assert (rollout.prompt_tokens, rollout.completion_tokens, rollout.cost_microusd) == (None, None, None)


def test_counts_of_several_turns_that_are_too_large_together_do_not_stop_the_run(
    plan_raw: Plan, raw: RawProvider
) -> None:
    most = {"prompt_tokens": 2**31 - 1, "completion_tokens": 2**31 - 1}

    def speak(wire: Wire, seen: Seen) -> None:
        answer = completion("done", usage=most)
        wire.send(http(tool_calls(("search", {"q": "x"}), usage=most) if seen.nth == 1 else answer))

    run = plan_tools(plan_raw, raw, speak)
    worked(run)

    assert (run.state, run.scored, run.masked, run.unscored) == (RunState.SCORED, 3, 0, 0)
    assert [call.prompt_tokens for call in calls_of(rollout_of(run, BAD))] == [2**31 - 1] * 2


# the same line asks a judge


@pytest.mark.parametrize(
    "speak",
    [
        pytest.param(say(http(PAGE)), id="a page"),
        pytest.param(say_and_close(http(BEGINNING, length=5000)), id="broken off"),
        pytest.param(lambda wire, seen: wire.close(), id="nothing"),
        pytest.param(lambda wire, seen: wire.say_nothing(), id="silence"),
        pytest.param(say_and_close(b"SSH-2.0\r\n\r\n"), id="another protocol"),
        pytest.param(say(http(completion("x" * (17 << 20)))), id="without measure"),
    ],
)
def test_a_judges_endpoint_that_misbehaves_leaves_the_answer_unscored(
    engineer: User, raw: RawProvider, speak: Speak
) -> None:
    raw.speak = lambda wire, seen: wire.send(http(completion("Hello!")))
    row = {
        "example_id": "one",
        "family": "prose",
        "messages": [{"role": "user", "content": "one|greet"}],
        "rubric": "It greets.",
    }

    def saved(name: str, url: str) -> Backend:
        config = {"base_url": url}
        return backends.save(
            name=name, kind="openai_compatible", config=config, by=engineer, timeout_s=1, max_attempts=2
        )

    with RawProvider(speak).running() as judge:
        run = runs.plan(
            subject=factories.remote_subject(),
            suite=suites.seal(name="prose", data=factories.jsonl([row]), by=engineer, scorer="judge"),
            backend=saved("model", raw.url),
            by=engineer,
            judge=runs.Judge(saved("judge", judge.url), "judge-1"),
        )
        worked(run)
        asked = len(judge.seen)

    rollout = run.rollouts.get()
    assert (run.state, run.unscored) == (RunState.SCORED, 1)
    assert (rollout.failure_kind, rollout.answer, rollout.exact) == ("judge", "Hello!", None)
    first, *judged = calls_of(rollout)
    assert first.state == CallState.ANSWERED
    assert 1 <= len(judged) == asked <= 2
    assert all(call.state == CallState.FAILED for call in judged)
