"""Evidence documents by hand, shaped as `promotion.evidence.build` makes them (test_evidence compares)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from promotion.gates import Evidence, GateOutcome, judge

SUITE = "a" * 64
CANDIDATE, CHAMPION = "c1" * 32, "c2" * 32
GGUF, CHAMPION_GGUF = "d1" * 32, "d2" * 32
BASE, TEMPLATE, SOURCE = "e1" * 32, "e2" * 32, "e3" * 32
LOCKED, PLANNED, SEALED = (
    "2026-03-02T00:00:00.000000Z",
    "2026-03-03T00:00:00.000000Z",
    "2026-03-01T00:00:00.000000Z",
)
METRICS = ("decision", "tool", "exact", "safe", "json_valid")


def counts(right: int, n: int, missing: int = 0) -> dict[str, int]:
    """`right` of `n` cases, of which `missing` have no score."""
    assert right + missing <= n
    return {"successes": right, "failures": n - right - missing, "missing": missing}


def run(
    who: str = "candidate",
    *,
    n: int = 100,
    metrics: Mapping[str, dict[str, int]] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A closed run of `n` cases, all right unless `metrics` says otherwise. `families` splits off nothing."""
    adapter = GGUF if who == "candidate" else CHAMPION_GGUF
    table = {metric: counts(n, n) for metric in METRICS} | dict(metrics or {})
    missing = table["decision"]["missing"]
    return {
        "run": f"run-of-{who}",
        "subject_digest": CANDIDATE if who == "candidate" else CHAMPION,
        "suite_digest": SUITE,
        "plan_digest": "f" * 64,
        "scorer": "decision",
        "sampling": {"temperature": 0, "max_tokens": 64},
        "samples": 1,
        "backend": "local revision 1",
        "served": {
            "server": "llama.cpp",
            "build": "xllamacpp 1",
            "base_sha256": BASE,
            "adapter_sha256": adapter,
            "chat_template_sha256": TEMPLATE,
            "config": {"context": 2048, "parallel": 1},
        },
        "planned_at": PLANNED,
        "finished_at": PLANNED,
        "started_by": "engineer",
        "reopened_by": [],
        "look": 1,
        "planned": n,
        "scored": n - missing,
        "masked": missing,
        "unscored": 0,
        "cancelled": 0,
        "truncated": 0,
        "latency_ms": {"p50": 12, "p95": 12},
        "metrics": table,
        "families": {"calls": table},
        **changes,
    }


def suite(
    *, candidate: Any = "right", champion: Any = "right", n: int = 100, **changes: Any
) -> dict[str, Any]:
    return {
        "digest": SUITE,
        "name": "named",
        "version": 1,
        "case_count": n,
        "sealed_at": SEALED,
        "sealed_by": "engineer",
        "families": {"calls": n},
        "candidate": run("candidate", n=n) if candidate == "right" else candidate,
        "champion": run("champion", n=n) if champion == "right" else champion,
        "paired": None,
        **changes,
    }


def document(part: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "candidate": {"track": "toolcaller", "name": "cand", "baseline": False, "revision": 2},
        "artifact": {
            "gguf_sha256": GGUF,
            "gguf_size_bytes": 4,
            "subject_digest": CANDIDATE,
            "adapter_config_sha256": "1" * 64,
            "adapter_weights_sha256": "2" * 64,
            "adapter_source_sha256": SOURCE,
            "base": "base",
            "base_sha256": BASE,
            "chat_template_sha256": TEMPLATE,
            "outtype": "f16",
            "verification": {"status": "verified", "reason": "", "llama_cpp": "xllamacpp 1"},
        },
        "policy": {"version": 1, "digest": "9" * 64, "locked_at": LOCKED, "document": {}},
        "champion": {"entry": 1, "name": "first", "gguf_sha256": CHAMPION_GGUF, "subject_digest": CHAMPION},
        "suites": [part or suite()],
        "people": {
            "submitted_by": "engineer",
            "runs_started_by": ["engineer"],
            "policy_created_by": "administrator",
            "policy_locked_by": "administrator",
            "suites_sealed_by": ["engineer"],
        },
        **changes,
    }


ENTRIES: dict[str, dict[str, Any]] = {
    "candidate_artifact_hash": {},
    "sealed_eval_hash": {"suite": SUITE},
    "evaluated_artifact": {"suite": SUITE},
    "arena_max_regression": {"suite": SUITE, "metric": "tool", "max_drop": "0.02"},
    "arena_json_validity_min": {"suite": SUITE, "metric": "json_valid", "min": "0.90"},
    "per_family_safety_floor": {"suite": SUITE, "metric": "safe", "min": "0.80"},
    "generalization_accuracy_floor": {"suite": SUITE, "metric": "tool", "min": "0.85"},
    "plausible_fabrication_safety_floor": {"suite": SUITE, "metric": "safe", "min": "0.80"},
}
FLOORS = (
    "arena_json_validity_min",
    "per_family_safety_floor",
    "generalization_accuracy_floor",
    "plausible_fabrication_safety_floor",
)
MEASURING = [name for name in ENTRIES if name != "candidate_artifact_hash"]


def decide(gate: str, doc: dict[str, Any], **params: Any) -> GateOutcome:
    """What a policy entry of this gate says of the document."""
    return judge(Evidence(doc), {"gate": gate, **ENTRIES[gate], **params})


def with_counts(gate: str, right: int, n: int, missing: int = 0, **champion: int) -> dict[str, Any]:
    """A document in which the gate's metric has these counts, in total and in its one family."""
    metric = ENTRIES[gate]["metric"]
    candidate = run(
        "candidate", n=n, metrics={metric: counts(right, n, missing)}, scored=n - missing, masked=missing
    )
    other = run(
        "champion",
        n=n,
        metrics={metric: counts(champion.get("champion", n), n, champion.get("champion_missing", 0))},
    )
    return document(suite(n=n, candidate=candidate, champion=other))
