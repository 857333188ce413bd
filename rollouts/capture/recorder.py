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
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.db.models import Max
from django.utils import timezone

from rollouts.backends.base import ProviderRequest
from rollouts.bulk import insert_many, insert_new, update_many
from rollouts.capture.outcome import OUTCOME_FIELDS, outcome_of, scored, shown
from rollouts.capture.replay import CannotReplay, Step, replay, steps_of
from rollouts.engine import claims
from rollouts.engine.budget import Bound, Budget, bound_of, room, settle, slots
from rollouts.engine.claims import Taken
from rollouts.engine.dialogue import Asker, Dialogue
from rollouts.engine.runner import JUDGE_SAMPLING, Attempt, Claimed, LeaseLost, Opening, Purpose, Result, Work
from rollouts.failures import CallFailed
from rollouts.hashing import sha256_bytes
from rollouts.models import (
    Backend,
    CallState,
    Claim,
    EvalRun,
    Invocation,
    InvocationState,
    ModelCall,
    Payload,
    Rollout,
    RolloutState,
    RunState,
    Subject,
)

log = logging.getLogger(__name__)
MAX_COUNT = 2**31  # of the columns

FACT_FIELDS = (
    *("answered_by", "latency_ms", "prompt_tokens", "completion_tokens"),
    *("cost_microusd", "avoided_microusd"),
)
CALL_FIELDS = (
    *("state", "status", "error_kind", "error_text", "provider_response_id", "response", "response_headers"),
    *("prompt_tokens", "completion_tokens", "cost_microusd", "latency_ms", "first_byte_ms"),
)
NEW_CALL_FIELDS = (
    *("invocation", "turn", "attempt", "purpose", "dialect", "state"),
    *("error_kind", "error_text", "provider_response_id", "request", "created_at"),
)
GROUP = 256  # operations in one commit at most
MAX_HEADERS_CHARS = 8000


@dataclass(frozen=True, slots=True)
class _Claim:
    limit: int
    future: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class _Follow:
    work: Work
    done: Attempt | None
    request: ProviderRequest
    turn: int
    attempt: int
    purpose: Purpose
    future: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class _Finish:
    work: Work
    result: Result
    outcome: tuple[Any, ...]
    future: asyncio.Future[Any]


_Operation = _Claim | _Follow | _Finish


@dataclass(slots=True)
class _Open:
    """What the recorder remembers of a rollout that is under way: sums over its calls, and whose answer it took."""

    cost_microusd: int | None
    reused: list[Step] | None = None
    reused_from: int | None = None
    own_answer: bool = False


class ShardRecorder:
    """The recorder of one claim. Use it as a context manager: leaving it stops the thread after the last commit.

    `claim_until` is when the shard takes no more work; a paced backend gives no times after it.
    """

    def __init__(
        self, *, claim: Claim, run: EvalRun, asker: Asker, claim_until: datetime, judge: Backend | None = None
    ) -> None:
        self._claim = claim
        self._run = run
        self._asker = asker
        self._backends: dict[Purpose, Backend] = {"policy": run.backend, "judge": judge or run.backend}
        self._judged = judge is not None
        self._until = claim_until
        self._open: dict[int, _Open] = {}
        self._bounds: dict[int, Bound] = {}  # of calls under way, where the run has a budget
        self._waiting: list[Taken] = []  # given to this claim; the same attempt is under way elsewhere
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

    async def claim(self, limit: int) -> Claimed:
        return await self._submit(_Claim(limit, self._future()))

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
        return await self._submit(_Follow(work, done, request, turn, attempt, purpose, self._future()))

    def finish(self, work: Work, result: Result) -> Awaitable[None]:
        return self._submit(_Finish(work, result, outcome_of(result), self._future()))

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
        waiting = list(self._waiting)
        try:
            results = self._transact(group)
        except Exception as error:
            self._waiting = waiting
            results = [error] if len(group) == 1 else []
            if len(group) > 1:
                for operation in group:
                    self._commit([operation])
        assert self._loop is not None
        self._loop.call_soon_threadsafe(_resolve, group[: len(results)], results)

    def _transact(self, group: list[_Operation]) -> list[Any]:
        """One transaction. Attempts that came in are completed in bulk, then each operation gets its result."""
        finishes = [operation for operation in group if isinstance(operation, _Finish)]
        done = [finish.result.last for finish in finishes]
        done += [operation.done for operation in group if isinstance(operation, _Follow)]
        attempts = [attempt for attempt in done if attempt is not None]
        facts = [self._facts(finish) for finish in finishes]
        with transaction.atomic():
            budget = self._locked_budget()
            held = claims.hold(
                self._claim.pk,
                done=len(finishes),
                masked=sum(finish.outcome[0] == RolloutState.MASKED for finish in finishes),
                cost_microusd=sum(self._cost_of(attempt) or 0 for attempt in attempts),
            )
            self._complete(attempts)
            self._close(finishes, facts, held)
            results = [self._result(operation, held, budget) for operation in group]
        for finish in finishes:
            self._open.pop(finish.work.rollout_id, None)
        for attempt in attempts:
            self._bounds.pop(attempt.call_id, None)
        return results

    def _locked_budget(self) -> Budget | None:
        """The run's row is locked before the claim's, which is the order everyone takes the two in."""
        if self._run.budget is None:
            return None
        return Budget(EvalRun.objects.select_for_update().get(pk=self._run.pk), self._claim.pk)

    def _result(self, operation: _Operation, held: bool, budget: Budget | None) -> Any:
        if isinstance(operation, _Finish):
            return None if held else _lost()
        if not held:
            return _lost()
        if isinstance(operation, _Claim):
            return self._take(operation.limit, budget)
        return self._follow(operation, budget)

    # giving work

    def _take(self, limit: int, budget: Budget | None) -> Claimed:
        if not self._run.reuse:  # reused answers keep no pace
            limit = min(limit, room(self._run.backend, limit, self._until))
            if not limit:
                return Claimed([], True, int(claims.work_left(self._run.pk)))
        taken = [
            *self._waiting,
            *claims.take(
                claim_id=self._claim.pk, run_id=self._run.pk, limit=max(0, limit - len(self._waiting))
            ),
        ]
        dry = len(taken) < limit
        known = {row.rollout_id: row.answered_by for row in taken if row.answered_by is not None}
        self._waiting = []
        if self._run.reuse and taken:
            known.update(self._answers_of_others([row for row in taken if row.answered_by is None]))
        works = (
            self._with_known_answers([row for row in taken if row.rollout_id in known], known)
            if known
            else []
        )
        settled = known.keys() | {row.rollout_id for row in self._waiting}
        given, held_up = self._begin([row for row in taken if row.rollout_id not in settled], budget)
        if dry:
            held_up += claims.suspects_left(self._run.pk)
        return Claimed([*works, *given], dry, held_up + len(self._waiting))

    def _answers_of_others(self, taken: Sequence[Taken]) -> dict[int, int]:
        """Which rollouts' answers are known: rollout id -> invocation that holds it. Those under way are put to wait.

        The subject's row is the lock under which runs that reuse answers decide who asks, so that one does.
        """
        Subject.objects.select_for_update().get(pk=self._run.subject_id)
        keys = {row.attempt_key for row in taken}
        oldest = timezone.now() - timedelta(days=settings.ATTEMPT_CACHE_DAYS)
        newest_id = Rollout.objects.aggregate(Max("id"))["id__max"]
        answered = (
            Rollout.objects.filter(
                attempt_key__in=keys,
                answered_by__isnull=False,
                finished_at__gte=oldest,
                id__gt=newest_id - settings.ATTEMPT_CACHE_ROLLOUTS,
            )
            .exclude(run__state=RunState.FAILED)
            .order_by("-id")
            .values_list("attempt_key", "answered_by_id")
        )
        answers = dict(answered)
        under_way = set(
            Rollout.objects.filter(
                attempt_key__in=keys - answers.keys(),
                state=RolloutState.RUNNING,
                invocations__state=InvocationState.RUNNING,
            ).values_list("attempt_key", flat=True)
        )
        self._waiting = [row for row in taken if row.attempt_key in under_way]
        return {row.rollout_id: answers[row.attempt_key] for row in taken if row.attempt_key in answers}

    def _with_known_answers(self, rows: list[Taken], known: dict[int, int]) -> list[Work]:
        """Scores what needs no more than its answer, here and now; gives out what a judge must still see.

        Another rollout's answer that cannot be taken is forgotten in `known`: then the model is asked.
        """
        steps = steps_of({known[row.rollout_id] for row in rows})
        ready: list[tuple[Taken, tuple[Any, ...], tuple[Any, ...]]] = []
        unjudged: list[tuple[Taken, Dialogue, _Open]] = []
        for row in rows:
            source = known[row.rollout_id]
            dialogue = Dialogue(self._asker, row.content, row.sample_index)
            try:
                replay(dialogue, steps[source])
            except CannotReplay as error:
                log.warning("rollout %s: invocation %s cannot be replayed: %s", row.rollout_id, source, error)
                if row.answered_by is None:
                    del known[row.rollout_id]
                    continue
                result = Result(
                    error=CallFailed("scorer", f"The captured answer cannot be read again: {error}")
                )
                ready.append((row, outcome_of(result), _reused(row, steps[source], source)))
                continue
            open_ = _Open(row.cost_microusd, steps[source], source, own_answer=row.answered_by is not None)
            if self._judged:
                unjudged.append((row, dialogue, open_))
                continue
            outcome = outcome_of(scored(self._asker.scorer, dialogue))
            ready.append((row, outcome, _reused(row, steps[source], source)))
        self._write_outcomes((row.rollout_id, outcome, facts) for row, outcome, facts in ready)
        claims.hold(self._claim.pk, done=len(ready))
        invocations = self._invoke([row for row, _, _ in unjudged])
        works = []
        for (row, dialogue, open_), invocation in zip(unjudged, invocations, strict=True):
            self._open[row.rollout_id] = open_
            works.append(Work(row.rollout_id, invocation, dialogue, None, None))
        return works

    def _begin(self, rows: list[Taken], budget: Budget | None) -> tuple[list[Work], int]:
        """Opens the first call of each; those that pace or budget hold up go back. Returns how many may come later."""
        dialogues = [Dialogue(self._asker, row.content, row.sample_index) for row in rows]
        requests = [dialogue.open() for dialogue in dialogues]
        times = slots(self._run.backend, len(rows), self._until)
        granted, held_up = len(times), len(rows) - len(times)
        bounds: list[Bound] = []
        if budget is not None:
            bounds = [bound_of(r.body, self._asker.sampling, self._run.backend) for r in requests[:granted]]
            granted = budget.reserve(bounds)
            held_up = len(rows) - granted
            if not granted and rows and times and (budget.over() or not budget.in_flight):
                claims.skip_for_budget(self._run.pk, [row.rollout_id for row in rows])
                return [], 0
        claims.give_back([row.rollout_id for row in rows[granted:]])
        rows, requests = rows[:granted], requests[:granted]
        invocations = self._invoke(rows)
        openings = self._open_calls(
            [
                (invocation, 0, 1, "policy", request)
                for invocation, request in zip(invocations, requests, strict=True)
            ],
            times,
            bounds,
        )
        works = []
        for row, dialogue, request, invocation, opening in zip(
            rows, dialogues, requests, invocations, openings, strict=False
        ):
            self._open[row.rollout_id] = _Open(row.cost_microusd)
            works.append(Work(row.rollout_id, invocation, dialogue, request, opening))
        return works, held_up

    def _invoke(self, rows: Sequence[Taken]) -> list[int]:
        now, running = timezone.now(), str(InvocationState.RUNNING)
        return insert_many(
            Invocation,
            ("rollout", "claim", "state", "started_at"),
            [(row.rollout_id, self._claim.pk, running, now) for row in rows],
        )

    def _open_calls(
        self,
        calls: Sequence[tuple[int, int, int, Purpose, ProviderRequest]],
        times: Sequence[datetime],
        bounds: Sequence[Bound],
    ) -> list[Opening]:
        now = timezone.now()
        digests = _store_payloads([request.body for *_, request in calls])
        keys = insert_many(
            ModelCall,
            NEW_CALL_FIELDS,
            [
                (
                    invocation,
                    turn,
                    attempt,
                    purpose,
                    request.dialect,
                    str(CallState.OPEN),
                    "",
                    "",
                    "",
                    digest,
                    now,
                )
                for (invocation, turn, attempt, purpose, request), digest in zip(calls, digests, strict=True)
            ],
        )
        self._bounds.update(zip(keys, bounds, strict=False))
        return [Opening(key, at.timestamp()) for key, at in zip(keys, times, strict=False)]

    def _follow(self, operation: _Follow, budget: Budget | None) -> Opening | CallFailed:
        backend = self._backends[operation.purpose]
        bounds: list[Bound] = []
        if budget is not None:
            sampling = JUDGE_SAMPLING if operation.purpose == "judge" else self._asker.sampling
            bounds = [bound_of(operation.request.body, sampling, backend)]
            if not budget.reserve(bounds):
                return CallFailed("budget", "The run's budget was spent before this rollout was done.")
        call = (
            operation.work.invocation_id,
            operation.turn,
            operation.attempt,
            operation.purpose,
            operation.request,
        )
        return self._open_calls([call], slots(backend, 1), bounds)[0]

    # taking what came

    def _complete(self, attempts: list[Attempt]) -> None:
        bodies = [attempt.body for attempt in attempts if attempt.body is not None]
        digests = dict(zip(map(id, bodies), _store_payloads(bodies), strict=True))
        now = timezone.now()
        rows = [
            (attempt.call_id, (*self._call_columns(attempt, digests.get(id(attempt.body))), now))
            for attempt in attempts
        ]
        update_many(ModelCall, (*CALL_FIELDS, "finished_at"), rows)
        if self._run.budget is not None:
            settle(
                run_id=self._run.pk,
                claim_id=self._claim.pk,
                bounds=[self._bounds[attempt.call_id] for attempt in attempts],
                used=[self._used(attempt) for attempt in attempts],
            )

    def _call_columns(self, attempt: Attempt, response: str | None) -> tuple[Any, ...]:
        done, error = attempt.completion, attempt.error
        return (
            str(CallState.FAILED if error else CallState.ANSWERED),
            attempt.status,
            error.kind if error else "",
            shown(error.message)[:2000] if error else "",
            shown(done.response_id or "")[:200] if done else "",
            response,
            _bounded_headers(attempt.headers),
            done.prompt_tokens if done else None,
            done.completion_tokens if done else None,
            self._cost_of(attempt),
            attempt.latency_ms,
            attempt.first_byte_ms,
        )

    def _cost_of(self, attempt: Attempt) -> int | None:
        """Micro-dollars, rounded up; None where tokens or prices are not known."""
        backend, done = self._backends[attempt.purpose], attempt.completion
        prices = (backend.prompt_price, backend.completion_price)
        if None in prices or done is None or done.prompt_tokens is None or done.completion_tokens is None:
            return None
        return -(-(prices[0] * done.prompt_tokens + prices[1] * done.completion_tokens) // 1_000_000)

    def _used(self, attempt: Attempt) -> tuple[int | None, int | None]:
        done = attempt.completion
        if done is None or done.prompt_tokens is None or done.completion_tokens is None:
            return None, None
        return done.prompt_tokens + done.completion_tokens, self._cost_of(attempt)

    def _facts(self, finish: _Finish) -> tuple[Any, ...]:
        """The columns of FACT_FIELDS."""
        work, result = finish.work, finish.result
        open_ = self._open[work.rollout_id]
        calls = [*result.steps, *([result.last] if result.last not in result.steps else [])]
        cost = _sum([open_.cost_microusd, *(self._cost_of(call) for call in calls if call is not None)])
        answered = result.answer is not None
        if open_.reused is not None:
            avoided = None if open_.own_answer else _sum(step.cost_microusd for step in open_.reused)
            return (open_.reused_from if answered else None, None, 0, 0, cost or 0, avoided)
        return (
            work.invocation_id if answered else None,
            sum(step.latency_ms for step in result.steps) if answered else None,
            _tokens(result.steps, "prompt_tokens") if answered else None,
            _tokens(result.steps, "completion_tokens") if answered else None,
            cost,
            None,
        )

    def _close(self, finishes: list[_Finish], facts: list[tuple[Any, ...]], held: bool) -> None:
        """Invocations are finished, or late where the claim is gone; only a held claim's rollouts get a result."""
        if not finishes:
            return
        Invocation.objects.filter(pk__in=[done.work.invocation_id for done in finishes]).update(
            state=InvocationState.FINISHED if held else InvocationState.LATE, finished_at=timezone.now()
        )
        if held:
            self._write_outcomes(
                (done.work.rollout_id, done.outcome, fact) for done, fact in zip(finishes, facts, strict=True)
            )

    def _write_outcomes(self, rows: Iterable[tuple[int, tuple[Any, ...], tuple[Any, ...]]]) -> None:
        now = timezone.now()
        update_many(
            Rollout,
            ("claim", "finished_at", *OUTCOME_FIELDS, *FACT_FIELDS),
            [(rollout_id, (None, now, *outcome, *facts)) for rollout_id, outcome, facts in rows],
        )


def _lost() -> LeaseLost:
    return LeaseLost("The lease ran out and the work was given to another worker.")


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


def _reused(row: Taken, steps: list[Step], source: int) -> tuple[Any, ...]:
    """The columns of FACT_FIELDS where no call was made: nothing was spent, and what that avoided is known."""
    avoided = None if row.answered_by is not None else _sum(step.cost_microusd for step in steps)
    return (source, None, 0, 0, row.cost_microusd or 0, avoided)


def _tokens(steps: Sequence[Attempt], name: str) -> int | None:
    counts = [getattr(step.completion, name) for step in steps]
    if None in counts or (total := sum(counts)) >= MAX_COUNT:
        return None
    return total


def _sum(values: Iterable[int | None]) -> int | None:
    """The sum of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


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
