"""What every scorer takes and gives. Pure: no database, no network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Route = Literal["text", "tools", "marker"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of the model. `arguments` is the text the model wrote, not yet parsed.

    `executed`: a loop ran the tool and sent the model its result. A call read from a marker in text never was.
    """

    name: str
    arguments: str
    executed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a rollout came to. `text` is the last turn's text, None where the model gave none.

    `reasoning_only`: the model thought, and then said and called nothing. `turns_exhausted`: it still called tools when
    the case's turns were used up.
    """

    text: str | None
    finish_reason: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    route: Route = "text"
    reasoning_only: bool = False
    turns_exhausted: bool = False

    @property
    def tool_evidence(self) -> str:
        """executed, claimed or none; empty on the text route, where no tool can be called."""
        if self.route == "text":
            return ""
        if any(call.executed for call in self.tool_calls):
            return "executed"
        return "claimed" if self.tool_calls else "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A metric that does not apply to the case, or that the scorer does not measure, is None, never False.

    `exact` is the whole task: every scorer gives it. `score` is a share of the task done, 0 to 1. `details` is small
    JSON for people: why something is wrong, and each check's outcome.
    """

    answer_class: str
    exact: bool
    json_valid: bool | None = None
    decision: bool | None = None
    tool: bool | None = None
    safe: bool | None = None
    reason_code: bool | None = None
    arguments_valid: bool | None = None
    score: float | None = None
    details: Mapping[str, Any] | None = None
