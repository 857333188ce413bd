"""A rollout's result as the columns of its row."""

from __future__ import annotations

from typing import Any

from rollouts.engine.dialogue import Dialogue
from rollouts.engine.runner import Result
from rollouts.failures import MASKING_KINDS, CallFailed
from rollouts.models import RolloutState
from rollouts.scoring import score
from rollouts.scoring.base import Answer, Score

OUTCOME_FIELDS = (
    *("state", "failure_kind", "failure_reason"),
    *("answer", "finish_reason", "tool_evidence"),
    *("answer_class", "json_valid", "decision", "tool", "exact", "safe"),
    *("reason_code", "arguments_valid", "score", "details"),
)


def scored(scorer: str, dialogue: Dialogue) -> Result:
    """The result of a dialogue that has all its answers."""
    result = Result(answer=dialogue.answer)
    try:
        result.score = score(scorer, dialogue.content, dialogue.answer)
    except Exception as error:
        result.error = CallFailed("scorer", f"{type(error).__name__}: {error}"[:500])
    return result


def outcome_of(result: Result) -> tuple[Any, ...]:
    """The columns of OUTCOME_FIELDS: scored, masked, or (where it is our fault) unscored."""
    return (*_verdict(result), *_said(result.answer), *_scores(result.score))


def _verdict(result: Result) -> tuple[Any, str, str]:
    if result.error is None:
        return str(RolloutState.SCORED), "", ""
    kind = result.error.kind
    state = RolloutState.MASKED if kind in MASKING_KINDS else RolloutState.UNSCORED
    return str(state), kind, shown(result.error.message)[:2000]


def _said(answer: Answer | None) -> tuple[str | None, str, str]:
    if answer is None:
        return None, "", ""
    text = None if answer.text is None else shown(answer.text)
    return text, shown(answer.finish_reason or "")[:40], answer.tool_evidence


def _scores(score: Score | None) -> tuple[Any, ...]:
    if score is None:
        return ("", *(None,) * 9)
    return (
        score.answer_class,
        *(score.json_valid, score.decision, score.tool, score.exact, score.safe),
        *(score.reason_code, score.arguments_valid, score.score),
        None if score.details is None else _storable(score.details),
    )


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, dict):
        return {shown(str(key)): _storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    return value


def shown(text: str) -> str:
    """Text that every database takes: NUL and lone surrogates become visible stand-ins. The payload keeps the bytes."""
    return text.replace("\x00", "\u2400").encode("utf-8", "replace").decode("utf-8")
