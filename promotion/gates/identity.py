"""Was it this candidate that was measured?"""

from __future__ import annotations

from promotion.gates.base import Evidence, GateOutcome, Outcome, SuiteParams, gate


@gate("evaluated_artifact", SuiteParams)
def evaluated_artifact(evidence: Evidence, params: SuiteParams) -> GateOutcome:
    """The server loaded exactly the candidate's GGUF on its base model: compared by digest, never by name."""
    artifact = evidence.document["artifact"]
    run = evidence.candidate(params.suite).document
    served = run["served"]
    if not served or "adapter_sha256" not in served:
        return GateOutcome(
            Outcome.NOT_EVALUATED,
            "The endpoint does not prove which bytes it serves. Evaluate on a backend that loads files by digest.",
        )
    pairs = {
        "adapter": (served["adapter_sha256"], artifact["gguf_sha256"]),
        "base model": (served.get("base_sha256"), artifact["base_sha256"]),
        "chat template": (served.get("chat_template_sha256"), artifact["chat_template_sha256"]),
    }
    wrong = [name for name, (seen, expected) in pairs.items() if expected is None or seen != expected]
    if wrong:
        return GateOutcome(
            Outcome.FAILED, f"The server loaded another {' and '.join(wrong)} than the candidate's."
        )
    numbers = {"measured": artifact["gguf_sha256"][:16], "needs": "equal"}
    return GateOutcome(
        Outcome.PASSED, f"The run served {artifact['gguf_sha256'][:12]} on the registered base.", numbers
    )
