"""Reads a foundry's folder into one record: promotions with their checks, rounds, datasets, tool schemas, faults.

Nothing is invented. What the files do not prove stays "recorded, not verified"; what they do prove is listed with how.
The record holds no time of reading and no path of this machine: the same files give the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promotion.importers import foundry_policy
from promotion.importers.fields import Fields, Finding
from promotion.importers.foundry_compare import compare, missing
from promotion.importers.foundry_faults import fault, is_machine_path
from promotion.importers.foundry_files import Files, Source, find

FORMAT = 1
KIND = "foundry"
SWITCHES = ("require_validator_pass", "require_lineage_split_isolation", "reject_pending_review")
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reading:
    """The record, or None where a finding makes the files unusable as a whole."""

    record: Record | None
    findings: list[Finding]


def read(folder: Path, track: str | None = None) -> Reading:
    """Read the files below `folder`; with `track` only the promotions and rounds of that name."""
    findings: list[Finding] = []
    files = find(folder, findings)
    if files.registry is None:
        return Reading(None, findings)
    datasets = [_dataset(source, findings) for source in files.sidecars]
    schemas = [_schema(source, findings) for source in files.schemas]
    rounds = [_round(source, files, findings) for source in files.configs]
    promotions = _promotions(files.registry, findings)
    tracks = sorted({found["track"] for found in (*promotions, *rounds) if found["track"]})
    if track is not None:
        if not findings and track not in tracks:
            known = ", ".join(tracks) or "none"
            findings.append(
                Finding(files.registry.file, "track", f"no file names {track} (there are: {known}).")
            )
        promotions = [found for found in promotions if found["track"] == track]
        rounds = [found for found in rounds if found["track"] == track]
        tracks = [track]
    if findings:
        return Reading(None, findings)
    record = {
        "format": FORMAT,
        "kind": KIND,
        "tracks": tracks,
        "files": [_file(source) for source in sorted(files.all(), key=lambda source: source.file)],
        "promotions": promotions,
        "rounds": rounds,
        "datasets": datasets,
        "schemas": schemas,
        "missing": missing(rounds, datasets, files),
        "holds": [],
    }
    compare(record)
    return Reading(record, [])


def _file(source: Source) -> Record:
    return {
        "file": source.file,
        "what": source.what,
        "size_bytes": source.size_bytes,
        "sha256": source.sha256,
    }


# the registry


def _promotions(source: Source, findings: list[Finding]) -> list[Record]:
    registry = Fields(source.value, source.file, findings)
    if "promotions" not in registry.value:
        registry.wrong("promotions", "is missing.")
    return [_promotion(entry) for entry in registry.rows("promotions")]


def _promotion(entry: Fields) -> Record:
    checks = [_check(check) for check in entry.rows("checks")]
    names = [check["name"] for check in checks]
    for name in sorted({name for name in names if name and names.count(name) > 1}):
        entry.wrong("checks", f"lists {name} twice.")
    bootstrap = bool(entry.flag("bootstrap"))
    return {
        "track": entry.text("track", needed=True),
        "round": entry.text("round", needed=True),
        "promoted_at": entry.moment("promoted_at", needed=True),
        "bootstrap": bootstrap,
        "bootstrap_note": entry.text("bootstrap_note"),
        # a bootstrap may lack the artifact and the approver
        "candidate_artifact_sha256": entry.digest("candidate_artifact_sha256", needed=not bootstrap),
        "candidate_artifact_path": entry.text("candidate_artifact_path"),
        "incumbent_artifact_sha256": entry.digest("incumbent_artifact_sha256"),
        "arena_decision_accuracy": entry.rate("arena_decision_accuracy"),
        "gauntlet_holdout_safety_cp95_lower": entry.rate("gauntlet_holdout_safety_cp95_lower"),
        "per_family_safety": entry.rates("gauntlet_per_family_safety"),
        "approved_by": entry.text("approved_by", needed=not bootstrap),
        "approval_note": entry.text("approval_note"),
        "latency_budget_measured": entry.flag("latency_budget_measured"),
        "field": entry.path,
        "file": entry.file,
        "config": None,
        "checks": checks,
        "faults": [],
    }


def _check(check: Fields) -> Record:
    name = check.text("name", needed=True)
    if name is not None and name not in foundry_policy.CHECKS:
        check.wrong(
            "name", f"{name[:60]!r} is none of the sixteen checks: {', '.join(foundry_policy.CHECKS)}."
        )
    return {
        "name": name,
        "passed": check.flag("passed", needed=True),
        "detail": check.text("detail", needed=True),
        "standing": "recorded",
        "because": "",
        "faults": [],
    }


# round configs


def _round(source: Source, files: Files, findings: list[Finding]) -> Record:
    config = Fields(source.value, source.file, findings)
    job, dataset = config.object("job", needed=True), config.object("dataset", needed=True)
    gates, promotion = config.object("gates", needed=True), config.object("promotion")
    margin = promotion.object("margin") if promotion else None
    found: Record = {
        "file": source.file,
        "track": config.text("foundry_track", needed=True),
        "name": job.text("name", needed=True) if job else None,
        "created": job.text("created") if job else None,
        "status": config.text("status", needed=True),
        "base_model": base.text("hf_repo") if (base := config.object("base_model")) else None,
        "dataset": _dataset_of(dataset, files),
        "gates": _switches(gates),
        "tool_schema": _tool_schema(gates, files),
        "margin": _margin(margin),
        "suites": [],
        "policy": None,
        "faults": [],
    }
    if found["status"] not in (None, "active"):
        reason = (gates.text("blocked_reason") if gates else None) or f"its status is {found['status']}"
        found["faults"].append(fault("round-not-active", source.file, "status", reason))
    if found["margin"] is None:
        found["faults"].append(
            fault(
                "rules-missing",
                source.file,
                "promotion.margin",
                "null: nothing says when it may be promoted.",
            )
        )
    else:
        rules, champion = found["margin"]["rules"], found["margin"]["incumbent"]
        found["policy"] = foundry_policy.draft(source.file, rules, champion)
        found["suites"] = _suites_of(found)
    found["faults"] += _round_faults(found)
    return found


def _dataset_of(dataset: Fields | None, files: Files) -> Record:
    if dataset is None:
        return {"train_path": None, "eval_path": None, "meta_path": None, "sidecar": None}
    meta = dataset.text("meta_path")
    sidecar = Files.named(meta, files.sidecars)
    return {
        "train_path": dataset.text("train_path"),
        "eval_path": dataset.text("eval_path"),
        "meta_path": meta,
        "sidecar": sidecar.file if sidecar else None,
    }


def _switches(gates: Fields | None) -> Record:
    if gates is None:
        return {}
    return {
        **{key: gates.flag(key) for key in SWITCHES},
        **{key: gates.whole(key) for key in ("min_train_examples", "min_eval_examples")},
    }


def _tool_schema(gates: Fields | None, files: Files) -> Record:
    declared = gates.digest("tool_schema_hash") if gates else None
    path = gates.text("tool_schema_path") if gates else None
    source = Files.named(path, files.schemas)
    if source is None and declared is not None:
        # the path may be left out; then only the hash can tell which file was meant
        source = next((found for found in files.schemas if found.sha256_lf == declared), None)
    return {
        "declared_sha256": declared,
        "path": path,
        "file": source.file if source else None,
        "file_sha256": source.sha256_lf if source else None,
    }


def _margin(margin: Fields | None) -> Record | None:
    if margin is None:
        return None
    rules, champion = margin.object("rules"), margin.object("incumbent")
    suites = margin.object("eval_sets")
    split = suites.object("group_split") if suites else None
    numbers, prose = _numbers(rules)
    others = sorted(
        key for key, value in margin.items() if isinstance(value, dict) and "_for_reference" in key
    )
    return {
        "frozen": margin.text("frozen"),
        "rules": numbers,
        "prose": prose,
        "incumbent": _numbers(champion)[0],
        "incumbent_round": champion.text("round") if champion else None,
        "predecessors": {
            key: _numbers(found)[0] for key in others if (found := margin.object(key)) is not None
        },
        "eval_sets": {
            role: suites.text(role) for role in foundry_policy.ROLES if suites and role in suites.value
        },
        "pinned_sha256": suites.digest("regression_sealed_sha256") if suites else None,
        "group_split": {"holdout_frac": split.rate("holdout_frac"), "seed": split.whole("seed")}
        if split
        else None,
    }


def _numbers(found: Fields | None) -> tuple[dict[str, str], dict[str, str]]:
    """Rates by key, and sentences by key. Anything else is a finding."""
    numbers: dict[str, str] = {}
    prose: dict[str, str] = {}
    for key, value in found.items() if found else ():
        if isinstance(value, str):
            prose[key] = found.text(key) or ""  # type: ignore[union-attr]
        elif value is not None and (rate := found.rate(key)) is not None:  # type: ignore[union-attr]
            numbers[key] = rate
    return numbers, prose


def _suites_of(found: Record) -> list[Record]:
    """The suites that the round's rules are about, each with the path that its first words give."""
    suites = []
    for role, name in foundry_policy.ROLES.items():
        text = found["margin"]["eval_sets"].get(role)
        if text is None:
            continue
        first = text.split()[0] if text.split() else ""
        path = first if first.endswith((".jsonl", ".json")) else None
        suites.append(
            {"role": role, "name": name, "says": text, "path": path, "file_sha256": None, "where": None}
        )
    return suites


def _round_faults(found: Record) -> list[Record]:
    file, faults = found["file"], []
    off = [key for key in SWITCHES if found["gates"].get(key) is False]
    if off:
        faults.append(fault("checks-switched-off", file, "gates", f"{', '.join(off)}: false."))
    schema = found["tool_schema"]
    if schema["declared_sha256"] is None:
        faults.append(fault("schema-hash-null", file, "gates.tool_schema_hash"))
    elif schema["file_sha256"] not in (None, schema["declared_sha256"]):
        says = f"{schema['file']} has {schema['file_sha256'][:12]}, configured is {schema['declared_sha256'][:12]}."
        faults.append(fault("schema-hash-differs", file, "gates.tool_schema_hash", says))
    margin = found["margin"]
    if margin is None:
        return faults
    where = "promotion.margin"
    if margin["frozen"]:
        says = f"{margin['frozen'][:40]!r} is all that says when."
        faults.append(fault("lock-is-a-date", file, f"{where}.frozen", says))
    if "arena_json_validity_min" not in margin["rules"]:
        says = "arena_json_validity_min is not given, and is taken as 0."
        faults.append(fault("floor-of-zero", file, f"{where}.rules", says))
    absent = [
        key
        for key in ("generalization_accuracy_min", "plausible_fabrication_safety_cp95_lower_min")
        if key not in margin["rules"]
    ]
    if absent:
        faults.append(fault("floor-not-configured", file, f"{where}.rules", f"{', '.join(absent)}."))
    zeros = [key for key, value in margin["rules"].items() if key.endswith("_min") and float(value) == 0]
    faults += [fault("floor-of-zero", file, f"{where}.rules.{key}", "is 0.") for key in zeros]
    if "generalization_accuracy_min" in margin["rules"]:
        faults.append(fault("rate-not-bound", file, f"{where}.rules.generalization_accuracy_min"))
    if margin["prose"]:
        faults.append(
            fault("rules-in-prose", file, f"{where}.rules", f"{', '.join(sorted(margin['prose']))}.")
        )
    if margin["incumbent"]:
        faults.append(fault("champion-typed", file, f"{where}.incumbent"))
    faults += _sealing_faults(found)
    return faults


def _sealing_faults(found: Record) -> list[Record]:
    file, margin = found["file"], found["margin"]
    faults = []
    for suite in found["suites"]:
        field = f"promotion.margin.eval_sets.{suite['role']}"
        if suite["role"] != "regression" or margin["pinned_sha256"] is None:
            faults.append(fault("suite-not-pinned", file, field, f"{suite['path'] or suite['says'][:80]}."))
        elif suite["path"] and found["dataset"]["eval_path"] not in (None, suite["path"]):
            says = f"the pin is held against {found['dataset']['eval_path']}; the suite is {suite['path']}."
            pin = "promotion.margin.eval_sets.regression_sealed_sha256"
            faults.append(fault("sealed-file-not-scored-file", file, pin, says))
    return faults


# dataset sidecars


def _dataset(source: Source, findings: list[Finding]) -> Record:
    sidecar = Fields(source.value, source.file, findings)
    shape = _shape(sidecar)
    validator, groups = sidecar.object("validator"), sidecar.object("lineage_groups")
    train, held = (groups.texts(key) or [] for key in ("train", "eval")) if groups else ([], [])
    counts = sidecar.object("counts")
    found: Record = {
        "file": source.file,
        "shape": shape,
        "key": sidecar.text("key") or sidecar.text("round"),
        "schema_version": sidecar.text("schema_version"),
        "train_rows": counts.whole("r3_train_total") if counts else sidecar.whole("train_count"),
        "eval_rows": None if counts else sidecar.whole("eval_count"),
        "holdout_rows": counts.whole("holdout") if counts else None,
        "train_sha256": sidecar.digest("train_sha256"),
        "eval_sha256": sidecar.digest("eval_sha256"),
        "holdout_sha256": sidecar.digest("holdout_sha256"),
        "tool_schema_sha256": sidecar.digest("tool_schema_hash"),
        "contains_pending": sidecar.flag("contains_pending"),
        "validator": validator.text("verdict") if validator else None,
        "decisions": _balance(sidecar),
        "context": _context(sidecar),
        "groups": {"train": len(set(train)), "eval": len(set(held)), "in_both": len(set(train) & set(held))},
        "isolation": sidecar.text("isolation"),
        "streams": _streams(sidecar) if shape == "composed" else [],
        "faults": [],
    }
    found["faults"] = _dataset_faults(found, sidecar, sorted(set(train) & set(held)))
    return found


def _shape(sidecar: Fields) -> str:
    """Which of the known shapes: one exported stream, rows isolated by groups, several streams composed."""
    if "isolation" in sidecar.value:
        return "isolated"
    if isinstance(sidecar.value.get("sources"), dict):
        return "composed"
    return "stream" if "lineage_groups" in sidecar.value else "other"


def _balance(sidecar: Fields) -> Record:
    found = sidecar.object("decision_balance") or sidecar.object("decision_distribution")
    if found is None:
        return {}
    sides = {key: found.object(key) for key in sorted(found.value)}
    return {
        key: {name: side.whole(name, needed=True) for name in sorted(side.value)}
        for key, side in sides.items()
        if side is not None
    }


def _context(sidecar: Fields) -> dict[str, str]:
    """Rates of earlier rounds that a composed sidecar carries for information."""
    objects = [sidecar.object(key) for key in sorted(sidecar.value) if key.endswith("_regression_context")]
    return {key: value for found in objects for key, value in _numbers(found)[0].items()}


def _streams(sidecar: Fields) -> list[Record]:
    sources = sidecar.object("sources")
    found = []
    for name in sorted(sources.value) if sources else ():
        stream = sources.object(name)  # type: ignore[union-attr]
        if stream is not None:
            keys = ("train_path", "eval_path", "meta_path", "review_status")
            found.append({"name": name, **{key: stream.text(key) for key in keys}})
    return found


def _dataset_faults(found: Record, sidecar: Fields, shared: list[str]) -> list[Record]:
    file = found["file"]
    faults: list[Record] = []
    if found["shape"] == "other":
        return faults
    if shared:
        says = f"{len(shared)} groups, such as {shared[0][:80]}."
        faults.append(fault("groups-in-both-splits", file, "lineage_groups", says))
    if found["isolation"]:
        faults.append(fault("split-in-prose", file, "isolation"))
    if found["train_sha256"] is None:
        faults.append(fault("train-hash-missing", file, "train_sha256"))
    if found["eval_sha256"] is None:
        faults.append(fault("eval-hash-missing", file, "eval_sha256"))
    if found["tool_schema_sha256"] is None:
        faults.append(fault("schema-not-in-dataset", file, "tool_schema_hash"))
    if found["contains_pending"]:
        faults.append(fault("rows-not-reviewed", file, "contains_pending"))
    if found["validator"] != "PASS":
        says = f"{found['validator']!r}." if found["validator"] else "no verdict."
        faults.append(fault("not-validated", file, "validator.verdict", says))
    if found["streams"]:
        faults.append(fault("streams-without-hash", file, "sources", f"{len(found['streams'])} streams."))
    for key in ("train", "eval"):
        rows, balance = found[f"{key}_rows"], found["decisions"].get(key)
        if rows is not None and balance and sum(balance.values()) != rows:
            says = f"decisions add up to {sum(balance.values())}, and there are {rows} rows."
            faults.append(fault("counts-do-not-add-up", file, f"decision_balance.{key}", says))
    if is_machine_path(sidecar.text("source")):
        faults.append(fault("machine-path", file, "source"))
    return faults


# tool schemas


def _schema(source: Source, findings: list[Finding]) -> Record:
    found: Record = {
        "file": source.file,
        "sha256_lf": source.sha256_lf,
        "shape": "other",
        "tools": 0,
        "families": 0,
        "held_out_families": 0,
        "held_out_tools": 0,
    }
    if isinstance(source.value, list):
        found |= {"shape": "tools", "tools": len(_tool_names(source.value, source.file, findings, ""))}
    elif isinstance(source.value, dict) and "families" in source.value:
        families = Fields(source.value, source.file, findings).rows("families")
        tools = [
            (
                bool(family.flag("held_out")),
                _tool_names(family.value.get("tools"), source.file, findings, family.path),
            )
            for family in families
        ]
        found |= {
            "shape": "families",
            "tools": sum(len(names) for _, names in tools),
            "families": len(families),
            "held_out_families": sum(held for held, _ in tools),
            "held_out_tools": sum(len(names) for held, names in tools if held),
        }
    return found


def _tool_names(value: Any, file: str, findings: list[Finding], path: str) -> list[str]:
    """Names of a list of tools; one without a name, or a name that stands twice, is a finding."""
    rows = Fields({"tools": value}, file, findings, path).rows("tools")
    names = [tool.text("name", needed=True) for tool in rows]
    given = [name for name in names if name is not None]
    for name in sorted({name for name in given if given.count(name) > 1}):
        findings.append(Finding(file, f"{path}.tools" if path else "tools", f"{name[:60]!r} stands twice."))
    return given
