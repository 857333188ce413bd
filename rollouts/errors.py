"""Errors that both apps raise: a sentence that says what is wrong and what to do, a stable code, and the numbers.

Only the API and the pages know HTTP; `status` is the hint they map from.
"""

from __future__ import annotations

from typing import Any


class AssayError(Exception):
    """Base of every expected error. Do not raise it directly.

    `code` is stable and safe to match on; `facts` holds JSON-safe values that belong to the sentence.
    """

    code = "error"
    status = 400

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts


class InvalidInput(AssayError):
    """A value that came from outside cannot be used. `field` is the dotted path of the value."""

    code = "invalid_input"

    def __init__(self, field: str, message: str, **facts: Any) -> None:
        super().__init__(f"{field}: {message}", **facts)
        self.field = field


class NotFound(AssayError):
    code = "not_found"
    status = 404


class NotAllowed(AssayError):
    """The person may not do this, whatever the state of things."""

    code = "not_allowed"
    status = 403


class Conflict(AssayError):
    """The state of things forbids it now. `blocked_by` lists each unmet condition."""

    code = "conflict"
    status = 409

    def __init__(self, message: str, *, blocked_by: list[str] | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.blocked_by = blocked_by or []


class InvalidTransition(Conflict):
    code = "invalid_transition"

    def __init__(self, what: str, state: str, to: str) -> None:
        super().__init__(f"{what} is {state}, so it cannot become {to}.", state=state, to=to)


class StaleEvidence(Conflict):
    """The digest that was shown is not the digest of the evidence as it stands now."""

    code = "stale_evidence"
    status = 412


class StorageFailed(AssayError):
    """The disk did not take the bytes (full, read-only, gone). Nothing was left under the final name."""

    code = "storage_failed"
    status = 507
