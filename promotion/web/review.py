"""Puts together what the review page shows of a candidate. Reads only: a GET judges and writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.contrib.auth.models import User

from promotion import comparing, permissions, selectors
from promotion import evidence as evidence_module
from promotion.gates.approval import needed_by
from promotion.models import Approval, Candidate, CandidateState, Evidence, GateResult, Meaning
from promotion.services import gating
from promotion.web import families
from promotion.web.cases import CaseSection, case_section
from promotion.web.review_gates import NONE, GateRow, gate_rows
from promotion.web.review_gates import shown_bound as shown_bound
from promotion.web.review_measured import DataLine, SuiteLine, data_lines, suite_lines
from promotion.web.review_now import Glass, Refusal, Since, Words, glass_broken, last_words, refusal_of, since
from promotion.web.waiting import counted, people_of
from rollouts.errors import NotAllowed
from rollouts.models import AuditEvent, Comparison, EvalRun
from rollouts.selectors import events_of

JUDGED = (CandidateState.BLOCKED, CandidateState.IN_REVIEW)
SIGNED = (CandidateState.APPROVED, CandidateState.PUBLISHING, CandidateState.PUBLISH_FAILED)
ENDED = (CandidateState.PROMOTED, CandidateState.REJECTED, CandidateState.WITHDRAWN)
HISTORY = 12
SIGNATURES = 50


@dataclass(frozen=True, slots=True)
class SignBox:
    """Whether this person may sign what is shown, and if not, why."""

    allowed: bool
    reason: str
    rule: str
    state: str
    meanings: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Cause:
    """Unmet gates with one reason: said once, however many gates it blocks."""

    outcome: str
    suite: str
    reason: str
    remedy: str
    gates: list[str]


@dataclass(frozen=True, slots=True)
class Review:
    candidate: Candidate
    evidence: Evidence | None
    document: dict[str, Any] | None
    since: Since
    gates: list[GateRow]
    suites: list[SuiteLine]
    datasets: list[DataLine]
    refused: list[str]  # a baseline has no gates; what stands in its way all the same
    table: families.Table | None
    cases: CaseSection | None
    comparisons: Mapping[str, Comparison] | None  # by suite digest; None while they are not written down
    runs: list[EvalRun]
    approvals: list[Approval]
    sign: SignBox
    history: list[AuditEvent]
    may: dict[str, bool]
    glass: Glass | None
    words: Words | None  # of whoever ended it or sent it back
    refusal: Refusal | None

    @property
    def looks(self) -> list[str]:
        """How often results on each sealed suite were seen, this candidate's included."""
        parts = self.document["suites"] if self.document else []
        return [f"look {part['candidate']['look']} on {part['name']}" for part in parts if part["candidate"]]

    @property
    def stale(self) -> bool:
        return self.since.stale

    @property
    def unmet(self) -> list[GateRow]:
        return [row for row in self.gates if row.unmet]

    @property
    def judged_again(self) -> bool:
        """Whether it is judged again where its evidence changed; else its publication is refused."""
        return self.candidate.state in JUDGED

    @property
    def may_judge_here(self) -> bool:
        """Where the evidence is stale, the notice at the top has the button."""
        return self.may["judge"] and not self.stale

    @property
    def pill(self) -> str:
        """How a candidate is called whose glass was broken: never by the word of one that was signed."""
        return f"Glass broken, {self.candidate.get_state_display().lower()}"

    @property
    def causes(self) -> list[Cause]:
        found: dict[tuple[str, str, str, str], Cause] = {}
        for row in self.unmet:
            key = (row.outcome, row.suite, row.reason, row.remedy)
            found.setdefault(key, Cause(*key, gates=[])).gates.append(row.gate)
        return list(found.values())

    @property
    def unmeasured(self) -> bool:
        """Whether a gate waits for something to be measured."""
        return any(row.outcome == "not_evaluated" for row in self.unmet)

    @property
    def shown_gates(self) -> list[GateRow]:
        """What is unmet, then waived, then waits, then what was measured, the nearest to failing first (`_nearness`)."""
        shown = [row for row in self.gates if row.look or row.is_signature or row.bound != NONE]
        return sorted(
            shown,
            key=lambda row: (not row.unmet, not row.waived, row.outcome != "waits", _nearness(row)),
        )

    @property
    def quiet_gates(self) -> list[GateRow]:
        """Passing gates without a number to weigh: the bytes and suites are what they are said to be."""
        shown = self.shown_gates
        return [row for row in self.gates if row not in shown]

    @property
    def waived(self) -> list[GateRow]:
        return [row for row in self.gates if row.waived]

    @property
    def passed(self) -> int:
        """Measured gates that pass by themselves."""
        return self.judged - sum(row.unmet or row.waived for row in self.gates)

    @property
    def judged(self) -> int:
        """Gates that measure something: all but the signatures."""
        return sum(not row.is_signature for row in self.gates)

    @property
    def fragile(self) -> list[GateRow]:
        """Gates of which it is known how near they are to another outcome: unmet, then the nearest (`_nearness`)."""
        found = [row for row in self.gates if row.fragile is not None]
        return sorted(found, key=lambda row: (not row.unmet, _nearness(row)))

    @property
    def closest(self) -> GateRow | None:
        """The passing gate that is nearest to failing (`_nearness`), or None where none hangs on prompts."""
        return min((row for row in self.gates if row.flips is not None), key=_nearness, default=None)

    @property
    def look(self) -> str:
        if self.candidate.state == "withdrawn":
            return "off"
        if self.glass:
            return "fail" if self.glass.condemned else "unsure"
        if self.candidate.state in ("promoted", "approved", "publishing"):
            return "unsure" if self.stale else "pass"
        failed = (
            self.unmet
            or self.refused
            or self.candidate.state in ("build_failed", "publish_failed", "rejected")
        )
        return "fail" if failed else "unsure"


def _nearness(row: GateRow) -> float:
    """The one rule of the page for what is nearest to failing: the fewest prompts that must turn from right to wrong
    until a passing gate does not pass. Their share of n does not matter; of several the first of the policy comes
    first, and what does not hang on prompts comes last. The risk summary names the same gate.
    """
    return float("inf") if row.flips is None else row.flips


def review(candidate: Candidate, person: User, params: dict[str, str]) -> Review:
    """`params` are the page's own: which cases, from where on."""
    evidence = selectors.latest_evidence(candidate)
    document = evidence_module.document_of(evidence) if evidence else None
    approvals = list(selectors.approvals_of(candidate)[:SIGNATURES])
    results = gating.results_of(candidate, evidence) if evidence else []
    changed = _since(candidate, evidence, document, results)
    glass = glass_broken(candidate, evidence, document, approvals) if evidence and document else None
    runs = comparing.runs_of(document)
    comparisons = comparing.comparisons_of(document, runs)
    return Review(
        candidate=candidate,
        evidence=evidence,
        document=document,
        since=changed,
        gates=[
            _signatures_row(row, candidate, glass) if row.is_signature else row
            for row in (gate_rows(candidate, evidence, document, results) if evidence and document else [])
        ],
        suites=suite_lines(document) if document else [],
        datasets=data_lines(document) if document else [],
        refused=_refused(candidate, evidence),
        table=families.table(document, _outcomes(results, document), comparisons) if document else None,
        cases=case_section(comparisons, params),
        comparisons=comparisons,
        runs=list(runs.values()),
        approvals=approvals,
        sign=_sign_box(candidate, evidence, document, changed.stale, person),
        # who opened and ticked what is in the whole trail: here it would hide what became of the candidate
        history=list(
            events_of("promotion.Candidate", candidate.pk).exclude(action__startswith="review.")[:HISTORY]
        ),
        may=_may(candidate, person),
        glass=glass,
        words=last_words(candidate, approvals),
        refusal=refusal_of(candidate, evidence, document, approvals)
        if evidence and document and candidate.state in JUDGED
        else None,
    )


def _signatures_row(row: GateRow, candidate: Candidate, glass: Glass | None) -> GateRow:
    """Broken glass is no signature, and what has ended waits for none."""
    if glass and row.outcome == "passed":
        return replace(row, outcome="glass_broken")
    if candidate.state in (CandidateState.REJECTED, CandidateState.WITHDRAWN):
        return replace(row, outcome=str(candidate.state), reason="No signature is asked for any more.")
    return row


def _since(
    candidate: Candidate,
    evidence: Evidence | None,
    document: dict[str, Any] | None,
    results: list[GateResult],
) -> Since:
    """Only asked where somebody acts on the evidence, or a worker is about to."""
    if evidence is None or document is None or candidate.state not in (*JUDGED, *SIGNED):
        return Since()
    return since(candidate, evidence, document, results)


def _refused(candidate: Candidate, evidence: Evidence | None) -> list[str]:
    if evidence is None or not candidate.baseline or candidate.state not in JUDGED:
        return []
    return gating.blocked_by(candidate, evidence, [])


def is_stale(candidate: Candidate, evidence: Evidence | None) -> bool:
    """Whether the evidence would be another if it were frozen now. Only asked where somebody acts on it."""
    if evidence is None or candidate.state not in JUDGED:
        return False
    return not gating.evidence_is_current(candidate, evidence)


def _entries(document: dict[str, Any]) -> list[dict[str, Any]]:
    return document["policy"]["document"]["gates"] if document["policy"] else []


def _outcomes(results: list[GateResult], document: dict[str, Any]) -> dict[tuple[str, str], str]:
    pairs = zip(results, _entries(document), strict=False)
    return {(result.gate, entry.get("suite", "")): str(result.outcome) for result, entry in pairs}


def _sign_box(
    candidate: Candidate,
    evidence: Evidence | None,
    document: dict[str, Any] | None,
    stale: bool,
    person: User,
) -> SignBox:
    if evidence is None or document is None:
        return SignBox(False, "Nothing is judged yet, so there is nothing to sign.", "", "", [])
    rule = gating.approval_rule(document)
    missing, signed_by = counted(document, selectors.standing_approvals(candidate), evidence.digest)
    needed = needed_by(rule)
    has = sum(needed.values()) - sum(missing.values())
    reason = _why_not(candidate, document, rule, stale, person, person.get_username() in signed_by)
    baseline = [m for m in Meaning if (m == Meaning.ADOPTS_BASELINE) is candidate.baseline]
    meanings = [(str(meaning), str(meaning.label)) for meaning in baseline]
    ended = candidate.state in (CandidateState.REJECTED, CandidateState.WITHDRAWN)
    said = "" if ended else f"needs {people_of(needed)}; has {has}"
    return SignBox(not reason, reason, said, candidate.state, meanings)


def _why_not(
    candidate: Candidate,
    document: dict[str, Any],
    rule: dict[str, Any],
    stale: bool,
    person: User,
    signed: bool,
) -> str:
    if candidate.state != CandidateState.IN_REVIEW:
        return f"The candidate is {candidate.state.replace('_', ' ')}; only a candidate in review is signed."
    try:
        permissions.require_can_sign(
            person,
            involved=gating.involved_people(document),
            separated=rule["separation_of_duties"],
            groups=[part["group"] for part in rule["approvers"]],
        )
    except NotAllowed as error:
        return error.message
    if stale:
        return (
            "The evidence changed since it was judged. Once it is judged again, read what came out and sign."
        )
    if signed:
        return "You have signed this evidence."
    return ""


def _may(candidate: Candidate, person: User) -> dict[str, bool]:
    """Which actions the page offers: by role, and by the state in which the service would take them."""
    state = candidate.state
    return {
        "evaluate": not candidate.baseline
        and state in ("built", "blocked", "in_review")
        and allowed(permissions.require_can_evaluate, person),
        "retry_build": state == "build_failed" and allowed(permissions.require_can_retry, person),
        "retry_publish": state == "publish_failed" and allowed(permissions.require_can_retry, person),
        "judge": state in JUDGED and allowed(permissions.require_can_judge, person),
        "withdraw": state not in (*ENDED, "publishing")
        and allowed(permissions.require_can_withdraw, person, candidate.submitted_by_id),
    }


def allowed(require: Any, *arguments: Any) -> bool:
    try:
        require(*arguments)
    except NotAllowed:
        return False
    return True
