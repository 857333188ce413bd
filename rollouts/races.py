"""Two people who make the same thing at once: the slower one finds what the faster one made."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django.db import IntegrityError, transaction

TRIES = 10
Made = TypeVar("Made")


def settled(make: Callable[[], Made]) -> Made:
    """Calls `make` in a transaction, and again where another transaction took its unique key first."""
    for left in reversed(range(TRIES)):
        try:
            with transaction.atomic():
                return make()
        except IntegrityError:
            if not left:
                raise
    raise AssertionError("TRIES is at least 1")
