"""Budgets of a run and the pace of a backend: reserved before each call, over all workers.

Every function runs in the caller's transaction, under the lock of the row that it counts in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from math import ceil
from typing import Any, NamedTuple

from django.db.models import F, Sum
from django.utils import timezone

from rollouts.models import Backend, Claim, EvalRun, Pace


class Bound(NamedTuple):
    """The most that one call can use, reserved until it answers."""

    tokens: int
    microusd: int


class Budget:
    """What is left of a run's budget. Made under the run's row lock, so nobody else reserves at the same time."""

    def __init__(self, run: EvalRun, claim_id: int) -> None:
        assert run.budget is not None
        self._run = run
        self._limits = run.budget
        self._claim_id = claim_id
        held = Claim.objects.filter(run=run, ended_at__isnull=True).aggregate(
            tokens=Sum("reserved_tokens"), microusd=Sum("reserved_microusd")
        )
        self._reserved = Bound(held["tokens"] or 0, held["microusd"] or 0)

    @property
    def in_flight(self) -> bool:
        """Whether calls under way may give back some of what they reserved."""
        return any(self._reserved)

    def over(self) -> bool:
        """Whether no call can ever be made again, whatever those under way give back."""
        run, limits = self._run, self._limits
        late = run.started_at is not None and _past(run.started_at, limits.get("wall_s"))
        return late or _reached(run.spent_calls, limits.get("calls"))

    def reserve(self, bounds: Sequence[Bound]) -> int:
        """Reserves for as many of the calls, in order, as fit; returns how many."""
        if self.over():
            return 0
        run, limits = self._run, self._limits
        count, tokens, microusd = 0, 0, 0
        for bound in bounds:
            if (
                _exceeds(run.spent_calls + count + 1, limits.get("calls"))
                or _exceeds(
                    run.spent_tokens + self._reserved.tokens + tokens + bound.tokens, limits.get("tokens")
                )
                or _exceeds(
                    run.spent_microusd + self._reserved.microusd + microusd + bound.microusd,
                    limits.get("microusd"),
                )
            ):
                break
            count, tokens, microusd = count + 1, tokens + bound.tokens, microusd + bound.microusd
        if count:
            self._reserved = Bound(self._reserved.tokens + tokens, self._reserved.microusd + microusd)
            run.spent_calls += count
            EvalRun.objects.filter(pk=run.pk).update(spent_calls=F("spent_calls") + count)
            Claim.objects.filter(pk=self._claim_id).update(
                reserved_tokens=F("reserved_tokens") + tokens,
                reserved_microusd=F("reserved_microusd") + microusd,
            )
        return count


def settle(
    *, run_id: int, claim_id: int, bounds: Sequence[Bound], used: Sequence[tuple[int | None, int | None]]
) -> None:
    """Calls have ended: what each used is spent, its whole bound where that is unknown."""
    tokens = sum(bound.tokens for bound in bounds)
    microusd = sum(bound.microusd for bound in bounds)
    spent_tokens = sum(b.tokens if u[0] is None else u[0] for b, u in zip(bounds, used, strict=True))
    spent_microusd = sum(b.microusd if u[1] is None else u[1] for b, u in zip(bounds, used, strict=True))
    # a claim that was taken away has been settled as a whole
    held = Claim.objects.filter(pk=claim_id, ended_at__isnull=True).update(
        reserved_tokens=F("reserved_tokens") - tokens, reserved_microusd=F("reserved_microusd") - microusd
    )
    if held:
        EvalRun.objects.filter(pk=run_id).update(
            spent_tokens=F("spent_tokens") + spent_tokens, spent_microusd=F("spent_microusd") + spent_microusd
        )


def settle_lost(claim: Claim) -> None:
    """A claim ends: the provider may have answered, and billed, every call that it had under way."""
    if claim.reserved_tokens or claim.reserved_microusd:
        EvalRun.objects.filter(pk=claim.run_id).update(
            spent_tokens=F("spent_tokens") + claim.reserved_tokens,
            spent_microusd=F("spent_microusd") + claim.reserved_microusd,
        )
        Claim.objects.filter(pk=claim.pk).update(reserved_tokens=0, reserved_microusd=0)


def bound_of(body: bytes, sampling: Mapping[str, Any], backend: Backend) -> Bound:
    """A token is at least one byte of the request; the answer is at most `max_tokens` long."""
    prompt, completion = len(body), int(sampling.get("max_tokens") or 0)
    cost = (backend.prompt_price or 0) * prompt + (backend.completion_price or 0) * completion
    return Bound(prompt + completion, -(-cost // 1_000_000))


def slots(backend: Backend, count: int, until: datetime | None = None) -> list[datetime]:
    """Times to send up to `count` next requests at, spaced by the backend's pace: those before `until`.

    Without a pace all are now. The pace row is shared by every worker and every revision of the backend.
    """
    now = timezone.now()
    if backend.requests_per_minute is None or not count:
        return [now] * count
    interval = timedelta(minutes=1) / backend.requests_per_minute
    Pace.objects.get_or_create(backend_name=backend.name, defaults={"next_at": now})
    pace = Pace.objects.select_for_update().get(backend_name=backend.name)
    first = max(now, pace.next_at)
    times = [first + number * interval for number in range(count)]
    times = [at for at in times if until is None or at < until]
    if times:
        Pace.objects.filter(pk=pace.pk).update(next_at=times[-1] + interval)
    return times


def room(backend: Backend, most: int, until: datetime) -> int:
    """How many send times there are before `until`, at most `most`: a look without a lock, so that a shard which waits
    for its pace need not take rollouts and give them back."""
    if backend.requests_per_minute is None:
        return most
    now = timezone.now()
    next_at = Pace.objects.filter(backend_name=backend.name).values_list("next_at", flat=True).first()
    left = (until - max(now, next_at or now)).total_seconds()
    return max(0, min(most, ceil(left * backend.requests_per_minute / 60)))


def _reached(used: int, limit: int | None) -> bool:
    return limit is not None and used >= limit


def _exceeds(wanted: int, limit: int | None) -> bool:
    return limit is not None and wanted > limit


def _past(start: datetime, seconds: int | None) -> bool:
    return seconds is not None and timezone.now() >= start + timedelta(seconds=seconds)
