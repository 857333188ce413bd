"""Services that sign, promote or take back ask who may see, so that no view and no command has to think of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User

from promotion.services import approvals, glass, signatures
from promotion.services.proofs import Password
from rollouts.errors import NotFound
from rollouts.models import AuditEvent
from tests import factories
from tests.visibility.conftest import Hidden

pytestmark = pytest.mark.django_db
REASON = "The old model is down and nobody else can be reached."


def _shown(hidden: Hidden) -> dict[str, Any]:
    return {"candidate_id": hidden.candidate.pk, "evidence_digest": factories.digest_of(hidden.candidate)}


def _sign(hidden: Hidden, by: User) -> None:
    approvals.sign(**_shown(hidden), by=by, proof=Password(factories.PASSWORD), meaning="authorises")


def _check(hidden: Hidden, by: User) -> None:
    approvals.check(**_shown(hidden), by=by, meaning="authorises")


def _break(hidden: Hidden, by: User) -> None:
    glass.break_glass(**_shown(hidden), by=by, proof=Password(factories.PASSWORD), reason=REASON)


def _ask_to_break(hidden: Hidden, by: User) -> None:
    glass.check(**_shown(hidden), by=by, reason=REASON)


def _take_back(hidden: Hidden, by: User) -> None:
    signatures.withdraw_signature(candidate_id=hidden.candidate.pk, by=by, reason="Too early.")


@pytest.mark.parametrize("act", [_sign, _check, _break, _ask_to_break, _take_back])
def test_to_who_may_not_see_a_candidate_there_is_none(
    hidden: Hidden, act: Callable[[Hidden, User], None]
) -> None:
    hidden.restrict()
    before = AuditEvent.objects.count()

    with pytest.raises(NotFound, match="There is no such candidate"):
        act(hidden, hidden.outsiders["approver"])

    assert AuditEvent.objects.count() == before, "nothing is written about it either"
