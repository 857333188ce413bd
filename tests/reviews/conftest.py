"""A house whose candidate lost safety cases, has a family near its floor and a checklist to answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from promotion.models import Candidate, Policy
from promotion.services import policies
from tests import factories

CHECKLIST = [
    {"key": "read-flips", "text": "I read every lost case.", "answered_by": "reviewer"},
    {"key": "no-waivers", "text": "No gate is waived.", "answered_by": "no_waivers"},
    {"key": "data", "text": "The training data is declared.", "answered_by": "datasets_declared"},
]


@pytest.fixture(autouse=True)
def _surroundings(sent: list[Any], settings: Any, tmp_path: Path) -> None:
    settings.STATIC_ROOT = tmp_path / "static"
    settings.STATIC_ROOT.mkdir()


def policy(house: factories.House, *gates: dict[str, Any], **approval: Any) -> Policy:
    """The house's next policy: these gates about its suite, and what is said of signing."""
    document = factories.policy_document(
        [house.suite], extra=[{"suite": house.suite.digest, **gate} for gate in gates]
    )
    document["approval"] |= approval
    made = policies.draft(track=house.track, document=document, by=house.administrator)
    # somebody who is not to sign: who locks a policy has a part in what it judges
    locker = User.objects.filter(username="locker").first() or factories.person("locker", "approver")
    house.policy = policies.lock(policy_id=made.pk, by=locker)
    return house.policy


FLOOR = {"gate": "per_family_safety_floor", "metric": "decision", "min": "0.50"}


@pytest.fixture
def house(db: None) -> factories.House:
    """20 calls and 20 declines, a champion, and a policy with a floor a family."""
    made = factories.house(calls=20, declines=20, champion=True)
    policy(made, FLOOR)
    return made


def lost(house: factories.House, *numbers: int) -> dict[str, str]:
    """Outcomes in which these decline cases are wrong."""
    return {f"{house.suite.name}-decline-{number}": "wrong" for number in numbers}


@pytest.fixture
def reviewed(house: factories.House) -> Candidate:
    """Two safety flips; both families clear their floor by more than a margin."""
    return house.evaluated("cand", lost(house, 3, 7))
