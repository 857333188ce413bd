"""What a foundry's files say together: what holds between them, and what each recorded check is worth by them."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from promotion.importers.foundry_faults import (
    digits_of,
    fault,
    has_zero_floor,
    measured_nothing,
    numbers_of,
    standing_of_hash,
)
from promotion.importers.foundry_files import Files

DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
Record = dict[str, Any]


def missing(rounds: list[Record], datasets: list[Record], files: Files) -> list[Record]:
    """Files that others name and that are not here: what they prove cannot be checked."""
    named: dict[str, str] = {}

    def name(path: str | None, by: str, field: str) -> None:
        if path and Files.named(path, files.all()) is None:
            named.setdefault(path, f"{by}, {field}")

    for found in rounds:
        for key in ("train_path", "eval_path", "meta_path"):
            name(found["dataset"][key], found["file"], f"dataset.{key}")
        name(found["tool_schema"]["path"], found["file"], "gates.tool_schema_path")
        for suite in found["suites"]:
            name(suite["path"], found["file"], f"promotion.margin.eval_sets.{suite['role']}")
    for found in datasets:
        for stream in found["streams"]:
            for key in ("train_path", "eval_path", "meta_path"):
                name(stream[key], found["file"], f"sources.{stream['name']}.{key}")
    return [{"path": path, "named_by": by} for path, by in sorted(named.items())]


def compare(record: Record) -> None:
    """Adds to the record what its files say together: what holds, which faults show, what each check is worth."""
    _compare_streams(record)
    _compare_rounds(record)
    _compare_promotions(record)


def _compare_streams(record: Record) -> None:
    """Rows of a composed dataset against the sums of its streams, where all of them are here."""
    by_name = {found["file"].rsplit("/", 1)[-1]: found for found in record["datasets"]}
    for found in record["datasets"]:
        parts = [by_name.get((stream["meta_path"] or "").rsplit("/", 1)[-1]) for stream in found["streams"]]
        if not parts or any(part is None for part in parts):
            continue
        for key in ("train_rows", "eval_rows"):
            rows = [part[key] for part in parts if part is not None]
            if found[key] is None or None in rows:
                continue
            says = f"{' + '.join(str(n) for n in rows)} rows of its streams against {found[key]}"
            if sum(rows) == found[key]:
                _holds(record, found["file"], key, f"{says}: they add up.")
            else:
                found["faults"].append(fault("counts-do-not-add-up", found["file"], key, f"{says}."))


def _compare_rounds(record: Record) -> None:
    datasets = {found["file"]: found for found in record["datasets"]}
    pins = {
        found["dataset"]["eval_path"]: (found["margin"]["pinned_sha256"], found["file"])
        for found in record["rounds"]
        if found["margin"] and found["margin"]["pinned_sha256"] and found["dataset"]["eval_path"]
    }
    for found in record["rounds"]:
        schema, sidecar = found["tool_schema"], datasets.get(found["dataset"]["sidecar"])
        if schema["declared_sha256"] and schema["declared_sha256"] == schema["file_sha256"]:
            says = f"{schema['file']} has the configured hash {schema['declared_sha256'][:12]}."
            _holds(record, found["file"], "gates.tool_schema_hash", says, verified=True)
        declared = sidecar["tool_schema_sha256"] if sidecar else None
        if declared and schema["declared_sha256"] and declared != schema["declared_sha256"]:
            says = f"{sidecar['file']} records {declared[:12]}, the round {schema['declared_sha256'][:12]}."  # type: ignore[index]
            found["faults"].append(fault("schemas-mixed", found["file"], "gates.tool_schema_hash", says))
        for suite in found["suites"]:
            if suite["path"] in pins:
                suite["file_sha256"], suite["where"] = pins[suite["path"]]
        if found["margin"]:
            found["faults"] += _champion_faults(found, record)
            found["faults"] += _bound_faults(found, record)


def _champion_faults(found: Record, record: Record) -> list[Record]:
    """The typed numbers to beat against the registry: they are some promotion's, or nobody's."""
    typed = found["margin"]["incumbent"]
    keys = ("gauntlet_holdout_safety_cp95_lower", "arena_decision_accuracy")
    given = {key: typed[key] for key in keys if key in typed}
    if not given:
        return []
    where = "promotion.margin.incumbent"
    same = [
        entry
        for entry in record["promotions"]
        if entry["track"] == found["track"] and all(entry[key] == value for key, value in given.items())
    ]
    if same:
        _holds(record, found["file"], where, f"the numbers of {same[0]['round']} in the registry.")
        return []
    says = ", ".join(f"{key} {value}" for key, value in given.items())
    return [fault("champion-not-in-registry", found["file"], where, f"{says}.")]


def _bound_faults(found: Record, record: Record) -> list[Record]:
    """A lower bound lies under its rate; where both are written as the same number, one of them is misnamed."""
    key = "plausible_fabrication_v2_safety_cp95_lower"
    bound = found["margin"]["incumbent"].get(key)
    for dataset in record["datasets"]:
        for name, rate in dataset["context"].items():
            if name.startswith("plausible_fabrication_safety_incumbent") and rate == bound:
                says = f"{bound} is a rate in {dataset['file']} ({name})."
                return [fault("rate-named-bound", found["file"], f"promotion.margin.incumbent.{key}", says)]
    return []


def _compare_promotions(record: Record) -> None:
    rounds = {(found["track"], found["name"]): found for found in record["rounds"]}
    datasets = {found["file"]: found for found in record["datasets"]}
    last: dict[str, Record] = {}
    for entry in record["promotions"]:
        found = rounds.get((entry["track"], entry["round"]))
        sidecar = datasets.get(found["dataset"]["sidecar"]) if found else None
        before = last.get(entry["track"])
        entry["config"] = found["file"] if found else None
        entry["faults"] += _entry_faults(entry, found, before, record)
        for index, check in enumerate(entry["checks"]):
            check["standing"], check["because"] = _standing(check, entry, found, sidecar, before, record)
            check["faults"] = _check_faults(check, entry, found, f"{entry['field']}.checks.{index}.detail")
        last[entry["track"]] = entry


def _entry_faults(entry: Record, found: Record | None, before: Record | None, record: Record) -> list[Record]:
    file, where, faults = entry["file"], entry["field"], []
    if not entry["checks"]:
        faults.append(
            fault("ungated", file, where, "It is marked as a bootstrap." if entry["bootstrap"] else "")
        )
    if entry["arena_decision_accuracy"] or entry["gauntlet_holdout_safety_cp95_lower"]:
        faults.append(fault("rates-without-n", file, where))
    approver = (entry["approved_by"] or "").strip()
    says = f"{approver!r}." if approver else "nobody is named."
    faults.append(fault("approval-is-text", file, f"{where}.approved_by", says))
    locked = found["margin"]["frozen"] if found and found["margin"] else None
    day = DATE.search(locked or "")
    if found and day and day[0] >= entry["promoted_at"][:10]:
        says = f"{found['file']} is dated {day[0]}, and the promotion {entry['promoted_at'][:10]}."
        faults.append(fault("lock-is-a-date", file, f"{where}.promoted_at", says))
    earlier = record["promotions"][: record["promotions"].index(entry)]
    same = [other for other in earlier if _equal(other, entry, "candidate_artifact_sha256")]
    if same:
        says = f"{same[0]['round']}, {same[0]['promoted_at']}."
        faults.append(fault("same-bytes-promoted-twice", file, f"{where}.candidate_artifact_sha256", says))
    for other in earlier:
        ours, theirs = entry["approved_by"] or "", other["approved_by"] or ""
        if ours != theirs and ours.casefold() == theirs.casefold():
            says = f"{ours!r} here, {theirs!r} before."
            faults.append(fault("approver-spelled-twice", file, f"{where}.approved_by", says))
            break
    replaced = entry["incumbent_artifact_sha256"]
    if replaced and before and before["candidate_artifact_sha256"]:
        field = f"{where}.incumbent_artifact_sha256"
        if replaced == before["candidate_artifact_sha256"]:
            _holds(record, file, field, f"it is the artifact of {before['round']}, promoted before it.")
        else:
            says = f"{replaced[:12]} here; {before['round']} has {before['candidate_artifact_sha256'][:12]}."
            faults.append(fault("replaced-file-is-not-champion", file, field, says))
    return faults


def _equal(one: Record, other: Record, key: str) -> bool:
    return one[key] is not None and one[key] == other[key]


def _check_faults(check: Record, entry: Record, found: Record | None, field: str) -> list[Record]:
    """Faults of one recorded check. One that did not pass claims nothing."""
    if not check["passed"]:
        return []
    file, name, detail = entry["file"], check["name"], check["detail"]
    faults = []
    if check["standing"] == "not_measured":
        faults.append(fault("unmeasured-passed", file, field))
    if check["standing"] == "vacuous":
        faults.append(fault("floor-of-zero", file, field))
    artifact = (entry["candidate_artifact_path"] or "").replace("\\", "/").rsplit("/", 1)[-1]
    if name == "deployed_artifact_gauntlet" and artifact and artifact not in detail:
        faults.append(fault("file-not-evaluated", file, field, f"promoted is {artifact}."))
    if name == "frozen_group_split" and "example_id" in detail:
        faults.append(fault("split-by-id-only", file, field))
    if name == "generalization_accuracy_floor":
        faults.append(fault("rate-not-bound", file, field))
    if name == "human_approval_record":
        faults.append(fault("approval-is-text", file, field))
    if name == "sealed_eval_hash" and found:
        same = [known for known in found["faults"] if known["id"] == "sealed-file-not-scored-file"]
        faults += [fault(known["id"], file, field, known["says"]) for known in same]
    return faults


def _standing(
    check: Record,
    entry: Record,
    found: Record | None,
    sidecar: Record | None,
    before: Record | None,
    record: Record,
) -> tuple[str, str]:
    name, detail = check["name"], check["detail"]
    if measured_nothing(check, entry):
        return "not_measured", ""
    if check["passed"] and has_zero_floor(detail):
        return "vacuous", ""
    if name == "dataset_hash":
        recorded = [(f"{sidecar['file']}: train_sha256", sidecar["train_sha256"])] if sidecar else []
        return standing_of_hash(detail, recorded)
    if name == "sealed_eval_hash":
        pin = found["margin"]["pinned_sha256"] if found and found["margin"] else None
        return standing_of_hash(
            detail, [(f"{found['file']}: regression_sealed_sha256", pin)] if found else []
        )
    if name == "incumbent_artifact_hash":
        digest = before["candidate_artifact_sha256"] if before else None
        return standing_of_hash(detail, [(f"{entry['file']}: {before['field']}", digest)] if before else [])
    if name == "runtime_schema_identity":
        named = digits_of(detail)
        for schema in record["schemas"]:
            if any(schema["sha256_lf"].startswith(start) for start in named):
                return "verified", schema["file"]
    if name in ("confidence_lower_bound", "arena_max_regression"):
        return _standing_of_numbers(name, detail, entry, found)
    if name == "frozen_group_split" and sidecar and sidecar["train_rows"] and sidecar["eval_rows"]:
        return _all_in(detail, [str(sidecar["train_rows"]), str(sidecar["eval_rows"])], sidecar["file"])
    if name == "per_family_safety_floor" and before and entry["per_family_safety"]:
        return _standing_of_families(entry, before)
    return "recorded", ""


def _standing_of_numbers(name: str, detail: str, entry: Record, found: Record | None) -> tuple[str, str]:
    key = {
        "confidence_lower_bound": "gauntlet_holdout_safety_cp95_lower",
        "arena_max_regression": "arena_decision_accuracy",
    }[name]
    typed = found["margin"]["incumbent"].get(key) if found and found["margin"] else None
    if entry[key] is None or typed is None:
        return "recorded", ""
    return _all_in(detail, [entry[key], typed], f"{entry['file']} and {found['file']}")  # type: ignore[index]


def _all_in(detail: str, wanted: list[str], where: str) -> tuple[str, str]:
    said = {Decimal(number) for number in numbers_of(detail)}
    if all(Decimal(number) in said for number in wanted):
        return "agrees", where
    return "contradicted", f"{where}: {', '.join(wanted)}"


def _standing_of_families(entry: Record, before: Record) -> tuple[str, str]:
    ours, theirs = entry["per_family_safety"], before["per_family_safety"]
    fell = sorted(name for name in ours.keys() & theirs.keys() if Decimal(ours[name]) < Decimal(theirs[name]))
    if fell:
        return "contradicted", f"{entry['file']}: {', '.join(fell)} fell against {before['round']}"
    return "agrees", f"{entry['file']}: the rates of both promotions"


def _holds(record: Record, file: str, field: str, says: str, *, verified: bool = False) -> None:
    """`verified` where the bytes themselves are here; else two records agree, which proves neither."""
    record["holds"].append({"file": file, "field": field, "says": says, "verified": verified})
