"""What training data shares with what judges, and what gives its labels away. Always checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from promotion.preflight.base import (
    ERROR,
    EVAL,
    TRAIN,
    WARNING,
    Check,
    Finding,
    Findings,
    Side,
    decision_of,
    different,
    short,
)
from rollouts.leakage import Labelled, best_single_feature, overlap_report, plain_tool

LEAK_ACCURACY, LEAK_ABOVE_MAJORITY = 0.95, 0.05


def isolation(check: Check) -> Findings:
    train, evaluation = (check.sides[role] for role in (TRAIN, EVAL))
    for where, sidecar in different(check):
        groups = sidecar.get("lineage_groups")
        parts = [groups.get(role) for role in (TRAIN, EVAL)] if isinstance(groups, dict) else []
        lists = [
            {part for part in found if isinstance(part, str)} for found in parts if isinstance(found, list)
        ]
        both = sorted(set.intersection(*lists)) if len(lists) == 2 else []
        if both:
            yield Finding(
                "leakage",
                ERROR,
                f"{where}.lineage_groups",
                f"{len(both)} groups are declared on both sides, such as {short(both[0])}.",
                "Split by group, and export again.",
            )
    yield from _shared("leakage", TRAIN, EVAL, overlap_report(train.asked, evaluation.asked))
    for suite in check.inputs.suites:
        for role, side in check.sides.items():
            yield from _shared("suite_leakage", role, suite.name, overlap_report(side.asked, suite.cases))
    yield from _label_leak(train)


SHARED = {
    "texts": ("rows of {ours} ask word for word what {theirs} asks", "text"),
    "ids": ("example_ids of {ours} are also in {theirs}", "id"),
    "groups": ("lineage groups of {ours} are also in {theirs}", "group"),
    "near": ("rows of {ours} ask nearly what {theirs} asks", "near"),
}


def _shared(code: str, ours: str, theirs: str, report: Mapping[str, Any]) -> Findings:
    for kind, (sentence, example_kind) in SHARED.items():
        if not report[kind]:
            continue
        pairs = [
            f"{part['ours']} and {part['theirs']}"
            for part in report["examples"]
            if part["kind"] == example_kind
        ]
        yield Finding(
            code,
            WARNING if kind == "near" else ERROR,
            f"{ours} and {theirs}",
            f"{report[kind]} {sentence.format(ours=ours, theirs=theirs)}, such as {'; '.join(pairs[:3])}.",
            f"Take them out of {ours}: what was trained on or watched cannot judge.",
        )


def _label_leak(side: Side) -> Findings:
    known = [(row, row.decision or decision_of(row.answer)) for row in side.rows]
    cases = [
        Labelled(row.text, [str(plain_tool(tool).get("name")) for tool in row.tools], decision == "call")
        for row, decision in known
        if decision is not None
    ]
    leak = best_single_feature(cases)
    if leak is None:
        return
    accuracy, majority = float(leak["accuracy"]), float(leak["majority"])
    if accuracy >= LEAK_ACCURACY and accuracy - majority >= LEAK_ABOVE_MAJORITY:
        yield Finding(
            "prompt_leak",
            WARNING,
            TRAIN,
            f"one feature of the prompts tells {accuracy:.1%} of the time whether a call is right: {leak['feature']}.",
            "Find what puts it there: a model learns that instead of the task.",
        )
