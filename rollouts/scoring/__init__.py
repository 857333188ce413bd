"""Scorers turn a finished rollout's answer into scores. A suite names its scorer; here each name meets its function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollouts.scoring import decision
from rollouts.scoring.base import Answer, Score

# the metrics that each scorer measures; a policy can ask a suite for no other
SCORER_METRICS: dict[str, tuple[str, ...]] = {
    "decision": ("decision", "tool", "exact", "safe", "json_valid"),
}


def score(scorer: str, content: Mapping[str, Any], answer: Answer) -> Score:
    """Scores one answer to a case. Never raises because of the answer."""
    assert scorer in SCORER_METRICS, scorer
    return _decision(content, answer)


def _decision(content: Mapping[str, Any], answer: Answer) -> Score:
    tools = content["tools"]
    named = not tools or isinstance(tools[0], str)
    result = decision.score(
        expected=content["expected"],
        tools=tools if named else [tool["name"] for tool in tools],
        answer=answer.text or "",
        finish_reason=answer.finish_reason,
        tool_schemas=None if named else {tool["name"]: tool.get("parameters", {}) for tool in tools},
    )
    answer_class = str(result.answer_class)
    if answer.reasoning_only and answer_class == "empty":
        answer_class = "reasoning_only"
    return Score(
        answer_class=answer_class,
        exact=result.exact,
        json_valid=result.json_valid,
        decision=result.decision,
        tool=result.tool,
        safe=result.safe,
        reason_code=result.reason_code,
        arguments_valid=result.arguments_valid,
        details={"reason": result.detail} if result.detail else None,
    )
