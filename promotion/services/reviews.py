"""What a reviewer has to have done before they sign, and what they leave on the page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import User

from promotion.models import Candidate, Evidence


@dataclass(frozen=True, slots=True)
class Reviewed:
    """What stands in a signature about the review before it."""

    panels_opened: list[str] = field(default_factory=list)
    panels_unopened: list[str] = field(default_factory=list)
    unopened_reason: str = ""
    checklist: list[dict[str, Any]] = field(default_factory=list)


def require_reviewed(
    candidate: Candidate, evidence: Evidence, person: User, *, unopened_reason: str = ""
) -> Reviewed:
    """What the person saw to before approving. Raises `Conflict` with what is missing."""
    return Reviewed()
