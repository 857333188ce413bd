"""Auditors change nothing, so nobody signs as one: no new policy asks for it, and an old one that does is not met."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.urls import reverse

from promotion.gates import Outcome
from promotion.gates.approval import NEVER_SIGNS, Signature, approval_outcome
from promotion.models import Approval, Candidate, Policy
from promotion.services import policies, policy_rules
from rollouts.errors import InvalidInput, NotAllowed
from rollouts.roles import AUDITOR
from tests import factories
from tests.web.conftest import html, signed_in

BOTH = [{"group": "approver", "count": 1}, {"group": AUDITOR, "count": 1}]
ALONE = [{"group": AUDITOR, "count": 1}]


@pytest.fixture(autouse=True)
def _surroundings(sent: list[Any], settings: Any, tmp_path: Any) -> None:
    settings.STATIC_ROOT = tmp_path / "static"
    settings.STATIC_ROOT.mkdir()


@pytest.fixture
def house(db: None) -> factories.House:
    return factories.house(champion=True)


def document(house: factories.House, approvers: list[dict[str, Any]]) -> dict[str, Any]:
    made = factories.policy_document([house.suite])
    made["approval"]["approvers"] = approvers
    return made


def in_review(
    house: factories.House, approvers: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> Candidate:
    """Under a policy that was locked before auditors were refused in one."""
    monkeypatch.setattr(policy_rules, "AUDITOR", "")
    draft = policies.draft(track=house.track, document=document(house, approvers), by=house.administrator)
    policies.lock(policy_id=draft.pk, by=factories.person("locker", "approver"))
    monkeypatch.undo()
    return house.evaluated()


@pytest.mark.parametrize(("approvers", "at"), [(ALONE, 0), (BOTH, 1)])
def test_no_policy_asks_auditors_to_sign(
    house: factories.House, approvers: list[dict[str, Any]], at: int
) -> None:
    with pytest.raises(InvalidInput, match="auditors, who change nothing") as refused:
        policies.draft(track=house.track, document=document(house, approvers), by=house.administrator)

    assert refused.value.field == f"document.approval.approvers.{at}.group"


def test_a_draft_of_before_is_not_locked(house: factories.House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_rules, "AUDITOR", "")
    draft = policies.draft(track=house.track, document=document(house, ALONE), by=house.administrator)
    monkeypatch.undo()

    with pytest.raises(InvalidInput, match="Name another group"):
        policies.lock(policy_id=draft.pk, by=house.approver)
    assert Policy.objects.get(pk=draft.pk).locked_at is None


def test_the_editor_offers_no_auditors(house: factories.House) -> None:
    shown = signed_in(house.administrator).get(reverse("promotion:policy-edit", args=[house.track.name]))

    assert '<option value="administrator"' in html(shown)
    assert '<option value="auditor"' not in html(shown)


@pytest.mark.parametrize("approvers", [ALONE, BOTH])
def test_an_auditor_signs_nothing_under_an_old_policy(
    house: factories.House, approvers: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = in_review(house, approvers, monkeypatch)

    with pytest.raises(NotAllowed, match="auditor may not sign"):
        factories.sign(candidate, house.auditor)
    assert not Approval.objects.filter(candidate=candidate).exists()


def test_who_is_auditor_too_signs_as_what_else_they_are(
    house: factories.House, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = in_review(house, list(reversed(BOTH)), monkeypatch)
    house.approver.groups.add(Group.objects.get(name=AUDITOR))

    factories.sign(candidate, User.objects.get(pk=house.approver.pk))

    assert Approval.objects.get(candidate=candidate).role == "approver"
    candidate.refresh_from_db()
    assert candidate.state == "in_review", "the part of the auditors cannot be met"


def test_the_pages_say_that_an_old_policy_cannot_be_met(
    house: factories.House, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate, client = in_review(house, BOTH, monkeypatch), signed_in(house.engineer)

    shown = html(client.get(reverse("promotion:policy", args=[house.track.name, 2])))
    assert "auditors sign nothing: lock a version that names another group" in shown
    review = html(client.get(reverse("promotion:candidate", args=[candidate.pk])))
    assert "Auditors sign nothing, so this policy cannot be met" in review
    usual = html(client.get(reverse("promotion:policy", args=[house.track.name, 1])))
    assert "auditors sign nothing" not in usual


def test_a_signature_that_an_auditor_gave_before_does_not_count() -> None:
    now, rule = datetime(2026, 3, 10, tzinfo=UTC), {"separation_of_duties": True, "expires_after_days": 30}
    signatures = [Signature("ann", "approver", "a" * 64, now), Signature("otto", AUDITOR, "a" * 64, now)]

    found = approval_outcome(
        rule={**rule, "approvers": BOTH}, signatures=signatures, digest="a" * 64, involved=(), now=now
    )

    assert NEVER_SIGNS == AUDITOR
    assert found.outcome is Outcome.NOT_EVALUATED and found.numbers["signed_by"] == ["ann"]
    assert found.reason.endswith("so this policy cannot be met: lock one that names another group.")
