"""Rollouts without a score on the review page, with the model calls that failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MaskedSection:
    """Shown by review_masked."""


def masked_section(document: dict[str, Any] | None, params: dict[str, str]) -> MaskedSection:
    return MaskedSection()
