"""Writes comparisons down, once for each state of two runs."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import transaction
from django.utils import timezone

from rollouts import comparisons
from rollouts.comparisons import Pair
from rollouts.models import ComparedCase, Comparison

BATCH = 2000


def write(pairs: Iterable[Pair]) -> None:
    """Those that are not there yet. Two who write the same at once write it once."""
    pairs = list(pairs)
    present = comparisons.stored(pair.key for pair in pairs)
    for pair in pairs:
        if pair.key not in present:
            _write_one(pair)


@transaction.atomic
def _write_one(pair: Pair) -> None:
    turns = comparisons.turns_of(pair)
    comparison, created = Comparison.objects.get_or_create(
        key=pair.key,
        defaults={
            "run": pair.run,
            "other": pair.other,
            "metric": pair.metric,
            "summary": comparisons.summary_of(pair, turns),
            "created_at": timezone.now(),
        },
    )
    if created:
        rows = (
            ComparedCase(
                comparison=comparison,
                case_id=turn.case_id,
                turn=turn.turn,
                family=turn.family,
                expects_call=turn.expects_call,
            )
            for turn in turns
        )
        ComparedCase.objects.bulk_create(rows, batch_size=BATCH)
