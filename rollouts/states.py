"""State moves: one table per model, checked in one place."""

from __future__ import annotations

from collections.abc import Mapping

from rollouts.errors import InvalidTransition


def require_move(what: str, table: Mapping[str, frozenset[str]], state: str, to: str) -> None:
    """Raises `InvalidTransition` unless `table` allows state -> to."""
    if to not in table.get(state, frozenset()):
        raise InvalidTransition(what, state, to)
