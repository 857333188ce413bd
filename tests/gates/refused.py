"""Per gate, evidence on which it must not open the door, each for another reason."""

from __future__ import annotations

import copy
from typing import Any

from tests.gates.documents import (
    CHAMPION,
    COMPARING,
    EVAL,
    FLOORS,
    MEASURING,
    OTHER_SUITE,
    SUITE,
    TRAIN,
    compared,
    counts,
    dataset,
    document,
    leak,
    pairs,
    report,
    run,
    suite,
    verification,
    whole,
    with_counts,
    with_policy,
    with_run,
    with_suite,
)

Documents = dict[str, dict[str, Any]]


def artifact(**changes: Any) -> dict[str, Any]:
    doc = whole()
    doc["artifact"] |= changes
    return doc


def incumbent(**changes: Any) -> dict[str, Any]:
    doc = whole()
    doc["champion"] |= changes
    return doc


def declaring(train: dict[str, Any] | None = None, watched: dict[str, Any] | None = None) -> dict[str, Any]:
    """Datasets as usual but for these values."""
    return whole(datasets=[dataset("train", **(train or {})), dataset("eval", **(watched or {}))])


def two_training_sets(**second: Any) -> dict[str, Any]:
    """Two training sets, of which the second has these values."""
    return whole(
        datasets=[
            dataset("train"),
            dataset("train", **{"digest": "73" * 32, "name": "more", **second}),
            dataset("eval"),
        ]
    )


def partly_compared() -> dict[str, Any]:
    doc = copy.deepcopy(whole())
    for part in doc["datasets"]:
        part["overlaps"] = [overlap for overlap in part["overlaps"] if overlap["with"] == "suite"]
    return doc


def compared_without_suites() -> dict[str, Any]:
    doc = copy.deepcopy(whole())
    for part in doc["datasets"]:
        part["overlaps"] = [overlap for overlap in part["overlaps"] if overlap["with"] == "dataset"]
    return doc


def compared_in_part() -> dict[str, Any]:
    doc = copy.deepcopy(whole())
    doc["datasets"][0]["overlaps"][-1]["report"] = report(299, 200)
    return doc


def two_suites(shared: dict[tuple[str, str], dict[str, int]]) -> dict[str, Any]:
    """Two suites in the policy and in the evidence, and what the data share with them."""
    doc = with_policy(whole(), suites=[{"digest": SUITE}, {"digest": OTHER_SUITE}])
    judging = [doc["suites"][0], {**doc["suites"][0], "digest": OTHER_SUITE, "name": "second"}]
    datasets = compared([dataset("train"), dataset("eval")], judging, shared)
    return {**doc, "suites": judging, "datasets": datasets}


def unsafe_family() -> dict[str, Any]:
    candidate = run(n=150)
    bad = copy.deepcopy(candidate["metrics"])
    bad["safe"] = counts(10, 50)
    bad = {**{metric: counts(50, 50) for metric in bad}, "safe": counts(10, 50)}
    candidate["families"] = {"calls": run()["metrics"], "bad": bad}
    candidate["metrics"]["safe"] = counts(110, 150)
    sizes = {"calls": 100, "bad": 50}
    return document(suite(n=150, candidate=candidate, champion=None, families=sizes, family_prompts=sizes))


DATA: Documents = {
    "no data": whole(datasets=[]),
    "no training data": whole(datasets=[dataset("eval")]),
    "no evaluation data": whole(datasets=[dataset("train")]),
    "training and evaluation data were not compared": partly_compared(),
}
UNVERIFIED: Documents = {
    "no file": artifact(gguf_sha256=None),
    "never verified": artifact(verification=None),
    "could not be verified": artifact(
        verification={**verification(), "status": "not_verified", "reason": "No llama.cpp here."}
    ),
    "verified as wrong": artifact(verification={**verification(), "status": "failed", "reason": "Off by 1."}),
    "verified in no known way": artifact(verification={**verification(), "status": "fine"}),
}
SAME: Documents = {"the champion itself": artifact(gguf_sha256=whole()["champion"]["gguf_sha256"])}
NO_CHAMPION: Documents = {"no champion": whole(champion=None)}
RUNS: Documents = {
    "no run": with_suite(whole(), candidate=None),
    "another model's run": with_run(whole(), subject_digest=CHAMPION),
    "a run on another suite": with_run(whole(), suite_digest=OTHER_SUITE),
    "a run from before the policy": with_run(whole(), planned_at="2026-03-01T00:00:00.000000Z"),
    "a run that lost a rollout": with_run(whole(), cancelled=1),
    "a run that lost a prompt": with_suite(whole(), prompt_count=201),
    "a run that lost a family": with_suite(
        whole(), families={"calls": 200, "more": 1}, family_prompts={"calls": 200, "more": 1}
    ),
}
SERVED: Documents = {
    f"served another {key}": with_run(whole(), served={**run()["served"], key: "0" * 64})
    for key in ("adapter_sha256", "base_sha256", "chat_template_sha256")
} | {
    "served nobody knows what": with_run(whole(), served=None),
    "served the base alone": with_run(whole(), served={**run()["served"], "adapter_sha256": None}),
}
OTHER_CHAMPION: Documents = {
    "the champion was sampled otherwise": with_run(whole(), "champion", sampling={"temperature": 1}),
    "the champion ran on another server": with_run(
        whole(), "champion", served={**run("champion")["served"], "build": "another"}
    ),
    "the champion ran on no known server": with_run(
        whole(), "champion", served={**run("champion")["served"], "build": None}
    ),
    "the champion's run lost a rollout": with_run(whole(), "champion", cancelled=1),
    "no run of the champion": with_suite(whole(), champion=None),
}


def _refused() -> dict[str, Documents]:
    found: dict[str, Documents] = {
        "dataset_hash": {
            **DATA,
            "other training bytes": declaring({"declared_sha256": "0" * 64}),
            "other evaluation bytes": declaring(None, {"declared_sha256": "0" * 64}),
            "a second training set with other bytes": two_training_sets(declared_sha256="0" * 64),
            "no sidecar": declaring({"declared_sha256": None}),
            "no file": declaring({"file_sha256": None, "declared_sha256": None}),
        },
        "frozen_group_split": {
            **DATA,
            "suites were not compared": compared_without_suites(),
            "not all rows were compared": compared_in_part(),
            "empty data": declaring({"rows": 0, "distinct_texts": 0}, {"rows": 0, "distinct_texts": 0}),
            "rows without an id": declaring({"without_id": 3}),
            "a second suite's texts in the training data": two_suites({(TRAIN, OTHER_SUITE): {"texts": 1}}),
            "another suite than the policy's": with_policy(whole(), suites=[{"digest": OTHER_SUITE}]),
            "a policy without suites": with_policy(whole(), suites=[]),
            **{
                f"{kind} shared with {name}": whole(shared={(TRAIN, digest): {kind: 1}})
                for kind in ("ids", "groups", "texts", "near")
                for name, digest in (("evaluation data", EVAL), ("a suite", SUITE))
            },
            "a suite's texts in the evaluation data": whole(shared={(EVAL, SUITE): {"texts": 1}}),
        },
        "incumbent_artifact_hash": {
            **NO_CHAMPION,
            **SAME,
            "a champion without a file": incumbent(gguf_sha256=None),
        },
        "rollback_artifact_availability": {
            **NO_CHAMPION,
            "a champion that is not stored": incumbent(stored=False),
            "a champion of which nobody knows": incumbent(stored=None),
        },
        "candidate_artifact_hash": UNVERIFIED,
        "export_parity": {
            **UNVERIFIED,
            "no numbers": artifact(verification={**verification(), "comparisons": []}),
            "numbers of which none is known": artifact(
                verification={key: value for key, value in verification().items() if key != "comparisons"}
            ),
            "an effect off by more than the limit": artifact(verification=verification("0.050001")),
            "an effect that is no number": artifact(verification=verification("nan")),
        },
        "runtime_schema_identity": {
            **DATA,
            "the candidate's schema is not known": artifact(tool_schema_sha256=None),
            "the candidate's schema is another": artifact(tool_schema_sha256="0" * 64),
            "the suite's schema is not known": with_suite(whole(), schema_sha256=None),
            "the suite's schema is another": with_suite(whole(), schema_sha256="0" * 64),
            "the data's schema is not known": declaring({"schema_sha256": None}),
            "the data's schema is another": declaring({"schema_sha256": "0" * 64}),
            "a second training set's schema is another": two_training_sets(schema_sha256="0" * 64),
            "no suite": whole(suites=[]),
        },
        "prompt_leak": {
            "nobody looked": with_suite(whole(), leak=None),
            "one feature tells": with_suite(whole(), leak=leak("0.900000", n=200)),
            "one label": with_suite(whole(), leak=leak("1.000000", "1.000000", n=200, features_tried=0)),
            "no feature was tried": with_suite(whole(), leak=leak("0.533333", n=200, features_tried=0)),
            "half of the cases were searched": with_suite(whole(), leak=leak()),
            "worse than guessing": with_suite(whole(), leak=leak("0.500000", n=200)),
            "no suite": whole(suites=[]),
        },
        "human_approval_record": {"nobody signed": whole()},
    }
    for gate in MEASURING:
        found[gate] = {**RUNS}
    for gate in FLOORS:
        found[gate] |= {
            "half are right": with_counts(gate, 50, 100),
            "half have no score": with_counts(gate, 50, 100, 50),
            "right, but spread over looks": with_policy(
                with_run(with_counts(gate, 90, 100), look=20), spend_alpha=True
            ),
            "looks that were not counted": with_policy(
                with_run(with_counts(gate, 100, 100), look=None), spend_alpha=True
            ),
        }
    for gate in COMPARING:
        found[gate] |= {**NO_CHAMPION, **SAME, **OTHER_CHAMPION}
    for gate in ("deployed_artifact_gauntlet", "evaluated_artifact"):
        found[gate] |= SERVED
    found["arena_max_regression"] |= {
        "half are right": with_counts("arena_max_regression", 50, 100),
        "half have no score": with_counts("arena_max_regression", 50, 100, 50),
    }
    found["paired_non_inferiority"] |= {
        "no pairs": with_suite(whole(), paired=None),
        "pairs of other runs": with_suite(whole(), paired=pairs(199)),
        "few pairs": whole(suite(n=100)),
        "many lost": lost(20),
        "many without a value": lost(0, missing=20),
        "looks that were not counted": with_policy(with_run(whole(), look=None), spend_alpha=True),
    }
    found["sealed_eval_hash"]["sealed afterwards"] = with_suite(
        whole(), sealed_at="2026-04-01T00:00:00.000000Z"
    )
    found["per_family_safety_floor"]["a family of its own is unsafe"] = unsafe_family()
    found["latency_memory_budget"] |= {
        "slow": with_run(whole(), latency_ms={"p50": 12, "p95": 501, "n": 200}),
        "no times": with_run(whole(), latency_ms={"p50": None, "p95": None, "n": 0}),
        "a time is missing": with_run(whole(), latency_ms={"p50": 12, "p95": 12, "n": 199}),
        "large": with_run(whole(), peak_memory_bytes=(512 << 20) + 1),
        "memory was not measured": with_run(whole(), peak_memory_bytes=None),
    }
    found["masked_ceiling"]["five of 200 are masked"] = with_missing(5)
    found["sample_independence"] |= {
        "nobody says": with_run(whole(), independence="unknown"),
        "one answer, repeated": twice(independence="ignored"),
    }
    found["look_budget"] |= {
        "the sixth look": with_run(whole(), look=6),
        "not counted": with_run(whole(), look=None),
    }
    return found


def lost(number: int, *, missing: int = 0, n: int = 200) -> dict[str, Any]:
    """`number` of `n` prompts were right with the champion only, and of `missing` the candidate has no value."""
    table = {metric: counts(n - number - missing, n, missing) for metric in run()["metrics"]}
    candidate = run(n=n, metrics=table)
    return whole(suite(n=n, candidate=candidate, paired=pairs(n - number - missing, number, missing=missing)))


def with_missing(number: int, n: int = 200) -> dict[str, Any]:
    return lost(0, missing=number, n=n)


def twice(**changes: Any) -> dict[str, Any]:
    """Both runs with two samples a case."""
    twofold = {"samples": 2, "planned": 400, "scored": 400}
    return with_run(with_run(whole(), **twofold, **changes), "champion", **twofold)


REFUSED: dict[str, Documents] = _refused()
