"""What pages say of candidates and of what happened to them: on the pages of runs too, which know nothing of either."""

from __future__ import annotations

from typing import Any

from django import template

from promotion import attention
from promotion.audit import sentences
from promotion.behind import Behind, behind
from rollouts.models import AuditEvent, EvalRun

register = template.Library()


@register.simple_tag(takes_context=True)
def candidates_behind(context: dict[str, Any], run: EvalRun) -> Behind:
    """Those that the reader of the page may see."""
    return behind(run, context["request"].user)


@register.filter
def told(event: AuditEvent) -> str:
    """What happened, with what it was about."""
    return sentences.sentence(event.action, bytes(event.data))


@register.filter
def acted(actor: str) -> str:
    """Who acted in an event, by name."""
    return sentences.actor(actor)


@register.filter
def family_row(suite_digest: str) -> str:
    """The id of the suite's row of the families on a review page."""
    return attention.row_id(suite_digest)
