"""Makes every attempt and every result durable: one writer thread with one connection, which groups commits.

The event loop hands operations to the thread and awaits their commit. Each transaction begins by holding the claim:
where the lease is gone, results are kept as facts (state `late`) and never scored.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import zlib
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from rollouts.backends.base import Backend as BackendKind
from rollouts.capture.bulk import insert_many, insert_new, update_many
from rollouts.engine import claims
from rollouts.engine.runner import Attempt, LeaseLost, Work
from rollouts.failures import MASKING_KINDS
from rollouts.hashing import sha256_bytes
from rollouts.models import (
    Backend,
    CallState,
    Claim,
    Invocation,
    InvocationState,
    ModelCall,
    Payload,
    Rollout,
    RolloutState,
)
from rollouts.scoring.decision import DecisionScore, score

log = logging.getLogger(__name__)

OUTCOME_FIELDS = (
    *("state", "failure_kind", "failure_reason"),
    *("answer", "finish_reason", "latency_ms", "prompt_tokens", "completion_tokens"),
    *("answer_class", "json_valid", "decision", "tool", "exact", "safe"),
)
CALL_FIELDS = (
    *("state", "status", "error_kind", "error_text", "provider_response_id", "response", "response_headers"),
    *("prompt_tokens", "completion_tokens", "cost_microusd", "latency_ms", "first_byte_ms"),
)
NEW_CALL_FIELDS = (
    *("invocation", "turn", "attempt", "dialect", "state"),
    *("error_kind", "error_text", "provider_response_id", "request", "created_at"),
)
GROUP = 256  # operations in one commit at most
MAX_HEADERS_CHARS = 8000


@dataclass(frozen=True, slots=True)
class _Claim:
    limit: int
    future: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class _Retry:
    work: Work
    failed: Attempt
    attempt: int
    future: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class _Finish:
    work: Work
    last: Attempt
    outcome: tuple[Any, ...]
    future: asyncio.Future[Any]


_Operation = _Claim | _Retry | _Finish


class ShardRecorder:
    """The recorder of one claim. Use it as a context manager: leaving it stops the thread after the last commit."""

    def __init__(
        self, *, claim: Claim, backend: Backend, kind: BackendKind, sampling: Mapping[str, Any], remote: str
    ):
        self._claim = claim
        self._backend = backend
        self._kind = kind
        self._sampling = sampling
        self._remote = remote
        self._operations: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._write_forever, name="assay-writer", daemon=True)

    def __enter__(self) -> ShardRecorder:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._operations.put(None)
        self._thread.join()

    # what the runner calls, on the loop

    async def claim(self, limit: int) -> list[Work]:
        return await self._submit(_Claim(limit, self._future()))

    async def retry(self, work: Work, failed: Attempt, attempt: int) -> int:
        return await self._submit(_Retry(work, failed, attempt, self._future()))

    def finish(self, work: Work, last: Attempt) -> Awaitable[None]:
        return self._submit(_Finish(work, last, _outcome(work, last), self._future()))

    def _future(self) -> asyncio.Future[Any]:
        self._loop = asyncio.get_running_loop()
        return self._loop.create_future()

    def _submit(self, operation: _Operation) -> asyncio.Future[Any]:
        self._operations.put(operation)
        return operation.future

    # the writer thread

    def _write_forever(self) -> None:
        try:
            going = True
            while going:
                going = self._write_group()
        finally:
            connection.close()

    def _write_group(self) -> bool:
        try:
            first = self._operations.get(timeout=settings.LEASE_SECONDS / 3)
        except queue.Empty:
            self._renew()
            return True
        group: list[_Operation] = []
        while first is not None:
            group.append(first)
            if len(group) == GROUP:
                break
            try:
                first = self._operations.get_nowait()
            except queue.Empty:
                break
        if group:
            self._commit(group)
        return first is not None

    def _renew(self) -> None:
        try:
            with transaction.atomic():
                claims.hold(self._claim.pk)
        except DatabaseError:
            # the next group says it to those who wait; if the database stays away, the lease runs out
            log.exception("renewing the lease of claim %s failed", self._claim.pk)

    def _commit(self, group: list[_Operation]) -> None:
        """One transaction for the group; if it fails, one each, so that a row that cannot be written fails alone."""
        try:
            results = self._transact(group)
        except Exception as error:
            results = [error] if len(group) == 1 else []
            if len(group) > 1:
                for operation in group:
                    self._commit([operation])
        assert self._loop is not None
        self._loop.call_soon_threadsafe(_resolve, group[: len(results)], results)

    def _transact(self, group: list[_Operation]) -> list[Any]:
        """One transaction. Attempts that came in are completed in bulk, then each operation gets its result."""
        finishes = [operation for operation in group if isinstance(operation, _Finish)]
        retries = [operation for operation in group if isinstance(operation, _Retry)]
        with transaction.atomic():
            held = claims.hold(self._claim.pk)
            self._complete([*(done.last for done in finishes), *(retry.failed for retry in retries)])
            self._close(finishes, held)
            return [self._result(operation, held) for operation in group]

    def _result(self, operation: _Operation, held: bool) -> Any:
        if not held:
            return LeaseLost("The lease ran out and the work was given to another worker.")
        if isinstance(operation, _Claim):
            return self._take(operation.limit)
        if isinstance(operation, _Retry):
            return self._open_retry(operation)
        return None

    def _take(self, limit: int) -> list[Work]:
        taken = claims.take(claim_id=self._claim.pk, run_id=self._claim.run_id, limit=limit)
        now = timezone.now()
        requests = [
            self._kind.request(
                messages=content["messages"],
                sampling=self._sampling,
                sample_index=sample_index,
                remote_model=self._remote,
            )
            for _, sample_index, content in taken
        ]
        digests = _store_payloads([request.body for request in requests])
        running = str(InvocationState.RUNNING)
        invocations = insert_many(
            Invocation,
            ("rollout", "claim", "state", "started_at"),
            [(rollout_id, self._claim.pk, running, now) for rollout_id, _, _ in taken],
        )
        calls = insert_many(
            ModelCall,
            NEW_CALL_FIELDS,
            [
                (invocation, 0, 1, request.dialect, str(CallState.OPEN), "", "", "", digest, now)
                for invocation, request, digest in zip(invocations, requests, digests, strict=True)
            ],
        )
        return [
            Work(rollout_id, invocation, call, content, request)
            for (rollout_id, _, content), invocation, call, request in zip(
                taken, invocations, calls, requests, strict=True
            )
        ]

    def _open_retry(self, retry: _Retry) -> int:
        first = ModelCall.objects.get(pk=retry.work.call_id)
        call = ModelCall.objects.create(
            invocation_id=retry.work.invocation_id,
            attempt=retry.attempt,
            dialect=first.dialect,
            request_id=first.request_id,
            created_at=timezone.now(),
        )
        return call.pk

    def _close(self, finishes: list[_Finish], held: bool) -> None:
        """Invocations are finished, or late where the claim is gone; only a held claim's rollouts get a result."""
        now = timezone.now()
        Invocation.objects.filter(pk__in=[done.work.invocation_id for done in finishes]).update(
            state=InvocationState.FINISHED if held else InvocationState.LATE, finished_at=now
        )
        if held:
            rows = [(done.work.rollout_id, (None, now, *done.outcome)) for done in finishes]
            update_many(Rollout, ("claim", "finished_at", *OUTCOME_FIELDS), rows)

    def _complete(self, attempts: list[Attempt]) -> None:
        bodies = [attempt.body for attempt in attempts if attempt.body is not None]
        digests = dict(zip(map(id, bodies), _store_payloads(bodies), strict=True))
        now = timezone.now()
        rows = [
            (attempt.call_id, (*self._call_columns(attempt, digests.get(id(attempt.body))), now))
            for attempt in attempts
        ]
        update_many(ModelCall, (*CALL_FIELDS, "finished_at"), rows)

    def _call_columns(self, attempt: Attempt, response: str | None) -> tuple[Any, ...]:
        done, error = attempt.completion, attempt.error
        return (
            CallState.FAILED if error else CallState.ANSWERED,
            attempt.status,
            error.kind if error else "",
            shown(error.message)[:2000] if error else "",
            shown(done.response_id or "")[:200] if done else "",
            response,
            _bounded_headers(attempt.headers),
            done.prompt_tokens if done else None,
            done.completion_tokens if done else None,
            self._cost(done.prompt_tokens, done.completion_tokens) if done else None,
            attempt.latency_ms,
            attempt.first_byte_ms,
        )

    def _cost(self, prompt_tokens: int | None, completion_tokens: int | None) -> int | None:
        prices = (self._backend.prompt_price, self._backend.completion_price)
        if None in prices or prompt_tokens is None or completion_tokens is None:
            return None
        total = prices[0] * prompt_tokens + prices[1] * completion_tokens
        return -(-total // 1_000_000)


def _resolve(group: list[_Operation], results: list[Any]) -> None:
    for operation, result in zip(group, results, strict=True):
        if operation.future.done():
            continue
        if isinstance(result, Exception):
            operation.future.set_exception(result)
        else:
            operation.future.set_result(result)


def _store_payloads(bodies: list[bytes]) -> list[str]:
    digests = [sha256_bytes(body) for body in bodies]
    new = dict(zip(digests, bodies, strict=True))
    # in order of digest, so that two workers that store the same bodies lock them in the same order
    rows = [(digest, len(new[digest]), zlib.compress(new[digest], 1)) for digest in sorted(new)]
    insert_new(Payload, ("sha256", "size_bytes", "data"), rows)
    return digests


def _outcome(work: Work, last: Attempt) -> tuple[Any, ...]:
    """The columns of OUTCOME_FIELDS: scored, masked, or (where our own scorer failed) unscored."""
    if last.error is not None:
        kind = last.error.kind
        state = RolloutState.MASKED if kind in MASKING_KINDS else RolloutState.UNSCORED
        return (state, kind, shown(last.error.message)[:2000], None, "", None, None, None, *_scores(None))
    done = last.completion
    assert done is not None
    facts = (
        None if done.text is None else shown(done.text),
        shown(done.finish_reason or "")[:40],
        last.latency_ms,
        done.prompt_tokens,
        done.completion_tokens,
    )
    tools, schemas = _tools(work.content["tools"])
    try:
        result = score(
            expected=work.content["expected"],
            tools=tools,
            answer=done.text or "",
            finish_reason=done.finish_reason,
            tool_schemas=schemas,
        )
    except Exception as error:
        # the answer is kept: a scorer's fault is never the model's 0
        reason = shown(f"{type(error).__name__}: {error}"[:500])
        return (RolloutState.UNSCORED, "scorer", reason, *facts, *_scores(None))
    return (RolloutState.SCORED, "", "", *facts, *_scores(result))


def _tools(tools: list[Any]) -> tuple[list[str], dict[str, Any] | None]:
    """Names, and argument schemas where the case gives tools as objects."""
    if not tools or isinstance(tools[0], str):
        return tools, None
    return [tool["name"] for tool in tools], {tool["name"]: tool.get("parameters", {}) for tool in tools}


def _scores(result: DecisionScore | None) -> tuple[Any, ...]:
    if result is None:
        return ("", None, None, None, None, None)
    return (
        str(result.answer_class),
        result.json_valid,
        result.decision,
        result.tool,
        result.exact,
        result.safe,
    )


def shown(text: str) -> str:
    """Text that every database takes: NUL and lone surrogates become visible stand-ins. The payload keeps the bytes."""
    return text.replace("\x00", "\u2400").encode("utf-8", "replace").decode("utf-8")


def _bounded_headers(headers: dict[str, str] | None) -> dict[str, str] | None:
    if headers is None:
        return None
    kept: dict[str, str] = {}
    size = 0
    for name, value in headers.items():
        size += len(name) + len(value)
        if size > MAX_HEADERS_CHARS:
            break
        kept[shown(name)] = shown(value)
    return kept
