"""Errors that only HTTP knows. The exception handler maps them like every other `AssayError`."""

from __future__ import annotations

from rollouts.errors import AssayError, Conflict


class TooLarge(AssayError):
    code = "too_large"
    status = 413


class PreconditionFailed(Conflict):
    """The thing is no longer what the `If-Match` header named."""

    code = "precondition_failed"
    status = 412


class Busy(AssayError):
    """The database did not give a lock in time. Nothing was changed; the same request may be sent again."""

    code = "busy"
    status = 503
