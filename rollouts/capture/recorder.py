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
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from rollouts.backends.base import Backend as BackendKind
from rollouts.engine import claims
from rollouts.engine.runner import Attempt, LeaseLost, Work
from rollouts.failures import MASKING_KINDS, CallFailed
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

GROUP = 256  # operations in one commit at most
MAX_HEADERS_CHARS = 8000


@dataclass(frozen=True, slots=True)
class _Operation:
    run: Callable[[bool], Any]  # given whether the claim is still held
    future: asyncio.Future[Any]


class ShardRecorder:
    """The recorder of one claim. Use it as a context manager: leaving it stops the thread after the last commit."""

    def __init__(self, *, claim: Claim, backend: Backend, kind: BackendKind, sampling: Mapping[str, Any], remote: str):
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
        return await self._submit(lambda held: self._take(limit) if held else _lost())

    async def retry(self, work: Work, failed: Attempt, attempt: int) -> int:
        return await self._submit(lambda held: self._open_retry(work, failed, attempt, held))

    def finish(self, work: Work, last: Attempt) -> Awaitable[None]:
        outcome = _outcome(work, last)
        return self._submit(lambda held: self._finish(work, last, outcome, held))

    def _submit(self, run: Callable[[bool], Any]) -> asyncio.Future[Any]:
        self._loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = self._loop.create_future()
        self._operations.put(_Operation(run, future))
        return future

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
        for operation, result in zip(group, results, strict=False):
            assert self._loop is not None
            self._loop.call_soon_threadsafe(_resolve, operation.future, result)

    def _transact(self, group: list[_Operation]) -> list[Any]:
        with transaction.atomic():
            held = claims.hold(self._claim.pk)
            return [operation.run(held) for operation in group]

    def _take(self, limit: int) -> list[Work]:
        rollouts = claims.take(claim_id=self._claim.pk, run_id=self._claim.run_id, limit=limit)
        now = timezone.now()
        invocations = Invocation.objects.bulk_create(
            Invocation(rollout=rollout, claim=self._claim, started_at=now) for rollout in rollouts
        )
        requests = [
            self._kind.request(
                messages=rollout.case.content["messages"],
                sampling=self._sampling,
                sample_index=rollout.sample_index,
                remote_model=self._remote,
            )
            for rollout in rollouts
        ]
        digests = _store_payloads([request.body for request in requests])
        calls = ModelCall.objects.bulk_create(
            ModelCall(invocation=invocation, dialect=request.dialect, request_id=digest, created_at=now)
            for invocation, request, digest in zip(invocations, requests, digests, strict=True)
        )
        return [
            Work(rollout.pk, invocation.pk, call.pk, rollout.case.content, request)
            for rollout, invocation, call, request in zip(rollouts, invocations, calls, requests, strict=True)
        ]

    def _open_retry(self, work: Work, failed: Attempt, attempt: int, held: bool) -> Any:
        self._complete(failed)
        if not held:
            return _lost()
        first = ModelCall.objects.get(pk=work.call_id)
        call = ModelCall.objects.create(
            invocation_id=work.invocation_id,
            attempt=attempt,
            dialect=first.dialect,
            request_id=first.request_id,
            created_at=timezone.now(),
        )
        return call.pk

    def _finish(self, work: Work, last: Attempt, outcome: dict[str, Any], held: bool) -> Any:
        self._complete(last)
        state = InvocationState.FINISHED if held else InvocationState.LATE
        now = timezone.now()
        Invocation.objects.filter(pk=work.invocation_id).update(state=state, finished_at=now)
        if not held:
            return _lost()
        Rollout.objects.filter(pk=work.rollout_id, claim=self._claim, state=RolloutState.RUNNING).update(
            claim=None, finished_at=now, **outcome
        )
        return None

    def _complete(self, attempt: Attempt) -> None:
        done, error = attempt.completion, attempt.error
        body = _store_payloads([attempt.body])[0] if attempt.body is not None else None
        ModelCall.objects.filter(pk=attempt.call_id).update(
            state=CallState.FAILED if error else CallState.ANSWERED,
            status=attempt.status,
            error_kind=error.kind if error else "",
            error_text=shown(error.message)[:2000] if error else "",
            provider_response_id=shown(done.response_id or "")[:200] if done else "",
            response_id=body,
            response_headers=_bounded_headers(attempt.headers),
            prompt_tokens=done.prompt_tokens if done else None,
            completion_tokens=done.completion_tokens if done else None,
            cost_microusd=self._cost(done.prompt_tokens, done.completion_tokens) if done else None,
            latency_ms=attempt.latency_ms,
            first_byte_ms=attempt.first_byte_ms,
            finished_at=timezone.now(),
        )

    def _cost(self, prompt_tokens: int | None, completion_tokens: int | None) -> int | None:
        prices = (self._backend.prompt_price, self._backend.completion_price)
        if None in prices or prompt_tokens is None or completion_tokens is None:
            return None
        total = prices[0] * prompt_tokens + prices[1] * completion_tokens
        return -(-total // 1_000_000)


def _lost() -> LeaseLost:
    return LeaseLost("The lease ran out and the work was given to another worker.")


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


def _store_payloads(bodies: list[bytes]) -> list[str]:
    digests = [sha256_bytes(body) for body in bodies]
    Payload.objects.bulk_create(
        (
            Payload(sha256=digest, size_bytes=len(body), data=zlib.compress(body, 1))
            for digest, body in dict(zip(digests, bodies, strict=True)).items()
        ),
        ignore_conflicts=True,
    )
    return digests


def _outcome(work: Work, last: Attempt) -> dict[str, Any]:
    """The columns of the finished rollout: scored, masked, or (where our own scorer failed) unscored."""
    if last.error is not None:
        return _failed(last.error)
    done = last.completion
    assert done is not None
    facts: dict[str, Any] = {
        "answer": None if done.text is None else shown(done.text),
        "finish_reason": shown(done.finish_reason or "")[:40],
        "latency_ms": last.latency_ms,
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": done.completion_tokens,
    }
    try:
        result = score(
            expected=work.content["expected"],
            tools=work.content["tools"],
            answer=done.text or "",
            finish_reason=done.finish_reason,
            tool_schemas=work.content.get("tool_schemas"),
        )
    except Exception as error:
        # the answer is kept: a scorer's fault is never the model's 0
        reason = f"{type(error).__name__}: {error}"[:500]
        return {"state": RolloutState.UNSCORED, "failure_kind": "scorer", "failure_reason": shown(reason), **facts}
    return {"state": RolloutState.SCORED, **facts, **_score_columns(result)}


def _failed(error: CallFailed) -> dict[str, Any]:
    state = RolloutState.MASKED if error.kind in MASKING_KINDS else RolloutState.UNSCORED
    return {"state": state, "failure_kind": error.kind, "failure_reason": shown(error.message)[:2000]}


def _score_columns(result: DecisionScore) -> dict[str, Any]:
    return {
        "answer_class": str(result.answer_class),
        "json_valid": result.json_valid,
        "decision": result.decision,
        "tool": result.tool,
        "exact": result.exact,
        "safe": result.safe,
    }


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
