"""Who may do which verb: one function a verb, called by services, pages, API and commands alike.

Each raises `NotAllowed` with the reason, or returns. An inactive person may do nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib.auth.models import User

from rollouts.errors import NotAllowed
from rollouts.permissions import (
    ADMINISTRATOR,
    APPROVER,
    AUDITOR,
    ENGINEER,
    ROLES,
    groups_of,
    own_groups,
    require_can_read,
    require_can_register,
)
from rollouts.permissions import require_can_run as require_can_evaluate
from rollouts.permissions import require_roles as _require

__all__ = [
    "ADMINISTRATOR",
    "APPROVER",
    "AUDITOR",
    "ENGINEER",
    "ROLES",
    "groups_of",
    "own_groups",
    "require_can_create_track",
    "require_can_edit_policy",
    "require_can_evaluate",
    "require_can_judge",
    "require_can_lock_policy",
    "require_can_read",
    "require_can_register",
    "require_can_retry",
    "require_can_sign",
    "require_can_submit",
    "require_can_withdraw",
]


def require_can_create_track(person: User) -> None:
    _require(person, [ADMINISTRATOR], "create a track")


def require_can_edit_policy(person: User) -> None:
    _require(person, [ADMINISTRATOR], "write a policy")


def require_can_lock_policy(person: User) -> None:
    _require(person, [ADMINISTRATOR, APPROVER], "lock a policy")


def require_can_submit(person: User) -> None:
    _require(person, [ENGINEER], "submit a candidate")


def require_can_withdraw(person: User, submitted_by_id: int) -> None:
    if not person.is_active or person.pk != submitted_by_id:
        _require(person, [ADMINISTRATOR], "withdraw another's candidate")


def require_can_judge(person: User) -> None:
    """Judge again what is there: it measures nothing, so whoever is to sign may ask for it too."""
    _require(person, [ENGINEER, APPROVER], "have a candidate judged again")


def require_can_retry(person: User) -> None:
    """A failed build or a failed publication."""
    _require(person, [ENGINEER, ADMINISTRATOR], "try that again")


def require_can_sign(person: User, *, involved: Sequence[str], separated: bool, groups: Sequence[str]) -> str:
    """The group in which the person signs: the first of the rule's groups that they are in.

    `involved` are the user names of those who submitted the candidate, started its runs or had them run
    again, sealed its suites, or wrote or locked its policy.
    """
    # the groups as they are given: neither a superuser nor anybody else signs in a group they are not in
    own = own_groups(person)
    if not person.is_active or not own & set(groups):
        raise NotAllowed(f"{person.get_username()} may not sign: that needs {' or '.join(groups)}.")
    if separated and person.get_username() in involved:
        raise NotAllowed(
            f"{person.get_username()} may not sign: they submitted this candidate, started its runs, sealed its "
            "suites, or wrote or locked its policy. Somebody else must."
        )
    return next(group for group in groups if group in own)
