"""Verifies the audit chain row by row, with constant memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rollouts.audit import GENESIS, Fields, hash_of


@dataclass(frozen=True, slots=True)
class ChainReport:
    """`bad_sequence` is the first row that does not hold; None where all do. `head` is the last good hash."""

    events: int
    head: str
    bad_sequence: int | None = None
    reason: str = ""


def verify_chain(rows: Iterable[tuple[Fields, str]]) -> ChainReport:
    """`rows` are fields and stored hash in order of sequence."""
    previous, count = GENESIS, 0
    for fields, stored in rows:
        expected = count + 1
        if fields.sequence != expected:
            return ChainReport(
                count, previous, expected, f"event {expected} is missing; {fields.sequence} follows"
            )
        if fields.previous_hash != previous:
            return ChainReport(count, previous, expected, "it does not continue the event before it")
        if hash_of(fields) != stored:
            return ChainReport(count, previous, expected, "its content was changed: the hash is another")
        previous, count = stored, expected
    return ChainReport(count, previous)
