"""One shard: one asyncio loop, one aiohttp pool, many rollouts at once. It knows no ORM model.

The recorder it is given makes every attempt durable before its request is sent. A worker coroutine does not wait
for the writing of its last result: it takes the next rollout, and the shard waits for all writes at its end.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

import aiohttp

from rollouts.backends.base import Backend, Completion, Opened, ProviderRequest
from rollouts.failures import CallFailed

MAX_RESPONSE_BYTES = 16 << 20
CONNECT_TIMEOUT_S = 10
RETRY_AFTER_CLAMP_S = 30.0
BACKOFF_S = 0.5


@dataclass(frozen=True, slots=True)
class Work:
    """A claimed rollout whose first attempt is already a committed row."""

    rollout_id: int
    invocation_id: int
    call_id: int
    content: Mapping[str, Any]
    request: ProviderRequest


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one HTTP attempt came to. `completion` is set exactly where `error` is not."""

    call_id: int
    status: int | None
    headers: dict[str, str] | None
    body: bytes | None
    latency_ms: float
    first_byte_ms: float | None
    completion: Completion | None
    error: CallFailed | None


class LeaseLost(Exception):
    """The claim was taken away; what still comes in is kept as a fact and never scored."""


class Recorder(Protocol):
    """Makes facts durable. An awaited call has been committed when it returns."""

    async def claim(self, limit: int) -> list[Work]: ...

    async def retry(self, work: Work, failed: Attempt, attempt: int) -> int: ...

    def finish(self, work: Work, last: Attempt) -> Awaitable[None]: ...


@dataclass(frozen=True, slots=True)
class Limits:
    concurrency: int
    timeout_s: float
    max_attempts: int
    claim_until: float  # time.monotonic(): no new work after this


async def run_shard(*, recorder: Recorder, backend: Backend, opened: Opened, limits: Limits) -> int:
    """Works until nothing is queued or the time is up; returns the number of rollouts finished.

    Raises `LeaseLost` where the claim was taken away, and whatever the recorder raises.
    """
    feed = _Feed(recorder, limits)
    timeout = aiohttp.ClientTimeout(total=limits.timeout_s, sock_connect=CONNECT_TIMEOUT_S)
    headers = {"Content-Type": "application/json", **opened.headers}
    writes: set[asyncio.Future[None]] = set()
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=timeout,
        headers=headers,
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as session:

        async def post(request: ProviderRequest) -> aiohttp.ClientResponse:
            return await session.post(
                opened.base_url + request.path, data=request.body, allow_redirects=False
            )

        async def worker() -> None:
            while (work := await feed.next()) is not None:
                last = await _attempts(work, recorder, backend, post, limits.max_attempts)
                write = asyncio.ensure_future(recorder.finish(work, last))
                writes.add(write)
                write.add_done_callback(lambda done: writes.discard(done) if _went_well(done) else None)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(limits.concurrency):
                    group.create_task(worker())
        except BaseExceptionGroup as failed:
            # the first cause says it; the others are the same loss seen by the other workers
            raise _first(failed) from failed
        if writes:
            await asyncio.gather(*writes)
    return feed.given


def _went_well(done: asyncio.Future[None]) -> bool:
    return not done.cancelled() and done.exception() is None


def _first(failed: BaseException) -> BaseException:
    while isinstance(failed, BaseExceptionGroup):
        failed = failed.exceptions[0]
    return failed


class _Feed:
    """Hands out claimed work and claims more before it runs dry."""

    def __init__(self, recorder: Recorder, limits: Limits) -> None:
        self._recorder = recorder
        self._limits = limits
        self._ready: deque[Work] = deque()
        self._dry = False
        self._claiming: asyncio.Task[None] | None = None
        self.given = 0

    async def next(self) -> Work | None:
        while True:
            if len(self._ready) < self._limits.concurrency:
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
        if self._claiming is None and not self._dry and time.monotonic() < self._limits.claim_until:
            self._claiming = asyncio.create_task(self._claim())

    async def _claim(self) -> None:
        limit = 2 * self._limits.concurrency
        works = await self._recorder.claim(limit)
        self._ready.extend(works)
        self._dry = len(works) < limit


async def _attempts(
    work: Work,
    recorder: Recorder,
    backend: Backend,
    post: Callable[[ProviderRequest], Awaitable[aiohttp.ClientResponse]],
    max_attempts: int,
) -> Attempt:
    call_id = work.call_id
    for number in range(1, max_attempts + 1):
        attempt = await _attempt(call_id, work.request, backend, post)
        if attempt.error is None or not attempt.error.retryable or number == max_attempts:
            return attempt
        call_id = await recorder.retry(work, attempt, number + 1)
        await asyncio.sleep(pause_s(number, attempt.error.retry_after_s))
    raise AssertionError("max_attempts is at least 1")


def pause_s(number: int, retry_after_s: float | None) -> float:
    """Seconds before the next try: what the provider asked for (clamped), or doubling with jitter."""
    if retry_after_s is not None:
        return min(max(retry_after_s, 0.0), RETRY_AFTER_CLAMP_S)
    return float(BACKOFF_S * 2 ** (number - 1) * random.uniform(0.5, 1.5))  # noqa: S311  (jitter)


async def _attempt(
    call_id: int,
    request: ProviderRequest,
    backend: Backend,
    post: Callable[[ProviderRequest], Awaitable[aiohttp.ClientResponse]],
) -> Attempt:
    start = time.perf_counter()
    status: int | None = None
    headers: dict[str, str] | None = None
    body: bytes | None = None
    first_byte_ms: float | None = None
    completion: Completion | None = None
    error: CallFailed | None = None
    try:
        response = await post(request)
        async with response:
            status, headers = response.status, dict(response.headers)
            first_byte_ms = (time.perf_counter() - start) * 1000
            body = await _read_bounded(response)
        _raise_for_status(status, response.headers, body)
        completion = backend.read(body)
    except CallFailed as failed:
        error = failed
    except TimeoutError:
        error = CallFailed("timeout", "No complete answer within the backend's timeout.", retryable=True)
    except aiohttp.ClientPayloadError as broken:
        error = CallFailed("truncated_stream", f"The answer broke off: {broken}", retryable=True)
    except (aiohttp.ClientError, OSError) as broken:
        error = CallFailed("connection", f"{type(broken).__name__}: {broken}"[:500], retryable=True)
    latency_ms = (time.perf_counter() - start) * 1000
    return Attempt(call_id, status, headers, body, latency_ms, first_byte_ms, completion, error)


async def _read_bounded(response: aiohttp.ClientResponse) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_chunked(1 << 16):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_RESPONSE_BYTES:
            raise CallFailed("protocol", f"The answer is larger than {MAX_RESPONSE_BYTES >> 20} MiB.")
    return b"".join(chunks)


def _raise_for_status(status: int, headers: Mapping[str, str], body: bytes) -> None:
    if status == 200:
        return
    start = body[:300].decode("utf-8", "replace")
    message = f"HTTP {status}: {start}"
    if status in {401, 403}:
        raise CallFailed("auth", message)
    if status == 429:
        raise CallFailed("rate_limit", message, retryable=True, retry_after_s=retry_after_s(headers))
    if status >= 500 or status == 408:
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
    except ValueError:
        return None
