"""A broken glass counts under the conditions of a signature, and only where signatures are missing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from promotion.gates import Outcome
from promotion.gates.approval import Glass, Signature, approval_outcome

NOW = datetime(2026, 3, 10, tzinfo=UTC)
DIGEST, OTHER = "a" * 64, "b" * 64


def outcome(
    glass: Glass | None = None, signers: tuple[str, ...] = (), involved: tuple[str, ...] = (), **changes: Any
) -> Any:
    rule = {
        "approvers": [{"group": "approver", "count": 2}],
        "separation_of_duties": True,
        "expires_after_days": 30,
        "break_glass": True,
        **changes,
    }
    signatures = [Signature(name, "approver", DIGEST, NOW) for name in signers]
    return approval_outcome(
        rule=rule, signatures=signatures, digest=DIGEST, involved=involved, now=NOW, glass=glass
    )


def broken(person: str = "ada", digest: str = DIGEST, days_ago: float = 1) -> Glass:
    return Glass(person, digest, NOW - timedelta(days=days_ago))


def test_it_stands_in_for_the_signatures_and_names_who_broke_it() -> None:
    found = outcome(broken(), signers=("ann",))

    assert found.outcome is Outcome.PASSED
    assert found.reason == "ada broke the glass: 1 more approver did not sign aaaaaaaa."
    assert found.numbers["broke_glass"] == "ada" and found.numbers["measured"] == "1 of 2 approvers"


def test_enough_signatures_are_signatures_all_the_same() -> None:
    found = outcome(broken(), signers=("ann", "bob"))

    assert found.reason == "Signed by ann, bob." and "broke_glass" not in found.numbers


@pytest.mark.parametrize("changes", [{"break_glass": False}, {}])
def test_only_where_the_rule_has_it(changes: dict[str, Any]) -> None:
    expected = Outcome.NOT_EVALUATED if changes else Outcome.PASSED

    assert outcome(broken(), **changes).outcome is expected


@pytest.mark.parametrize("glass", [broken(digest=OTHER), broken(days_ago=30.001), broken(" "), None])
def test_of_other_evidence_too_old_or_by_nobody_it_counts_for_nothing(glass: Glass | None) -> None:
    assert outcome(glass).outcome is Outcome.NOT_EVALUATED


def test_who_is_involved_breaks_it_only_where_duties_are_not_separated() -> None:
    assert outcome(broken(), involved=("ada",)).outcome is Outcome.NOT_EVALUATED
    assert outcome(broken(), involved=("ada",), separation_of_duties=False).outcome is Outcome.PASSED
