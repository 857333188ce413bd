"""People and their roles."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib.auth.models import Group, User
from django.db import transaction

from promotion.permissions import ROLES
from rollouts import audit


def ensure_roles() -> None:
    """The four groups exist. Safe to call again."""
    for role in ROLES:
        Group.objects.get_or_create(name=role)


@transaction.atomic
def grant(*, user: User, roles: Sequence[str], actor: str) -> None:
    """Save the person and add the roles, so that the history shows who was an approver when."""
    ensure_roles()
    user.save()
    held = set(user.groups.values_list("name", flat=True))
    new = sorted(set(roles) - held)
    if new:
        user.groups.add(*Group.objects.filter(name__in=new))
        audit.record("person.role_granted", subject=user, actor=actor, roles=new)
