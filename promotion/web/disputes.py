"""Disputed scores on the review page."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.auth.models import User

from promotion.models import Candidate, Evidence


@dataclass(frozen=True, slots=True)
class DisputeSection:
    """Shown by review_disputes."""


def dispute_section(candidate: Candidate, evidence: Evidence | None, person: User) -> DisputeSection:
    return DisputeSection()
