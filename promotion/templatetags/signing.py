"""What the pages of people's accounts and signatures need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import template

from promotion.models import Approval, Method
from promotion.services.reviews import MARKED
from promotion.signature_record import signature_record
from promotion.web import proving

register = template.Library()


@register.simple_tag
def sso_name() -> str:
    """The sign-in provider's name; empty where none is set up."""
    return proving.sso_name()


@register.filter
def as_signature(approval: Approval) -> dict[str, Any]:
    """An approval as the registry copies it, so that every copy of a signature says the same."""
    return signature_record(approval)


@register.filter
def only_marked(panels: Sequence[str] | None) -> int:
    """How many of the parts that a signature names were marked as read, and not opened."""
    return sum(panel.startswith(MARKED) for panel in panels or ())


@register.filter
def really_opened(panels: Sequence[str] | None) -> int:
    return len(panels or ()) - only_marked(panels)


@register.filter
def method_name(method: str) -> str:
    return str(Method(method).label).lower()
