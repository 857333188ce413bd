"""Charts: numbers in, classes and attributes out."""

from __future__ import annotations

from promotion.web.charts import Axis, Bar, axis_for, axis_ticks, interval

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
    assert '<line class="need" x1="137.8" x2="137.8"' in svg
    assert '<circle class="dot" cx="181.4"' in svg


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
