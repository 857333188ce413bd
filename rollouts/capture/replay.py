"""Answers that were captured before, taken again through the same code as when they came: no call is made."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from rollouts.backends.base import Completion
from rollouts.engine.dialogue import Dialogue
from rollouts.failures import CallFailed
from rollouts.models import CallPurpose, CallState, ModelCall


class CannotReplay(Exception):
    """The captured answers do not give the dialogue that they came from."""


@dataclass(frozen=True, slots=True)
class Step:
    """A captured answer of the model under test. Unknown numbers are None."""

    body: bytes
    latency_ms: float | None
    cost_microusd: int | None


def steps_of(invocation_ids: Collection[int]) -> dict[int, list[Step]]:
    """The answered turns of each invocation, in order. One query."""
    calls = (
        ModelCall.objects.filter(
            invocation_id__in=invocation_ids, state=CallState.ANSWERED, purpose=CallPurpose.POLICY
        )
        .order_by("invocation_id", "turn", "attempt")
        .values_list("invocation_id", "response__data", "latency_ms", "cost_microusd")
    )
    steps: dict[int, list[Step]] = defaultdict(list)
    for invocation_id, data, latency_ms, cost in calls:
        steps[invocation_id].append(Step(zlib.decompress(bytes(data)), latency_ms, cost))
    return steps


def replay(dialogue: Dialogue, steps: list[Step]) -> list[Completion]:
    """Leaves the dialogue at its end, as it was. Raises `CannotReplay`."""
    completions: list[Completion] = []
    more = True
    for step in steps:
        if not more:
            raise CannotReplay("More turns were captured than the dialogue has.")
        try:
            completion = dialogue.read(step.body)
        except CallFailed as error:
            raise CannotReplay(error.message) from error
        completions.append(completion)
        more = dialogue.take(completion) is not None
    if more:
        raise CannotReplay("The captured turns end before the dialogue does.")
    return completions
