"""Evidence documents by hand, shaped as `promotion.evidence.build` makes them (test_evidence compares)."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from promotion.gates import Evidence, GateOutcome, judge, measurement_digest

SUITE, OTHER_SUITE = "a" * 64, "b" * 64
CANDIDATE, CHAMPION = "c1" * 32, "c2" * 32
GGUF, CHAMPION_GGUF = "d1" * 32, "d2" * 32
BASE, TEMPLATE, SOURCE = "e1" * 32, "e2" * 32, "e3" * 32
SCHEMA = "5c" * 32
TRAIN, EVAL = "71" * 32, "72" * 32
LOCKED, PLANNED, SEALED = (
    "2026-03-02T00:00:00.000000Z",
    "2026-03-03T00:00:00.000000Z",
    "2026-03-01T00:00:00.000000Z",
)
NOW = datetime(2026, 3, 10, tzinfo=UTC)
METRICS = ("decision", "tool", "exact", "safe", "json_valid")
MIB = 1 << 20


def counts(right: int, n: int, missing: int = 0) -> dict[str, int]:
    """`right` of `n` prompts, of which `missing` have no score."""
    assert right + missing <= n
    return {"successes": right, "failures": n - right - missing, "missing": missing}


def run(
    who: str = "candidate",
    *,
    n: int = 100,
    metrics: Mapping[str, dict[str, int]] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A closed run of `n` cases with as many prompts, all right unless `metrics` says otherwise, in one family."""
    adapter = GGUF if who == "candidate" else CHAMPION_GGUF
    table = {metric: counts(n, n) for metric in METRICS} | dict(metrics or {})
    missing = table["decision"]["missing"]
    return {
        "run": f"run-of-{who}",
        "revision": 1,
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
        "independence": "independent",
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
        "reasoning_only": 0,
        "turns_exhausted": 0,
        "latency_ms": {"p50": 12, "p95": 12, "n": n - missing},
        "peak_memory_bytes": 300 * MIB,
        "metrics": table,
        "families": {"calls": table},
        **changes,
    }


def pairs(
    both: int, lost: int = 0, won: int = 0, neither: int = 0, missing: int = 0
) -> dict[str, dict[str, int]]:
    """A paired table, the same for every metric."""
    table = {"both": both, "lost": lost, "won": won, "neither": neither, "missing": missing}
    return {metric: dict(table) for metric in METRICS}


def suite(
    *, candidate: Any = "right", champion: Any = "right", n: int = 100, **changes: Any
) -> dict[str, Any]:
    return {
        "digest": SUITE,
        "name": "named",
        "version": 1,
        "case_count": n,
        "prompt_count": n,
        "scorer": "decision",
        "schema_sha256": None,
        "leak": leak(n=n),
        "sealed_at": SEALED,
        "sealed_by": "engineer",
        "amended": [],
        "families": {"calls": n},
        "family_prompts": {"calls": n},
        "candidate": run("candidate", n=n) if candidate == "right" else candidate,
        "champion": run("champion", n=n) if champion == "right" else champion,
        "paired": pairs(n),
        **changes,
    }


def document(part: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Evidence of a candidate of which no dataset is declared, on one suite."""
    return {
        "format": 2,
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
            "tool_schema_sha256": None,
            "verification": verification(),
        },
        "policy": {
            "version": 1,
            "digest": "9" * 64,
            "locked_at": LOCKED,
            "document": {"spend_alpha": False, "suites": [{"digest": SUITE}]},
        },
        "champion": {
            "entry": 1,
            "name": "first",
            "baseline": True,
            "gguf_sha256": CHAMPION_GGUF,
            "subject_digest": CHAMPION,
            "stored": True,
            "exported_as": "first-f16.gguf",
        },
        "datasets": [],
        "suites": [part or suite()],
        "people": {
            "submitted_by": "engineer",
            "base_registered_by": "engineer",
            "runs_started_by": ["engineer"],
            "backends_saved_by": ["engineer"],
            "amendments_by": [],
            "policy_created_by": "administrator",
            "policy_written_by": ["administrator"],
            "policy_locked_by": "administrator",
            "suites_sealed_by": ["engineer"],
            "datasets_registered_by": [],
            "waivers_by": [],
        },
        "waivers": [],
        "statement": None,
        **changes,
    }


def verification(*errors: str, limit: str = "0.050000") -> dict[str, Any]:
    """What `promotion.export.verify` reports of a right file, with these errors of the effect."""
    return {
        "status": "verified",
        "reason": "llama.cpp's effect of the file is PEFT's, in 2 comparisons.",
        "llama_cpp": "xllamacpp 1",
        "comparisons": [
            {"part": part, "effect": "0.500000", "effect_error": error, "limit": limit, "positions": 12}
            for part, error in zip(("whole", "layers 0-1"), errors or ("0.020000", "0.000100"), strict=False)
        ],
        "warnings": [],
    }


# what a document needs for the gates that look beyond the runs


def leak(
    accuracy: str = "0.700000", majority: str = "0.533333", n: int = 100, **changes: Any
) -> dict[str, Any]:
    return {
        "format": 1,
        "label": "expects_call",
        "n": n,
        "majority": majority,
        "feature": 'the word "please": a call',
        "accuracy": accuracy,
        "features_tried": 12,
        **changes,
    }


def report(rows: int, others: int, **found: int) -> dict[str, Any]:
    """What two sets share: `ids`, `groups`, `texts`, `near`; nothing unless said."""
    return {
        "format": 1,
        "ids": 0,
        "groups": 0,
        "texts": 0,
        "near": 0,
        **found,
        "threshold": "0.8",
        "rows": rows,
        "others": others,
        "examples": [],
    }


def dataset(role: str, *, rows: int = 300, **changes: Any) -> dict[str, Any]:
    digest = TRAIN if role == "train" else EVAL
    return {
        "role": role,
        "name": role,
        "version": 1,
        "digest": digest,
        "file_sha256": digest[::-1],
        "declared_sha256": digest[::-1],
        "rows": rows,
        "distinct_texts": rows,
        "without_id": 0,
        "repeated_ids": 0,
        "schema_sha256": SCHEMA,
        "streams": ["organic", "composed"] if role == "train" else [],
        "registered_by": "engineer",
        "overlaps": [],
        **changes,
    }


def compared(
    datasets: Sequence[dict[str, Any]],
    suites: Sequence[Mapping[str, Any]],
    shared: Mapping[tuple[str, str], Mapping[str, int]] | None = None,
) -> list[dict[str, Any]]:
    """The datasets with the reports of every comparison, under both sides; `shared` by (digest, digest)."""
    found = copy.deepcopy(list(datasets))
    for part in found:
        for other in found:
            if {part["role"], other["role"]} == {"train", "eval"}:
                part["overlaps"].append(_overlap("dataset", part, other, other["rows"], shared or {}))
        for judging in suites:
            part["overlaps"].append(_overlap("suite", part, judging, judging["case_count"], shared or {}))
    return found


def _overlap(
    kind: str,
    part: Mapping[str, Any],
    other: Mapping[str, Any],
    others: int,
    shared: Mapping[tuple[str, str], Mapping[str, int]],
) -> dict[str, Any]:
    key = (part["digest"], other["digest"])
    found = shared.get(key) or shared.get(key[::-1]) or {}
    return {
        "with": kind,
        "digest": other["digest"],
        "name": other["name"],
        "report": report(part["rows"], others, **found),
    }


def whole(
    part: dict[str, Any] | None = None,
    *,
    datasets: Sequence[dict[str, Any]] | None = None,
    shared: Mapping[tuple[str, str], Mapping[str, int]] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Evidence on which every gate of `ENTRIES` passes: data, schemas and a search for leaks are there."""
    judging = part or suite(n=200)
    judging = {**judging, "schema_sha256": SCHEMA}
    declared = [dataset("train"), dataset("eval", rows=50)] if datasets is None else datasets
    found = document(judging, datasets=compared(declared, [judging], shared), **changes)
    found["artifact"] = {**found["artifact"], "tool_schema_sha256": SCHEMA}
    return found


def with_suite(doc: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy whose suite has these values."""
    return {**doc, "suites": [{**doc["suites"][0], **changes}]}


def with_run(doc: dict[str, Any], who: str = "candidate", **changes: Any) -> dict[str, Any]:
    """A copy whose suite's run, if there is one, has these values."""
    run = doc["suites"][0][who]
    return with_suite(doc, **{who: run and {**run, **changes}})


def with_policy(doc: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy whose policy document has these values."""
    policy = doc["policy"]
    return {**doc, "policy": {**policy, "document": {**policy["document"], **changes}}}


def waived(doc: dict[str, Any], gate: str, /, **changes: Any) -> dict[str, Any]:
    """A copy with a waiver of `gate` that is valid at NOW."""
    waiver = {
        "gate": gate,
        "suite": ENTRIES.get(gate, {}).get("suite"),
        "measurement_digest": measurement_digest(doc),
        "reason": "The server has no clock.",
        "requested_by": "engineer",
        "granted_by": "approver",
        "granted_at": "2026-03-05T00:00:00.000000Z",
        "expires_at": "2026-03-20T00:00:00.000000Z",
        **changes,
    }
    return {**doc, "waivers": [*doc["waivers"], waiver]}


def format_1(doc: dict[str, Any]) -> dict[str, Any]:
    """The document as it was stored before format 2."""
    old = copy.deepcopy(doc)
    old["format"] = 1
    del old["datasets"], old["waivers"], old["statement"], old["artifact"]["tool_schema_sha256"]
    for key in (
        "datasets_registered_by",
        "waivers_by",
        "backends_saved_by",
        "amendments_by",
        "base_registered_by",
    ):
        del old["people"][key]
    if old["champion"]:
        del old["champion"]["stored"], old["champion"]["exported_as"], old["champion"]["baseline"]
    for part in old["suites"]:
        del part["prompt_count"], part["family_prompts"], part["scorer"], part["schema_sha256"], part["leak"]
        del part["amended"]
        for who in ("candidate", "champion"):
            if part[who]:
                for key in (
                    "revision",
                    "independence",
                    "reasoning_only",
                    "turns_exhausted",
                    "peak_memory_bytes",
                ):
                    del part[who][key]
                del part[who]["latency_ms"]["n"]
    return old


# prompts, one by one


class Prompts(NamedTuple):
    """`times` prompts alike: what candidate and champion did. right, wrong, bad_json or missing."""

    family: str
    expects_call: bool
    candidate: str
    champion: str
    times: int


RIGHT_OR_NOT = {
    "right": dict.fromkeys(METRICS, "successes"),
    "wrong": {**dict.fromkeys(METRICS, "failures"), "json_valid": "successes"},
    "bad_json": dict.fromkeys(METRICS, "failures"),
    "missing": dict.fromkeys(METRICS, "missing"),
}
PAIRED = {
    ("successes", "successes"): "both",
    ("successes", "failures"): "lost",
    ("failures", "successes"): "won",
    ("failures", "failures"): "neither",
}


def suite_of(prompts: Iterable[Prompts], **changes: Any) -> dict[str, Any]:
    """A suite whose two runs did what `prompts` say: every table follows from them, as evidence makes it."""
    listed = [part for part in prompts if part.times]
    n = sum(part.times for part in listed)
    families = {name: sum(p.times for p in listed if p.family == name) for name in {p.family for p in listed}}
    paired = {metric: dict.fromkeys((*PAIRED.values(), "missing"), 0) for metric in METRICS}
    for part in listed:
        for metric in _applicable(part):
            sides = RIGHT_OR_NOT[part.champion][metric], RIGHT_OR_NOT[part.candidate][metric]
            paired[metric][PAIRED.get(sides, "missing")] += part.times
    runs = {}
    for who in ("candidate", "champion"):
        missing = sum(part.times for part in listed if getattr(part, who) == "missing")
        runs[who] = run(
            who,
            n=n,
            metrics=_tables(listed, who),
            families={
                name: _tables([part for part in listed if part.family == name], who) for name in families
            },
            scored=n - missing,
            masked=missing,
            latency_ms={"p50": 12, "p95": 12, "n": n - missing},
        )
    return suite(n=n, families=families, family_prompts=families, paired=paired, **runs) | changes


def _applicable(part: Prompts) -> list[str]:
    return [metric for metric in METRICS if metric != ("safe" if part.expects_call else "tool")]


def _tables(prompts: Iterable[Prompts], who: str) -> dict[str, dict[str, int]]:
    tables = {metric: counts(0, 0) for metric in METRICS}
    for part in prompts:
        for metric in _applicable(part):
            tables[metric][RIGHT_OR_NOT[getattr(part, who)][metric]] += part.times
    return tables


# gates


ENTRIES: dict[str, dict[str, Any]] = {
    "dataset_hash": {},
    "frozen_group_split": {"max_near": 0},
    "sealed_eval_hash": {"suite": SUITE},
    "candidate_artifact_hash": {},
    "incumbent_artifact_hash": {},
    "rollback_artifact_availability": {},
    "deployed_artifact_gauntlet": {"suite": SUITE},
    "evaluated_artifact": {"suite": SUITE},
    "confidence_lower_bound": {"suite": SUITE, "metric": "safe", "min": "0.85"},
    "arena_max_regression": {"suite": SUITE, "metric": "tool", "max_drop": "0.02"},
    "arena_json_validity_min": {"suite": SUITE, "metric": "json_valid", "min": "0.90"},
    "per_family_safety_floor": {"suite": SUITE, "metric": "safe", "min": "0.80"},
    "latency_memory_budget": {"suite": SUITE, "max_p95_ms": 500, "max_memory_mib": 512},
    "runtime_schema_identity": {"suite": SUITE},
    "generalization_accuracy_floor": {"suite": SUITE, "metric": "tool", "min": "0.85"},
    "plausible_fabrication_safety_floor": {"suite": SUITE, "metric": "safe", "min": "0.80"},
    "paired_non_inferiority": {"suite": SUITE, "metric": "decision", "margin": "0.02"},
    "masked_ceiling": {"suite": SUITE, "max_percent": "2"},
    "prompt_leak": {"suite": SUITE, "max_accuracy": "0.9"},
    "sample_independence": {"suite": SUITE},
    "export_parity": {},
    "look_budget": {"suite": SUITE, "max_looks": 5},
}
FLOORS = (
    "confidence_lower_bound",
    "arena_json_validity_min",
    "per_family_safety_floor",
    "generalization_accuracy_floor",
    "plausible_fabrication_safety_floor",
)
COMPARING = ("arena_max_regression", "paired_non_inferiority")
# of the suite and the data, not of a run on it
OF_NO_RUN = ("prompt_leak", "runtime_schema_identity")
OF_A_SUITE = [name for name, params in ENTRIES.items() if "suite" in params]
MEASURING = [name for name in OF_A_SUITE if name not in OF_NO_RUN]


def decide(gate: str, doc: dict[str, Any], at: datetime | None = None, **params: Any) -> GateOutcome:
    """What a policy entry of this gate says of the document."""
    return judge(Evidence(doc), {"gate": gate, **ENTRIES.get(gate, {}), **params}, at)


def with_counts(gate: str, right: int, n: int, missing: int = 0, **champion: int) -> dict[str, Any]:
    """A document in which the gate's metric has these counts, in total and in its one family.

    The other metrics are right but for what is missing. There are no pairs.
    """
    metric = ENTRIES[gate]["metric"]
    sides = {
        "candidate": (right, missing),
        "champion": (champion.get("champion", n), champion.get("champion_missing", 0)),
    }
    runs = {
        who: run(
            who,
            n=n,
            metrics={name: counts(n - gone, n, gone) for name in METRICS} | {metric: counts(good, n, gone)},
        )
        for who, (good, gone) in sides.items()
    }
    return document(suite(n=n, paired=None, **runs))
