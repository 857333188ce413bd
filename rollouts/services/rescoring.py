"""Captured answers scored again, without a call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rollouts.amendments import content_now
from rollouts.bulk import update_many
from rollouts.capture.outcome import OUTCOME_FIELDS, outcome_of, scored
from rollouts.capture.replay import CannotReplay, replay, steps_of
from rollouts.engine.dialogue import Asker, Dialogue
from rollouts.engine.runner import Result
from rollouts.failures import CallFailed
from rollouts.models import AmendedScore, Rollout

# what of an outcome hangs on what the case expects
KEPT = tuple(name for name in OUTCOME_FIELDS if name not in ("answer", "finish_reason", "tool_evidence"))


class Rescored(NamedTuple):
    """A rollout's outcome as it is stored and as it is now, by `OUTCOME_FIELDS`. `problem`: it cannot be replayed."""

    rollout_id: int
    case_id: int
    before: tuple[Any, ...]
    after: tuple[Any, ...]
    problem: str = ""

    @property
    def changed(self) -> bool:
        return self.before != self.after


def score_again(
    asker: Asker, rollout_ids: Iterable[int], expecting: Mapping[int, Any] | None = None
) -> list[Rescored]:
    """Scores the captured answers of these rollouts by what their cases expect now. Two queries; writes nothing.

    `expecting` maps a case to what it would expect. A captured answer that cannot be replayed leaves its rollout without
    a score, by the scorer's failure.
    """
    columns = ("id", "case_id", "sample_index", "answered_by_id", "case__content", "case__amended_expected")
    rows = list(
        Rollout.objects.filter(pk__in=list(rollout_ids)).order_by("id").values_list(*columns, *OUTCOME_FIELDS)
    )
    steps = steps_of({row[3] for row in rows})
    found = []
    for rollout_id, case_id, sample_index, answered_by, content, amended, *before in rows:
        expected = (expecting or {}).get(case_id, amended)
        dialogue = Dialogue(asker, content_now(content, expected), sample_index)
        problem = ""
        try:
            replay(dialogue, steps[answered_by])
            result = scored(asker.scorer, dialogue)
        except CannotReplay as error:
            problem = f"The captured answer of rollout {rollout_id} cannot be read again: {error}"
            result = Result(error=CallFailed("scorer", problem))
        found.append(Rescored(rollout_id, case_id, tuple(before), outcome_of(result), problem))
    return found


def write(rows: Iterable[Rescored], amendments: Mapping[int, int] | None = None) -> int:
    """Writes the outcomes that changed, and returns how many. `amendments`: case -> the amendment that changed them."""
    changed = [row for row in rows if row.changed]
    update_many(Rollout, OUTCOME_FIELDS, [(row.rollout_id, row.after) for row in changed])
    if amendments:
        AmendedScore.objects.bulk_create(
            [
                AmendedScore(
                    rollout_id=row.rollout_id,
                    amendment_id=amendments[row.case_id],
                    before=kept(row.before),
                    after=kept(row.after),
                )
                for row in changed
            ],
            batch_size=500,
            # what was kept of the first time an amendment changed it is what it was before
            ignore_conflicts=True,
        )
    return len(changed)


def kept(outcome: tuple[Any, ...]) -> dict[str, Any]:
    """The outcome's scores and what the scorer said, by name."""
    named = dict(zip(OUTCOME_FIELDS, outcome, strict=True))
    return {name: named[name] for name in KEPT}
