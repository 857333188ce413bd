"""What the pages of people's accounts and signatures need."""

from __future__ import annotations

from typing import Any

from django import template

from promotion.models import Approval, Method
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
def method_name(method: str) -> str:
    return str(Method(method).label).lower()
