"""Charts: numbers in, classes and attributes out."""

from __future__ import annotations

import re

import pytest

from promotion.web.charts import Axis, Bar, Step, axis_for, axis_ticks, interval, steps

BAR = Bar(label="mail", estimate=0.9, lower=0.85, upper=0.95, look="pass", needs=0.8, champion=0.875)


def test_an_interval_holds_no_style_and_no_script() -> None:
    svg = interval(BAR, Axis(0.5))
    assert "style" not in svg
    assert "<script" not in svg
    assert 'class="iv pass"' in svg


def test_the_label_says_the_finding() -> None:
    assert (
        'aria-label="mail: 0.9000, from 0.8500 to 0.9500; the lower end must reach 0.8; champion 0.8750"'
        in interval(BAR, Axis(0.5))
    )


def test_equal_numbers_give_equal_bytes_and_places_follow_the_axis() -> None:
    svg = interval(BAR, Axis(0.5))
    assert svg == interval(BAR, Axis(0.5))
    assert '<line class="need" x1="99.4" x2="99.4"' in svg
    assert '<circle class="dot" cx="130.2"' in svg


def test_a_foreign_label_is_escaped() -> None:
    assert '"><script>' not in interval(Bar('"><script>', 0.5, 0.4, 0.6), Axis(0.0))


def test_the_axis_shows_every_value_and_drops_to_zero_below_a_half() -> None:
    assert axis_for([0.83, 0.9]).low == 0.8
    assert axis_for([0.8]).low == 0.7
    assert axis_for([0.45]).low == 0.0
    assert axis_for([]).low == 0.0
    assert "0.80" in axis_ticks(Axis(0.8))


def test_a_value_below_the_axis_is_drawn_at_its_edge() -> None:
    assert Axis(0.8).x(0.1) == Axis(0.8).x(0.8)


def moves(n: int) -> list[Step]:
    return [Step(f"v{at + 1}", 0.9, 0.8 + at / 1000, 0.95) for at in range(n)]


@pytest.mark.parametrize("n", [1, 2, 8, 20, 50])
def test_each_move_of_the_champion_is_one_step_within_the_picture(n: int) -> None:
    svg = steps(moves(n), "safe on fabrication", 0.7)
    width, height = (int(found) for found in re.findall(r'(?:width|height)="(\d+)"', svg)[:2])
    assert svg.count('class="band"') == n
    places = [float(found) for found in re.findall(r' (?:x|x1|x2|cx)="([\d.]+)"', svg)]
    heights = [float(found) for found in re.findall(r' (?:y|y1|y2|cy)="([\d.]+)"', svg)]
    assert 0 <= min(places) <= max(places) <= width <= 800
    assert 0 <= min(heights) <= max(heights) <= height
    assert f">v{n}<" in svg, "the present champion is always labelled"


def test_the_label_of_the_steps_says_the_finding_and_never_flatters() -> None:
    found = [
        Step("v1", None, None, None),
        Step("v2", 0.96, 0.94999, 0.98),
        Step("v1", None, None, None, back=True),
    ]
    said = steps(found, "safe on fabrication")
    assert (
        'aria-label="Champion over 3 moves, safe on fabrication: v1 now, not measured; v1 first, not measured; '
        '1 move back to an earlier version"'
    ) in said
    assert "v2 now, at least 0.9499" in steps(found[:2], "safe on fabrication")


def test_a_move_back_has_a_mark_and_what_was_not_measured_has_no_bar() -> None:
    svg = steps([Step("v2", 0.9, 0.8, 0.95), Step("v1", None, None, None, back=True)], "exact on named")
    assert svg.count('class="back"') == 1
    assert svg.count('class="band"') == 1
    assert ">?</text>" in svg


def test_steps_hold_no_style_and_escape_what_is_foreign() -> None:
    svg = steps([Step('"><script>', 0.9, 0.8, 0.95)], '"><script>')
    assert "style" not in svg
    assert "<script" not in svg
