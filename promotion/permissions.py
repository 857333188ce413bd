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
    "require_can_end_waiver",
    "require_can_evaluate",
    "require_can_grant_waiver",
    "require_can_judge",
    "require_can_lock_policy",
    "require_can_read",
    "require_can_register",
    "require_can_request_waiver",
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


def require_can_request_waiver(person: User) -> None:
    _require(person, [ENGINEER, APPROVER], "request a waiver")


def require_can_grant_waiver(person: User, *, requested_by: str = "", involved: Sequence[str] = ()) -> None:
    """`involved` are the user names of those with a part in the candidate, as for signing; always kept apart."""
    _require(person, [APPROVER, ADMINISTRATOR], "grant a waiver")
    if person.get_username() == requested_by:
        raise NotAllowed(f"{requested_by} may not grant this waiver: they requested it. Somebody else must.")
    if person.get_username() in involved:
        raise NotAllowed(
            f"{person.get_username()} may not grant this waiver: they have a part in this candidate, its data, its "
            "suites, its policy or its waivers. Somebody else must."
        )


def require_can_end_waiver(person: User, requested_by_id: int) -> None:
    """To end one only makes gates stricter: whoever asked for it may, and those who could grant it."""
    if person.pk != requested_by_id:
        _require(person, [APPROVER, ADMINISTRATOR], "end another's waiver")
    else:
        require_can_read(person)


def require_can_retry(person: User) -> None:
    """A failed build or a failed publication."""
    _require(person, [ENGINEER, ADMINISTRATOR], "try that again")


def require_can_sign(person: User, *, involved: Sequence[str], separated: bool, groups: Sequence[str]) -> str:
    """The group in which the person signs: the first of the rule's groups that they are in.

    `involved` are the user names of those who submitted the candidate, registered its data, sealed its suites,
    started its runs or had them run again, wrote or locked its policy, or asked for or granted a waiver.
    """
    # the groups as they are given: neither a superuser nor anybody else signs in a group they are not in
    own = own_groups(person)
    if not person.is_active or not own & set(groups):
        raise NotAllowed(f"{person.get_username()} may not sign: that needs {' or '.join(groups)}.")
    if separated and person.get_username() in involved:
        raise NotAllowed(
            f"{person.get_username()} may not sign: they submitted this candidate, registered its data, sealed its "
            "suites, started its runs, wrote or locked its policy, or asked for or granted a waiver. Somebody else "
            "must."
        )
    return next(group for group in groups if group in own)
