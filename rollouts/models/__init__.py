from rollouts.models.artifacts import Artifact, BaseModel, Payload, Subject
from rollouts.models.audit import AuditEvent
from rollouts.models.backends import Backend, Pace
from rollouts.models.calls import CallPurpose, CallState, ModelCall
from rollouts.models.comparisons import AmendedScore, Amendment, ComparedCase, Comparison, Turn
from rollouts.models.datasets import Dataset, Overlap
from rollouts.models.idempotency import IdempotencyRecord
from rollouts.models.runs import (
    ACTIVE_RUN_STATES,
    RUN_MOVES,
    Claim,
    EvalRun,
    Invocation,
    InvocationState,
    Rollout,
    RolloutState,
    RunState,
)
from rollouts.models.suites import Case, Look, Suite

__all__ = [
    "ACTIVE_RUN_STATES",
    "RUN_MOVES",
    "AmendedScore",
    "Amendment",
    "Artifact",
    "AuditEvent",
    "Backend",
    "BaseModel",
    "CallPurpose",
    "CallState",
    "Case",
    "Claim",
    "ComparedCase",
    "Comparison",
    "Dataset",
    "EvalRun",
    "IdempotencyRecord",
    "Invocation",
    "InvocationState",
    "Look",
    "ModelCall",
    "Overlap",
    "Pace",
    "Payload",
    "Rollout",
    "RolloutState",
    "RunState",
    "Subject",
    "Suite",
    "Turn",
]
