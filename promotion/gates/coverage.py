"""Was enough measured, and often enough but not too often?"""

from __future__ import annotations

from fractions import Fraction

from promotion.gates.base import Evidence, GateOutcome, Outcome, SuiteParams, Unmet, Unusable, gate
from promotion.gates.document import ACCOUNTED
from promotion.gates.params import LookParams, MaskedParams

STATED = ("independent", "ignored")


@gate("masked_ceiling", MaskedParams)
def masked_ceiling(evidence: Evidence, params: MaskedParams) -> GateOutcome:
    """At most `max_percent` of the candidate's rollouts are without a score: masked, unscored or cancelled."""
    run = evidence.candidate(params.suite).document
    planned = run["planned"]
    missing = sum(run[part] for part in ACCOUNTED if part != "scored")
    allowed = Fraction(params.max_percent) * planned / 100
    numbers = {
        "measured": f"{missing} of {planned} rollouts",
        "needs": f"<= {params.max_percent} %",
        "n": planned,
        "masked": missing,
        "meets_with": f"at most {allowed // 1} of {planned} rollouts",
    }
    sentence = f"{missing} of {planned} rollouts have no score"
    if missing > allowed:
        return GateOutcome(
            Outcome.FAILED,
            f"{sentence}; at most {allowed // 1} may. Run again what failed.",
            numbers,
        )
    return GateOutcome(Outcome.PASSED, f"{sentence}, within {params.max_percent} %.", numbers)


@gate("sample_independence", SuiteParams)
def sample_independence(evidence: Evidence, params: SuiteParams) -> GateOutcome:
    """Several samples of a case are draws of their own, by the backend's word.

    A backend that ignores the sample's index repeats one answer, which shows no spread: it fails with more than one
    sample and passes with one, where nothing is repeated. A backend that says nothing is not evaluated either way.
    """
    run = evidence.candidate(params.suite).document
    samples, independence = run["samples"], run["independence"]
    numbers = {
        "measured": str(independence),
        "needs": "independent" if samples > 1 else "stated",
        "samples": samples,
    }
    if independence not in STATED:
        return GateOutcome(
            Outcome.NOT_EVALUATED,
            f"The backend of this run does not say whether its samples are independent ({samples} a case). "
            "Evaluate on one that does.",
            numbers,
        )
    if samples > 1 and independence != "independent":
        return GateOutcome(
            Outcome.FAILED,
            f"The backend ignores the sample's index, so {samples} samples a case are one answer repeated. "
            "Lock a policy with one sample, or evaluate on another backend.",
            numbers,
        )
    return GateOutcome(
        Outcome.PASSED,
        f"{samples} sample{'' if samples == 1 else 's'} a case, {independence} by the backend's word.",
        numbers,
    )


@gate("look_budget", LookParams)
def look_budget(evidence: Evidence, params: LookParams) -> GateOutcome:
    """This is one of the first `max_looks` looks at the sealed suite: models that were scored on it, in order.

    Where the policy spends alpha, every bound at look k is taken at alpha / (k (k + 1)), and 1 / (k + 1) of alpha is left
    for later looks; the numbers show it.
    """
    run = evidence.candidate(params.suite)
    if run.look is None:
        raise Unusable("The look of this run at its suite was not counted. Evaluate it again.")
    spend = evidence.facts["policy"]["document"]["spend_alpha"]
    numbers = {
        "measured": f"look {run.look}",
        "needs": f"<= {params.max_looks} looks",
        "look": run.look,
        "meets_with": f"at most {params.max_looks} looks",
    }
    left = ""
    if spend is True:
        numbers["alpha_left"] = f"{Fraction(1, run.look + 1)}"
        left = f" {numbers['alpha_left']} of alpha is left for later looks."
    elif spend is not False:
        raise ValueError(f"spend_alpha is {str(spend)[:40]!r}, neither true nor false")
    if run.look > params.max_looks:
        raise Unmet(
            f"This is look {run.look} at the suite, and the policy allows {params.max_looks}. Seal a new suite."
        )
    return GateOutcome(Outcome.PASSED, f"Look {run.look} of {params.max_looks}.{left}", numbers)
