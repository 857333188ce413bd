"""Charts as SVG, drawn on the server: numbers in, classes and attributes out, so that the strict CSP holds.

Coordinates are rounded: equal numbers give equal bytes. The table beside a chart holds the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

WIDTH, HEIGHT, MARGIN = 232, 24, 7


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


def _sentence(bar: Bar) -> str:
    said = f"{bar.label}: {bar.estimate:.4f}, from {bar.lower:.4f} to {bar.upper:.4f}"
    if bar.needs is not None:
        said += f"; the lower end must reach {bar.needs:g}"
    return said + (f"; champion {bar.champion:.4f}" if bar.champion is not None else "")
