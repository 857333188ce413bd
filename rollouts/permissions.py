"""Who may do which verb with runs, suites and backends: one function a verb.

Each raises `NotAllowed` with the reason, or returns. An inactive person may do nothing.
`promotion.permissions` adds the verbs of the governance app on the same roles.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollouts.errors import NotAllowed
from rollouts.roles import ADMINISTRATOR as ADMINISTRATOR
from rollouts.roles import APPROVER as APPROVER
from rollouts.roles import AUDITOR as AUDITOR
from rollouts.roles import ENGINEER as ENGINEER
from rollouts.roles import ROLES as ROLES
from rollouts.roles import Person
from rollouts.roles import groups_of as groups_of
from rollouts.roles import own_groups as own_groups


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
