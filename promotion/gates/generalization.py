"""Does the candidate choose the right tool among tools it never saw in training?"""

from __future__ import annotations

from promotion.gates.base import Evidence, FloorParams, GateOutcome, bound_floor, gate


@gate("generalization_accuracy_floor", FloorParams)
def generalization_accuracy_floor(evidence: Evidence, params: FloorParams) -> GateOutcome:
    """The lower bound of `metric` on held-out tools reaches `min`."""
    counts = evidence.candidate(params.suite).counts(params.metric)
    return bound_floor(
        counts, params.min, params.alpha, f"{params.metric} on {evidence.suite(params.suite)['name']}"
    )
