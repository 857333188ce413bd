"""Is it fast and small enough, and does it speak of the same tools as the suite and the data?"""

from __future__ import annotations

from promotion.gates.base import Evidence, GateOutcome, Outcome, SuiteParams, Unusable, gate
from promotion.gates.document import count, title
from promotion.gates.params import BudgetParams

MIB = 1 << 20


@gate("latency_memory_budget", BudgetParams)
def latency_memory_budget(evidence: Evidence, params: BudgetParams) -> GateOutcome:
    """95 of 100 rollouts took at most `max_p95_ms`, and the server never held more than `max_memory_mib`.

    Both are measured by the candidate's own run. A rollout without a time may have been the slowest, so with any of
    them the percentile is not known. A number that was not measured is never taken as small.
    """
    run = evidence.candidate(params.suite).document
    latency, peak = run["latency_ms"], run["peak_memory_bytes"]
    p95, timed, planned = latency["p95"], latency["n"], run["planned"]
    if p95 is None or timed is None:
        raise Unusable("The latency of this run was not measured. Evaluate it again.")
    if count(timed) != planned:
        raise Unusable(
            f"{timed} of {planned} rollouts have a time; the others may be the slowest. Run again what failed."
        )
    measured, needs = [f"p95 {count(p95)} ms"], [f"p95 <= {params.max_p95_ms} ms"]
    wrong = [] if p95 <= params.max_p95_ms else [f"p95 {p95} ms of {params.max_p95_ms} ms"]
    if params.max_memory_mib is not None:
        if not peak:
            raise Unusable("The memory of the server was not measured. Evaluate on a backend that starts it.")
        # rounded up: a part of a MiB is over
        mib = -(-count(peak) // MIB)
        measured.append(f"{mib} MiB")
        needs.append(f"memory <= {params.max_memory_mib} MiB")
        if mib > params.max_memory_mib:
            wrong.append(f"memory {mib} MiB of {params.max_memory_mib} MiB")
    numbers = {
        "measured": ", ".join(measured),
        "needs": ", ".join(needs),
        "n": planned,
        "meets_with": ", ".join(needs),
    }
    if wrong:
        return GateOutcome(Outcome.FAILED, f"Over the budget: {'; '.join(wrong)}.", numbers)
    return GateOutcome(Outcome.PASSED, f"{', '.join(measured)}: within the budget.", numbers)


@gate("runtime_schema_identity", SuiteParams)
def runtime_schema_identity(evidence: Evidence, params: SuiteParams) -> GateOutcome:
    """The candidate, every training set and the suite name the same tool schema, by digest."""
    suite = evidence.suite(params.suite)
    digests = [
        ("candidate", evidence.facts["artifact"]["tool_schema_sha256"]),
        (f"suite {title(suite)}", suite["schema_sha256"]),
        *((f"dataset {title(part)}", part["schema_sha256"]) for part in evidence.datasets("train")),
    ]
    unknown = [name for name, digest in digests if not isinstance(digest, str) or not digest]
    known = {digest for name, digest in digests if name not in unknown}
    numbers = {
        "measured": ", ".join(sorted(digest[:12] for digest in known)) or "unknown",
        "needs": "one schema",
        "meets_with": "one digest for candidate, training sets and suite",
    }
    if len(known) > 1:
        listed = ", ".join(f"{name} {digest[:12]}" for name, digest in digests if name not in unknown)
        return GateOutcome(
            Outcome.FAILED, f"They were made for different tools: {listed}. Use one schema for all.", numbers
        )
    if unknown:
        return GateOutcome(
            Outcome.NOT_EVALUATED, f"The tool schema of {', '.join(unknown)} is not known. Name it.", numbers
        )
    return GateOutcome(Outcome.PASSED, f"All of {len(digests)} name schema {known.pop()[:12]}.", numbers)
