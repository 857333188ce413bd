"""Where two transcripts part, and how two JSON values differ."""

from __future__ import annotations

import json
import time
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollouts.divergence import (
    AROUND_CHARS,
    MAX_CHANGES,
    applied,
    common_ends,
    first_divergence,
    json_diff,
    windows,
)
from rollouts.scoring.decision import json_equal

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text("abé_ ", max_size=3)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=4)
    ),
    max_leaves=12,
)
TEXTS = st.text("ab_ {}\n\u202e", max_size=30)


def by_brute_force(left: list[int], right: list[int]) -> int | None:
    for at in range(max(len(left), len(right))):
        if left[at : at + 1] != right[at : at + 1]:
            return at
    return None


@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), max_size=6))
def test_the_first_divergence_is_where_the_first_two_differ_or_one_ends(
    left: list[int], right: list[int]
) -> None:
    assert first_divergence(left, right) == by_brute_force(left, right)
    assert first_divergence(left, list(left)) is None


@given(VALUES)
def test_equal_values_have_no_difference(value: Any) -> None:
    found = json_diff(value, json.loads(json.dumps(value)))
    assert (found.changes, found.complete) == ([], True)


@given(VALUES, VALUES)
def test_making_the_changes_gives_the_other_side_and_changes_nothing_else(left: Any, right: Any) -> None:
    before = json.dumps(left)
    found = json_diff(left, right)
    assert found.complete
    assert json_equal(applied(left, found.changes), right)
    assert json.dumps(left) == before
    assert bool(found.changes) is not json_equal(left, right)


def test_changes_are_named_by_path() -> None:
    left = {"tool": "book", "arguments": {"nights": 2, "who": ["ada", "bob"], "late": None}}
    right = {"tool": "book", "arguments": {" nights": 2, "who": ["ada", "eve", "bob"], "late": False}}
    assert [(change.where, change.kind) for change in json_diff(left, right).changes] == [
        ("arguments.nights", "removed"),
        ("arguments.who[1]", "changed"),
        ("arguments.who[2]", "added"),
        ("arguments.late", "changed"),
        ('arguments[" nights"]', "added"),
    ]


def test_a_number_is_no_truth_value_and_an_integer_is_its_float() -> None:
    assert json_diff({"a": 1}, {"a": 1.0}).changes == []
    assert [change.kind for change in json_diff({"a": 1}, {"a": True}).changes] == ["changed"]


def test_more_changes_than_are_listed_are_said() -> None:
    found = json_diff({}, {str(n): n for n in range(MAX_CHANGES + 1)})
    assert (len(found.changes), found.complete) == (MAX_CHANGES, False)
    equal = list(range(10_000))
    assert not json_diff(equal, equal).complete


@given(TEXTS, TEXTS)
def test_what_two_texts_share_is_a_beginning_and_an_end_of_both(left: str, right: str) -> None:
    start, end = common_ends(left, right)
    assert start + end <= min(len(left), len(right))
    assert left[:start] == right[:start]
    assert left[len(left) - end :] == right[len(right) - end :]
    if left != right:
        assert left[start : len(left) - end] != right[start : len(right) - end]


@given(TEXTS, TEXTS)
def test_a_short_text_is_shown_whole_around_its_difference(left: str, right: str) -> None:
    for window, text in zip(windows(left, right), (left, right), strict=True):
        assert window.before + window.differs + window.after == text
        assert (window.skipped, window.left_out, window.total) == (0, 0, len(text))
    assert left != right or [window.differs for window in windows(left, right)] == ["", ""]


def test_a_difference_deep_in_a_long_text_is_shown_with_what_is_around_it() -> None:
    """One word in a megabyte, in a fifth of a second."""
    left = "word " * 199_000
    right = left[:700_000] + "other" + left[700_004:]
    start = time.perf_counter()
    mine, other = windows(left, right)
    assert time.perf_counter() - start < 0.2
    assert (mine.differs, other.differs) == ("word", "other")
    assert mine.skipped == 700_000 - AROUND_CHARS
    shown = len(mine.before) + len(mine.differs) + len(mine.after)
    assert mine.skipped + shown + mine.left_out == mine.total == len(left)


def test_the_longest_texts_take_bounded_time() -> None:
    start = time.perf_counter()
    windows("a" * 16_000_000, "b" * 16_000_000)
    windows("a" * 16_000_000 + "b", "a" * 16_000_001)
    assert time.perf_counter() - start < 1.0
