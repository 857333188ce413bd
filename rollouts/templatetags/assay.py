"""Tags and filters of both apps: hostile text, outcomes as sign and word, numbers that never flatter."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from django import template
from django.utils import timezone
from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from rollouts.audit import ACTIONS
from rollouts.permissions import groups_of
from rollouts.text import SHOWN_CHARS, clip, split_unseen
from rollouts.text import plain as plain_text

register = template.Library()

_PATHS = {
    "pass": "M3 8.5l3.2 3.2L13 4.8",
    "fail": "M4 4l8 8M12 4l-8 8",
    "unsure": "M3 8h10",
    "busy": "M8 4v4l2.6 1.8M8 1.8a6.2 6.2 0 1 1 0 12.4a6.2 6.2 0 1 1 0-12.4",
    "done": "M3 8.5l3.2 3.2L13 4.8",  # came to an end, which says nothing of how
    "off": "M3.7 3.7l8.6 8.6M8 1.8a6.2 6.2 0 1 1 0 12.4a6.2 6.2 0 1 1 0-12.4",
}
# state or outcome -> (look, word); the word stands by itself, colour and sign only repeat it
_WORDS = {
    "passed": ("pass", "passed"),
    "waived": ("unsure", "waived"),
    "failed": ("fail", "failed"),
    "not_evaluated": ("unsure", "not evaluated"),
    "error": ("fail", "gate error"),
    "waits": ("unsure", "waits"),
    "submitted": ("busy", "Submitted"),
    "build_failed": ("fail", "Build failed"),
    "built": ("unsure", "Built"),
    "evaluating": ("busy", "Evaluating"),
    "blocked": ("fail", "Blocked"),
    "in_review": ("unsure", "In review"),
    "approved": ("pass", "Approved"),
    "publishing": ("busy", "Publishing"),
    "publish_failed": ("fail", "Publish failed"),
    "promoted": ("pass", "Promoted"),
    "rejected": ("fail", "Rejected"),
    "withdrawn": ("off", "Withdrawn"),
    "queued": ("busy", "queued"),
    "running": ("busy", "running"),
    "scored": ("done", "scored"),
    "masked": ("unsure", "masked"),
    "unscored": ("unsure", "unscored"),
    "cancelled": ("off", "cancelled"),
    "open": ("busy", "open"),
    "answered": ("pass", "answered"),
    "lost": ("fail", "lost"),
    "late": ("unsure", "late"),
    "finished": ("pass", "finished"),
    "accepted": ("pass", "accepted"),
    "declined": ("off", "declined"),
}


def sign(look: str) -> SafeString:
    return format_html(
        '<svg viewBox="0 0 16 16" aria-hidden="true"><path d="{}" fill="none" stroke="currentColor" '
        'stroke-width="2.1" stroke-linecap="round" stroke-linejoin="round"/></svg>',
        _PATHS[look],
    )


@register.simple_tag
def tag(state: str, word: str = "") -> SafeString:
    """An outcome or state as a sign and a word."""
    look, default = _WORDS.get(state, ("unsure", str(state).replace("_", " ")))
    return format_html('<span class="tag {}">{}{}</span>', look, sign(look), word or default)


@register.simple_tag
def verdict_of(value: bool | None, right: str = "right", wrong: str = "wrong") -> SafeString:
    """A metric: right, wrong, or a dash where it does not apply."""
    if value is None:
        return mark_safe('<span class="na" title="does not apply">&ndash;</span>')
    return tag("passed", right) if value else tag("failed", wrong)


# what right and wrong are called where a metric has words of its own
_OF_METRIC = {"safe": ("safe", "unsafe"), "json_valid": ("valid", "invalid")}


@register.simple_tag
def score_of(metric: str, value: bool | None) -> SafeString:
    """A score by its metric's own words, the same on every page."""
    return verdict_of(value, *_OF_METRIC.get(metric, ()))


@register.filter
def class_said(answer_class: str) -> str:
    """What an answer was read as, for people."""
    return "a proper answer" if answer_class == "ok" else str(answer_class).replace("_", " ")


@register.filter
def look_of(state: str) -> str:
    return _WORDS.get(state, ("unsure", ""))[0]


@register.filter
def visible(value: Any) -> SafeString:
    """Foreign text as text, with unseen characters marked. Cut at a length that a page can carry."""
    shown = clip("" if value is None else str(value))
    more = (
        format_html('<span class="ctl">⟦cut: {} characters⟧</span>', f"{shown.total:,}") if shown.cut else ""
    )
    return format_html("{}{}", _marked(shown.text), more)


@register.filter
def name(value: Any) -> SafeString:
    """A foreign name inside a sentence: isolated, so that its direction cannot turn what stands around it."""
    return format_html("<bdi>{}</bdi>", _marked(str(value)[:300]))


@register.filter(is_safe=True)
def in_title(text: str) -> str:
    """A page's title, in which marks are characters like the others: a title has no elements."""
    return plain_text(text)


def _marked(text: str) -> SafeString:
    pieces = split_unseen(text)
    if len(pieces) == 1 and not pieces[0][1]:
        return escape(text)
    return mark_safe(  # noqa: S308  (marks are ours, every other piece is escaped)
        "".join(f'<span class="ctl">{piece}</span>' if unseen else escape(piece) for piece, unseen in pieces)
    )


@register.inclusion_tag("includes/hostile.html")
def hostile(text: Any, raw_url: str = "", label: str = "", limit: int = SHOWN_CHARS) -> dict[str, Any]:
    """A block of foreign text (a string or `Shown`), cut to a stated length with a way to the whole."""
    shown = clip(text, limit) if isinstance(text, str) else text
    # a label may be a name that a model gave
    said = label if isinstance(label, SafeString) else visible(label)
    return {"shown": shown, "raw_url": raw_url, "label": said}


@register.filter
def pretty(value: Any) -> str:
    """A JSON value for reading. The order of keys is kept."""
    return json.dumps(value, indent=2, ensure_ascii=False)


@register.filter
def compact(value: Any) -> str:
    """A JSON value on one line."""
    return json.dumps(value, ensure_ascii=False)


@register.filter
def digest(value: str | None) -> SafeString:
    """The first eight hexadecimal digits, in two groups; the whole digest is its title."""
    if not value:
        return mark_safe('<span class="na">none</span>')
    return format_html('<span class="digest" title="{}">{} {}</span>', value, value[:4], value[4:8])


@register.filter
def full_digest(value: str | None) -> SafeString:
    """All digits, in groups of eight that may wrap."""
    if not value:
        return mark_safe('<span class="na">none</span>')
    groups = [(value[at : at + 8],) for at in range(0, len(value), 8)]
    return format_html(
        '<span class="digest full">{}</span>', format_html_join(mark_safe("<wbr>"), "{}", groups)
    )


@register.filter
def when(value: datetime | str | None) -> SafeString:
    """A moment: its age for the eye, the full UTC time for everyone else."""
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    if moment is None:
        return mark_safe('<span class="na">never</span>')
    utc = moment.astimezone(UTC)
    return format_html(
        '<time datetime="{}" title="{}">{}</time>', utc.isoformat(), f"{utc:%Y-%m-%d %H:%M:%S} UTC", age(utc)
    )


def age(moment: datetime) -> str:
    """How long ago, or for what is still to come, how long until then."""
    passed = timezone.now() - moment
    if passed <= -timedelta(minutes=1):
        return f"in {_span(-passed)}"
    return f"{_span(passed)} ago" if passed >= timedelta(minutes=1) else "just now"


def _span(passed: timedelta) -> str:
    """At least a minute, rounded down to whole days, hours or minutes."""
    unit, seconds = next(
        (unit, seconds)
        for unit, seconds in (("d", 86400), ("h", 3600), ("min", 60))
        if passed.total_seconds() >= seconds
    )
    return f"{int(passed.total_seconds() // seconds)} {unit}"


@register.filter
def utc(value: datetime | str | None) -> SafeString:
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    if moment is None:
        return mark_safe('<span class="na">&ndash;</span>')
    moment = moment.astimezone(UTC)
    return format_html('<time datetime="{}">{}</time>', moment.isoformat(), f"{moment:%Y-%m-%d %H:%M:%S} UTC")


_MOMENT = re.compile(r"\b(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z")


@register.filter
def moments(text: str) -> str:
    """Prose with its exact moments as pages say them; the exact ones stand in the evidence."""
    return _MOMENT.sub(r"\1 \2 UTC", str(text))


@register.filter
def at_us(microseconds: int) -> datetime:
    """An audit event's time."""
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC) + timedelta(
        microseconds=microseconds % 1_000_000
    )


@register.filter
def event_data(data: bytes) -> str:
    """An audit event's data: the canonical bytes that were hashed, as text."""
    return bytes(data).decode("utf-8", "replace")


@register.filter
def rate(value: float | str | None, digits: int = 4) -> str:
    """A rate rounded down, so that 0.94999 never reads 0.95."""
    if value is None or value == "":
        return "–"
    return str(Decimal(str(value)).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_FLOOR))


@register.filter
def signed_rate(value: float | None) -> str:
    """A difference of rates with its sign, rounded down: against whoever it is of."""
    if value is None:
        return "–"
    rounded = (
        rate(abs(value))
        if value >= 0
        else str(Decimal(str(-value)).quantize(Decimal("0.0001"), rounding=ROUND_CEILING))
    )
    return f"+{rounded}" if value > 0 else f"−{rounded}" if value < 0 else rounded


@register.filter
def count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


@register.filter
def of(share: str | None, n: int | None) -> str:
    """A share that was counted over n, as the counts: 0.700000 of 100 is `70 of 100`."""
    if share is None or not n:
        return "–"
    return f"{round(Decimal(share) * n):,} of {n:,}"


@register.filter
def ms(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f} ms"


@register.filter
def nbytes(value: int | None) -> str:
    if value is None:
        return "unknown"
    size = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return ""


@register.filter
def says(action: str) -> str:
    """The sentence of an audit action."""
    return ACTIONS.get(action, action.replace("_", " "))


@register.filter
def breakable(identifier: str) -> SafeString:
    """An identifier of ours that may wrap after an underscore."""
    return format_html_join(mark_safe("_<wbr>"), "{}", ((part,) for part in identifier.split("_")))


@register.filter
def plain(docstring: str) -> str:
    """A docstring's sentence without its backticks."""
    return docstring.replace("`", "")


@register.filter
def words(value: str) -> str:
    """`not_evaluated` -> `not evaluated`."""
    return str(value).replace("_", " ")


@register.filter
def item(mapping: Any, key: Any) -> Any:
    return mapping.get(key) if hasattr(mapping, "get") else None


@register.simple_tag
def roles(person: Any) -> str:
    """The person's roles for the bar; read once per request, because permissions read them too."""
    return ", ".join(sorted(groups_of(person))) or "no role"
