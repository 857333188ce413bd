"""The home page: what waits for this person, and what happened."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from django.contrib.auth.models import User

from promotion import evidence as evidence_module
from promotion import permissions, selectors
from promotion.gates.approval import needed_by
from promotion.models import Candidate, Dispute, Policy, Thread, Track, Waiver
from promotion.services import gating
from promotion.services.glass import Due
from promotion.web.glass import alarms
from promotion.web.waiting import (
    Looked,
    Weight,
    counted,
    disputes_to_decide,
    looked_at,
    people_of,
    threads_to_answer,
    weights_of,
)
from promotion.web.waivers import to_grant
from rollouts.errors import NotAllowed
from rollouts.models import AuditEvent, EvalRun
from rollouts.selectors import events_where, runs_where

MOST = 25
RECENT = 10
TRACKS = 8
NEXT_STEPS = {
    "submitted": "is being built",
    "build_failed": "could not be built: read why, then try again or withdraw it",
    "built": "is built: start its evaluation",
    "evaluating": "is being evaluated",
    "blocked": "is blocked by its gates: read which, then withdraw it or evaluate again",
    "publish_failed": "could not be published: read why, then try again",
}


@dataclass(frozen=True, slots=True)
class Waiting:
    """A candidate that waits, and why this person may not sign it (empty where they may)."""

    candidate: Candidate
    why_not: str = ""
    step: str = ""
    looked: Looked = field(default_factory=Looked)
    signed: int = 0
    needed: int = 0
    weight: Weight | None = None


@dataclass(frozen=True, slots=True)
class Home:
    groups: set[str]
    alarms: list[Due] = field(default_factory=list)
    to_sign: list[Waiting] = field(default_factory=list)
    for_others: list[Waiting] = field(default_factory=list)
    mine: list[Waiting] = field(default_factory=list)
    drafts: list[Policy] = field(default_factory=list)
    waivers: list[Waiver] = field(default_factory=list)
    disputes: list[Dispute] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)
    tracks: list[Track] = field(default_factory=list)
    runs: list[EvalRun] = field(default_factory=list)
    events: list[AuditEvent] = field(default_factory=list)

    @property
    def nothing(self) -> bool:
        return not (self.to_sign or self.mine or self.drafts or self.waivers or self.disputes or self.threads)


def home_of(person: User) -> Home:
    groups = permissions.groups_of(person)
    waiting = _waiting(person)
    mine = selectors.engineers_turn(person, MOST) if permissions.ENGINEER in groups else []
    lockers = {permissions.APPROVER, permissions.ADMINISTRATOR}
    return Home(
        groups=groups,
        alarms=alarms(person, MOST),
        to_sign=[row for row in waiting if not row.why_not],
        for_others=[row for row in waiting if row.why_not],
        mine=[Waiting(candidate, step=NEXT_STEPS[candidate.state]) for candidate in mine],
        drafts=list(selectors.drafts(person, MOST)) if groups & lockers else [],
        waivers=list(to_grant(person, MOST)) if groups & lockers else [],
        disputes=list(disputes_to_decide(person, MOST)) if groups & lockers else [],
        threads=list(threads_to_answer(person, MOST)),
        tracks=list(selectors.tracks(person)[:TRACKS]),
        runs=list(runs_where(person).filter(state__in=["queued", "running"]).order_by("-pk")[:8]),
        events=list(
            events_where(person).exclude(action__startswith="review.").order_by("-sequence")[:RECENT]
        ),
    )


def _waiting(person: User) -> list[Waiting]:
    """Everything in review, the longest in review first."""
    found = selectors.in_review(person, MOST)
    looked = looked_at(person, found)
    rows = [_row(candidate, person, looked[candidate.pk]) for candidate in found]
    to_sign = {row.candidate.pk: row.candidate.latest for row in rows if not row.why_not}
    weights = weights_of(person, to_sign)
    return [replace(row, weight=weights.get(row.candidate.pk)) for row in rows]


def _row(candidate: Candidate, person: User, looked: Looked) -> Waiting:
    if candidate.latest is None:
        return Waiting(candidate, "nothing is judged yet")
    document = evidence_module.document_of(candidate.latest)
    rule, digest = gating.approval_rule(document), candidate.latest.digest
    missing, signed_by = counted(document, candidate.approvals.all(), digest)
    needed = sum(needed_by(rule).values())
    return Waiting(
        candidate,
        why_not=_why_not(document, rule, person, people_of(missing), signed_by),
        looked=looked,
        signed=needed - sum(missing.values()),
        needed=needed,
    )


def _why_not(
    document: dict[str, Any], rule: dict[str, Any], person: User, missing: str, signed_by: list[str]
) -> str:
    """Why this person does not sign it, with whom the rule still needs; empty where they may."""
    waits = f"waits for {missing}" if missing else "waits to be published"
    try:
        permissions.require_can_sign(
            person,
            involved=gating.involved_people(document),
            separated=rule["separation_of_duties"],
            groups=[part["group"] for part in rule["approvers"]],
        )
    except NotAllowed:
        return waits
    return f"signed by you, {waits}" if person.get_username() in signed_by else ""
