"""Where two transcripts part, and how two JSON values differ by path. Pure, and bounded: what is not compared is said."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from rollouts.scoring.decision import json_equal

MAX_VALUES = 5_000
MAX_CHANGES = 200
# of each text, how much is compared and how much is shown around the difference
COMPARED_CHARS = 1_000_000
AROUND_CHARS = 600
DIFFERING_CHARS = 2_000

PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
Path = tuple[str | int, ...]


class Change(NamedTuple):
    """One difference. `before` is None where a value was added, `after` where one was removed; `kind` tells it from null."""

    path: Path
    kind: Literal["added", "removed", "changed"]
    before: Any
    after: Any

    @property
    def where(self) -> str:
        """The path for a person: arguments.items[2], and ["..."] where a key is no plain word."""
        parts = (f".{step}" if _is_plain(step) else f"[{json.dumps(step)}]" for step in self.path)
        return "".join(parts).removeprefix(".") or "the whole"


def _is_plain(step: str | int) -> bool:
    return isinstance(step, str) and PLAIN_KEY.fullmatch(step) is not None


@dataclass(frozen=True, slots=True)
class Diff:
    """`complete` is False where there are more changes than are listed, or more values than are compared."""

    changes: list[Change]
    complete: bool


def first_divergence(left: Sequence[Any], right: Sequence[Any]) -> int | None:
    """The first place at which the two differ, or at which one has ended; None where they are equal."""
    for at, (mine, other) in enumerate(zip(left, right, strict=False)):
        if mine != other:
            return at
    return None if len(left) == len(right) else min(len(left), len(right))


def json_diff(left: Any, right: Any) -> Diff:
    """What to change in `left` to come to `right`, in the order of paths. 1 is 1.0, and true is not 1."""
    budget = _Budget(MAX_VALUES)
    changes: list[Change] = []
    for change in _changes((), left, right, budget):
        if len(changes) == MAX_CHANGES:
            return Diff(changes, False)
        changes.append(change)
    return Diff(changes, budget.left >= 0)


def applied(left: Any, changes: Sequence[Change]) -> Any:
    """`left` with the changes of a complete diff made. The value itself is left as it is."""
    # what a list lost goes from its end, so that earlier places stay what they are
    for change in (
        *(change for change in changes if change.kind == "changed"),
        *(change for change in reversed(changes) if change.kind == "removed"),
        *(change for change in changes if change.kind == "added"),
    ):
        left = _with(left, change.path, change)
    return left


@dataclass(slots=True)
class _Budget:
    left: int


def _changes(path: Path, left: Any, right: Any, budget: _Budget) -> Iterator[Change]:
    budget.left -= 1
    if budget.left < 0:
        return
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in (*left, *(key for key in right if key not in left)):
            if key not in right:
                yield Change((*path, key), "removed", left[key], None)
            elif key not in left:
                yield Change((*path, key), "added", None, right[key])
            else:
                yield from _changes((*path, key), left[key], right[key], budget)
    elif isinstance(left, list) and isinstance(right, list):
        shared = min(len(left), len(right))
        for at in range(shared):
            yield from _changes((*path, at), left[at], right[at], budget)
        for at in range(shared, len(left)):
            yield Change((*path, at), "removed", left[at], None)
        for at in range(shared, len(right)):
            yield Change((*path, at), "added", None, right[at])
    elif not json_equal(left, right):
        yield Change(path, "changed", left, right)


def _with(value: Any, path: Path, change: Change) -> Any:
    if not path:
        return change.after
    step, rest = path[0], path[1:]
    copy: Any = dict(value) if isinstance(value, Mapping) else list(value)
    if rest:
        copy[step] = _with(copy[step], rest, change)
    elif change.kind == "removed":
        del copy[step]
    elif change.kind == "added" and isinstance(copy, list):
        copy.append(change.after)
    else:
        copy[step] = change.after
    return copy


# texts


class Window(NamedTuple):
    """A text around the stretch in which it differs from the other side's.

    `skipped` characters stand before what is shown, `left_out` inside or after it. `total` counts the whole text.
    """

    skipped: int
    before: str
    differs: str
    after: str
    left_out: int
    total: int


def windows(left: str, right: str) -> tuple[Window, Window]:
    """Both texts around the stretch between their common beginning and common end. Equal texts differ nowhere."""
    start, end = common_ends(left[:COMPARED_CHARS], right[:COMPARED_CHARS])
    if max(len(left), len(right)) > COMPARED_CHARS:
        end = 0
    return _window(left, start, end), _window(right, start, end)


def common_ends(left: str, right: str) -> tuple[int, int]:
    """How many characters the texts share at their beginning and, of the rest, at their end; whole words only."""
    start = _common(left, right)
    if start == len(left) == len(right):
        return start, 0
    start = _word_start(left, right, start)
    rest = min(len(left), len(right)) - start
    end = _common(left[: -rest - 1 : -1], right[: -rest - 1 : -1]) if rest else 0
    while end and _is_word(left[len(left) - end]):
        end -= 1
    return start, end


def _word_start(left: str, right: str, start: int) -> int:
    """Back to where the word begins in which they part; not at all where both go on with what is no word."""
    goes_on = any(_is_word(text[start : start + 1]) for text in (left, right))
    while goes_on and start and _is_word(left[start - 1]):
        start -= 1
    return start


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _common(left: str, right: str) -> int:
    """By halving, with comparisons of slices: a loop over a million characters takes a tenth of a second."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _window(text: str, start: int, end: int) -> Window:
    stop = len(text) - end
    differs, skipped = text[start : min(stop, start + DIFFERING_CHARS)], max(0, start - AROUND_CHARS)
    # what is equal to the end is shown from its beginning at the same width
    after = text[stop : stop + AROUND_CHARS]
    if start == stop:
        after = text[stop : stop + DIFFERING_CHARS]
    shown = skipped + (start - skipped) + len(differs) + len(after)
    return Window(skipped, text[skipped:start], differs, after, len(text) - shown, len(text))
