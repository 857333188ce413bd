"""What was captured of a rollout, in parts that a page can carry: events by the page, beginnings of bodies, bodies in pieces."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from django.db.models import BinaryField, Q
from django.db.models.functions import Substr

from rollouts.errors import InvalidInput, NotFound
from rollouts.models import CallPurpose, CallState, Invocation, ModelCall, Payload, Rollout
from rollouts.text import SHOWN_CHARS, Shown, body_shown, unpacked
from rollouts.trajectory import READ_BYTES, Event, done, sent

EVENTS_A_PAGE = 200
CALLS_SHOWN = 50
# compressed bytes that a download reads at a time
PIECE_BYTES = 1 << 20
CURSOR = re.compile(r"([0-9]{1,5})\.([0-9]{1,5})\.([0-9]{1,7})")


class Cursor(NamedTuple):
    """An event's place: turn and attempt of its model call, and its number among the events of that call."""

    turn: int
    attempt: int
    event: int

    def __str__(self) -> str:
        return ".".join(map(str, self))


START = Cursor(0, 0, 0)


def cursor(given: str) -> Cursor:
    """Raises `InvalidInput` for what no page gave."""
    if not given:
        return START
    found = CURSOR.fullmatch(given) if given.isascii() else None
    if found is None:
        raise InvalidInput(
            "from", "is not a place that a page of this rollout gave. Begin with the first events."
        )
    return Cursor(*(int(part) for part in found.groups()))


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Up to 200 events from a place on. `next` is the place of the following one, None at the end."""

    events: list[Event]
    start: Cursor
    next: Cursor | None

    @property
    def following(self) -> str:
        """The next page's place as an address gives it; empty at the end."""
        return str(self.next) if self.next else ""

    @property
    def first(self) -> bool:
        return self.start == START


def trajectory(rollout: Rollout, start: Cursor = START, *, at_most: int = EVENTS_A_PAGE) -> Trajectory:
    """The events of the invocation that gave the answer, else of the newest. Three queries, whatever their number.

    Of the bodies at most 8 MiB are read (one at least), so that a page ends early rather than hold more.
    """
    calls = list(_calls_from(rollout, start)[: at_most + 1])
    read = _within_budget(calls)
    bodies = _bodies([call for call in calls[:read] if _readable(call)])
    events: list[Event] = []
    for call in calls[:read]:
        first = start.event if (call.turn, call.attempt) == start[:2] else 0
        found = islice(_events(call, bodies), first, None)
        for number, event in enumerate(found, first):
            if len(events) == at_most:
                return Trajectory(events, start, Cursor(call.turn, call.attempt, number))
            events.append(event)
    rest = calls[read : read + 1]
    return Trajectory(events, start, Cursor(rest[0].turn, rest[0].attempt, 0) if rest else None)


def _calls_from(rollout: Rollout, start: Cursor) -> Any:
    invocation = rollout.answered_by_id or (
        rollout.invocations.order_by("-id").values_list("id", flat=True).first()
    )
    later = Q(turn__gt=start.turn) | Q(turn=start.turn, attempt__gte=start.attempt)
    calls = ModelCall.objects.filter(later, invocation_id=invocation, purpose=CallPurpose.POLICY)
    sized = calls.select_related("request", "response").defer("request__data", "response__data")
    return sized.order_by("turn", "attempt")


def _sizes(call: ModelCall) -> list[int]:
    return [body.size_bytes for body in (call.request, call.response) if body is not None]


def _readable(call: ModelCall) -> bool:
    return all(size <= READ_BYTES for size in _sizes(call))


def _within_budget(calls: list[ModelCall]) -> int:
    """How many of the calls are read, one at least."""
    total = 0
    for number, call in enumerate(calls):
        total += sum(_sizes(call)) if _readable(call) else 0
        if number and total > READ_BYTES:
            return number
    return len(calls)


def _bodies(calls: Iterable[ModelCall]) -> dict[str, bytes]:
    wanted = {digest for call in calls for digest in (call.request_id, call.response_id) if digest}
    rows = Payload.objects.filter(pk__in=wanted).values_list("pk", "data", "size_bytes")
    return {digest: unpacked(bytes(data), size) for digest, data, size in rows}


def _events(call: ModelCall, bodies: dict[str, bytes]) -> Iterator[Event]:
    if not _readable(call):
        size = max(_sizes(call))
        yield Event(
            "unread", f"A body of this call has {size:,} bytes, and is not read here.", turn=call.turn
        )
        return
    if call.attempt == 1:
        yield from sent(bodies.get(call.request_id), call.turn, opening=call.turn == 0)
    if call.state == CallState.ANSWERED:
        yield from done(bodies.get(call.response_id or ""), call.dialect, call.turn)
    else:
        yield Event("failed", call.error_text, call.error_kind or call.state, call.turn)


# bodies


class CallShown(NamedTuple):
    """A model call with the beginnings of its bodies; `response` is None where nothing came."""

    call: ModelCall
    request: Shown
    response: Shown | None


class Execution(NamedTuple):
    """An invocation with its model calls, oldest first."""

    invocation: Invocation
    calls: list[CallShown]


def executions_of(rollout: Rollout) -> list[Execution]:
    """The first 50 invocations of a rollout, and the first 50 calls of all of them. Two queries."""
    invocations = list(rollout.invocations.select_related("claim").order_by("id")[:CALLS_SHOWN])
    calls = ModelCall.objects.filter(invocation__in=invocations)
    by_invocation: dict[int, list[CallShown]] = {}
    for shown in calls_shown(calls.order_by("invocation_id", "turn", "attempt"), CALLS_SHOWN):
        by_invocation.setdefault(shown.call.invocation_id, []).append(shown)
    return [Execution(found, by_invocation.get(found.pk, [])) for found in invocations]


def calls_shown(calls: Any, at_most: int, *, limit: int = SHOWN_CHARS) -> list[CallShown]:
    """Calls with at most `limit` bytes of each body. One query; of a long body only the beginning is fetched."""
    # what does not compress gets hardly longer
    head_bytes = 2 * limit + 1024
    heads = {
        f"{part}_head": Substr(f"{part}__data", 1, head_bytes, output_field=BinaryField())
        for part in ("request", "response")
    }
    sized = calls.select_related("request", "response").defer("request__data", "response__data")
    return [
        CallShown(
            call,
            body_shown(bytes(call.request_head), call.request.size_bytes, limit),
            body_shown(bytes(call.response_head), call.response.size_bytes, limit) if call.response else None,
        )
        for call in sized.annotate(**heads)[:at_most]
    ]


def body_of(call: ModelCall, part: str) -> tuple[int, Iterator[bytes]]:
    """The size of a call's request or response, and its bytes in pieces. Raises `NotFound` where there is none."""
    digest = getattr(call, f"{part}_id")
    if digest is None:
        raise NotFound(f"This model call has no {part}.")
    size = Payload.objects.values_list("size_bytes", flat=True).get(pk=digest)
    return size, _pieces(digest)


def _pieces(digest: str) -> Iterator[bytes]:
    inflater, at = zlib.decompressobj(), 1
    while not inflater.eof:
        piece = Substr("data", at, PIECE_BYTES, output_field=BinaryField())
        data = bytes(Payload.objects.annotate(piece=piece).values_list("piece", flat=True).get(pk=digest))
        if not data:
            break
        at += len(data)
        while data:
            found = inflater.decompress(data, PIECE_BYTES)
            data = inflater.unconsumed_tail
            if found:
                yield found
    if rest := inflater.flush():
        yield rest
