"""Rows of the judge scorer: a `rubric` for another model, perhaps a `reference` answer and a `pass_score`."""

from __future__ import annotations

from typing import Any

from rollouts.suite_format.lines import Line, short
from rollouts.suite_format.parts import Messages, Part, text_of

KEYS = frozenset({"rubric", "reference", "pass_score"})


def read(at: Line, row: dict[str, Any], messages: Messages) -> Part:
    content: dict[str, Any] = {"rubric": text_of(at, "rubric", row.get("rubric"))}
    if row.get("reference") is not None:
        content["reference"] = text_of(at, "reference", row["reference"])
    score = row.get("pass_score")
    if score is not None:
        if isinstance(score, bool) or not isinstance(score, int | float) or not 0 < score <= 1:
            at.refuse("pass_score", f"{short(score)} must be a number above 0 and up to 1.")
        content["pass_score"] = score
    return Part(content, KEYS, expects_call=False)
