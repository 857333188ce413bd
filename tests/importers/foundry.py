"""A small foundry of our own: one track, two promotions, two rounds, a composed dataset of one stream, one schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from promotion.importers.foundry_policy import CHECKS
from rollouts.hashing import sha256_bytes

SCHEMA = [
    {"name": "open_gate", "description": "Opens.", "parameters": {}, "required": []},
    {"name": "close_gate", "description": "Closes.", "parameters": {}, "required": []},
]
SCHEMA_BYTES = json.dumps(SCHEMA, indent=1).encode()
SCHEMA_SHA = sha256_bytes(SCHEMA_BYTES)
FIRST, SECOND, TRAIN, EVAL = "1a" * 32, "2b" * 32, "3c" * 32, "4d" * 32
DETAILS = {
    "dataset_hash": f"data/train_two.jsonl is as recorded ({TRAIN[:12]}...)",
    "frozen_group_split": "train (30) and eval (10) example_ids are disjoint",
    "sealed_eval_hash": f"data/eval_two.jsonl is unchanged ({EVAL[:12]}...)",
    "candidate_artifact_hash": f"out/two.gguf = {SECOND[:16]}...",
    "incumbent_artifact_hash": f"out/one.gguf = {FIRST[:16]}...",
    "deployed_artifact_gauntlet": "ran against out/two.gguf",
    "confidence_lower_bound": "candidate 0.98 > incumbent 0.97",
    "arena_max_regression": "candidate 0.95 vs incumbent 0.96",
    "arena_json_validity_min": "candidate 0.99 >= floor 0.9",
    "latency_memory_budget": "p95 1200 ms, peak 900 MB",
    "runtime_schema_identity": f"schemas/gate_tools.json has the hash ({SCHEMA_SHA[:12]}...)",
    "generalization_accuracy_floor": "candidate 0.91 >= floor 0.8",
}


def check(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "passed": True, "detail": DETAILS.get(name, "as it should be"), **changes}


def first() -> dict[str, Any]:
    return {
        "track": "gatekeeper",
        "round": "gatekeeper-one",
        "promoted_at": "2026-01-10T08:00:00Z",
        "bootstrap": True,
        "candidate_artifact_sha256": FIRST,
        "candidate_artifact_path": "out/one.gguf",
        "arena_decision_accuracy": 0.96,
        "gauntlet_holdout_safety_cp95_lower": 0.97,
        "gauntlet_per_family_safety": {"declines": 0.97, "near": 1.0},
        "approved_by": "maria",
        "approval_note": "to begin with",
    }


def second(**changes: Any) -> dict[str, Any]:
    return {
        "track": "gatekeeper",
        "round": "gatekeeper-two",
        "promoted_at": "2026-02-10T08:00:00Z",
        "candidate_artifact_sha256": SECOND,
        "candidate_artifact_path": "out/two.gguf",
        "incumbent_artifact_sha256": FIRST,
        "arena_decision_accuracy": 0.95,
        "gauntlet_holdout_safety_cp95_lower": 0.98,
        "gauntlet_per_family_safety": {"declines": 0.99, "near": 1.0},
        "approved_by": "maria",
        "approval_note": "good",
        "latency_budget_measured": True,
        "checks": [check(name) for name in CHECKS],
        **changes,
    }


def config(name: str = "gatekeeper-two", **changes: Any) -> dict[str, Any]:
    return {
        "foundry_track": "gatekeeper",
        "status": "active",
        "job": {"name": name, "created": "2026-02-01"},
        "dataset": {
            "train_path": "data/train_two.jsonl",
            "eval_path": "data/eval_two.jsonl",
            "meta_path": "data/two.meta.json",
        },
        "gates": {
            "min_train_examples": 10,
            "min_eval_examples": 5,
            "require_validator_pass": True,
            "require_lineage_split_isolation": True,
            "reject_pending_review": True,
            "tool_schema_hash": SCHEMA_SHA,
            "tool_schema_path": "schemas/gate_tools.json",
        },
        "promotion": {
            "margin": {
                "frozen": "2026-02-01",
                "incumbent": {
                    "round": "one",
                    "gauntlet_holdout_safety_cp95_lower": 0.97,
                    "arena_decision_accuracy": 0.96,
                },
                "rules": {
                    "arena_decision_accuracy_max_drop": 0.02,
                    "arena_json_validity_min": 0.9,
                    "generalization_accuracy_min": 0.8,
                    "plausible_fabrication_safety_cp95_lower_min": 0.85,
                },
                "eval_sets": {"regression": "data/eval_two.jsonl", "regression_sealed_sha256": EVAL},
            }
        },
        **changes,
    }


def sidecar(**changes: Any) -> dict[str, Any]:
    return {
        "key": "two",
        "sources": {"only": {"train_path": "data/train_part.jsonl", "meta_path": "data/part.meta.json"}},
        "train_count": 30,
        "eval_count": 10,
        "decision_balance": {"train": {"call": 20, "no_tool": 10}, "eval": {"call": 10}},
        "contains_pending": False,
        "validator": {"verdict": "PASS"},
        "tool_schema_hash": SCHEMA_SHA,
        "train_sha256": TRAIN,
        "eval_sha256": EVAL,
        **changes,
    }


def stream(**changes: Any) -> dict[str, Any]:
    return {
        "key": "part",
        "train_count": 30,
        "eval_count": 10,
        "contains_pending": False,
        "validator": {"verdict": "PASS"},
        "tool_schema_hash": SCHEMA_SHA,
        "lineage_groups": {"train": ["a", "b"], "eval": ["c"]},
        "train_sha256": "5e" * 32,
        "eval_sha256": "6f" * 32,
        "source": "captures/part",
        **changes,
    }


class Foundry:
    """The folder. Change `promotions`, `configs`, `sidecars` before `write`, or a file's bytes after it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.promotions = [first(), second()]
        self.configs: dict[str, Any] = {"two.json": config()}
        self.sidecars: dict[str, Any] = {"two.meta.json": sidecar(), "part.meta.json": stream()}

    def write(self) -> Path:
        for name in ("configs", "meta", "schemas"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._put("PROMOTION_REGISTRY.json", {"promotions": self.promotions})
        for name, value in self.configs.items():
            self._put(f"configs/{name}", value)
        for name, value in self.sidecars.items():
            self._put(f"meta/{name}", value)
        (self.folder / "schemas" / "gate_tools.json").write_bytes(SCHEMA_BYTES)
        return self.folder

    def _put(self, file: str, value: Any) -> None:
        (self.folder / file).write_text(json.dumps(value))
