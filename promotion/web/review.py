"""Puts together what the review page shows of a candidate. Reads only: a GET judges and writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from django.contrib.auth.models import User

from promotion import evidence as evidence_module
from promotion import permissions, selectors
from promotion.gates import GATES
from promotion.models import Approval, Candidate, CandidateState, Evidence, Meaning
from promotion.services import gating
from promotion.web import families
from promotion.web.cases import CaseSection, case_section
from rollouts.errors import NotAllowed
from rollouts.models import AuditEvent, EvalRun
from rollouts.selectors import Pair, cases_not_right, events_of

UNMET = ("failed", "error", "not_evaluated")
JUDGED = (CandidateState.BLOCKED, CandidateState.IN_REVIEW)
ENDED = (CandidateState.PROMOTED, CandidateState.REJECTED, CandidateState.WITHDRAWN)
HISTORY = 12
SIGNATURES = 50
NONE = "–"


@dataclass(frozen=True, slots=True)
class GateRow:
    """One policy entry: what was measured, what it must reach, what came out."""

    gate: str
    summary: str
    suite: str
    outcome: str
    reason: str
    measured: str
    bound: str
    needs: str
    n: int | None
    masked: int | None
    spare: int | None  # right answers above what the gate needs

    @property
    def unmet(self) -> bool:
        return self.outcome in UNMET

    @property
    def is_signature(self) -> bool:
        return self.gate == gating.APPROVAL_GATE

    @property
    def room(self) -> float:
        """Right answers to spare, as a share of n."""
        return self.spare / self.n if self.spare is not None and self.n else 1.0

    @property
    def look(self) -> str:
        return {"failed": "fail", "error": "fail", "not_evaluated": "unsure", "waits": "unsure"}.get(
            self.outcome, ""
        )


@dataclass(frozen=True, slots=True)
class SignBox:
    """Whether this person may sign what is shown, and if not, why."""

    allowed: bool
    reason: str
    rule: str
    state: str
    meanings: list[tuple[str, str]]
    mine: Approval | None


@dataclass(frozen=True, slots=True)
class Review:
    candidate: Candidate
    evidence: Evidence | None
    document: dict[str, Any] | None
    stale: bool
    gates: list[GateRow]
    table: families.Table | None
    cases: CaseSection | None
    runs: list[EvalRun]
    approvals: list[Approval]
    sign: SignBox
    history: list[AuditEvent]
    may: dict[str, bool]

    @property
    def looks(self) -> list[str]:
        """How often results on each sealed suite were seen, this candidate's included."""
        parts = self.document["suites"] if self.document else []
        return [f"look {part['candidate']['look']} on {part['name']}" for part in parts if part["candidate"]]

    @property
    def unmet(self) -> list[GateRow]:
        return [row for row in self.gates if row.unmet]

    @property
    def shown_gates(self) -> list[GateRow]:
        """What is unmet, then what waits, then what was measured, with the least to spare first."""
        shown = [row for row in self.gates if row.unmet or row.is_signature or row.bound != NONE]
        return sorted(shown, key=lambda row: (not row.unmet, row.outcome != "waits", row.room))

    @property
    def quiet_gates(self) -> list[GateRow]:
        """Passing gates without a number to weigh: the bytes and suites are what they are said to be."""
        shown = self.shown_gates
        return [row for row in self.gates if row not in shown]

    @property
    def met(self) -> int:
        return sum(not row.unmet and row.outcome != "waits" for row in self.gates)

    @property
    def judged(self) -> int:
        """Gates that measure something: all but the signatures."""
        return sum(not row.is_signature for row in self.gates)

    @property
    def closest(self) -> GateRow | None:
        """The passing gate with the fewest right answers to spare."""
        passing = [row for row in self.gates if row.spare is not None and not row.unmet]
        return min(passing, key=lambda row: row.spare or 0, default=None)

    @property
    def look(self) -> str:
        if self.candidate.state in ("promoted", "approved", "publishing"):
            return "pass"
        failed = self.unmet or self.candidate.state in ("build_failed", "publish_failed", "rejected")
        return "fail" if failed else "unsure"


def review(candidate: Candidate, person: User, params: dict[str, str]) -> Review:
    """`params` are the page's own: which cases, from where on."""
    evidence = selectors.latest_evidence(candidate)
    document = evidence_module.document_of(evidence) if evidence else None
    approvals = list(selectors.approvals_of(candidate)[:SIGNATURES])
    stale = is_stale(candidate, evidence)
    runs = _runs(document)
    pairs = _pairs(document, runs)
    turns = cases_not_right(pairs)
    suite_ids = {run.suite.digest: run.suite_id for run in runs}
    return Review(
        candidate=candidate,
        evidence=evidence,
        document=document,
        stale=stale,
        gates=_gate_rows(candidate, evidence, document) if evidence and document else [],
        table=families.table(document, _outcomes(evidence, document), turns, suite_ids) if document else None,
        cases=case_section(pairs, turns, params),
        runs=runs,
        approvals=approvals,
        sign=_sign_box(candidate, evidence, document, stale, approvals, person),
        history=list(events_of("promotion.Candidate", candidate.pk)[:HISTORY]),
        may=_may(candidate, person),
    )


def is_stale(candidate: Candidate, evidence: Evidence | None) -> bool:
    """Whether the evidence would be another if it were frozen now. Only asked where somebody acts on it."""
    if evidence is None or candidate.state not in JUDGED:
        return False
    return evidence_module.build(candidate).digest != evidence.digest


def _runs(document: dict[str, Any] | None) -> list[EvalRun]:
    if document is None:
        return []
    uids = [part[who]["run"] for part in document["suites"] for who in ("candidate", "champion") if part[who]]
    return list(
        EvalRun.objects.filter(uid__in=uids).select_related("suite", "created_by", "backend").order_by("id")
    )


def _pairs(document: dict[str, Any] | None, runs: list[EvalRun]) -> list[Pair]:
    if document is None or document["policy"] is None:
        return []
    ids = {str(run.uid): run.pk for run in runs}
    return [
        Pair(
            candidate=ids[part["candidate"]["run"]],
            champion=ids.get(part["champion"]["run"]) if part["champion"] else None,
            metric=families.rule_of(document["policy"]["document"], part["digest"]).metric,
        )
        for part in document["suites"]
        if part["candidate"] and part["candidate"]["run"] in ids
    ]


def _gate_rows(candidate: Candidate, evidence: Evidence, document: dict[str, Any]) -> list[GateRow]:
    """Unmet gates first; else in the policy's order. The signatures are judged as they stand now."""
    entries = _entries(document)
    names = {part["digest"]: part["name"] for part in document["suites"]}
    rows = [
        _gate_row(
            result.gate, result.outcome, result.reason, result.numbers, names.get(entry.get("suite"), "")
        )
        for result, entry in zip(evidence.gate_results.all(), entries, strict=False)
        if result.gate != gating.APPROVAL_GATE
    ]
    rows.append(_approval_row(candidate, evidence))
    return sorted(rows, key=lambda row: (not row.unmet, row.outcome == "not_evaluated"))


def _approval_row(candidate: Candidate, evidence: Evidence) -> GateRow:
    if candidate.state == CandidateState.PROMOTED:
        # as it stood at promotion: signatures that expired since do not unsign what has shipped
        kept = candidate.entry.record["gates"][-1]
        return _gate_row(kept["gate"], kept["outcome"], kept["reason"], {}, "")
    found = gating.approvals_outcome(candidate, evidence)
    outcome = "passed" if found.outcome == "passed" else "waits"
    return _gate_row(gating.APPROVAL_GATE, outcome, found.reason, dict(found.numbers), "")


def _entries(document: dict[str, Any]) -> list[dict[str, Any]]:
    return document["policy"]["document"]["gates"] if document["policy"] else []


def _outcomes(evidence: Evidence | None, document: dict[str, Any]) -> dict[tuple[str, str], str]:
    results = evidence.gate_results.all() if evidence else []
    pairs = zip(results, _entries(document), strict=False)
    return {(result.gate, entry.get("suite", "")): result.outcome for result, entry in pairs}


def _gate_row(gate: str, outcome: str, reason: str, numbers: dict[str, Any], suite: str) -> GateRow:
    return GateRow(
        gate=gate,
        summary=GATES[gate].summary.replace("`", "") if gate in GATES else "",
        suite=suite,
        outcome=outcome,
        reason=reason,
        measured=str(numbers.get("measured", NONE)),
        bound=shown_bound(numbers.get("bound")),
        needs=str(numbers.get("needs", NONE)).replace("<=", "≤").replace(">=", "≥"),
        n=numbers.get("n"),
        masked=numbers.get("masked"),
        spare=_spare(numbers),
    )


def shown_bound(value: str | None) -> str:
    """Four digits, rounded to the side that is worse for the candidate: a lower bound down, a drop up."""
    if not value:
        return NONE
    worse = ROUND_CEILING if value[0] in "+-" else ROUND_FLOOR
    return f"{Decimal(value).quantize(Decimal('0.0001'), rounding=worse):{'+' if value[0] in '+-' else ''}}"


def _spare(numbers: dict[str, Any]) -> int | None:
    measured, meets = numbers.get("measured"), numbers.get("meets_with")
    if not measured or not meets or "/" not in str(measured):
        return None
    return int(str(measured).split("/")[0]) - int(str(meets).split("/")[0])


def _sign_box(
    candidate: Candidate,
    evidence: Evidence | None,
    document: dict[str, Any] | None,
    stale: bool,
    approvals: list[Approval],
    person: User,
) -> SignBox:
    if evidence is None or document is None:
        return SignBox(False, "Nothing is judged yet, so there is nothing to sign.", "", "", [], None)
    rule = gating.approval_rule(document)
    needed = ", ".join(
        f"{part['count']} {part['group']}{'s' if part['count'] > 1 else ''}" for part in rule["approvers"]
    )
    mine = next(
        (a for a in approvals if a.approver_id == person.pk and a.evidence_digest == evidence.digest), None
    )
    has = sum(a.evidence_digest == evidence.digest and a.decision == "approve" for a in approvals)
    reason = _why_not(candidate, document, rule, stale, mine, person)
    baseline = [m for m in Meaning if (m == Meaning.ADOPTS_BASELINE) is candidate.baseline]
    meanings = [(str(meaning), str(meaning.label)) for meaning in baseline]
    return SignBox(not reason, reason, f"needs {needed}; has {has}", candidate.state, meanings, mine)


def _why_not(
    candidate: Candidate,
    document: dict[str, Any],
    rule: dict[str, Any],
    stale: bool,
    mine: Approval | None,
    person: User,
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
    if mine is not None and mine.withdrawn_at is None:
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
