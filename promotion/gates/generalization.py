"""Did the candidate learn, or had it seen the cases, or can they be guessed?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from promotion.gates.base import (
    Evidence,
    FloorParams,
    GateOutcome,
    Outcome,
    Unmet,
    Unusable,
    floor,
    gate,
)
from promotion.gates.document import count, overlaps_of, title
from promotion.gates.params import LeakParams, NearParams, decimal

REPORT_FORMAT = 1
EQUAL = ("ids", "groups", "texts")


@gate("frozen_group_split", NearParams)
def frozen_group_split(evidence: Evidence, params: NearParams) -> GateOutcome:
    """No training row stands in the evaluation data, and no row of either in a suite that judges.

    Each pair of sets may share no id, no group and no text (of the prompt, normalised), and at most `max_near` rows
    that are nearly a row of the other. Typed counts of the comparison decide, over the policy's suites, never a
    description. Empty data and rows without an id fail; a pair that was not compared is not evaluated.
    """
    datasets = evidence.datasets()
    for part in datasets:
        if not count(part["rows"]) or not count(part["distinct_texts"]):
            raise Unmet(f"{title(part)} is empty. Name the data that the candidate was made from.")
        if count(part["without_id"]):
            raise Unmet(f"{part['without_id']} rows of {title(part)} have no id. Give every row one.")
    shared, nearest = {}, 0
    pairs = list(_pairs(datasets, evidence.suites()))
    for mine, other in pairs:
        for report in overlaps_of(mine, other):
            found = _shared(report, mine, other)
            nearest = max(nearest, found["near"])
            if any(found[kind] for kind in EQUAL) or found["near"] > params.max_near:
                listed = ", ".join(f"{number} {kind}" for kind, number in found.items() if number)
                shared[mine["digest"], other["digest"]] = f"{title(mine)} and {title(other)} ({listed})"
    streams = sorted({stream for part in datasets if part["role"] == "train" for stream in part["streams"]})
    numbers = {
        "measured": f"{len(shared)} of {len(pairs)} pairs share rows",
        "needs": f"0 shared, at most {params.max_near} nearly alike",
        "n": sum(part["rows"] for part in datasets),
        "near": nearest,
        "streams": len(streams),
        "meets_with": f"0 shared ids, groups and texts, at most {params.max_near} near rows in each pair",
    }
    declared = f"{len(streams)} streams declared"
    if shared:
        return GateOutcome(
            Outcome.FAILED,
            f"These share rows: {'; '.join(shared.values())}. Take them out, train and measure again ({declared}).",
            numbers,
        )
    return GateOutcome(
        Outcome.PASSED, f"Nothing is shared in {len(pairs)} pairs of data and suites ({declared}).", numbers
    )


def _pairs(
    datasets: Iterable[Mapping[str, Any]], suites: Iterable[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each training set with each evaluation set and suite, and each evaluation set with each suite."""
    by_role = {role: [part for part in datasets if part["role"] == role] for role in ("train", "eval")}
    judging = list(suites)
    for train in by_role["train"]:
        for other in (*by_role["eval"], *judging):
            yield train, other
    for watched in by_role["eval"]:
        for suite in judging:
            yield watched, suite


def _shared(report: Mapping[str, Any], mine: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, int]:
    """What a comparison found, by kind. Raises `Unusable` for one that left rows out."""
    if report["format"] != REPORT_FORMAT:
        raise ValueError(f"a comparison of format {str(report['format'])[:40]!r} cannot be read")
    sizes = [mine["rows"], other["rows"] if "role" in other else other["case_count"]]
    # of two datasets it may be the other's
    if sorted([count(report["rows"]), count(report["others"])]) != sorted(sizes):
        raise Unusable(f"{title(mine)} and {title(other)} were not compared whole. Compare them again.")
    return {kind: count(report[kind]) for kind in (*EQUAL, "near")}


@gate("generalization_accuracy_floor", FloorParams)
def generalization_accuracy_floor(evidence: Evidence, params: FloorParams) -> GateOutcome:
    """The lower bound of `metric` on held-out tools reaches `min`.

    With `tool` a call of the wrong tool is wrong; `decision` would count any call as right.
    """
    return floor(evidence, params)


@gate("prompt_leak", LeakParams)
def prompt_leak(evidence: Evidence, params: LeakParams) -> GateOutcome:
    """No single feature of the prompts predicts whether a call is right as often as `max_accuracy`.

    Where one does, a model can score without reading the task. A suite whose commonest label alone is that common
    cannot meet it.
    """
    suite = evidence.suite(params.suite)
    leak = suite["leak"]
    if leak is None:
        raise Unusable(f"The prompts of {suite['name']} were not searched for a leak. Seal it again.")
    if leak["format"] != REPORT_FORMAT:
        raise ValueError(f"a search for leaks of format {str(leak['format'])[:40]!r} cannot be read")
    tried = count(leak["features_tried"])
    if count(leak["n"]) != count(suite["case_count"]):
        raise Unusable(f"Not all cases of {suite['name']} were searched for a leak. Seal it again.")
    accuracy, majority = decimal(leak["accuracy"]), decimal(leak["majority"])
    if not majority <= accuracy <= 1:
        raise ValueError(f"an accuracy of {accuracy} beside a majority of {majority} cannot be")
    numbers = {
        "measured": str(accuracy),
        "needs": f"< {params.max_accuracy}",
        "n": leak["n"],
        "majority": str(majority),
        "feature": leak["feature"],
        "meets_with": f"an accuracy under {params.max_accuracy}",
    }
    if majority >= params.max_accuracy:
        return GateOutcome(
            Outcome.FAILED,
            f"{majority} of the cases of {suite['name']} have one label, so no suite like it comes under "
            f"{params.max_accuracy}. Seal a suite with both labels.",
            numbers,
        )
    if not tried:
        raise Unusable(f"No feature of the prompts of {suite['name']} was tried. Seal it again.")
    if accuracy >= params.max_accuracy:
        return GateOutcome(
            Outcome.FAILED,
            f"One feature of the prompts predicts {accuracy} of the labels of {suite['name']}: {leak['feature']}. "
            f"It must be under {params.max_accuracy}; seal a suite in which it tells less.",
            numbers,
        )
    return GateOutcome(
        Outcome.PASSED,
        f"The best single feature of the prompts of {suite['name']} predicts {accuracy} of the labels "
        f"(the commonest label: {majority}).",
        numbers,
    )
