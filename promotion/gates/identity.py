"""Was it this candidate that was measured, and is the champion the one that ships now?"""

from __future__ import annotations

from promotion.gates.base import Evidence, GateOutcome, Outcome, Params, SuiteParams, Unmet, Unusable, gate
from promotion.gates.regression import require_two_models


@gate("incumbent_artifact_hash", Params, waivable=False)
def incumbent_artifact_hash(evidence: Evidence, params: Params) -> GateOutcome:
    """The champion is an entry of the registry whose GGUF is known by its digest, and it is not the candidate.

    Cannot be waived.
    """
    champion, digest = evidence.incumbent(), require_two_models(evidence)
    numbers = {"measured": digest[:16], "needs": "another than the candidate's"}
    return GateOutcome(
        Outcome.PASSED,
        f"Champion {champion['name']}, entry {champion['entry']}: GGUF {digest[:12]}.",
        numbers,
    )


@gate("rollback_artifact_availability", Params)
def rollback_artifact_availability(evidence: Evidence, params: Params) -> GateOutcome:
    """The champion's GGUF lies in the store under its digest, so that there is something to roll back to."""
    champion = evidence.incumbent()
    digest, stored = champion["gguf_sha256"], champion["stored"]
    if digest is None or stored is None:
        raise Unusable(
            "It is not known whether the champion's GGUF is in the store. Judge the candidate again."
        )
    if stored is not True:
        raise Unmet(f"The champion's GGUF {digest[:12]} is not in the store. Restore it from a backup.")
    exported = f", exported as {champion['exported_as']}" if champion["exported_as"] else ""
    numbers = {"measured": digest[:16], "needs": "stored"}
    return GateOutcome(
        Outcome.PASSED, f"{champion['name']} can be rolled back to: GGUF {digest[:12]}{exported}.", numbers
    )


@gate("deployed_artifact_gauntlet", SuiteParams, waivable=False)
def deployed_artifact_gauntlet(evidence: Evidence, params: SuiteParams) -> GateOutcome:
    """The server loaded exactly the candidate's GGUF on its base model: compared by digest, never by name.

    The digest that was evaluated is the digest that ships. `evaluated_artifact` is its former name. Cannot be waived.
    """
    artifact = evidence.facts["artifact"]
    run = evidence.candidate(params.suite).document
    served = run["served"]
    if not served or "adapter_sha256" not in served:
        raise Unusable(
            "The endpoint does not prove which bytes it serves. Evaluate on a backend that loads files by digest."
        )
    pairs = {
        "adapter": (served["adapter_sha256"], artifact["gguf_sha256"]),
        "base model": (served.get("base_sha256"), artifact["base_sha256"]),
        "chat template": (served.get("chat_template_sha256"), artifact["chat_template_sha256"]),
    }
    wrong = [name for name, (seen, expected) in pairs.items() if expected is None or seen != expected]
    if wrong:
        raise Unmet(f"The server loaded another {' and '.join(wrong)} than the candidate's.")
    numbers = {"measured": artifact["gguf_sha256"][:16], "needs": "equal"}
    return GateOutcome(
        Outcome.PASSED, f"The run served {artifact['gguf_sha256'][:12]} on the registered base.", numbers
    )


@gate("evaluated_artifact", SuiteParams, waivable=False, alias_of="deployed_artifact_gauntlet")
def evaluated_artifact(evidence: Evidence, params: SuiteParams) -> GateOutcome:
    """The former name of `deployed_artifact_gauntlet`: the same check, kept for policies that were locked under it.

    Cannot be waived.
    """
    return deployed_artifact_gauntlet(evidence, params)
