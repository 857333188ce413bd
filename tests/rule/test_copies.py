"""A signature is copied whole: whoever reads a copy learns what was signed, how, and what was read and answered before."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from promotion.models import Approval, Evidence
from promotion.panels import must_open
from promotion.services import registry, reviews
from tests import factories
from tests.api.conftest import Api, token_of
from tests.reviews.conftest import lost, policy

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sent")]
CHECKLIST = [
    {"key": "read-flips", "text": "I read every lost case.", "answered_by": "reviewer"},
    {"key": "data", "text": "The training data is declared.", "answered_by": "datasets_declared"},
]
# where the row stands, and what became of it after the copy was made
OF_THE_ROW = {"id", "candidate", "evidence", "withdrawn_at", "withdrawn_reason"}


@pytest.fixture
def signed(db: None) -> Approval:
    """A signature with everything that one can say: of two parts one was opened, each item was answered."""
    house = factories.house(calls=3, declines=2, gates=[], champion=True)
    policy(house, checklist=CHECKLIST)
    house.approver.first_name, house.approver.last_name = "Ann", "Approver"
    house.approver.save()
    candidate = house.evaluated("cand", lost(house, 0, 1))
    digest = factories.digest_of(candidate)
    reviews.open_panel(candidate_id=candidate.pk, panel=_panels(digest)[0], by=house.approver)
    for item, note in (("read-flips", ""), ("data", "It is declared in the paper.")):
        reviews.tick(candidate_id=candidate.pk, item=item, digest=digest, by=house.approver, note=note)
    signature: Approval = factories.sign(
        candidate,
        house.approver,
        comment="Fit for use.",
        unopened_reason="Read on paper yesterday.",
        template_version="7" * 64,
    )
    return signature


def _panels(digest: str) -> list[str]:
    from promotion.comparing import comparisons_of
    from promotion.evidence import document_of

    document = document_of(Evidence.objects.get(digest=digest))
    return [panel.key for panel in must_open(document, comparisons_of(document)).panels]


def _fields() -> list[str]:
    return sorted({field.name for field in Approval._meta.get_fields()} - OF_THE_ROW)


def _said(approval: Approval, field: str) -> Any:
    """What the row says of it, as JSON says it."""
    value = getattr(approval, field)
    if field == "approver":
        return value.get_username()
    return value.isoformat() if isinstance(value, datetime) else value


def test_the_scene_says_something_in_every_field(signed: Approval) -> None:
    assert [field for field in _fields() if not getattr(signed, field)] == []
    assert (len(signed.panels_opened), len(signed.panels_unopened), len(signed.checklist)) == (1, 1, 2)


def test_the_registry_entry_keeps_every_field_of_a_signature(signed: Approval) -> None:
    entry = registry.publish(signed.candidate_id)
    assert entry is not None
    (copy,) = entry.record["signatures"]
    # an entry lists approvals alone, and says their meaning as the signer read it
    told = {**copy, "approver": copy["person"], "decision": "approve"}

    expected = {field: _said(signed, field) for field in _fields()}
    expected["meaning"] = signed.get_meaning_display()

    assert {field: told.get(field) for field in expected} == expected


def test_the_api_tells_every_field_of_a_signature(signed: Approval) -> None:
    api = Api(token_of(signed.approver))

    (copy,) = api.get(f"candidates/{signed.candidate_id}")["approvals"]

    told = {field: _as_told(copy.get(field)) for field in _fields()}
    assert told == {field: _as_told(_said(signed, field)) for field in _fields()}


def _as_told(value: Any) -> Any:
    """Times are written in several ways; what they say is compared."""
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return value
