"""Are the bytes and the suites what they are said to be?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from promotion.gates.base import Evidence, GateOutcome, Outcome, Params, SuiteParams, Unmet, Unusable, gate
from promotion.gates.document import count, moment, title

# the verification's numbers: up to nine digits before the point
NUMBER = re.compile(r"[0-9]{1,9}\.[0-9]{1,12}")


@gate("dataset_hash", Params, waivable=False)
def dataset_hash(evidence: Evidence, params: Params) -> GateOutcome:
    """Every training and evaluation file of the candidate has the bytes that its sidecar declares.

    A file whose sidecar names no digest is not evaluated. Cannot be waived.
    """
    datasets = evidence.datasets()
    wrong, unknown = [], []
    for part in datasets:
        digests = part["file_sha256"], part["declared_sha256"]
        if not all(isinstance(digest, str) and digest for digest in digests):
            unknown.append(title(part))
        elif digests[0] != digests[1]:
            wrong.append(f"{title(part)} (declared {digests[1][:12]}, is {digests[0][:12]})")
    if wrong:
        raise Unmet(f"Other bytes than the sidecar declares: {', '.join(wrong)}. Register the right files.")
    if unknown:
        raise Unusable(
            f"No sidecar declares the digest of {', '.join(unknown)}. Register it with its sidecar."
        )
    numbers = {
        "measured": ", ".join(part["file_sha256"][:12] for part in datasets),
        "needs": "equal to the sidecars",
        "n": sum(count(part["rows"]) for part in datasets),
    }
    return GateOutcome(Outcome.PASSED, f"All {len(datasets)} files are those of their sidecars.", numbers)


@gate("sealed_eval_hash", SuiteParams, waivable=False)
def sealed_eval_hash(evidence: Evidence, params: SuiteParams) -> GateOutcome:
    """The suite that was scored is the sealed suite of the policy, whole, and was sealed before the run.

    Cannot be waived.
    """
    suite = evidence.suite(params.suite)
    run = evidence.candidate(params.suite).document
    if moment(suite["sealed_at"]) > moment(run["planned_at"]):
        raise Unusable(f"{suite['name']} was sealed after the run was planned.")
    numbers = {"measured": params.suite[:16], "needs": "equal", "n": suite["prompt_count"]}
    return GateOutcome(
        Outcome.PASSED,
        f"All {suite['case_count']} cases of {suite['name']} as sealed ({params.suite[:12]}).",
        numbers,
    )


@gate("candidate_artifact_hash", Params, waivable=False)
def candidate_artifact_hash(evidence: Evidence, params: Params) -> GateOutcome:
    """The candidate's GGUF is stored under its digest, was read back and was verified numerically.

    Cannot be waived.
    """
    digest = _require_verified(evidence.facts["artifact"])
    numbers = {"measured": digest[:16], "needs": "verified"}
    return GateOutcome(Outcome.PASSED, f"GGUF {digest[:12]} read back and verified by llama.cpp.", numbers)


@gate("export_parity", Params, waivable=False)
def export_parity(evidence: Evidence, params: Params) -> GateOutcome:
    """llama.cpp's effect of the exported GGUF is the adapter's, within the limit in every comparison, by the numbers.

    A file that is said to be verified, without the numbers that show it, is not evaluated. Cannot be waived.
    """
    artifact = evidence.facts["artifact"]
    digest = _require_verified(artifact)
    comparisons = artifact["verification"].get("comparisons")
    if not comparisons:
        raise Unusable("The verification of the GGUF holds no numbers. Build and verify it again.")
    errors = [(_number(part, "effect_error"), _number(part, "limit"), part["part"]) for part in comparisons]
    # nearest to its limit first
    error, limit, part = max(errors, key=lambda found: found[0] - found[1])
    numbers = {
        "measured": f"off by {error} in {part}",
        "needs": f"<= {limit}",
        "n": len(comparisons),
        "meets_with": f"an effect off by at most {limit}",
    }
    if error > limit:
        return GateOutcome(
            Outcome.FAILED,
            f"The exported file's effect is off by {error} in {part}; at most {limit} is allowed. "
            "Build it again.",
            numbers,
        )
    return GateOutcome(
        Outcome.PASSED,
        f"GGUF {digest[:12]} computes what the adapter means in {len(comparisons)} comparisons.",
        numbers,
    )


def _require_verified(artifact: Mapping[str, Any]) -> str:
    """The GGUF's digest, if llama.cpp verified what it computes."""
    digest = artifact["gguf_sha256"]
    if digest is None:
        raise Unusable("The candidate's GGUF is not built yet.")
    verification = artifact["verification"]
    if verification is None or verification["status"] == "not_verified":
        why = verification["reason"] if verification else "it was never run."
        raise Unusable(f"The GGUF was not verified numerically: {why}")
    if verification["status"] != "verified":
        raise Unmet(f"The GGUF is not what the adapter says: {verification['reason']}")
    return str(digest)


def _number(comparison: Mapping[str, Any], name: str) -> Decimal:
    value = comparison[name]
    if not isinstance(value, str) or not NUMBER.fullmatch(value):
        raise ValueError(f"{name} of the verification is {str(value)[:40]!r}, not a decimal")
    return Decimal(value)
