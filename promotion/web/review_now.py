"""Whether the evidence on the review page is still that of the present state, and what became of the candidate since."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from promotion import evidence as evidence_module
from promotion.gates.approval import needed_by
from promotion.models import (
    Approval,
    BrokenGlass,
    Candidate,
    CandidateState,
    Decision,
    Evidence,
    GateResult,
    GlassVerdict,
)
from promotion.services import gating
from promotion.web import compare
from promotion.web.review_gates import turned_since
from promotion.web.waiting import counted
from rollouts.models import AuditEvent, Backend
from rollouts.selectors import backends_in_use, events_of
from rollouts.templatetags.assay import at_us

# gates that hold the candidate against the champion
COMPARING = (
    "incumbent_artifact_hash",
    "rollback_artifact_availability",
    "arena_max_regression",
    "paired_non_inferiority",
)


@dataclass(frozen=True, slots=True)
class NewChampion:
    """The champion changed since the evidence was frozen. `unmeasured`: suites on which the new one has no run that may serve.

    `backend` is the newest revision of the one that the candidate was evaluated on, for the runs that are missing.
    """

    entry: int | None
    name: str
    before: str
    gates: list[str]
    unmeasured: list[str]
    backend: Backend | None


@dataclass(frozen=True, slots=True)
class Since:
    """What happened since the evidence was judged. Nothing: it is current."""

    changes: list[str] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)  # gates whose waiver ran out
    champion: NewChampion | None = None

    @property
    def stale(self) -> bool:
        return bool(self.changes or self.expired)


@dataclass(frozen=True, slots=True)
class Words:
    """Who ended a candidate or sent it back, when, and why, in their words."""

    person: str
    at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """A publication that was refused, and why: what changed since the signatures, else what stood in the way.

    `signed` counts the signatures on `digest` that ended with it.
    """

    at: datetime
    digest: str
    signed: int
    why: list[str]


@dataclass(frozen=True, slots=True)
class Glass:
    """That the glass was broken for this evidence: `missing` of `needed` signatures were not given."""

    by: str
    missing: int
    needed: int
    condemned: bool


def since(
    candidate: Candidate, evidence: Evidence, document: Mapping[str, Any], results: list[GateResult]
) -> Since:
    """`results` are what the gates say of the evidence now. Builds the evidence as it is now only where
    its frame changed, and compares it. The number of queries is constant.
    """
    expired = turned_since(results, evidence)
    if evidence.basis_digest == evidence_module.basis(candidate):
        return Since(expired=expired)
    built = evidence_module.build(candidate)
    if built.digest == evidence.digest:
        return Since(expired=expired)
    changes = compare.changes(document, built.document) or ["It is written in another form."]
    return Since(changes, expired, _new_champion(candidate, document, built.document))


def _new_champion(candidate: Candidate, old: Mapping[str, Any], new: Mapping[str, Any]) -> NewChampion | None:
    was, now = old["champion"], new["champion"]
    if now is None or new["policy"] is None or (was and was["entry"] == now["entry"]):
        return None
    entries = new["policy"]["document"]["gates"]
    asked = [entry for entry in entries if entry["gate"] in COMPARING]
    suites = {entry["suite"] for entry in asked if entry.get("suite")}
    locked_at = new["policy"]["locked_at"]
    # times are written alike, so that their text is in their order; a run of before the lock serves no gate
    unmeasured = [
        part["name"]
        for part in new["suites"]
        if part["digest"] in suites
        and (part["champion"] is None or part["champion"]["planned_at"] < locked_at)
    ]
    return NewChampion(
        entry=now["entry"],
        name=now["name"],
        before=f"v{was['entry']} ({was['name']})" if was else "none",
        gates=list(dict.fromkeys(entry["gate"] for entry in asked)),
        unmeasured=unmeasured,
        backend=_backend(candidate) if unmeasured else None,
    )


def _backend(candidate: Candidate) -> Backend | None:
    if candidate.backend is None:
        return None
    return backends_in_use().filter(name=candidate.backend.name, kind="llama_cpp").first()


# what became of it

PUBLISHED_FROM = (
    CandidateState.APPROVED,
    CandidateState.PUBLISHING,
    CandidateState.PUBLISH_FAILED,
    CandidateState.PROMOTED,
)
# what ends the news of a refused publication
AFTER_REFUSAL = (
    "candidate.signed",
    "candidate.request_changes",
    "candidate.glass_broken",
    "candidate.judged",
    "candidate.evaluation_started",
)
REFUSED = "candidate.promotion_refused"


def last_words(candidate: Candidate, approvals: Sequence[Approval]) -> Words | None:
    """Of whoever rejected the candidate, sent it back or withdrew it; None in every other state. `approvals` are newest first."""
    if candidate.state == CandidateState.WITHDRAWN:
        event = events_of("promotion.Candidate", candidate.pk).filter(action="candidate.withdrawn").first()
        return event and Words(_who(event), at_us(event.at_us), _data(event).get("reason", ""))
    decision = {"rejected": Decision.REJECT, "blocked": Decision.REQUEST_CHANGES}.get(candidate.state)
    newest = next(iter(approvals), None)
    if newest is None or newest.decision != decision:
        return None
    return Words(newest.printed_name, newest.signed_at, newest.comment)


def _who(event: AuditEvent) -> str:
    """`user:ada`, or `token:ada:3f9c`."""
    name: str = event.actor.split(":")[1] if ":" in event.actor else event.actor
    return name


def _data(event: AuditEvent) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bytes(event.data))
    return found


def refusal_of(
    candidate: Candidate, evidence: Evidence, document: Mapping[str, Any], approvals: Sequence[Approval]
) -> Refusal | None:
    """The publication that was refused last, until somebody goes on with the candidate. At most two queries."""
    told = events_of("promotion.Candidate", candidate.pk).filter(action__in=[REFUSED, *AFTER_REFUSAL])
    event = told.first()
    if event is None or event.action != REFUSED:
        return None
    signed = [approval for approval in approvals if approval.decision == Decision.APPROVE]
    digest = signed[0].evidence_digest if signed else ""
    before = Evidence.objects.filter(candidate=candidate, digest=digest).first() if digest else None
    why = compare.changes(evidence_module.document_of(before), document) if before else []
    return Refusal(
        at=at_us(event.at_us),
        digest=digest,
        signed=sum(approval.evidence_digest == digest for approval in signed),
        why=why or _data(event).get("blocked_by", []),
    )


def glass_broken(
    candidate: Candidate, evidence: Evidence, document: dict[str, Any], approvals: Sequence[Approval]
) -> Glass | None:
    """Only where the candidate is published, or on its way: elsewhere nothing rests on it. One query."""
    if candidate.state not in PUBLISHED_FROM:
        return None
    broken = BrokenGlass.objects.filter(evidence=evidence).select_related("broken_by").first()
    rule = gating.approval_rule(document)
    missing = counted(document, approvals, evidence.digest, at=broken.broken_at if broken else None).missing
    if broken is None or not missing:
        return None
    return Glass(
        by=broken.broken_by.get_username(),
        missing=sum(missing.values()),
        needed=sum(needed_by(rule).values()),
        condemned=broken.verdict == GlassVerdict.CONDEMNED,
    )
