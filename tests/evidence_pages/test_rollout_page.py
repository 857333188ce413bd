"""The page of a rollout: its trajectory by pages of 200 events, every byte that it can be given, and raw downloads."""

from __future__ import annotations

import gc
import json
import re
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from rollouts import captured as reading
from rollouts.models import CallPurpose, ModelCall, Payload, Rollout
from rollouts.trajectory import done, sent
from tests import factories
from tests.evidence_pages.conftest import asked, captured, payload, said
from tests.web.conftest import html, signed_in
from tests.web.measured import RIGHT, give, planned
from tests.web.world import HOSTILE

pytestmark = pytest.mark.django_db
USER = {"role": "user", "content": "Book it."}


@pytest.fixture
def rollout(house: factories.House) -> Rollout:
    suite = factories.suite(house.engineer, name="one", calls=1)
    return give(planned(house, suite=suite), lambda *_: RIGHT, close=True).rollouts.get()


@pytest.fixture
def client(house: factories.House) -> Client:
    return signed_in(house.auditor)


def page(client: Client, rollout: Rollout, **params: Any) -> str:
    response = client.get(reverse("rollouts:rollout", args=[rollout.pk]), params)
    assert response.status_code == 200
    return html(response)


def trajectory_of(shown: str) -> str:
    return shown[shown.index('id="trajectory"') : shown.index('id="inv-h"')]


def events(rollout: Rollout) -> Iterator[tuple[str, str, str]]:
    """All of them, page by page."""
    found = reading.trajectory(rollout)
    while True:
        yield from ((event.kind, event.who, event.text) for event in found.events)
        if found.next is None:
            return
        found = reading.trajectory(rollout, reading.cursor(str(found.next)))


def test_a_dialogue_is_shown_turn_by_turn_with_what_the_tools_answered(
    client: Client, rollout: Rollout
) -> None:
    call = {"id": "c0", "function": {"name": "find", "arguments": "{}"}}
    turn = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c0", "content": '{"rooms": 3}'}
    captured(
        rollout,
        [
            (asked(USER), said(None, ("find", "{}"), finish="tool_calls", reasoning_content="First I look.")),
            (asked(USER, turn, result), None),
            (asked(USER, turn, result), said("There are three.")),
        ],
    )
    assert list(events(rollout)) == [
        ("message", "user", "Book it."),
        ("thought", "", "First I look."),
        ("call", "find", "{}"),
        ("result", "find", '{"rooms": 3}'),
        ("failed", "server", "The provider failed (503)."),
        ("result", "find", '{"rooms": 3}'),
        ("said", "", "There are three."),
    ]
    shown = trajectory_of(page(client, rollout))
    for text in (
        "called <code>find</code>",
        "result of <code>find</code>",
        "attempt failed: server",
        "ended by stop",
    ):
        assert text in shown


def test_a_retry_sends_nothing_new(rollout: Rollout) -> None:
    invocation = captured(rollout, [(asked(USER), None)])
    ModelCall.objects.create(
        invocation=invocation, turn=0, attempt=2, dialect="openai.chat", state="answered", status=200,
        request=payload(asked(USER)), response=payload(said("Yes.")), created_at=invocation.started_at,
    )  # fmt: skip
    assert [event[:2] for event in events(rollout)] == [
        ("message", "user"),
        ("failed", "server"),
        ("said", ""),
    ]


def test_the_judge_s_calls_are_no_part_of_the_trajectory(rollout: Rollout) -> None:
    captured(rollout, [(asked(USER), said("1"))], purpose=CallPurpose.JUDGE)
    assert list(events(rollout)) == []


@pytest.mark.parametrize("per_call", [1, 99, 50_000])
def test_every_event_is_on_exactly_one_page_and_each_page_has_up_to_200(
    rollout: Rollout, per_call: int
) -> None:
    total = 100_000 if per_call == 50_000 else 1_000
    calls = [(f"t{n}", f'{{"n": {n}}}') for n in range(total)]
    groups = [calls[at : at + per_call] for at in range(0, total, per_call)]
    captured(rollout, [(b"{}", said(None, *group)) for group in groups])
    if total < 2_000:
        assert [event[1] for event in events(rollout)] == [name for name, _ in calls]
        return
    first = reading.trajectory(rollout)
    assert [event.who for event in first.events] == [f"t{n}" for n in range(200)]
    late = reading.trajectory(rollout, reading.Cursor(1, 1, 49_900))
    assert [event.who for event in late.events] == [f"t{n}" for n in range(99_900, 100_000)]
    assert late.next is None


def test_the_first_200_of_100_000_events_come_within_half_a_second_and_little_memory(
    client: Client, rollout: Rollout
) -> None:
    """2,000 turns of 50 events: 24 calls and their results, a thought and a text."""
    calls = [("find", f'{{"n": {n}}}') for n in range(24)]
    answer = said("I look.", *calls, reasoning_content="Hm.")
    turn = json.loads(answer)["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": f"c{n}", "content": "ok"} for n in range(24)]
    captured(rollout, [(asked(USER, turn, *results), answer)] * 2_000)
    page(client, rollout)
    gc.collect()
    start = time.perf_counter()
    shown = page(client, rollout)
    assert time.perf_counter() - start < 0.5
    assert trajectory_of(shown).count('<li class="event') == 200
    [following] = re.findall(r'href="\?from=([0-9.]+)#trajectory"', shown)
    tracemalloc.start()
    assert trajectory_of(page(client, rollout, **{"from": following})).count('<li class="event') == 200
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30_000_000
    assert len(shown) < 1_000_000
    last = page(client, rollout, **{"from": "1999.1.0"})
    assert 'href="?from=' not in last
    assert "First events" in last


def test_the_number_of_queries_is_the_same_for_one_call_and_a_thousand(
    client: Client, rollout: Rollout
) -> None:
    def queries() -> int:
        page(client, rollout)
        with CaptureQueriesContext(connection) as found:
            page(client, rollout)
        return len(found)

    captured(rollout, [(asked(USER), said("y"))])
    few = queries()
    captured(rollout, [(asked({**USER, "content": f"{n}"}), said(f"y{n}")) for n in range(1000)])
    assert queries() == few


@pytest.mark.parametrize("given", ["x", "1.1", "1.1.1.1", "-1.1.1", "٣.1.1", "1.1." + "9" * 30, "<script>"])
def test_a_place_that_no_page_gave_is_refused(client: Client, rollout: Rollout, given: str) -> None:
    address = reverse("rollouts:rollout", args=[rollout.pk])
    response = client.get(address, {"from": given})
    assert response.status_code == 400
    assert "<script>" not in html(response)


BODIES = {
    "a line of a megabyte": said("x" * 1_000_000),
    "NUL bytes": b"\x00\x00 not JSON \x00",
    "invalid UTF-8": b"\xff\xfe\xfd" * 100,
    "HTML": b"<!doctype html><script>alert(1)</script><img src=x onerror=alert(1)>",
    "lone surrogates": rb'{"choices": [{"message": {"content": "half \ud83d of it", "tool_calls": [{"id": "\udc00", "function": {"name": "a\ud800b", "arguments": "\udfff"}}]}, "finish_reason": "\ud801"}]}',
    "hostile text": said(HOSTILE, (HOSTILE, HOSTILE), finish=HOSTILE),
    "terminal escapes": said("\x1b[2J\x1b]0;owned\x07 \x9b31m"),
    "an empty body": b"",
    "no answer at all": b"{}",
    "deep nesting": b"[" * 100_000,
    "a number": b"1",
    "odd messages": b'{"choices": [{"message": 7}]}',
}  # fmt: skip


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_whatever_bytes_were_captured_the_page_shows_them_as_text(
    client: Client, rollout: Rollout, body: bytes
) -> None:
    captured(rollout, [(body, body)])
    Rollout.objects.filter(pk=rollout.pk).update(finish_reason="\u202estop", failure_reason=HOSTILE)
    shown = page(client, rollout)
    assert "<script>alert" not in shown
    assert "<img src=x" not in shown
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\ud800-\udfff]", shown)
    assert len(shown) < 100_000
    for name in ("request", "response"):
        response = client.get(reverse(f"rollouts:{name}", args=[ModelCall.objects.get().pk]))
        assert b"".join(response.streaming_content) == body
        assert response["Content-Type"] == "text/plain; charset=utf-8"
        assert response["X-Content-Type-Options"] == "nosniff"
        assert int(response["Content-Length"]) == len(body)


@pytest.mark.parametrize("body", [b"a" * 40_000_000, None], ids=["of one letter", "that does not compress"])
def test_a_body_of_40_megabytes_is_not_read_for_the_page_and_streams_as_a_download(
    client: Client, rollout: Rollout, body: bytes | None
) -> None:
    if body is None:
        piece = b"".join(zlib.compress(str(n).encode()) for n in range(60_000))
        body = (piece * (40_000_000 // len(piece) + 1))[:40_000_000]
        made = Payload.objects.create(sha256="f" * 64, size_bytes=len(body), data=zlib.compress(body, 0))
    else:
        made = payload(body)
    captured(rollout, [(asked(USER), said("x"))])
    call = ModelCall.objects.get()
    ModelCall.objects.filter(pk=call.pk).update(response=made)
    gc.collect()
    tracemalloc.start()
    start = time.perf_counter()
    shown = page(client, rollout)
    taken = time.perf_counter() - start
    response = client.get(reverse("rollouts:response", args=[call.pk]))
    size = sum(map(len, response.streaming_content))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size == len(body)
    assert "has 40,000,000 bytes, and is not read here" in shown
    assert "of 40,000,000 bytes." in shown
    assert taken < 1.0
    # not a fifth of the body
    assert peak < 8_000_000


def test_a_broken_payload_ends_its_download_and_does_not_run_on(client: Client, rollout: Rollout) -> None:
    captured(rollout, [(asked(USER), said("x" * 5000))])
    call = ModelCall.objects.select_related("response").get()
    Payload.objects.filter(pk=call.response_id).update(data=bytes(call.response.data)[:20])
    response = client.get(reverse("rollouts:response", args=[call.pk]))
    assert len(b"".join(response.streaming_content)) < 5000


def test_what_cannot_be_read_is_an_event_that_says_so() -> None:
    assert [event.kind for event in done(b"nonsense", "openai.chat", 0)] == ["unread"]
    assert [event.kind for event in done(b'{"text": 3}', "plugin", 0)] == ["unread"]
    assert [event.text for event in done(b'{"text": "yes"}', "plugin", 0)] == ["yes"]
    assert list(sent(b"nonsense", 0, opening=True)) == []
    assert [event.text for event in sent(json.dumps({"messages": [1, USER]}).encode(), 0, opening=True)] == [
        "Book it."
    ]
