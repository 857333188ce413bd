"""How a person proves who they are at the act of signing. A proof is of one act: it is checked once, there and then."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from django.contrib.auth.models import User
from django.utils import timezone

from promotion.models import Method
from rollouts import audit
from rollouts.errors import NotAllowed
from rollouts.models import AuditEvent

MAX_TRIES = 5
TRY_WINDOW = timedelta(minutes=5)


class WrongPassword(NotAllowed):
    code = "wrong_password"


class TooManyTries(NotAllowed):
    code = "too_many_tries"
    status = 429


@dataclass(frozen=True, slots=True)
class Authenticated:
    """That the person was there: by which method, and when it says so."""

    method: Method
    at: datetime


class Proof(Protocol):
    def check(self, person: User) -> Authenticated:
        """Raises `NotAllowed` where it does not prove that this is the person, now."""


@dataclass(frozen=True, slots=True)
class Password:
    """The person's password. Hashing takes long: check it before any row is locked."""

    password: str

    def check(self, person: User) -> Authenticated:
        since = timezone.now() - TRY_WINDOW
        tries = AuditEvent.objects.filter(
            action__endswith="_refused",
            actor=audit.actor_of(person),
            at_us__gte=int(since.timestamp() * 1_000_000),
        ).values_list("data", flat=True)
        if sum(json.loads(bytes(data)).get("code") == WrongPassword.code for data in tries) >= MAX_TRIES:
            raise TooManyTries(
                f"{MAX_TRIES} wrong passwords in a row. Wait {TRY_WINDOW.seconds // 60} minutes."
            )
        # as the database knows the person now, not as the session remembers them
        if not User.objects.get(pk=person.pk).check_password(self.password):
            raise WrongPassword("The password is wrong. It is asked at every signature.")
        return Authenticated(Method.PASSWORD, timezone.now())
