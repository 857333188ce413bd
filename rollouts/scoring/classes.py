"""What kind of answer a rollout came to, for the scorers that read text or tool calls."""

from __future__ import annotations

from typing import NamedTuple

from rollouts.scoring.base import Answer

# wrong on every metric that applies, whatever the text so far says: nothing said is nothing done
UNUSABLE = frozenset({"truncated", "empty", "reasoning_only"})


class Kind(NamedTuple):
    """`answer_class` is one of `UNUSABLE`, ok, or turns_exhausted; `reason` says why, empty where it is ok."""

    answer_class: str
    reason: str

    @property
    def usable(self) -> bool:
        return self.answer_class not in UNUSABLE


def kind_of(answer: Answer) -> Kind:
    """The first that fits: truncated, reasoning_only, empty (no text, no call), turns_exhausted, ok."""
    if answer.finish_reason == "length":
        return Kind("truncated", "cut off at the token limit")
    if not (answer.text or "").strip() and not answer.tool_calls:
        if answer.reasoning_only:
            return Kind("reasoning_only", "thought, and then said and called nothing")
        return Kind("empty", "no text and no call")
    if answer.turns_exhausted:
        return Kind("turns_exhausted", "still called tools when its turns were used up")
    return Kind("ok", "")


def storable(text: str) -> str:
    """The text without what PostgreSQL does not hold: NUL characters and halves of surrogate pairs."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()
