"""Is the candidate at least as good as the champion, and does it still speak the protocol?"""

from __future__ import annotations

from fractions import Fraction

from promotion.gates.base import (
    Evidence,
    FloorParams,
    GateOutcome,
    MaxDrop,
    Metric,
    Outcome,
    SuiteParams,
    Unusable,
    bound_floor,
    gate,
)

REMEDY = "The first runs after the lock count: lock a new version of the policy and evaluate both alike."


class MaxDropParams(SuiteParams):
    """`max_drop` in points (0 to 1) of `metric`, by integer counts."""

    metric: Metric
    max_drop: MaxDrop


@gate("arena_max_regression", MaxDropParams)
def arena_max_regression(evidence: Evidence, params: MaxDropParams) -> GateOutcome:
    """The candidate drops at most `max_drop` points against the champion on the same cases, by exact fractions."""
    champion_run, candidate_run = evidence.champion(params.suite), evidence.candidate(params.suite)
    champion_gguf, candidate_gguf = (
        evidence.document[side]["gguf_sha256"] for side in ("champion", "artifact")
    )
    if champion_gguf is None or candidate_gguf is None:
        raise Unusable("The GGUF of the champion or of the candidate is not known.")
    if champion_gguf == candidate_gguf:
        return GateOutcome(Outcome.FAILED, "The candidate is the champion: the same bytes.")
    for key, what in (("samples", "samples a case"), ("sampling", "sampling"), ("scorer", "scorer")):
        if champion_run.document[key] != candidate_run.document[key]:
            return GateOutcome(
                Outcome.NOT_EVALUATED, f"The two runs differ in {what}. Run the champion again."
            )
    served = [run.document["served"] or {} for run in (champion_run, candidate_run)]
    for key, what in (("build", "server build"), ("config", "server configuration")):
        if served[0].get(key) != served[1].get(key):
            return GateOutcome(
                Outcome.NOT_EVALUATED, f"The two runs differ in {what}. Run the champion again."
            )
    champion, candidate = champion_run.counts(params.metric), candidate_run.counts(params.metric)
    if champion.n != candidate.n or champion.n == 0:
        return GateOutcome(
            Outcome.NOT_EVALUATED,
            f"The runs cover {champion.n} and {candidate.n} cases of this metric; they must be equal.",
        )
    n = champion.n
    worst = Fraction(champion.successes + champion.missing - candidate.successes, n)
    best = Fraction(champion.successes - candidate.successes - candidate.missing, n)
    allowed = Fraction(params.max_drop)
    numbers = {
        "measured": f"{candidate.successes}/{n}",
        "champion": f"{champion.successes}/{n}",
        "bound": f"{float(worst):+.6f}",
        "needs": f"drop <= {params.max_drop}",
        "n": n,
        "masked": champion.missing + candidate.missing,
        "meets_with": f"{_least(champion.successes, n, allowed)}/{n}",
    }
    sentence = f"{params.metric} {candidate.successes}/{n} against the champion's {champion.successes}/{n}"
    if worst <= allowed:
        return GateOutcome(Outcome.PASSED, f"{sentence}: within a drop of {params.max_drop}.", numbers)
    if best > allowed:
        return GateOutcome(
            Outcome.FAILED,
            f"{sentence}: a drop of {float(best):.4f} is more than {params.max_drop}; it would pass with "
            f"{_least(champion.successes, n, allowed)} of {n}.",
            numbers,
        )
    return GateOutcome(
        Outcome.NOT_EVALUATED,
        f"{sentence}: the cases without a score decide it. Run again what failed.",
        numbers,
    )


def _least(champion: int, n: int, allowed: Fraction) -> int:
    """Smallest count that is at most `allowed` points below the champion's."""
    return max(0, -int(-(champion - allowed * n) // 1))


@gate("arena_json_validity_min", FloorParams)
def arena_json_validity_min(evidence: Evidence, params: FloorParams) -> GateOutcome:
    """The lower bound of answers that are one strict JSON object reaches `min`."""
    counts = evidence.candidate(params.suite).counts(params.metric)
    return bound_floor(
        counts, params.min, params.alpha, f"{params.metric} on {evidence.suite(params.suite)['name']}"
    )
