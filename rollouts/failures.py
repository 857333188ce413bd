"""The closed list of failure kinds. A failure is a fact, not a zero.

Provider and harness failures mask a rollout: it is kept and counted, and left out of the displayed score.
"""

from __future__ import annotations

FAILURE_KINDS = {
    # provider: the call failed; masked
    "auth": "The provider refused the key (401, 403).",
    "rate_limit": "The provider asked to slow down (429) and the attempts ran out.",
    "timeout": "No complete answer within the backend's timeout.",
    "server": "The provider failed (5xx).",
    "connection": "The connection could not be made or broke before an answer.",
    "protocol": "The answer was not what the dialect promises: not JSON, no choices, an error object in a 200.",
    "truncated_stream": "The answer broke off before its end.",
    "bad_request": "The provider refused the request (400, 404, 422): our configuration, not the model's answer.",
    # harness: what ran the model failed; masked
    "harness": "The program that drives the model failed.",
    # scorer and judge
    "scorer": "The scorer failed; the answer is kept and can be scored again.",
    "judge": "The judge gave no usable judgement; the answer is kept and can be judged again.",
    # ours
    "budget": "The run's budget was spent before this rollout.",
    "cancelled": "The run was cancelled.",
    "worker_lost": "Three workers were lost while they worked on it.",
}
MASKING_KINDS = frozenset(
    [
        "auth",
        "rate_limit",
        "timeout",
        "server",
        "connection",
        "protocol",
        "truncated_stream",
        "bad_request",
        "harness",
    ]
)


class CallFailed(Exception):
    """One HTTP attempt failed. `kind` is one of `FAILURE_KINDS`; `retryable` says whether another try can heal it."""

    def __init__(
        self, kind: str, message: str, *, retryable: bool = False, retry_after_s: float | None = None
    ) -> None:
        assert kind in FAILURE_KINDS, kind
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retryable = retryable
        self.retry_after_s = retry_after_s
