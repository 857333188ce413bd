"""Is the candidate at least as good as the champion, and does it still speak the protocol?"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

from promotion.gates.base import (
    Counts,
    Evidence,
    FloorParams,
    GateOutcome,
    Measurement,
    Outcome,
    Unmet,
    Unusable,
    floor,
    gate,
)
from promotion.gates.document import count
from promotion.gates.params import MarginParams, MaxDropParams
from rollouts.statistics import (
    clopper_pearson_upper,
    minimum_n_for_bound,
    minimum_n_for_margin,
    tango_lower,
)

AGAIN = "Run the champion again."


def require_two_models(evidence: Evidence) -> str:
    """The champion's GGUF digest, if it is known and not the candidate's."""
    champion, candidate = evidence.incumbent()["gguf_sha256"], evidence.facts["artifact"]["gguf_sha256"]
    if champion is None or candidate is None:
        raise Unusable("The GGUF of the champion or of the candidate is not known.")
    if champion == candidate:
        raise Unmet("The candidate is the champion: the same bytes.")
    return str(champion)


def comparable_runs(evidence: Evidence, suite: str) -> tuple[Measurement, Measurement]:
    """The champion's and the candidate's run: of two models, made alike. Raises `Unusable` or `Unmet` otherwise."""
    champion, candidate = evidence.champion(suite), evidence.candidate(suite)
    require_two_models(evidence)
    for key, what in (("samples", "samples a case"), ("sampling", "sampling"), ("scorer", "scorer")):
        if champion.document[key] != candidate.document[key]:
            raise Unusable(f"The two runs differ in {what}. {AGAIN}")
    served = [run.document["served"] or {} for run in (champion, candidate)]
    for key, what in (("build", "server build"), ("config", "server configuration")):
        theirs, ours = (facts.get(key) for facts in served)
        if theirs is None or ours is None:
            raise Unusable(f"The {what} of the two runs is not known, so they cannot be compared.")
        if theirs != ours:
            raise Unusable(f"The two runs differ in {what}. {AGAIN}")
    return champion, candidate


def _comparable_counts(runs: tuple[Measurement, Measurement], metric: str) -> tuple[Counts, Counts]:
    champion, candidate = (run.counts(metric) for run in runs)
    if champion.n != candidate.n or champion.n == 0:
        raise Unusable(
            f"The runs cover {champion.n} and {candidate.n} prompts of this metric; they must be equal."
        )
    return champion, candidate


@gate("arena_max_regression", MaxDropParams)
def arena_max_regression(evidence: Evidence, params: MaxDropParams) -> GateOutcome:
    """The candidate drops at most `max_drop` points against the champion on the same prompts, by exact fractions."""
    champion, candidate = _comparable_counts(comparable_runs(evidence, params.suite), params.metric)
    n = champion.n
    worst = Fraction(champion.successes + champion.missing - candidate.successes, n)
    best = Fraction(champion.successes - candidate.successes - candidate.missing, n)
    allowed = Fraction(params.max_drop)
    numbers = {
        "measured": f"{candidate.successes}/{n}",
        "champion": f"{champion.successes}/{n}",
        "bound": f"{float(worst):+.6f}",
        "best_bound": f"{float(best):+.6f}",
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
        f"{sentence}: the prompts without a score decide it. Run again what failed.",
        numbers,
    )


def _least(champion: int, n: int, allowed: Fraction) -> int:
    """Smallest count that is at most `allowed` points below the champion's."""
    return max(0, -int(-(champion - allowed * n) // 1))


@gate("arena_json_validity_min", FloorParams)
def arena_json_validity_min(evidence: Evidence, params: FloorParams) -> GateOutcome:
    """The lower bound of answers that are one strict JSON object reaches `min`."""
    return floor(evidence, params)


@gate("paired_non_inferiority", MarginParams)
def paired_non_inferiority(evidence: Evidence, params: MarginParams) -> GateOutcome:
    """The lower bound of the paired difference to the champion, prompt by prompt, is at least -`margin`.

    The bound is Tango's one-sided score bound at `alpha`, so two perfect models can be compared and few prompts make a
    wide bound that blocks. Its real error passes `alpha` where few pairs differ, most where none was won; there the
    exact Clopper-Pearson upper limit of the share lost at `alpha` must be within `margin` too. A prompt without a
    value on either side counts as lost, and as won before the gate fails.
    """
    runs = comparable_runs(evidence, params.suite)
    champion, candidate = _comparable_counts(runs, params.metric)
    tables = evidence.suite(params.suite)["paired"]
    if tables is None:
        raise Unusable("The two runs were not compared prompt by prompt. Judge the candidate again.")
    lost, won, missing, n = _pairs(tables[params.metric], champion, candidate)
    alpha = evidence.alpha(runs[1], params.alpha)
    bound, best = _lower(lost + missing, won, n, alpha), _lower(lost, won + missing, n, alpha)
    meets = _meets(won, n, alpha, params.margin)
    numbers = {
        "measured": f"{lost} lost, {won} won",
        "bound": _drop(-bound),
        "best_bound": _drop(-best),
        "needs": f"drop <= {params.margin}",
        "n": n,
        "masked": missing,
        "alpha": f"{alpha:.6g}",
        "look": runs[1].look,
        "meets_with": meets,
    }
    sentence = f"{params.metric}: {lost} lost and {won} won of {n} prompts"
    if Decimal(bound) >= -params.margin:
        return GateOutcome(
            Outcome.PASSED, f"{sentence}: a drop of {_drop(-bound)} at most, within {params.margin}.", numbers
        )
    if Decimal(best) < -params.margin:
        return GateOutcome(
            Outcome.FAILED,
            f"{sentence}: the drop may be {_drop(-best)}, more than {params.margin}; it would pass with {meets}.",
            numbers,
        )
    return GateOutcome(
        Outcome.NOT_EVALUATED,
        f"{sentence}: {missing} pairs without a score decide it (drop of at most {_drop(-best)} to {_drop(-bound)}, "
        f"needs {params.margin}; it would pass with {meets}). Run again what failed.",
        numbers,
    )


def least_pairs(margin: Decimal, alpha: Decimal) -> int:
    """Smallest n for which n prompts that both models answer alike pass `paired_non_inferiority`."""
    tango = minimum_n_for_margin(float(margin), float(alpha))
    return max(tango, minimum_n_for_bound(float(1 - margin), float(alpha)))


def _pairs(table: Mapping[str, Any], champion: Counts, candidate: Counts) -> tuple[int, int, int, int]:
    """Lost, won, missing and all pairs of a paired table that agrees with the two runs' own counts."""
    both, lost, won, neither, missing = (
        count(table[name]) for name in ("both", "lost", "won", "neither", "missing")
    )
    n = both + lost + won + neither + missing
    agrees = (
        n == champion.n
        and 0 <= champion.successes - both - lost <= missing
        and 0 <= candidate.successes - both - won <= missing
        and max(champion.missing, candidate.missing) <= missing <= champion.missing + candidate.missing
    )
    if not agrees:
        raise Unusable("The pairs are not those of the two runs. Judge the candidate again.")
    if n < 2:
        raise Unusable(f"A paired bound needs at least two prompts, and there is {n}.")
    return lost, won, missing, n


@lru_cache(maxsize=4096)
def _lower(lost: int, won: int, n: int, alpha: Decimal) -> float:
    bound = tango_lower(lost, won, n, float(alpha))
    return min(bound, -clopper_pearson_upper(lost, n, float(alpha))) if won == 0 else bound


def _meets(won: int, n: int, alpha: Decimal, margin: Decimal) -> str:
    """The most lost pairs with which the gate passes, given as many won; the n to have where not even none does."""
    passes, fails = -1, n - won + 1
    while fails - passes > 1:
        middle = (passes + fails) // 2
        if Decimal(_lower(middle, won, n, alpha)) >= -margin:
            passes = middle
        else:
            fails = middle
    if passes < 0:
        return f"at least {least_pairs(margin, alpha)} prompts, none lost"
    return f"at most {passes} lost"


def _drop(value: float) -> str:
    """A drop in points with its sign, rounded up: what is shown is never better than what was compared."""
    return f"{Decimal(value).quantize(Decimal('0.000001'), rounding=ROUND_CEILING):+}"
