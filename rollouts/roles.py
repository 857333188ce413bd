"""The roles, and which of them a person has. `permissions` says what a role may do, `models` what it may see."""

from __future__ import annotations

from django.contrib.auth.models import AnonymousUser, User

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


def sees_all(person: Person) -> bool:
    """Whether nothing is hidden from the person, whoever its readers are."""
    return not groups_of(person).isdisjoint({AUDITOR, ADMINISTRATOR})
