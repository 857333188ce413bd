"""Roles as groups."""

from __future__ import annotations

from django.contrib.auth.models import Group

from promotion.permissions import ROLES


def ensure_roles() -> None:
    """The four groups exist. Safe to call again."""
    for role in ROLES:
        Group.objects.get_or_create(name=role)
