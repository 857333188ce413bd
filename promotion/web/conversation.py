"""What reviewers leave on a review page: what they opened, ticked, asked, and since when they know the evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User

from promotion.models import Candidate, Evidence


@dataclass(frozen=True, slots=True)
class Conversation:
    """Shown by review_risk, review_attention, review_checklist and review_threads."""


def conversation_of(
    candidate: Candidate, evidence: Evidence | None, document: dict[str, Any] | None, person: User
) -> Conversation:
    return Conversation()
