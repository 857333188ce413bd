"""A track that only one group may see, with everything that can hang on it, and people on both sides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone

from promotion.models import BrokenGlass, Candidate, Evidence, Thread
from promotion.services import tracks
from rollouts.models import EvalRun, ModelCall, Rollout
from tests import factories
from tests.web import test_permission_table, world
from tests.web.conftest import signed_in

TEAM = "assistants-team"
INSIDERS = ("engineer", "approver")


@dataclass(slots=True)
class Hidden:
    """`house.track` is read by `TEAM` alone, in which the house's engineer and approvers are."""

    house: factories.House
    candidate: Candidate
    run: EvalRun
    rollout: Rollout
    call: ModelCall
    outsiders: dict[str, User]
    known: dict[str, dict[str, Any]]  # one thing of each kind, by the first part of a page's address

    def restrict(self) -> None:
        tracks.set_readers(track=self.house.track, groups=[TEAM], by=self.house.administrator)

    def clients(self, side: str) -> dict[str, Client]:
        """A client for each role that does not see everything."""
        people = (
            self.outsiders if side == "outside" else {role: getattr(self.house, role) for role in INSIDERS}
        )
        return {role: signed_in(person) for role, person in people.items()}


@pytest.fixture(autouse=True)
def _surroundings(sent: list[Any], settings: Any, tmp_path: Path) -> None:
    settings.FILE_UPLOAD_TEMP_DIR = str(tmp_path)
    settings.STATIC_ROOT = tmp_path / "static"
    settings.STATIC_ROOT.mkdir()
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}


@pytest.fixture
def hidden(db: None, tmp_path: Path) -> Hidden:
    house = factories.house(calls=20, declines=20, champion=True)
    team = Group.objects.create(name=TEAM)
    for person in (house.engineer, house.approver, house.approver_2):
        person.groups.add(team)
    known = test_permission_table._known(house, tmp_path)
    run = EvalRun.objects.get(label="cand")
    rollout = run.rollouts.order_by("pk")[0]
    call = world.add_call(rollout, request=b"{}", response=b"{}")
    candidate = Candidate.objects.get(name="cand")
    known |= {"rollouts": {"pk": rollout.pk}, "calls": {"pk": call.pk}}
    number = known["candidates"]["number"]  # of the waiver and of the dispute; of the thread too
    known["candidates"].setdefault("thread", _thread(house, candidate, number).pk)
    known.setdefault("glass", {"pk": _glass(house, candidate).pk})
    outsiders = {role: factories.person(f"outside-{role}", role) for role in INSIDERS}
    return Hidden(house, candidate, run, rollout, call, outsiders, known)


def _thread(house: factories.House, candidate: Candidate, number: int) -> Thread:
    frozen = {"evidence_digest": factories.digest_of(candidate), "anchor_digest": "0" * 64}
    said = {
        "anchor": "page",
        "anchor_label": "page",
        "started_by": house.engineer,
        "started_at": timezone.now(),
    }
    return Thread.objects.get_or_create(pk=number, defaults={"candidate": candidate, **frozen, **said})[0]


def _glass(house: factories.House, candidate: Candidate) -> BrokenGlass:
    evidence, now = Evidence.objects.filter(candidate=candidate)[0], timezone.now()
    acted = dict.fromkeys(("authenticated_at", "broken_at", "review_due_at"), now)
    broken = {"broken_by": house.administrator, "printed_name": "A", "reason": "r", "method": "password"}
    values = {"candidate": candidate, "evidence": evidence, **acted, **broken}
    return BrokenGlass.objects.get_or_create(evidence_digest=evidence.digest, defaults=values)[0]
