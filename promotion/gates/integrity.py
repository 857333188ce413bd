"""Are the bytes and the suites what they are said to be?"""

from __future__ import annotations

from promotion.gates.base import Evidence, GateOutcome, Outcome, Params, SuiteParams, Unusable, gate


@gate("candidate_artifact_hash", Params)
def candidate_artifact_hash(evidence: Evidence, params: Params) -> GateOutcome:
    """The candidate's GGUF is stored under its digest, was read back and was verified numerically."""
    artifact = evidence.document["artifact"]
    digest = artifact["gguf_sha256"]
    if digest is None:
        return GateOutcome(Outcome.NOT_EVALUATED, "The candidate's GGUF is not built yet.")
    verification = artifact["verification"]
    if verification is None or verification["status"] == "not_verified":
        why = verification["reason"] if verification else "it was never run"
        return GateOutcome(Outcome.NOT_EVALUATED, f"The GGUF was not verified numerically: {why}")
    if verification["status"] != "verified":
        return GateOutcome(Outcome.FAILED, f"The GGUF is not what the adapter says: {verification['reason']}")
    numbers = {"measured": digest[:16], "needs": "verified"}
    return GateOutcome(Outcome.PASSED, f"GGUF {digest[:12]} read back and verified by llama.cpp.", numbers)


@gate("sealed_eval_hash", SuiteParams)
def sealed_eval_hash(evidence: Evidence, params: SuiteParams) -> GateOutcome:
    """The suite that was scored is the sealed suite of the policy, whole, and was sealed before the run."""
    suite = evidence.suite(params.suite)
    run = evidence.candidate(params.suite).document
    if suite["sealed_at"] > run["planned_at"]:
        raise Unusable(f"{suite['name']} was sealed after the run was planned.")
    numbers = {"measured": params.suite[:16], "needs": "equal", "n": suite["case_count"]}
    return GateOutcome(
        Outcome.PASSED,
        f"All {suite['case_count']} cases of {suite['name']} as sealed ({params.suite[:12]}).",
        numbers,
    )
