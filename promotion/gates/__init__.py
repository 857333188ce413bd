"""The gates. Importing this package registers all of them, in the order in which a policy should list them."""

from promotion.gates import (
    approval,
    coverage,
    generalization,
    identity,
    integrity,
    regression,
    runtime,
    safety,
)
from promotion.gates.base import (
    GATES,
    METRICS,
    OPENS,
    Evidence,
    GateOutcome,
    Outcome,
    judge,
    measurement_digest,
    parse_params,
)

ORDER = (
    "dataset_hash",
    "frozen_group_split",
    "sealed_eval_hash",
    "candidate_artifact_hash",
    "incumbent_artifact_hash",
    "rollback_artifact_availability",
    "deployed_artifact_gauntlet",
    "evaluated_artifact",
    "confidence_lower_bound",
    "arena_max_regression",
    "arena_json_validity_min",
    "per_family_safety_floor",
    "latency_memory_budget",
    "runtime_schema_identity",
    "generalization_accuracy_floor",
    "plausible_fabrication_safety_floor",
    "paired_non_inferiority",
    "masked_ceiling",
    "prompt_leak",
    "sample_independence",
    "export_parity",
    "look_budget",
    "human_approval_record",
)
for name in ORDER:
    GATES[name] = GATES.pop(name)

__all__ = [
    "GATES",
    "METRICS",
    "OPENS",
    "ORDER",
    "Evidence",
    "GateOutcome",
    "Outcome",
    "approval",
    "coverage",
    "generalization",
    "identity",
    "integrity",
    "judge",
    "measurement_digest",
    "parse_params",
    "regression",
    "runtime",
    "safety",
]
