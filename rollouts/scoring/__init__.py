"""Scorers turn a finished rollout's answer into scores. A suite names its scorer; here each name meets its function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rollouts.scoring import decision, function_call, rules
from rollouts.scoring.base import Answer, Score

# the metrics that each scorer measures; a policy can ask a suite for no other
SCORER_METRICS: dict[str, tuple[str, ...]] = {
    "decision": ("decision", "tool", "exact", "safe", "json_valid"),
    "function_call": ("decision", "tool", "exact", "safe", "json_valid"),
    "rules": ("tool", "exact"),
    "judge": ("exact",),
}


def score(scorer: str, content: Mapping[str, Any], answer: Answer) -> Score:
    """Scores one answer to a case. Never raises because of the answer.

    What a judge scores is scored by `judge.read` from the judge's reply, not here.
    """
    assert scorer in _SCORERS, scorer
    return _SCORERS[scorer](content, answer)


def _decision(content: Mapping[str, Any], answer: Answer) -> Score:
    # a suite may give some tools by name alone
    described = [tool for tool in content["tools"] if isinstance(tool, Mapping)]
    result = decision.score(
        expected=content["expected"],
        tools=[tool["name"] if isinstance(tool, Mapping) else tool for tool in content["tools"]],
        answer=answer.text or "",
        finish_reason=answer.finish_reason,
        tool_schemas={tool["name"]: tool.get("parameters", {}) for tool in described},
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


_SCORERS: dict[str, Callable[[Mapping[str, Any], Answer], Score]] = {
    "decision": _decision,
    "function_call": function_call.score,
    "rules": rules.score,
}
