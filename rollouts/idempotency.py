"""One effect for one key: a request that is sent again is answered from the record of its first time.

The record is written in the transaction of the effect. A second request with the same key that comes while
the first is at work waits for that transaction (a unique index on PostgreSQL, the write lock on SQLite). Then
it is answered from the record, or does the work itself where the first one failed: that left none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils import timezone

from rollouts.errors import AssayError, Conflict, InvalidInput
from rollouts.models import IdempotencyRecord

KEPT_FOR = timedelta(hours=24)
KEY = re.compile(r"[!-~]{1,200}")


class IdempotencyConflict(AssayError):
    """The key was used for another request."""

    code = "idempotency_conflict"
    status = 422


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: Any


def require_key(key: str) -> str:
    if not KEY.fullmatch(key):
        raise InvalidInput("Idempotency-Key", "must be 1 to 200 visible ASCII characters, such as a UUID.")
    return key


def once(*, user: User, key: str, request_digest: str, effect: Callable[[], Answer]) -> tuple[Answer, bool]:
    """The answer, and whether an earlier request gave it. Raises `IdempotencyConflict`, or as `effect`."""
    require_key(key)
    _forget_expired(user)
    with transaction.atomic():
        record, is_new = _claim(user, key, request_digest)
        if not is_new:
            if record.request_digest != request_digest:
                raise IdempotencyConflict(
                    "This Idempotency-Key was used for another request. Use a new key for a new request."
                )
            return Answer(record.status, record.headers, json.loads(record.body)), True
        answer = effect()
        record.status, record.headers, record.body = answer.status, answer.headers, json.dumps(answer.body)
        record.save(update_fields=["status", "headers", "body"])
    return answer, False


def _claim(user: User, key: str, request_digest: str) -> tuple[IdempotencyRecord, bool]:
    now = timezone.now()
    values = {"request_digest": request_digest, "created_at": now, "expires_at": now + KEPT_FOR}
    try:
        with transaction.atomic():
            return IdempotencyRecord.objects.create(user=user, key=key, **values), True
    except IntegrityError as error:
        existing = IdempotencyRecord.objects.filter(user=user, key=key).first()
        if existing is None:
            raise Conflict(
                "A request with this Idempotency-Key is being forgotten now. Send it again."
            ) from error
        return existing, False


def _forget_expired(user: User) -> None:
    expired = IdempotencyRecord.objects.filter(user=user, expires_at__lte=timezone.now())
    if expired.exists():
        expired.delete()
