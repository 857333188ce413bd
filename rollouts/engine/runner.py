"""One shard: one asyncio loop, one aiohttp pool, many rollouts at once. It knows no ORM model.

The recorder it is given makes every attempt durable before its request is sent, and completes it before the next is
opened. A worker coroutine does not wait for the writing of its last result: it takes the next rollout, and the shard
waits for all writes at its end.
"""

from __future__ import annotations

import asyncio
import io
import random
import time
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Literal, NamedTuple, Protocol

import aiohttp

from rollouts.backends.base import Backend, Completion, Opened, ProviderRequest
from rollouts.engine.dialogue import Dialogue
from rollouts.failures import CallFailed
from rollouts.scoring import judge as judging
from rollouts.scoring import score
from rollouts.scoring.base import Answer, Score

MAX_RESPONSE_BYTES = 16 << 20
KEPT_OF_TOO_LARGE_BYTES = 1 << 16
LARGE_BODY_BYTES = 1 << 20
MIN_KEY_CHARS = 8
KEY_STAND_IN = "[key]"
CONNECT_TIMEOUT_S = 10
RETRY_AFTER_CLAMP_S = 30.0
BACKOFF_S = 0.5
# how soon to ask again for rollouts whose answer another worker is about to bring, or whose budget is in flight
WAIT_S = 0.2
# after this long beyond a shard's time nothing more is sent for a rollout, so that a task ends before its time limit
OVERTIME_S = 300.0
JUDGE_SAMPLING = {"temperature": 0, "max_tokens": 512}

Purpose = Literal["policy", "judge"]


class Opening(NamedTuple):
    """A call whose row is committed: it may be sent, though not before `send_at` (seconds of `time.time`)."""

    call_id: int
    send_at: float


@dataclass(slots=True)
class Work:
    """A claimed rollout. `request` and `opening` are its first attempt; both None where its answer is known already.

    Then `dialogue` has taken that answer, and only a judge is asked.
    """

    rollout_id: int
    invocation_id: int
    dialogue: Dialogue
    request: ProviderRequest | None
    opening: Opening | None


class Claimed(NamedTuple):
    """`waiting`: how many rollouts are held until another worker's call, or the budget, lets them go on."""

    works: list[Work]
    dry: bool
    waiting: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one HTTP attempt came to. `completion` is set exactly where `error` is not.

    `body` is what came of it: of a failed attempt the beginning, where one came.
    """

    call_id: int
    purpose: Purpose
    request: ProviderRequest
    status: int | None
    headers: dict[str, str] | None
    body: bytes | None
    latency_ms: float
    first_byte_ms: float | None
    completion: Completion | None
    error: CallFailed | None


@dataclass(slots=True)
class Result:
    """What a rollout came to: a score, or an error and, where the model did answer, the answer beside it.

    `steps` are the answered turns of the model under test; `last` is the attempt that no other call has followed.
    """

    last: Attempt | None = None
    steps: list[Attempt] = field(default_factory=list)
    answer: Answer | None = None
    score: Score | None = None
    error: CallFailed | None = None


class LeaseLost(Exception):
    """The claim was taken away; what still comes in is kept as a fact and never scored."""


class Recorder(Protocol):
    """Makes facts durable. An awaited call has been committed when it returns."""

    async def claim(self, limit: int) -> Claimed: ...

    async def follow(
        self,
        work: Work,
        done: Attempt | None,
        request: ProviderRequest,
        *,
        turn: int,
        attempt: int,
        purpose: Purpose,
    ) -> Opening:
        """Completes `done` and opens the next call. Raises `CallFailed("budget")`; `done` is completed then too."""
        ...

    def finish(self, work: Work, result: Result) -> Awaitable[None]: ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A backend that is ready, and how long and how often to ask it."""

    backend: Backend
    opened: Opened
    concurrency: int
    timeout_s: float
    max_attempts: int
    remote_model: str = ""


@dataclass(frozen=True, slots=True)
class Shard:
    """`claim_until` is in seconds of `time.monotonic`: no new work after it. `judge` only where the scorer needs one."""

    scorer: str
    policy: Endpoint
    judge: Endpoint | None
    claim_until: float


async def run_shard(recorder: Recorder, shard: Shard) -> int:
    """Works until nothing is queued or the time is up; returns the number of rollouts that it finished itself.

    Raises `LeaseLost` where the claim was taken away, and whatever the recorder raises.
    """
    feed = _Feed(recorder, shard)
    writes: set[asyncio.Future[None]] = set()
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(_session(shard.policy))
        policy, judge = _Line(shard.policy, recorder, "policy", session, shard), None
        if shard.judge is not None:
            session = await stack.enter_async_context(_session(shard.judge))
            judge = _Line(shard.judge, recorder, "judge", session, shard)

        async def worker() -> None:
            while (work := await feed.next()) is not None:
                result = await _roll_out(work, shard.scorer, policy, judge)
                write = asyncio.ensure_future(recorder.finish(work, result))
                writes.add(write)
                write.add_done_callback(lambda done: writes.discard(done) if _went_well(done) else None)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(shard.policy.concurrency):
                    group.create_task(worker())
        except BaseExceptionGroup as failed:
            # the first cause says it; the others are the same loss seen by the other workers
            raise _first(failed) from failed
        if writes:
            await asyncio.gather(*writes)
    return feed.given


class _Connector(aiohttp.TCPConnector):
    """Gives out no idle connection on which something came unasked: it would be read as the next request's answer."""

    async def _get(self, key: Any, traces: Any) -> Any:
        while (connection := await super()._get(key, traces)) is not None:
            protocol = connection.protocol
            if protocol is not None and not protocol.should_close:
                return connection
            connection.close()
        return None


def _session(endpoint: Endpoint) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=_Connector(limit=0),
        timeout=aiohttp.ClientTimeout(total=endpoint.timeout_s, sock_connect=CONNECT_TIMEOUT_S),
        headers={"Content-Type": "application/json", **endpoint.opened.headers},
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def _went_well(done: asyncio.Future[None]) -> bool:
    return not done.cancelled() and done.exception() is None


def _first(failed: BaseException) -> BaseException:
    while isinstance(failed, BaseExceptionGroup):
        failed = failed.exceptions[0]
    return failed


class _Feed:
    """Hands out claimed work and claims more before it runs dry."""

    def __init__(self, recorder: Recorder, shard: Shard) -> None:
        self._recorder = recorder
        self._concurrency = shard.policy.concurrency
        self._until = shard.claim_until
        self._ready: deque[Work] = deque()
        self._dry = False
        self._waiting = 0
        self._idle = False
        self._claiming: asyncio.Task[None] | None = None
        self.given = 0

    async def next(self) -> Work | None:
        while True:
            if len(self._ready) < self._concurrency:
                self._claim_ahead()
            if self._ready:
                self.given += 1
                return self._ready.popleft()
            if self._claiming is None:
                return None
            await asyncio.shield(self._claiming)

    def _claim_ahead(self) -> None:
        if self._claiming is not None and self._claiming.done():
            self._claiming.result()
            self._claiming = None
        more = not self._dry or self._waiting
        if self._claiming is None and more and time.monotonic() < self._until:
            self._claiming = asyncio.create_task(self._claim())

    async def _claim(self) -> None:
        if self._dry or self._idle:
            await asyncio.sleep(WAIT_S)
        works, self._dry, self._waiting = await self._recorder.claim(2 * self._concurrency)
        self._idle = not works
        self._ready.extend(works)


async def _roll_out(work: Work, scorer: str, policy: _Line, judge: _Line | None) -> Result:
    """Every turn of a rollout, then its score; a judge's word where the scorer wants one."""
    result = Result()
    try:
        turn = await _turns(work, policy, result)
        result.answer = work.dialogue.answer
        if judge is None:
            result.score = score(scorer, work.dialogue.content, result.answer)
        else:
            await _judge(work, judge, turn, result)
    except CallFailed as failed:
        result.error = failed
    except Exception as error:
        if result.answer is None:
            raise
        # the answer is kept: a scorer's fault is never the model's 0
        result.error = CallFailed("scorer", f"{type(error).__name__}: {error}"[:500])
    return result


async def _turns(work: Work, policy: _Line, result: Result) -> int:
    """Asks until the dialogue is over; returns the number of the next turn. Raises `CallFailed`."""
    turn, request, opening = 0, work.request, work.opening
    while request is not None:
        if opening is None:
            opening = await policy.follow(work, result, request, turn)
        await policy.ask(work, result, request, opening, turn)
        assert result.last is not None and result.last.completion is not None
        result.steps.append(result.last)
        request, opening, turn = work.dialogue.take(result.last.completion), None, turn + 1
    return turn


async def _judge(work: Work, judge: _Line, turn: int, result: Result) -> None:
    assert result.answer is not None
    content = work.dialogue.content
    result.score = judging.without_judge(content, result.answer)
    if result.score is not None:
        return
    request = judge.endpoint.backend.request(
        messages=judging.request_messages(content, result.answer),
        sampling=JUDGE_SAMPLING,
        sample_index=0,
        remote_model=judge.endpoint.remote_model,
    )
    try:
        opening = await judge.follow(work, result, request, turn)
        async with judge.free:
            await judge.ask(work, result, request, opening, turn)
        assert result.last is not None and result.last.completion is not None
        result.score = judging.read(content, result.answer, result.last.completion.text)
    except judging.JudgeFailed as failed:
        raise CallFailed("judge", str(failed)) from failed
    except CallFailed as failed:
        if failed.kind == "budget":
            raise
        raise CallFailed(
            "judge", f"The judge could not be asked ({failed.kind}): {failed.message}"
        ) from failed


class _Line:
    """Asks one endpoint, with its retries."""

    def __init__(
        self,
        endpoint: Endpoint,
        recorder: Recorder,
        purpose: Purpose,
        session: aiohttp.ClientSession,
        shard: Shard,
    ) -> None:
        self.endpoint = endpoint
        self.free = asyncio.Semaphore(endpoint.concurrency)
        self._recorder = recorder
        self._purpose: Purpose = purpose
        self._session = session
        self._last_follow = shard.claim_until + OVERTIME_S
        self._keys = _keys_in(endpoint.opened.headers)

    async def follow(
        self, work: Work, result: Result, request: ProviderRequest, turn: int, attempt: int = 1
    ) -> Opening:
        if time.monotonic() > self._last_follow:
            raise CallFailed("timeout", "The rollout took longer than a shard may. Run it again.")
        done, result.last = result.last, None
        return await self._recorder.follow(
            work, done, request, turn=turn, attempt=attempt, purpose=self._purpose
        )

    async def ask(
        self, work: Work, result: Result, request: ProviderRequest, opening: Opening, turn: int
    ) -> None:
        """Leaves the answered attempt in `result.last`. Raises `CallFailed` with the failed one there."""
        for number in range(1, self.endpoint.max_attempts + 1):
            if (wait := opening.send_at - time.time()) > 0:
                await asyncio.sleep(wait)
            result.last = attempt = await self._attempt(opening.call_id, request)
            if attempt.error is None:
                return
            if not attempt.error.retryable or number == self.endpoint.max_attempts:
                raise attempt.error
            try:
                opening = await self.follow(work, result, request, turn, number + 1)
            except CallFailed:  # no budget or time for another try: what failed is still the provider
                raise attempt.error from None
            await asyncio.sleep(pause_s(number, attempt.error.retry_after_s))
        raise AssertionError("max_attempts is at least 1")

    async def _attempt(self, call_id: int, request: ProviderRequest) -> Attempt:
        start = time.perf_counter()
        status: int | None = None
        headers: dict[str, str] | None = None
        arrived = _Arrived(start)
        completion: Completion | None = None
        error: CallFailed | None = None
        backend = self.endpoint.backend
        try:
            if backend.speaks_http:
                async with self._session.post(
                    self.endpoint.opened.base_url + request.path,
                    data=_sendable(request.body),
                    allow_redirects=False,
                ) as response:
                    status, headers = response.status, dict(response.headers)
                    await arrived.read(response)
                arrived.leave_out(self._keys)
                _raise_for_status(status, response.headers, arrived.body)
            else:
                answered = await asyncio.wait_for(backend.call(request), self.endpoint.timeout_s)
                arrived.add(answered)
            completion = backend.read(arrived.body)
        except CallFailed as failed:
            error = failed
        except aiohttp.ConnectionTimeoutError:
            error = CallFailed("connection", f"No connection within {CONNECT_TIMEOUT_S} s.", retryable=True)
        except TimeoutError:
            error = CallFailed("timeout", "No complete answer within the backend's timeout.", retryable=True)
        except aiohttp.ClientPayloadError as broken:
            error = CallFailed("truncated_stream", f"The answer broke off: {broken}", retryable=True)
        except aiohttp.ClientResponseError as broken:
            error = CallFailed("protocol", f"The answer is no HTTP: {broken.message}"[:500], retryable=True)
        except (aiohttp.ClientError, OSError) as broken:
            error = CallFailed("connection", f"{type(broken).__name__}: {broken}"[:500], retryable=True)
        arrived.leave_out(self._keys)  # also of what broke off
        return Attempt(
            call_id=call_id,
            purpose=self._purpose,
            request=request,
            status=status,
            headers=headers if headers is None else _without(self._keys, headers),
            body=arrived.body if status is not None or arrived.first_byte_ms is not None else None,
            latency_ms=(time.perf_counter() - start) * 1000,
            first_byte_ms=arrived.first_byte_ms,
            completion=completion,
            error=error,
        )


def _keys_in(headers: Mapping[str, str]) -> list[str]:
    """What follows the scheme in each header that is sent, where it is long enough to be a key."""
    values = [value.split()[-1] for value in headers.values() if value.split()]
    return [value for value in values if len(value) >= MIN_KEY_CHARS]


def _without(keys: Sequence[str], headers: Mapping[str, str]) -> dict[str, str]:
    kept = dict(headers)
    for key in keys:
        kept = {name: value.replace(key, KEY_STAND_IN) for name, value in kept.items()}
    return kept


def _sendable(body: bytes) -> bytes | io.BytesIO:
    """aiohttp writes bytes in one go, and warns of it where they are many."""
    return body if len(body) <= LARGE_BODY_BYTES else io.BytesIO(body)


class _Arrived:
    """The bytes of an answer as far as they came, and when the first did."""

    __slots__ = ("_chunks", "_start", "first_byte_ms", "size")

    def __init__(self, start: float) -> None:
        self._start = start
        self._chunks: list[bytes] = []
        self.size = 0
        self.first_byte_ms: float | None = None

    @property
    def body(self) -> bytes:
        return b"".join(self._chunks)

    def leave_out(self, keys: Sequence[str]) -> None:
        """A provider that repeats the request it was sent must not put its key before those who read runs."""
        for key in keys:
            if key.encode() in (body := self.body):
                self._chunks = [body.replace(key.encode(), KEY_STAND_IN.encode())]

    def add(self, chunk: bytes) -> None:
        if self.first_byte_ms is None:
            self.first_byte_ms = (time.perf_counter() - self._start) * 1000
        self._chunks.append(chunk)
        self.size += len(chunk)

    async def read(self, response: aiohttp.ClientResponse) -> None:
        async for chunk in response.content.iter_any():
            self.add(chunk)
            if self.size > MAX_RESPONSE_BYTES:
                self._chunks = [self.body[:KEPT_OF_TOO_LARGE_BYTES]]
                raise CallFailed("protocol", f"The answer is larger than {MAX_RESPONSE_BYTES >> 20} MiB.")


def pause_s(number: int, retry_after_s: float | None) -> float:
    """Seconds before the next try: what the provider asked for (clamped), or doubling with jitter."""
    if retry_after_s is not None:
        return min(max(retry_after_s, 0.0), RETRY_AFTER_CLAMP_S)
    return float(BACKOFF_S * 2 ** (number - 1) * random.uniform(0.5, 1.5))  # noqa: S311  (jitter)


def _raise_for_status(status: int, headers: Mapping[str, str], body: bytes) -> None:
    if status == 200:
        return
    start = body[:300].decode("utf-8", "replace")
    message = f"HTTP {status}: {start}"
    if status in {401, 403}:
        raise CallFailed("auth", message)
    if status == 429:
        raise CallFailed("rate_limit", message, retryable=True, retry_after_s=retry_after_s(headers))
    if status in {408, 504}:
        raise CallFailed("timeout", message, retryable=True, retry_after_s=retry_after_s(headers))
    if status >= 500:
        raise CallFailed("server", message, retryable=True, retry_after_s=retry_after_s(headers))
    if 400 <= status < 500:
        raise CallFailed("bad_request", message)
    raise CallFailed("protocol", message)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that a Retry-After header asks for (a number or a date), or None where it is missing or unreadable."""
    value = headers.get("Retry-After")
    if value is None:
        return None
    try:
        # bounded as a whole number first: a long row of digits does not fit into a float
        return float(min(max(int(value), 0), 10**9))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
