"""What two sets share: against a comparison of every pair, and with planted rows."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollouts.leakage import MAX_EXAMPLES, Asked, asked, overlap_report
from rollouts.near_duplicates import SHINGLE_WORDS, SHORT_WORDS, nearest


def rows(texts: list[str], prefix: str = "r", **values: str) -> list[Asked]:
    return [
        asked(name=f"{prefix}{at}", id=f"{prefix}{at}", group=f"g{prefix}{at}", text=text, **values)
        for at, text in enumerate(texts)
    ]


def every_pair(ours: list[str], theirs: list[str], threshold: Decimal) -> dict[int, tuple[Fraction, int]]:
    """Per text of ours its nearest, the slow way."""
    found: dict[int, tuple[Fraction, int]] = {}
    for i, mine in enumerate(ours):
        for j, other in enumerate(theirs):
            short = min(len(mine.split(" ")), len(other.split(" "))) < SHORT_WORDS
            left, right = (elements(text, short) for text in (mine, other))
            similarity = Fraction(len(left & right), len(left | right))
            if similarity >= Fraction(threshold) and similarity > found.get(i, (Fraction(-1), 0))[0]:
                found[i] = (similarity, j)
    return found


def elements(text: str, short: bool) -> set[object]:
    words = text.split(" ")
    if short:
        return set(words)
    return {tuple(words[at : at + SHINGLE_WORDS]) for at in range(len(words) - SHINGLE_WORDS + 1)}


lengths = st.sampled_from([1, 2, 4, 5, 6, 9, SHORT_WORDS - 1, SHORT_WORDS, SHORT_WORDS + 1, 80])


@st.composite
def kindred_texts(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """Two sets of texts, many made from the same few by changing words or cutting the end."""
    vocabulary = [f"w{number}" for number in range(draw(st.sampled_from([3, 12, 40])))]
    word = st.sampled_from(vocabulary)
    roots = [
        draw(st.lists(word, min_size=n, max_size=n)) for n in draw(st.lists(lengths, min_size=2, max_size=5))
    ]
    sides: tuple[list[str], list[str]] = ([], [])
    for side in sides:
        for _ in range(draw(st.integers(1, 10))):
            words = list(draw(st.sampled_from(roots)))
            for _ in range(draw(st.integers(0, 3))):
                words[draw(st.integers(0, len(words) - 1))] = draw(word)
            side.append(" ".join(words[: draw(st.integers(1, len(words)))] if draw(st.booleans()) else words))
    return [*dict.fromkeys(sides[0])], [*dict.fromkeys(sides[1])]


@settings(max_examples=150, deadline=None)
@given(kindred_texts(), st.sampled_from(["0.3", "0.8", "1"]))
def test_the_nearest_texts_are_those_of_comparing_every_pair(
    texts: tuple[list[str], list[str]], at: str
) -> None:
    found = nearest(*texts, Decimal(at))
    assert {
        near.ours: (Fraction(near.shared, near.united), near.theirs) for near in found.values()
    } == every_pair(*texts, Decimal(at))


@settings(deadline=None)
@given(kindred_texts())
def test_ids_groups_and_distinct_texts_are_counted_alike_from_both_sides(
    texts: tuple[list[str], list[str]],
) -> None:
    ours, theirs = rows(texts[0]), rows(texts[1])
    there, back = overlap_report(ours, theirs), overlap_report(theirs, ours)
    assert [there[kind] for kind in ("ids", "groups", "texts")] == [
        back[kind] for kind in ("ids", "groups", "texts")
    ]
    assert (there["rows"], there["others"]) == (back["others"], back["rows"]) == (len(ours), len(theirs))
    if not there["texts"]:  # an equal row is not near as well
        assert bool(there["near"]) == bool(back["near"])


@settings(deadline=None)
@given(kindred_texts(), kindred_texts())
def test_nothing_is_found_between_sets_without_a_common_word(
    one: tuple[list[str], list[str]], other: tuple[list[str], list[str]]
) -> None:
    theirs = [text.replace("w", "v") for text in other[0]]
    report = overlap_report(rows(one[0], "a"), rows(theirs, "b"))
    assert [report[kind] for kind in ("ids", "groups", "texts", "near")] == [0, 0, 0, 0]
    assert report["examples"] == []


def words(*numbers: int, prefix: str = "word") -> str:
    return " ".join(f"{prefix}{number}" for number in numbers)


def test_planted_duplicates_are_found_whatever_their_guise() -> None:
    theirs = ["Find the bike repair shop near the old station, please."]
    ours = [
        "find the BIKE repair shop near the old station please",
        "Find the bike repair shop near the new station, please.",
        "Play some jazz.",
    ]
    report = overlap_report(rows(ours, "o"), rows(theirs, "t"))
    assert (report["texts"], report["near"]) == (1, 1)
    assert report["examples"] == [
        {"kind": "text", "ours": "o0", "theirs": "t0", "similarity": "1.000000"},
        {"kind": "near", "ours": "o1", "theirs": "t0", "similarity": "0.800000"},
    ]


@pytest.mark.parametrize(
    ("mine", "near"),
    [
        (words(*range(60)), 0),  # equal, so not near
        (words(*range(58)), 1),  # 54 of 56 shingles
        (words(*range(1, 61)), 1),
        (words(*range(20), 99, *range(21, 60)), 1),  # one word in the middle: 51 of 61
        (words(*range(20), 98, *range(21, 40), 99, *range(41, 60)), 0),  # two: 46 of 66
        (words(*range(59, -1, -1)), 0),  # the same words backwards share no shingle
    ],
)
def test_long_texts_are_compared_by_five_words_in_a_row(mine: str, near: int) -> None:
    assert overlap_report(rows([mine]), rows([words(*range(60))], "t"))["near"] == near


def test_a_similarity_of_exactly_the_threshold_counts() -> None:
    ours, theirs = rows([words(*range(9))]), rows([words(*range(8), 99)], "t")
    assert overlap_report(ours, theirs, Decimal("0.8"))["near"] == 1  # 8 of 10 words
    assert overlap_report(ours, theirs, Decimal("0.800001"))["near"] == 0


def test_a_short_text_is_compared_with_a_long_one_too() -> None:
    theirs = rows([words(*range(50))], "t")
    assert overlap_report(rows([words(*range(49))]), theirs)["near"] == 1


def test_one_preamble_in_all_prompts_makes_them_near_and_costs_one_column() -> None:
    preamble = words(*range(300))
    ours = rows([f"{preamble} ask {number}" for number in range(40)])
    theirs = rows([f"{preamble} tell {number}" for number in range(30)], "t")
    assert overlap_report(ours, theirs)["near"] == 40


def test_repeated_rows_all_count_and_their_text_counts_once_as_ids_and_groups_do() -> None:
    ours = [asked(name="a", id="a", group="g", text="Do it")] * 3
    theirs = [asked(name="a", id="a", group="g", text="do it!")] * 2
    report = overlap_report(ours, theirs)
    assert (report["texts"], report["ids"], report["groups"], report["rows"], report["others"]) == (
        3,
        1,
        1,
        3,
        2,
    )


def test_rows_without_id_or_group_share_none() -> None:
    ours = [asked(name="line 1", id=None, group=None, text="one")]
    report = overlap_report(ours, [asked(name="line 1", id=None, group=None, text="two")])
    assert (report["ids"], report["groups"]) == (0, 0)


def test_examples_are_few_and_each_kind_has_some() -> None:
    ours = rows([words(*range(9))] * 20 + [words(*range(20, 30))] * 20)
    theirs = rows([words(*range(9)), words(*range(20, 29))])
    examples = overlap_report(ours, theirs)["examples"]
    assert len(examples) == MAX_EXAMPLES
    assert {example["kind"] for example in examples} == {"text", "near", "id", "group"}


def test_an_empty_side_shares_nothing() -> None:
    report = overlap_report([], rows(["a b c"]))
    assert (report["texts"], report["near"], report["rows"], report["others"]) == (0, 0, 0, 1)
    assert overlap_report(rows(["a b c"]), [])["near"] == 0
