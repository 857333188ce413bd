"""Who may do which verb: one function a verb, called by services, pages, API and commands alike.

Each raises `NotAllowed` with the reason, or returns. An inactive person may do nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib.auth.models import User

from rollouts.errors import NotAllowed

ENGINEER, APPROVER, AUDITOR, ADMINISTRATOR = "engineer", "approver", "auditor", "administrator"
ROLES = (ENGINEER, APPROVER, AUDITOR, ADMINISTRATOR)


def groups_of(person: User) -> set[str]:
    """The person's groups, read once per instance."""
    cached: set[str] | None = getattr(person, "_assay_groups", None)
    if cached is None:
        cached = set(person.groups.values_list("name", flat=True)) if person.is_authenticated else set()
        person._assay_groups = cached  # type: ignore[attr-defined]
    return cached


def _require(person: User, roles: Sequence[str], verb: str) -> None:
    if not person.is_active or not groups_of(person) & set(roles):
        raise NotAllowed(f"{person.get_username() or 'Nobody'} may not {verb}: that needs {' or '.join(roles)}.")


def require_can_read(person: User) -> None:
    _require(person, ROLES, "read this")


def require_can_create_track(person: User) -> None:
    _require(person, [ADMINISTRATOR], "create a track")


def require_can_edit_policy(person: User) -> None:
    _require(person, [ADMINISTRATOR], "write a policy")


def require_can_lock_policy(person: User) -> None:
    _require(person, [ADMINISTRATOR, APPROVER], "lock a policy")


def require_can_register(person: User) -> None:
    """Base models, backends and suites."""
    _require(person, [ENGINEER, ADMINISTRATOR], "register base models, backends or suites")


def require_can_submit(person: User) -> None:
    _require(person, [ENGINEER], "submit a candidate")


def require_can_withdraw(person: User, submitted_by_id: int) -> None:
    if person.pk != submitted_by_id:
        _require(person, [ADMINISTRATOR], "withdraw another's candidate")


def require_can_evaluate(person: User) -> None:
    _require(person, [ENGINEER], "start, cancel or repeat eval runs")


def require_can_retry(person: User) -> None:
    """A failed build or a failed publication."""
    _require(person, [ENGINEER, ADMINISTRATOR], "try that again")


def require_can_sign(person: User, *, involved: Sequence[str], separated: bool, groups: Sequence[str]) -> str:
    """The group in which the person signs: the first of the rule's groups that they are in.

    `involved` are the user names of those who submitted the candidate, started its runs or wrote its policy.
    """
    _require(person, groups, "sign")
    if separated and person.get_username() in involved:
        raise NotAllowed(
            f"{person.get_username()} may not sign: they submitted this candidate, started its runs, sealed its suites "
            "or wrote its policy. Somebody else must."
        )
    return next(group for group in groups if group in groups_of(person))
