"""Filters of the pages about runs: amounts as `rollouts.reading` says them, and a dash for what is not known."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlencode

from django import template

from rollouts import reading

register = template.Library()
MAX_CHECKS, MAX_COLUMNS, MAX_CELL_CHARS = 200, 8, 500


@register.filter
def usd(microusd: int | None) -> str:
    return "–" if microusd is None else reading.usd(microusd)


@register.filter
def pace(rate_per_s: float | None) -> str:
    return "–" if not rate_per_s else reading.pace(rate_per_s)


@register.filter
def time_left(seconds: float | None) -> str:
    return "–" if seconds is None else reading.time_left(seconds)


@register.filter
def wanted(content: dict[str, Any]) -> Any:
    """What a case wants, whichever scorer reads it: the one thing, or several by their names."""
    found = {name: content[name] for name in reading.WANTED if content.get(name) is not None}
    return next(iter(found.values())) if len(found) == 1 else found


@register.filter
def as_text(value: Any) -> str:
    """Text as it is, several texts one a line, everything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return json.dumps(value, indent=2, ensure_ascii=False)


@register.filter
def query(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values as an address's query."""
    return urlencode(list(pairs))


@register.inclusion_tag("rollouts/details.html")
def scorer_details(details: dict[str, Any]) -> dict[str, Any]:
    """A scorer's details: its list of checks as a table, everything else as text, the reason first."""
    rest = dict(details)
    checks = rest.pop("checks") if _is_table(rest.get("checks")) else []
    reason = rest.pop("reason") if isinstance(rest.get("reason"), str) else ""
    columns = list(dict.fromkeys(key for check in checks for key in check))[:MAX_COLUMNS]
    rows = [[_cell(check.get(column)) for column in columns] for check in checks[:MAX_CHECKS]]
    return {
        "columns": columns,
        "rows": rows,
        "left_out": len(checks) - len(rows),
        "reason": reason,
        "rest": rest,
    }


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(check, dict) for check in value)


def _cell(value: Any) -> bool | str | None:
    """A truth value, None or text, cut to what a cell can carry."""
    if value is None or isinstance(value, bool):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    cut = len(text) - MAX_CELL_CHARS
    return text if cut <= 0 else f"{text[:MAX_CELL_CHARS]}… ({cut:,} characters more)"
