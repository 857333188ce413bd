"""The audit chain: every change appends one event in the change's own transaction.

hash(n) = SHA-256 over the fields of event n and hash(n - 1), each field with its length before it, so that no two
different events have the same bytes. The first event's previous hash is 64 zeros.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models import Model

from rollouts.errors import AssayError
from rollouts.hashing import canonical_bytes
from rollouts.models import AuditEvent

GENESIS = "0" * 64
CHAIN_LOCK = 0x41535341  # "ASSA": the advisory lock of the chain on PostgreSQL

ACTIONS: dict[str, str] = {
    "backend.saved": "A backend got a new revision.",
    "base_model.registered": "A base model was registered.",
    "suite.sealed": "A suite was sealed.",
    "dataset.registered": "A dataset was registered.",
    "dataset.described": "A registered dataset got its sidecar, or the very bytes that it declares.",
    "transcript.saved": "A recorded transcript was stored.",
    "run.planned": "An eval run was planned and its rollouts written.",
    "run.scored": "An eval run closed with its counts.",
    "run.failed": "An eval run cannot be trusted or cannot go on.",
    "run.cancelled": "An eval run was cancelled.",
    "run.reopened": "Failed rollouts of a run were queued again.",
    "run.rescored": "The captured answers of a run were scored again, without calls.",
    "run.amended": "A case was amended, and a run's answers to it were scored again.",
    "case.amended": "Two people agreed that a sealed case expects something else.",
}


def register_actions(actions: dict[str, str]) -> None:
    """Add an app's actions to the closed list."""
    ACTIONS.update(actions)


class Fields(NamedTuple):
    """What is hashed, in this order, then the previous hash."""

    sequence: int
    at_us: int
    actor: str
    action: str
    subject_type: str
    subject_id: str
    subject_label: str
    data: bytes
    previous_hash: str


def hash_of(fields: Fields) -> str:
    hasher = hashlib.sha256(b"assay.audit.1\n")
    for field in fields:
        raw = field if isinstance(field, bytes) else str(field).encode()
        hasher.update(b"%d:%b," % (len(raw), raw))
    return hasher.hexdigest()


class Token(NamedTuple):
    """The API token that the present request acts with."""

    user_id: int
    key: str


_token: ContextVar[Token | None] = ContextVar("assay_api_token", default=None)
TOKEN_KEY_SHOWN = 8


def acts_with_token(token: Token | None) -> None:
    """Set by the API's authentication, and cleared before and after each request by its middleware."""
    _token.set(token)


def actor_of(by: User | str) -> str:
    """`user:<name>` for a person, `token:<name>:<start of the token>` where that person's API token acts.

    System tasks pass `system:<task>` themselves.
    """
    if isinstance(by, str):
        return by
    token = _token.get()
    if token is not None and token.user_id == by.pk:
        return f"token:{by.get_username()}:{token.key[:TOKEN_KEY_SHOWN]}"
    return f"user:{by.get_username()}"


def record(action: str, *, subject: Model, actor: User | str, **data: Any) -> AuditEvent:
    """Append one event. Call it last in the transaction of the change: it takes the chain's lock until commit.

    Foreign keys are checked at commit, so while the chain is held. Lock rows that others refer to with `no_key=True`:
    whoever held one outright and waited for the chain would deadlock with such a check.
    """
    assert connection.in_atomic_block, "audit.record belongs into the transaction of the change"
    assert action in ACTIONS, f"{action} is not a registered audit action"
    # an event of it would be seen by those who may not see it
    seen = getattr(subject, "audited", not hasattr(subject, "seen_with"))
    assert seen, f"{subject._meta.label} must be audited"
    payload = canonical_bytes(data)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [CHAIN_LOCK])
    last = AuditEvent.objects.order_by("-sequence").values_list("sequence", "hash").first()
    sequence, previous = (last[0] + 1, last[1]) if last else (1, GENESIS)
    fields = Fields(
        sequence=sequence,
        at_us=time.time_ns() // 1000,
        actor=actor_of(actor)[:200],
        action=action,
        subject_type=subject._meta.label,
        subject_id=str(subject.pk),
        subject_label=str(subject)[:200],
        data=payload,
        previous_hash=previous,
    )
    return AuditEvent.objects.create(**fields._asdict(), hash=hash_of(fields))


@contextmanager
def refusals(action: str, *, subject: Model, actor: User | str) -> Iterator[None]:
    """Records what a service refused, in a transaction of its own after the service's has rolled back."""
    try:
        yield
    except AssayError as error:
        with transaction.atomic():
            record(action, subject=subject, actor=actor, code=error.code, reason=error.message)
        raise
