"""What makes two prompts the same text, and what keeps them apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.leakage import normalised


@given(st.text(max_size=60))
def test_a_normalised_text_stays_as_it_is(text: str) -> None:
    once = normalised(text)
    assert normalised(once) == once


@given(st.lists(st.text("abcXYZ019é", min_size=1, max_size=6), min_size=1, max_size=8), st.data())
def test_case_spaces_and_punctuation_make_no_difference(words: list[str], data: st.DataObject) -> None:
    gaps = st.sampled_from([" ", "  ", "\n", "\t", " , ", "! ", "… ", " (", "\u00a0"])
    written = "".join(word.upper() + data.draw(gaps) for word in words)
    assert normalised(written) == normalised(" ".join(words))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Find the bike repair shop.", "find the bike repair shop"),
        ("ﬁnd the ｂike", "find the bike"),
        ("Straße", "STRASSE"),
        ("fi\u200bnd \u2060the bike\ufeff", "find the bike"),
        ("fi\u034fnd the bi\ufe0fke", "find the bike"),
        ("\u202efind\u202c the bike", "find the bike"),
        ("use read_file", "use read file"),
        ("cafe\u0301", "café"),
        ("東京の天気", "東京 の 天気"),
    ],
)
def test_the_same_text_in_another_guise_is_the_same(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("set it to -5", "set it to 5"),
        ("3 + 4", "3 4"),
        ("cost in $", "cost in €"),
        ("किताब", "कताब"),
        ("👍", "👎"),
        ("???", "!!!"),
        ("play jazz", "play rock"),
    ],
)
def test_another_text_is_another(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)


def test_a_hyphen_between_words_is_no_minus() -> None:
    assert normalised("re-open 2026-08-04") == "re open 2026 08 04"
    assert normalised("-5 to −6") == "-5 to -6"
