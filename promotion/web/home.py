"""The home page: what waits for this person, and what happened."""

from __future__ import annotations

from dataclasses import dataclass, field

from django.contrib.auth.models import User

from promotion import evidence as evidence_module
from promotion import permissions, selectors
from promotion.models import Candidate, Policy, Track, Waiver
from promotion.services import gating
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


@dataclass(frozen=True, slots=True)
class Home:
    groups: set[str]
    to_sign: list[Waiting] = field(default_factory=list)
    for_others: list[Waiting] = field(default_factory=list)
    mine: list[Waiting] = field(default_factory=list)
    drafts: list[Policy] = field(default_factory=list)
    waivers: list[Waiver] = field(default_factory=list)
    tracks: list[Track] = field(default_factory=list)
    runs: list[EvalRun] = field(default_factory=list)
    events: list[AuditEvent] = field(default_factory=list)

    @property
    def nothing(self) -> bool:
        return not (self.to_sign or self.mine or self.drafts or self.waivers)


def home_of(person: User) -> Home:
    groups = permissions.groups_of(person)
    waiting = [Waiting(candidate, _why_not(candidate, person)) for candidate in selectors.in_review(MOST)]
    mine = selectors.engineers_turn(person, MOST) if permissions.ENGINEER in groups else []
    lockers = {permissions.APPROVER, permissions.ADMINISTRATOR}
    return Home(
        groups=groups,
        to_sign=[row for row in waiting if not row.why_not],
        for_others=[row for row in waiting if row.why_not],
        mine=[Waiting(candidate, step=NEXT_STEPS[candidate.state]) for candidate in mine],
        drafts=list(selectors.drafts(MOST)) if groups & lockers else [],
        waivers=list(to_grant(MOST)) if groups & lockers else [],
        tracks=list(selectors.tracks()[:TRACKS]),
        runs=list(runs_where().filter(state__in=["queued", "running"]).order_by("-pk")[:8]),
        events=list(events_where().order_by("-sequence")[:RECENT]),
    )


def _why_not(candidate: Candidate, person: User) -> str:
    if candidate.latest is None:
        return "nothing is judged yet"
    document = evidence_module.document_of(candidate.latest)
    rule = gating.approval_rule(document)
    try:
        permissions.require_can_sign(
            person,
            involved=gating.involved_people(document),
            separated=rule["separation_of_duties"],
            groups=[part["group"] for part in rule["approvers"]],
        )
    except NotAllowed:
        return "waits for others"
    digest = candidate.latest.digest
    signed = any(
        a.approver_id == person.pk and a.evidence_digest == digest for a in candidate.approvals.all()
    )
    return "signed by you, waits for others" if signed else ""
