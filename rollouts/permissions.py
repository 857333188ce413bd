"""Roles, and who may do which verb with runs, suites and backends: one function a verb.

Each raises `NotAllowed` with the reason, or returns. An inactive person may do nothing.
`promotion.permissions` adds the verbs of the governance app on the same roles.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib.auth.models import AnonymousUser, User

from rollouts.errors import NotAllowed

ENGINEER, APPROVER, AUDITOR, ADMINISTRATOR = "engineer", "approver", "auditor", "administrator"
ROLES = (ENGINEER, APPROVER, AUDITOR, ADMINISTRATOR)

Person = User | AnonymousUser


def own_groups(person: Person) -> set[str]:
    """The groups the person was put in, read once per instance."""
    cached: set[str] | None = getattr(person, "_assay_groups", None)
    if cached is None:
        cached = set(person.groups.values_list("name", flat=True)) if person.is_authenticated else set()
        person._assay_groups = cached  # type: ignore[union-attr]
    return cached


def groups_of(person: Person) -> set[str]:
    """The roles the person acts in: their groups, and for a superuser what it takes to set things up.

    So `createsuperuser` alone makes somebody who can begin. Signing asks `own_groups`.
    """
    return own_groups(person) | ({ADMINISTRATOR} if person.is_superuser else set())


def require_roles(person: Person, roles: Sequence[str], verb: str) -> None:
    """Raises `NotAllowed` unless the person is active and in one of `roles`."""
    if not person.is_active or not groups_of(person) & set(roles):
        who = person.get_username() or "Nobody"
        raise NotAllowed(f"{who} may not {verb}: that needs {' or '.join(roles)}.")


def require_can_read(person: Person) -> None:
    require_roles(person, ROLES, "read this")


def require_can_run(person: Person) -> None:
    """Start, cancel and repeat eval runs."""
    require_roles(person, [ENGINEER], "start, cancel or repeat eval runs")


def require_can_register(person: Person) -> None:
    """Base models, backends and suites."""
    require_roles(person, [ENGINEER, ADMINISTRATOR], "register base models, backends, suites or datasets")
