"""Promotions without the signatures that the rule asks for: the act, the alarm, the review afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.auth.models import User

from promotion.models import Candidate, Evidence


@dataclass(frozen=True, slots=True)
class GlassSection:
    """Shown by review_glass."""


def glass_section(candidate: Candidate, evidence: Evidence | None, person: User) -> GlassSection:
    return GlassSection()
