"""Charts as SVG, drawn on the server: numbers in, classes and attributes out, so that the strict CSP holds.

Coordinates are rounded: equal numbers give equal bytes. The table beside a chart holds the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

WIDTH, HEIGHT, MARGIN = 168, 24, 7


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale of rates from `low` to 1, shared by all intervals of a table."""

    low: float

    def x(self, value: float) -> float:
        share = (max(value, self.low) - self.low) / (1 - self.low)
        return round(MARGIN + share * (WIDTH - 2 * MARGIN), 1)

    def ticks(self) -> list[float]:
        return [self.low, round((self.low + 1) / 2, 3), 1.0]


def axis_for(values: list[float]) -> Axis:
    """An axis for all values: from a tenth below the smallest, or from 0 where that is under 0.5."""
    smallest = min(values, default=0.0)
    low = int(max(0.0, smallest - 0.001) * 10) / 10
    return Axis(low if low >= 0.5 else 0.0)


def axis_ticks(axis: Axis) -> SafeString:
    """The head of the interval column."""
    anchors = ("start", "middle", "end")
    places = (MARGIN - 4, WIDTH / 2, WIDTH - MARGIN + 4)
    labels = format_html_join(
        "",
        '<text x="{}" y="9" text-anchor="{}">{}</text>',
        ((x, anchor, f"{value:.2f}") for x, anchor, value in zip(places, anchors, axis.ticks(), strict=True)),
    )
    return format_html('<svg class="axis" viewBox="0 0 {} 14" aria-hidden="true">{}</svg>', WIDTH, labels)


@dataclass(frozen=True, slots=True)
class Bar:
    """One interval: rates on the 0-1 scale. `look` is pass, fail, unsure or empty (not judged)."""

    label: str
    estimate: float
    lower: float
    upper: float
    look: str = ""
    needs: float | None = None
    champion: float | None = None


def interval(bar: Bar, axis: Axis) -> SafeString:
    """The interval, its estimate, the champion's rate as a ring, and the threshold as a dashed line."""
    x, middle = axis.x, HEIGHT // 2
    parts = [
        format_html(
            '<line class="line" x1="{}" x2="{}" y1="{}" y2="{}"/>', MARGIN, WIDTH - MARGIN, middle, middle
        )
    ]
    if bar.needs is not None:
        parts.append(
            format_html('<line class="need" x1="{0}" x2="{0}" y1="1" y2="{1}"/>', x(bar.needs), HEIGHT - 1)
        )
    width = max(2, round(x(bar.upper) - x(bar.lower), 1))
    parts.append(
        format_html(
            '<rect class="band" x="{}" width="{}" y="{}" height="12" rx="3"/>',
            x(bar.lower),
            width,
            middle - 6,
        )
    )
    parts.append(format_html('<circle class="dot" cx="{}" cy="{}" r="4.5"/>', x(bar.estimate), middle))
    if bar.champion is not None:
        parts.append(format_html('<circle class="champ" cx="{}" cy="{}" r="5"/>', x(bar.champion), middle))
    return format_html(
        '<svg class="iv {}" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>',
        bar.look,
        WIDTH,
        HEIGHT,
        _sentence(bar),
        format_html_join("", "{}", ((part,) for part in parts)),
    )


@dataclass(frozen=True, slots=True)
class Step:
    """One move of an alias: the version that it went to and its rate, 0-1. None: not measured."""

    label: str
    estimate: float | None
    lower: float | None
    upper: float | None
    back: bool = False


STEPS_HEIGHT, STEPS_TOP, STEPS_BOTTOM, STEPS_LEFT = 136, 20, 108, 40


def steps(moves: list[Step], what: str, needs: float | None = None) -> SafeString:
    """Versions over time, one step a move, oldest left: interval, lower bound, rate; a wedge where it went back."""
    known = [move.lower for move in moves if move.lower is not None]
    axis = axis_for([*known, *([needs] if needs is not None else [])])
    wide = 64 if len(moves) <= 8 else 30 if len(moves) <= 20 else 15
    width = STEPS_LEFT + wide * max(len(moves), 4) + 8
    every = 1 if wide >= 30 else 3
    parts = [_gridline(axis, value, width) for value in axis.ticks()]
    if needs is not None:
        y = _y(axis, needs)
        parts.append(
            format_html('<line class="need" x1="{}" x2="{}" y1="{}" y2="{}"/>', STEPS_LEFT, width - 8, y, y)
        )
    before: float | None = None
    for at, move in enumerate(moves):
        x = STEPS_LEFT + at * wide
        labelled = (len(moves) - 1 - at) % every == 0  # the newest always is
        parts.append(_step(move, axis, x, wide, before if at else None, labelled=labelled))
        before = move.lower
    return format_html(
        '<svg class="steps" width="{}" height="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>',
        width,
        STEPS_HEIGHT,
        width,
        STEPS_HEIGHT,
        _steps_sentence(moves, what),
        format_html_join("", "{}", ((part,) for part in parts)),
    )


def _y(axis: Axis, value: float) -> float:
    share = (max(value, axis.low) - axis.low) / (1 - axis.low)
    return round(STEPS_BOTTOM - share * (STEPS_BOTTOM - STEPS_TOP), 1)


def _gridline(axis: Axis, value: float, width: int) -> SafeString:
    y = _y(axis, value)
    return format_html(
        '<line class="line" x1="{}" x2="{}" y1="{}" y2="{}"/><text x="{}" y="{}" text-anchor="end">{}</text>',
        STEPS_LEFT,
        width - 8,
        y,
        y,
        STEPS_LEFT - 8,
        y + 4,
        f"{value:.2f}",
    )


def _step(move: Step, axis: Axis, x: int, wide: int, before: float | None, *, labelled: bool) -> SafeString:
    middle, parts = x + wide / 2, []
    if labelled:
        parts.append(
            format_html(
                '<text class="at" x="{}" y="{}" text-anchor="middle">{}</text>',
                middle,
                STEPS_HEIGHT - 8,
                move.label,
            )
        )
    if move.back:
        parts.append(format_html('<path class="back" d="M{} 4l-7 4.5l7 4.5z"/>', middle + 3.5))
    if move.lower is None or move.upper is None or move.estimate is None:
        parts.append(
            format_html('<text x="{}" y="{}" text-anchor="middle">?</text>', middle, STEPS_BOTTOM - 4)
        )
        return format_html_join("", "{}", ((part,) for part in parts))
    low, high = _y(axis, move.lower), _y(axis, move.upper)
    if before is not None:
        parts.append(
            format_html('<line class="bound" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>', x, _y(axis, before), low)
        )
    parts.append(
        format_html(
            '<rect class="band" x="{}" width="{}" y="{}" height="{}"/>'
            '<line class="bound" x1="{}" x2="{}" y1="{}" y2="{}"/><circle class="dot" cx="{}" cy="{}" r="3.5"/>',
            x,
            wide,
            high,
            round(max(low - high, 1), 1),
            x,
            x + wide,
            low,
            low,
            middle,
            _y(axis, move.estimate),
        )
    )
    return format_html_join("", "{}", ((part,) for part in parts))


def _steps_sentence(moves: list[Step], what: str) -> str:
    def worth(move: Step) -> str:
        return "not measured" if move.lower is None else f"at least {floor(move.lower * 10_000) / 10_000:.4f}"

    back = sum(move.back for move in moves)
    said = f"Champion over {len(moves)} move{'s' if len(moves) > 1 else ''}, {what}: {moves[-1].label} now, {worth(moves[-1])}"
    if len(moves) > 1:
        said += f"; {moves[0].label} first, {worth(moves[0])}"
    return said + (f"; {back} move{'s' if back > 1 else ''} back to an earlier version" if back else "")


def _sentence(bar: Bar) -> str:
    said = f"{bar.label}: {bar.estimate:.4f}, from {bar.lower:.4f} to {bar.upper:.4f}"
    if bar.needs is not None:
        said += f"; the lower end must reach {bar.needs:g}"
    return said + (f"; champion {bar.champion:.4f}" if bar.champion is not None else "")
