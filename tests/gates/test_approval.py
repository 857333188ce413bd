"""Enough people of the right groups, each once, for exactly this digest, not too long ago."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from promotion.gates import Outcome
from promotion.gates.approval import Signature, approval_outcome

NOW = datetime(2026, 3, 10, tzinfo=UTC)
DIGEST, OTHER = "a" * 64, "b" * 64


def signed(person: str, *, role: str = "approver", digest: str = DIGEST, days_ago: float = 1) -> Signature:
    return Signature(
        person=person, role=role, evidence_digest=digest, signed_at=NOW - timedelta(days=days_ago)
    )


def outcome(*signatures: Signature, involved: tuple[str, ...] = (), **changes: Any) -> Outcome:
    rule = {
        "approvers": [{"group": "approver", "count": 2}],
        "separation_of_duties": True,
        "expires_after_days": 30,
        **changes,
    }
    return approval_outcome(
        rule=rule, signatures=signatures, digest=DIGEST, involved=involved, now=NOW
    ).outcome


def test_enough_signatures_pass() -> None:
    assert outcome(signed("ann"), signed("bob")) is Outcome.PASSED


def test_nobody_and_too_few_wait() -> None:
    assert outcome() is Outcome.NOT_EVALUATED
    assert outcome(signed("ann")) is Outcome.NOT_EVALUATED


def test_a_person_counts_once() -> None:
    assert outcome(signed("ann"), signed("ann", days_ago=2)) is Outcome.NOT_EVALUATED


def test_a_person_counts_for_one_group_only() -> None:
    rule = [{"group": "approver", "count": 1}, {"group": "administrator", "count": 1}]

    assert (
        outcome(signed("ann"), signed("ann", role="administrator"), approvers=rule) is Outcome.NOT_EVALUATED
    )
    assert outcome(signed("ann"), signed("bob", role="administrator"), approvers=rule) is Outcome.PASSED


def test_a_signature_of_another_group_does_not_count() -> None:
    assert outcome(signed("ann"), signed("bob", role="engineer")) is Outcome.NOT_EVALUATED


def test_a_signature_of_another_digest_does_not_count() -> None:
    assert outcome(signed("ann"), signed("bob", digest=OTHER)) is Outcome.NOT_EVALUATED


@pytest.mark.parametrize(
    ("days_ago", "expected"), [(29.9, Outcome.PASSED), (30, Outcome.PASSED), (30.001, Outcome.NOT_EVALUATED)]
)
def test_a_signature_expires_after_the_policys_days(days_ago: float, expected: Outcome) -> None:
    assert outcome(signed("ann"), signed("bob", days_ago=days_ago)) is expected


def test_who_was_involved_does_not_count_where_duties_are_separated() -> None:
    assert outcome(signed("ann"), signed("bob"), involved=("bob",)) is Outcome.NOT_EVALUATED
    assert (
        outcome(signed("ann"), signed("bob"), involved=("bob",), separation_of_duties=False) is Outcome.PASSED
    )


def test_the_reason_says_who_is_missing() -> None:
    rule = {
        "approvers": [{"group": "approver", "count": 2}],
        "separation_of_duties": True,
        "expires_after_days": 30,
    }

    found = approval_outcome(rule=rule, signatures=[signed("ann")], digest=DIGEST, involved=[], now=NOW)

    assert found.reason == "Waits for 1 more approver to sign aaaaaaaa."
    assert found.numbers["measured"] == "1 of 2 approvers" and found.numbers["signed_by"] == ["ann"]


@pytest.mark.parametrize(
    ("rule", "needs", "waits"),
    [
        ([("approver", 1)], "1 approver", "Waits for 1 more approver to sign aaaaaaaa."),
        ([("approver", 2)], "2 approvers", "Waits for 2 more approvers to sign aaaaaaaa."),
        (
            [("approver", 2), ("administrator", 1)],
            "2 approvers, 1 administrator",
            "Waits for 2 more approvers and 1 more administrator to sign aaaaaaaa.",
        ),
        ([("operations", 2)], "2 operations", "Waits for 2 more operations to sign aaaaaaaa."),
    ],
)
def test_people_are_counted_in_plain_english(rule: list[tuple[str, int]], needs: str, waits: str) -> None:
    approvers = [{"group": group, "count": count} for group, count in rule]
    asked = {"approvers": approvers, "separation_of_duties": True, "expires_after_days": 30}

    found = approval_outcome(rule=asked, signatures=[], digest=DIGEST, involved=[], now=NOW)

    assert (found.numbers["needs"], found.reason) == (needs, waits)
    assert found.numbers["measured"] == ", ".join(f"0 of {part}" for part in needs.split(", "))


def test_a_rule_that_names_a_group_twice_asks_for_the_sum() -> None:
    rule = [{"group": "approver", "count": 1}, {"group": "approver", "count": 1}]

    assert outcome(signed("ann"), approvers=rule) is Outcome.NOT_EVALUATED
