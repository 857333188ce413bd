"""The faults that a foundry's files show, each by an id of ours, and what a recorded check is worth."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

# id -> what is wrong in general; each occurrence says where and with which values
FAULTS = {
    "ungated": "Promoted without any recorded check.",
    "rates-without-n": "Rates and bounds are recorded without the counts that they come from.",
    "unmeasured-passed": "A check that measured nothing is recorded as passed.",
    "floor-of-zero": "A floor of 0 can never fail.",
    "floor-not-configured": "A check exists only where its threshold is given, and here it is not.",
    "rate-not-bound": "A rate is held against a floor without an interval: luck on few cases passes.",
    "sealed-file-not-scored-file": "The pinned hash is of another file than the one that the suite names.",
    "suite-not-pinned": "A suite is named by its path; no hash says which bytes were scored.",
    "file-not-evaluated": "What was evaluated is another file than what was promoted.",
    "split-by-id-only": "Training and evaluation data are held apart by ids; equal text under another id passes.",
    "split-in-prose": "How groups were split is said in a sentence, not in fields.",
    "groups-in-both-splits": "The same lineage group stands in training and evaluation data.",
    "schema-hash-null": "No hash of the tool schemas is configured.",
    "schema-hash-differs": "The tool schemas have other bytes than the configured hash.",
    "schema-not-in-dataset": "The dataset does not say which tool schemas it was made for.",
    "schemas-mixed": "The dataset was made for other tool schemas than the round names.",
    "rules-missing": "The round has no thresholds.",
    "round-not-active": "The round is no active one.",
    "rules-in-prose": "Rules are sentences that no program reads.",
    "lock-is-a-date": "The thresholds carry a day and no hash: nothing shows that they were fixed before results.",
    "champion-typed": "The numbers to beat were typed into the round's file.",
    "champion-not-in-registry": "The numbers to beat are of no promotion in the registry.",
    "rate-named-bound": "The same number is called a rate in one place and a lower bound in another.",
    "checks-switched-off": "The round's own file switches checks of its data off.",
    "rows-not-reviewed": "Rows that no person has reviewed are part of the data.",
    "not-validated": "No validator has passed the dataset as a whole.",
    "train-hash-missing": "No hash of the training file is recorded.",
    "eval-hash-missing": "No hash of the evaluation file is recorded.",
    "streams-without-hash": "Streams are named by path; no hash says what went in.",
    "counts-do-not-add-up": "Counts that belong together do not add up.",
    "machine-path": "A path of somebody's machine is in the file.",
    "approval-is-text": "The approval is a typed name, bound to no account and to no evidence.",
    "approver-spelled-twice": "The same approver is spelled in two ways.",
    "same-bytes-promoted-twice": "The same artifact was promoted before.",
    "replaced-file-is-not-champion": "The replaced artifact is not the one that was promoted last.",
}

# what a recorded check is worth by the files alone
STANDINGS = {
    "verified": "verified: the file it is about is among the files, with that hash",
    "agrees": "recorded, not verified; another file records the same",
    "recorded": "recorded, not verified",
    "contradicted": "recorded, and another file records something else",
    "not_measured": "recorded as passed, but nothing was measured",
    "vacuous": "recorded as passed, but it cannot fail",
}

_DIGITS = re.compile(r"\b([0-9a-f]{8,64})(?:\.\.\.|…|\b)")
_ZERO_FLOOR = re.compile(r"floor 0(?:\.0+)?\b(?!\.[0-9])")
_MACHINE = re.compile(r"(?:^|[\s+,;])(?:[A-Za-z]:[\\/]|/(?:home|Users|root|mnt|data)/|\\\\)")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")


def fault(id: str, file: str, field: str, says: str = "") -> dict[str, str]:
    assert id in FAULTS, id
    return {"id": id, "file": file, "field": field, "says": says}


def is_machine_path(text: str | None) -> bool:
    return bool(text and _MACHINE.search(text))


def digits_of(text: str) -> list[str]:
    """Beginnings of hashes in a sentence."""
    return [found for found in _DIGITS.findall(text) if not found.isdigit()]


def numbers_of(text: str) -> list[str]:
    return _NUMBER.findall(text)


def has_zero_floor(detail: str) -> bool:
    return bool(_ZERO_FLOOR.search(detail))


def measured_nothing(check: Mapping[str, Any], promotion: Mapping[str, Any]) -> bool:
    """The detail says so, or the entry does for the budget of latency and memory."""
    unmeasured = promotion["latency_budget_measured"] is False and check["name"] == "latency_memory_budget"
    return bool(check["passed"]) and ("unmeasured" in check["detail"].lower() or unmeasured)


def standing_of_hash(detail: str, recorded: Sequence[tuple[str, str | None]]) -> tuple[str, str]:
    """(standing, because) of a check that names the beginning of a hash; `recorded` are (file and field, hash)."""
    known = [(where, digest) for where, digest in recorded if digest]
    named = digits_of(detail)
    if not known or not named:
        return "recorded", ""
    for where, digest in known:
        if any(digest.startswith(start) for start in named):
            return "agrees", where
    where, digest = known[0]
    return "contradicted", f"{where} records {digest[:12]}"
