"""The heads of tables that are sorted by the address."""

from __future__ import annotations

from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

register = template.Library()


@register.simple_tag(takes_context=True)
def sortable(context: dict[str, Any], column: str, label: str, look: str = "") -> SafeString:
    """The head of a column of `page`: a link that sorts by it, or turns the order around. Filters stay as they are."""
    page, query = context["page"], context["request"].GET.copy()
    query.pop("cursor", None)
    query["sort"] = page.link(column)
    order = sign = ""
    if column == page.column:
        down = page.sort.startswith("-")
        order = mark_safe(f' aria-sort="{"descending" if down else "ascending"}"')  # noqa: S308  (ours)
        sign = format_html(
            '<span aria-hidden="true">{}</span>',
            "\N{BLACK DOWN-POINTING SMALL TRIANGLE}" if down else "\N{BLACK UP-POINTING SMALL TRIANGLE}",
        )
    return format_html(
        '<th scope="col"{}{}><a class="sort" href="?{}">{}{}</a></th>',
        format_html(' class="{}"', look) if look else "",
        order,
        query.urlencode(),
        label,
        sign,
    )
