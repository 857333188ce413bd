"""Two trajectories of one case beside each other: the same turns in the same row, and the first row in which they part. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import Any

from rollouts.divergence import Diff, Window, first_divergence, json_diff, windows
from rollouts.trajectory import Event

# what differs in later rows is worked out for so many of them; the events themselves are all there
COMPARED_ROWS = 40


@dataclass(frozen=True, slots=True)
class Row:
    """What both sides did at one place; None where a side did nothing there.

    `same` events are shown once. `parts` marks the first row that is not the same. `diff` holds the differences of two
    JSON values by path, `left_text` and `right_text` those of two texts; None where there is nothing to compare.
    """

    left: Event | None
    right: Event | None
    same: bool
    parts: bool = False
    diff: Diff | None = None
    left_text: Window | None = None
    right_text: Window | None = None


def beside(left: Sequence[Event], right: Sequence[Event]) -> list[Row]:
    """Rows of both sides, turn by turn. Of one side alone nothing is the same and nothing parts."""
    pairs = _pairs(left, right)
    if not left or not right:
        return [Row(mine, other, False) for mine, other in pairs]
    at = first_divergence([_key(mine) for mine, _ in pairs], [_key(other) for _, other in pairs])
    rows, compared = [], 0
    for number, (mine, other) in enumerate(pairs):
        if _key(mine) == _key(other):
            rows.append(Row(mine, other, True))
            continue
        compared += 1
        rows.append(_differing(mine, other, number == at, deep=compared <= COMPARED_ROWS))
    return rows


def _key(event: Event | None) -> Any:
    return None if event is None else event.same_as


def _pairs(left: Sequence[Event], right: Sequence[Event]) -> list[tuple[Event | None, Event | None]]:
    """By turn, and in a turn by order: a turn in which one side did more does not shift the turns after it."""
    mine, other = (
        {turn: list(events) for turn, events in groupby(side, key=lambda event: event.turn)}
        for side in (left, right)
    )
    turns = sorted(mine.keys() | other.keys())
    return [pair for turn in turns for pair in zip_longest(mine.get(turn, ()), other.get(turn, ()))]


def _differing(left: Event | None, right: Event | None, parts: bool, *, deep: bool) -> Row:
    if not deep or left is None or right is None or left.kind != right.kind:
        return Row(left, right, False, parts)
    ours, theirs = left.value, right.value
    # a call of another tool, or a text that is no object, has no paths in common to speak of
    if left.who == right.who and isinstance(ours, dict | list) and isinstance(theirs, dict | list):
        return Row(left, right, False, parts, diff=json_diff(ours, theirs))
    return Row(left, right, False, parts, None, *windows(left.text, right.text))
