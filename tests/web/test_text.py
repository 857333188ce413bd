"""Foreign text stays text, and what cannot be seen is shown."""

from __future__ import annotations

import re
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
from django.template import Context, Template
from django.urls import reverse

from rollouts.services import suites
from rollouts.text import SHOWN_CHARS, body_shown, clip, split_unseen, unpacked
from tests import factories
from tests.web.conftest import html, signed_in


def rendered(text: str) -> str:
    return Template("{% load assay %}{{ text|visible }}").render(Context({"text": text}))


@pytest.mark.parametrize(
    ("character", "mark"),
    [
        ("\u202e", "U+202E"),
        ("\u2066", "U+2066"),
        ("\u200b", "U+200B"),
        ("\ufeff", "U+FEFF"),
        ("\x1b", "ESC"),
        ("\x00", "NUL"),
        ("\x9b", "U+009B"),
        ("\r", "CR"),
        ("\U000e0041", "U+E0041"),
        ("\ud800", "U+D800"),
        ("\u00ad", "U+00AD"),
    ],
)
def test_unseen_characters_are_shown_by_name(character: str, mark: str) -> None:
    assert rendered(f"a{character}b") == f'a<span class="ctl">⟦{mark}⟧</span>b'


def test_layout_and_ordinary_letters_stay_as_they_are() -> None:
    text = "tab\there\nline\r\nwindows, Привет, שלום, 日本語, 🙂\ufe0f"
    assert split_unseen(text) == [(text, False)]


def test_markup_is_escaped_also_beside_marks() -> None:
    assert rendered("<b>\u202e&") == '&lt;b&gt;<span class="ctl">⟦U+202E⟧</span>&amp;'


def test_long_text_is_cut_at_a_stated_length() -> None:
    shown = rendered("x" * (SHOWN_CHARS + 5))
    assert shown.count("x") == SHOWN_CHARS
    assert f"cut: {SHOWN_CHARS + 5:,} characters" in shown


@pytest.mark.parametrize("unit", ["\u202e", "a", "<", "\r", "\n"])
def test_a_megabyte_of_anything_is_marked_in_linear_time(unit: str) -> None:
    started = time.process_time()
    split_unseen(unit * 1_000_000)
    assert time.process_time() - started < 5


def test_a_payload_is_never_unpacked_beyond_what_is_shown() -> None:
    bomb = zlib.compress(b"\x00" * 50_000_000)
    assert len(unpacked(bomb, 50_000_000, SHOWN_CHARS)) == SHOWN_CHARS
    shown = body_shown(bomb, 50_000_000)
    assert shown.cut
    assert shown.total == 50_000_000
    assert shown.unit == "bytes"


def test_bytes_that_are_not_utf_8_are_shown_as_replacements() -> None:
    assert body_shown(zlib.compress(b"ok\xff"), 3).text == "ok\ufffd"


def test_a_short_text_is_not_called_cut() -> None:
    assert not clip("short").cut


def test_a_name_is_isolated() -> None:
    shown = Template("{% load assay %}{{ who|name }}").render(Context({"who": "evil\u202e"}))
    assert shown == '<bdi>evil<span class="ctl">⟦U+202E⟧</span></bdi>'


def test_a_rate_is_never_rounded_up_to_a_threshold() -> None:
    template = Template("{% load assay %}{{ value|rate }}")
    assert template.render(Context({"value": 0.94999})) == "0.9499"
    assert template.render(Context({"value": None})) == "–"


def test_a_title_shows_what_cannot_be_seen_in_it(db: None, settings: Any, tmp_path: Path) -> None:
    """Every page's, by the one place in which all titles stand. A title has no elements, so the marks are characters."""
    settings.STATIC_ROOT = tmp_path
    engineer = factories.person("engineer", "engineer")
    rows = [factories.call_case("evil\u202e<b>'")]
    case = suites.seal(name="named", data=factories.jsonl(rows), by=engineer).cases.get()

    page = html(signed_in(engineer).get(reverse("rollouts:case", args=[case.pk])))

    title = re.findall("<title>(.*?)</title>", page)
    assert title == ["Case evil⟦U+202E⟧&lt;b&gt;&#x27; &middot; Assay"]
    assert "\u202e" not in page
