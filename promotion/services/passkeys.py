"""The history of people's passkeys. Keeping them is django-allauth's."""

from __future__ import annotations

from typing import Any

from allauth.mfa.models import Authenticator
from allauth.mfa.signals import authenticator_added, authenticator_removed
from django.contrib.auth.models import User

from rollouts import audit


def _added(*, user: User, authenticator: Authenticator, **_: Any) -> None:
    audit.record("person.passkey_added", subject=user, actor=user, passkey=str(authenticator)[:200])


def _removed(*, user: User, authenticator: Authenticator, **_: Any) -> None:
    audit.record("person.passkey_removed", subject=user, actor=user, passkey=str(authenticator)[:200])


def keep_history() -> None:
    """Called once at start. The pages that add and remove passkeys are transactions, so an event is part of its change."""
    authenticator_added.connect(_added, dispatch_uid="promotion.passkey_added")
    authenticator_removed.connect(_removed, dispatch_uid="promotion.passkey_removed")
