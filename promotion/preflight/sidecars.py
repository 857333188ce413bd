"""What the sidecar declares: review, validator, digests, tool schemas."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from promotion.preflight.base import (
    ERROR,
    MAX_LISTED,
    TRAIN,
    WARNING,
    Check,
    Finding,
    Findings,
    Side,
    different,
    short,
)
from rollouts.dataset_format import tools_of
from rollouts.errors import InvalidInput
from rollouts.leakage import schema_sha256


def sidecar(check: Check) -> Findings:
    wanted = (
        "reject_pending_review",
        "require_validator_pass",
        "require_lineage_split_isolation",
        "tool_schema_hash",
    )
    for role in check.sides:
        if check.sidecars[role] is None:
            needed = "dataset_hash" in check.gates or any(check.required.get(flag) for flag in wanted)
            yield Finding(
                "meta",
                ERROR if needed else WARNING,
                role,
                "came without a sidecar: its digest, its review and its streams are not declared.",
                "Give the sidecar that the export wrote.",
            )
    for where, sidecar in different(check):
        for path in _machine_paths(sidecar):
            yield Finding(
                "meta",
                WARNING,
                f"{where}.{path}",
                "holds a path of somebody's machine.",
                "Name files relative to the data, so that the sidecar can be given away.",
            )


def _machine_paths(sidecar: Mapping[str, Any]) -> list[str]:
    left: list[tuple[str, Any]] = list(sidecar.items())
    found = []
    while left:
        path, value = left.pop()
        if isinstance(value, dict):
            left.extend((f"{path}.{key}", item) for key, item in value.items())
        elif isinstance(value, list):
            left.extend((f"{path}.{index}", item) for index, item in enumerate(value))
        elif isinstance(value, str) and (
            value.startswith(("/home/", "/Users/", "/root/", "file:")) or value[1:3] == ":\\"
        ):
            found.append(path)
    return sorted(found)[:MAX_LISTED]


def review(check: Check) -> Findings:
    severity = check.severity(flag="reject_pending_review")
    for where, sidecar in different(check):
        pending = sidecar.get("contains_pending")
        if pending is None:
            yield Finding(
                "review",
                severity,
                f"{where}.contains_pending",
                "does not say whether rows wait for review.",
                "Say false once all are reviewed.",
            )
        elif pending is not False:
            yield Finding(
                "review",
                severity,
                f"{where}.contains_pending",
                "rows that nobody has reviewed are in the data.",
                "Review them, or take them out.",
            )


def validator(check: Check) -> Findings:
    severity = check.severity(flag="require_validator_pass")
    for where, sidecar in different(check):
        validator = sidecar.get("validator")
        verdict = validator.get("verdict") if isinstance(validator, dict) else None
        if verdict != "PASS":
            yield Finding(
                "validator",
                severity,
                f"{where}.validator.verdict",
                "no validator's verdict is given."
                if verdict is None
                else f"the verdict is {short(verdict)}, not PASS.",
                "Validate the very file that is trained on.",
            )


def digests(check: Check) -> Findings:
    for role, side in check.sides.items():
        sidecar = check.sidecars[role]
        if sidecar is None:
            continue
        key = (
            f"{role}_sha256"
            if sidecar.get(f"{role}_sha256") is not None or "sha256" not in sidecar
            else "sha256"
        )
        declared, actual = sidecar.get(key), hashlib.sha256(side.data).hexdigest()
        if declared is None:
            yield Finding(
                "drift",
                check.severity(gate="dataset_hash"),
                f"sidecar.{key}",
                f"the {role} file's digest is not declared, so nobody can say that it is the file that was exported.",
                f"Declare {key}: {actual}.",
            )
        elif declared != actual:
            ends = hashlib.sha256(side.data.replace(b"\r\n", b"\n")).hexdigest()
            only_ends = " Only line ends differ." if declared == ends else ""
            yield Finding(
                "drift",
                ERROR,
                f"sidecar.{key}",
                f"declares {short(declared)[:14]}…, and the {role} file is {actual[:12]}.{only_ends}",
                "Give the file that the sidecar was written for, or export again.",
            )
        yield from _declared_counts(role, side, sidecar)


def _declared_counts(role: str, side: Side, sidecar: Mapping[str, Any]) -> Findings:
    declared = sidecar.get(f"{role}_count")
    if declared is not None and declared != len(side.rows):
        yield Finding(
            "drift",
            WARNING,
            f"sidecar.{role}_count",
            f"declares {short(declared)} rows, and {len(side.rows)} can be read.",
            "Export again, so that both say the same.",
        )


def schemas(check: Check) -> Findings:
    needed = check.severity(gate="runtime_schema_identity")
    wanted = check.required.get("tool_schema_hash")
    if "tool_schema_path" in check.required and check.required["tool_schema_path"] is None:
        yield Finding(
            "schema",
            WARNING,
            "config.gates.tool_schema_path",
            "is null.",
            "Name the file, or leave the key out.",
        )
    known = set(_schema_digests(check))
    if check.inputs.tool_schema is None:
        if wanted is not None or needed == ERROR:
            yield Finding(
                "schema", ERROR, "tool schema", "the file of tool schemas was not given.", "Give it."
            )
        else:
            yield Finding(
                "schema", WARNING, "tool schema", "no file of tool schemas was given.", "Give the runtime's."
            )
    elif check.tool_schema is not None:
        try:
            tools_of(check.tool_schema)
        except InvalidInput as error:
            yield Finding(
                "schema", ERROR, error.field, error.message.removeprefix(f"{error.field}: "), "Correct it."
            )
    if check.config is not None and wanted is None:
        yield Finding(
            "schema", needed, "config.gates.tool_schema_hash", "is not given.", "Pin the schema's digest."
        )
    elif wanted is not None and known and not (isinstance(wanted, str) and wanted in known):
        yield Finding(
            "schema",
            ERROR,
            "config.gates.tool_schema_hash",
            f"pins {short(wanted)[:14]}…, and the file of tool schemas is another.",
            "Give the file that was pinned, or pin this one.",
        )
    yield from _declared_schemas(check, known | ({wanted} if isinstance(wanted, str) else set()), needed)
    yield from _shown_schemas(check)


def _schema_digests(check: Check) -> Iterator[str]:
    """Of the file's bytes with line feeds alone, and of its tools whatever their order."""
    raw = check.inputs.tool_schema
    if isinstance(raw, bytes):
        yield hashlib.sha256(raw.replace(b"\r\n", b"\n")).hexdigest()
    if check.tool_schema is not None:
        try:
            yield schema_sha256(tools_of(check.tool_schema))
        except InvalidInput:
            return


def _declared_schemas(check: Check, known: set[str], needed: str) -> Findings:
    for where, sidecar in different(check):
        declared = sidecar.get("tool_schema_hash")
        if declared is None:
            yield Finding(
                "schema",
                needed,
                f"{where}.tool_schema_hash",
                "does not say for which tool schemas the data was made.",
                "Declare the schema's digest.",
            )
        elif known and not (isinstance(declared, str) and declared in known):
            yield Finding(
                "schema",
                ERROR,
                f"{where}.tool_schema_hash",
                f"declares {short(declared)[:14]}…, which is not the schema's digest.",
                "Make the data again for these tools, or give the tools that it was made for.",
            )


def _shown_schemas(check: Check) -> Findings:
    """Digests of the tools that rows show in full; rows that show mere names say nothing of schemas."""
    shown = {role: side.schema for role, side in check.sides.items() if side.schema}
    if len(set(shown.values())) > 1:
        yield Finding(
            "schema",
            WARNING,
            "train and eval",
            "show tools with different schemas.",
            "Use one schema, unless the evaluation holds tools out on purpose.",
        )
    for suite in check.inputs.suites:
        if suite.schema_sha256 and shown.get(TRAIN, suite.schema_sha256) != suite.schema_sha256:
            yield Finding(
                "schema",
                check.severity(gate="runtime_schema_identity"),
                suite.name,
                "shows tools with other schemas than the training data.",
                "Use one schema, or take the gate out where the suite holds tools out on purpose.",
            )
