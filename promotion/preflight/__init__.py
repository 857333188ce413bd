"""Checks of training data, its sidecar and a draft policy before anything is trained on them.

Every fault is a finding with its place and its remedy; nothing raises, whatever the files hold. The checks run in one
order: shape, blocked track, files, JSON, counts, rows, sidecar, review, validator, digests, tool schemas, leaks, baseline.
"""

from __future__ import annotations

from collections.abc import Callable

from promotion.preflight.base import (
    ERROR,
    EVAL,
    TRAIN,
    WARNING,
    Check,
    Finding,
    Findings,
    Inputs,
    SuiteCases,
    parsed,
    short,
)
from promotion.preflight.isolation import isolation
from promotion.preflight.rows import counts, json_lines, rows
from promotion.preflight.sidecars import digests, review, schemas, sidecar, validator

__all__ = ["ERROR", "WARNING", "Finding", "Inputs", "SuiteCases", "findings", "parsed"]

# gates that cannot be evaluated in a track without a champion
COMPARING = frozenset(
    {
        "arena_max_regression",
        "paired_non_inferiority",
        "incumbent_artifact_hash",
        "rollback_artifact_availability",
    }
)


def findings(inputs: Inputs) -> list[Finding]:
    """All findings in the order of the checks; none is GO. A blocked track and a missing file end the checks."""
    check = Check(inputs)
    found: list[Finding] = []
    for step in STEPS:
        try:
            found.extend(step(check))
        except Exception as error:  # a fault of ours is a finding too
            name = step.__name__.replace("_", " ")
            found.append(
                Finding(
                    "unfinished",
                    ERROR,
                    name,
                    f"the check of {name} broke off: {type(error).__name__}: {error}"[:500],
                    "Look at what the finding names, and report it: a check must never break off.",
                )
            )
        if check.stopped:
            break
    return found


def shape(check: Check) -> Findings:
    for where, text in check.unreadable:
        yield Finding("config", ERROR, where, text, "Give one strict JSON document.")
    if check.config is not None and not isinstance(check.config.get("gates"), dict):
        yield Finding(
            "config", ERROR, "config.gates", "is no object.", "Say there what the round asks of its data."
        )
    if check.policy is None:
        yield Finding(
            "policy", WARNING, "policy", "no policy was given, so no gate's needs are known.", "Give a draft."
        )
    for where, text in check.inputs.policy_problems:
        yield Finding("policy", ERROR, where, text, "Correct the draft; it cannot be saved like this.")


def blocked_track(check: Check) -> Findings:
    if check.config is None:
        return
    status = check.config.get("status")
    if status is None:
        yield Finding(
            "config", ERROR, "config.status", "is missing.", "Say active, or template for what is not ready."
        )
    elif status != "active":
        check.stopped = True
        reason = check.required.get("blocked_reason")
        yield Finding(
            "track_blocked",
            ERROR,
            "config.status",
            f"the track is {short(status)}, not active{f': {reason}' if isinstance(reason, str) else '.'}",
            "Train nothing for it until it is active.",
        )


def files(check: Check) -> Findings:
    for role, what in ((TRAIN, "training"), (EVAL, "evaluation")):
        if role not in check.sides:
            check.stopped = True
            yield Finding(
                "dataset",
                ERROR,
                role,
                f"no {what} data was given.",
                "Give both files: each is checked against the other.",
            )


def baseline(check: Check) -> Findings:
    if check.inputs.has_champion:
        return
    comparing = sorted(check.gates & COMPARING)
    if comparing:
        unknown = "no track was named, so it is not known whether there is a champion"
        yield Finding(
            "baseline",
            WARNING,
            "track",
            f"{unknown if check.inputs.has_champion is None else 'the track has no champion'}, and "
            f"{', '.join(comparing)} compare with one.",
            "Adopt a baseline first: gates that compare are not evaluated without.",
        )
    report = check.required.get("baseline_report")
    if report is not None:
        yield Finding(
            "baseline",
            WARNING,
            "config.gates.baseline_report",
            f"names {short(report)}, which is a path and not a measurement.",
            "Adopt the baseline as the track's champion; it is measured on the same suites.",
        )


STEPS: tuple[Callable[[Check], Findings], ...] = (
    shape,
    blocked_track,
    files,
    json_lines,
    counts,
    rows,
    sidecar,
    review,
    validator,
    digests,
    schemas,
    isolation,
    baseline,
)
