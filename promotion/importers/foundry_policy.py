"""A round's thresholds as a draft of a policy: what its file says, and marks where it says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# role in `promotion.margin.eval_sets` -> the name under which a draft speaks of the suite
ROLES = {
    "regression": "regression",
    "refusal": "refusal",
    "generalization_arena": "generalization",
    "plausible_fabrication_gauntlet": "fabrication",
}
CHECKS = (
    "dataset_hash",
    "frozen_group_split",
    "sealed_eval_hash",
    "candidate_artifact_hash",
    "incumbent_artifact_hash",
    "rollback_artifact_availability",
    "deployed_artifact_gauntlet",
    "confidence_lower_bound",
    "arena_max_regression",
    "arena_json_validity_min",
    "per_family_safety_floor",
    "latency_memory_budget",
    "runtime_schema_identity",
    "generalization_accuracy_floor",
    "plausible_fabrication_safety_floor",
    "human_approval_record",
)


def placeholder(name: str) -> str:
    """Stands where a sealed suite's digest belongs: a file of another system has none."""
    return f"<{name}>"


def draft(file: str, rules: Mapping[str, str], champion: Mapping[str, str]) -> dict[str, Any]:
    """A policy document. `rules` and `champion` are the numbers of the margin, as decimal strings.

    Null stands for what the file does not say (samples, sampling, who signs), and `<name>` for a suite's digest.
    A missing floor of valid JSON is 0 and a missing drop is 0, because that is how the rules were read.
    """
    regression, refusal = placeholder("regression"), placeholder("refusal")
    generalization, fabrication = placeholder("generalization"), placeholder("fabrication")
    scored = [regression, refusal]
    entries: list[dict[str, Any]] = []
    floors = {
        "generalization_accuracy_floor": (generalization, "decision", "generalization_accuracy_min"),
        "plausible_fabrication_safety_floor": (
            fabrication,
            "safe",
            "plausible_fabrication_safety_cp95_lower_min",
        ),
    }
    scored += [suite for suite, _, key in floors.values() if key in rules]
    for check in CHECKS:
        if check in ("sealed_eval_hash", "deployed_artifact_gauntlet"):
            entries += [{"gate": check, "suite": suite} for suite in scored]
        elif check == "confidence_lower_bound":
            minimum = champion.get("gauntlet_holdout_safety_cp95_lower")
            entries.append({"gate": check, "suite": refusal, "metric": "safe", "min": minimum})
        elif check == "arena_max_regression":
            drop = rules.get("arena_decision_accuracy_max_drop", "0")
            entries.append({"gate": check, "suite": regression, "metric": "decision", "max_drop": drop})
        elif check == "arena_json_validity_min":
            minimum = rules.get("arena_json_validity_min", "0")
            entries.append({"gate": check, "suite": regression, "metric": "json_valid", "min": minimum})
        elif check == "per_family_safety_floor":
            entries.append({"gate": check, "suite": refusal, "metric": "safe", "min": None})
        elif check == "latency_memory_budget":
            entries.append({"gate": check, "suite": None, "max_p95_ms": None})
        elif check == "runtime_schema_identity":
            entries.append({"gate": check, "suite": None})
        elif check in floors:
            suite, metric, key = floors[check]
            if key in rules:
                entries.append({"gate": check, "suite": suite, "metric": metric, "min": rules[key]})
        else:
            entries.append({"gate": check})
    return {
        "format": 1,
        "note": f"Imported from {file}. Null and <names> stand where that file says nothing that can be used.",
        "suites": [{"digest": suite} for suite in scored],
        "samples": None,
        "sampling": None,
        "spend_alpha": None,
        "gates": entries,
        "approval": None,
    }


def completed(
    document: Mapping[str, Any],
    suites: Mapping[str, str],
    gates: Mapping[str, Mapping[str, Any]] | None = None,
    **values: Any,
) -> dict[str, Any]:
    """The draft as somebody might settle it, so that evidence can be judged by the thresholds that were meant.

    `suites` are digests by name ("regression", ...), `gates` give what an entry leaves open, by the gate's name, and
    `values` what the document does (`samples`, `sampling`, `spend_alpha`, `approval`).
    """
    digests = {placeholder(name): digest for name, digest in suites.items()}

    def filled(part: Mapping[str, Any]) -> dict[str, Any]:
        settled = (gates or {}).get(part.get("gate", ""), {})
        given = {key: settled.get(key, value) if value is None else value for key, value in part.items()}
        return {
            key: digests.get(value, value) if isinstance(value, str) else value
            for key, value in given.items()
        }

    return {
        **document,
        "suites": [filled(part) for part in document["suites"]],
        "gates": [filled(entry) for entry in document["gates"]],
        **values,
    }


def open_places(document: Mapping[str, Any]) -> list[str]:
    """What a person must still say before the draft can be a policy, each with its path."""
    found = [f"{key}: the file does not say." for key, value in document.items() if value is None]
    for index, part in enumerate(document["suites"]):
        if part["digest"].startswith("<"):
            found.append(f"suites.{index}.digest: seal the suite {part['digest']} and put its digest here.")
    for index, entry in enumerate(document["gates"]):
        found += [
            f"gates.{index}.{key}: the file does not say, for {entry['gate']}."
            for key, value in entry.items()
            if value is None
        ]
    return found
