"""The rows themselves: can they be read, do they say what they show, do they repeat."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator

from promotion.preflight.base import (
    ERROR,
    WARNING,
    Check,
    Finding,
    Findings,
    Side,
    decision_of,
    each,
    places,
    short,
)
from rollouts.dataset_format import DatasetRow
from rollouts.leakage import normalised, plain_tool
from rollouts.scoring.decision import NotStrictJson, parse_strict_json


def json_lines(check: Check) -> Findings:
    for side in check.sides.values():
        yield from each("json", side.refused, "Write one strict JSON object a line, in UTF-8.")


def counts(check: Check) -> Findings:
    for role, side in check.sides.items():
        key = f"min_{role}_examples"
        least = check.required.get(key, 1)
        if isinstance(least, bool) or not isinstance(least, int) or least < 1:
            yield Finding(
                "config",
                ERROR,
                f"config.gates.{key}",
                f"{short(least)} is no number of rows.",
                "Give 1 or more.",
            )
            least = 1
        if len(side.rows) < least:
            yield Finding(
                "count",
                ERROR,
                role,
                f"{len(side.rows)} rows can be read, and at least {least} are needed.",
                "Add rows, or correct those that cannot be read.",
            )


def rows(check: Check) -> Findings:
    for role, side in check.sides.items():
        yield from each("format", side.unusable, "Write the row as docs/datasets.md shows.")
        silent = [row for row in side.rows if not row.answer.strip()]
        if silent:
            yield Finding(
                "format",
                ERROR,
                f"{role} {places(silent)}",
                f"{len(silent)} rows have no answer to learn from.",
                "End each row with the assistant's message.",
            )
        yield from each(
            "format", list(_wrong_labels(role, side.rows)), "Correct the row: one of the two is wrong."
        )
        yield from _names(role, side)
        yield from _repeats(role, side)


def _wrong_labels(role: str, rows: Iterable[DatasetRow]) -> Iterator[tuple[str, str]]:
    for row in rows:
        if row.decision is None or not row.answer.strip():
            continue
        answered = decision_of(row.answer)
        if answered is None:
            yield f"{role} line {row.line}", "says a decision, and its answer is no JSON object with one."
        elif answered != row.decision:
            yield (
                f"{role} line {row.line}",
                f"says {short(row.decision)}, and its answer decides {short(answered)}.",
            )


def _names(role: str, side: Side) -> Findings:
    nameless = [row for row in side.rows if row.id is None]
    if nameless:
        yield Finding(
            "ids",
            ERROR,
            f"{role} {places(nameless)}",
            f"{len(nameless)} rows have no example_id.",
            "Give every row one, so that it can be found again.",
        )
    counts = Counter(row.id for row in side.rows if row.id is not None)
    repeated = [row for row in side.rows if row.id is not None and counts[row.id] > 1]
    if repeated:
        yield Finding(
            "ids",
            WARNING,
            f"{role} {places(repeated)}",
            f"{len(repeated)} rows share an example_id with another row.",
            "Give each row its own.",
        )
    alone = sum(row.group is None for row in side.rows)
    if alone:
        yield Finding(
            "ids",
            WARNING,
            role,
            f"{alone} rows have no lineage_group_id, so rows made from one another cannot be kept together.",
            "Name the group where rows are paraphrases or repairs of one another.",
        )


def _repeats(role: str, side: Side) -> Findings:
    distinct = {row.text for row in side.asked}
    if len(distinct) < len(side.rows):
        yield Finding(
            "duplicates",
            WARNING,
            role,
            f"{len(side.rows)} rows ask only {len(distinct)} different things.",
            "Take out rows that ask the same, or know that they count several times.",
        )
    answers: dict[str, set[str]] = {}
    for row, prompt in zip(side.rows, side.asked, strict=True):
        shown = "\n".join(sorted(str(plain_tool(tool).get("name")) for tool in row.tools))
        answers.setdefault(f"{prompt.text}\n{shown}", set()).add(_canonical_answer(row.answer))
    torn = sum(len(found) > 1 for found in answers.values())
    if torn:
        yield Finding(
            "duplicates",
            WARNING,
            role,
            f"{torn} questions have several answers with the same tools.",
            "Decide which is right, and take out the others.",
        )


def _canonical_answer(answer: str) -> str:
    try:
        return json.dumps(parse_strict_json(answer.strip()), sort_keys=True)
    except NotStrictJson:
        return normalised(answer)
