"""The submitter's own words on what remains risky. They stand in the evidence, so that new words need new signatures."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from promotion import comparing, panels, permissions, risk_summary, selectors
from promotion import evidence as evidence_module
from promotion.models import CandidateState, RiskSummary
from promotion.services import gating
from rollouts import audit
from rollouts.errors import Conflict, InvalidInput, StaleEvidence

MAX_CHARS = 1500
WRITTEN_IN = (CandidateState.BLOCKED, CandidateState.IN_REVIEW)


def write(*, candidate_id: int, text: str, digest: str, by: User) -> RiskSummary | None:
    """Say it anew and have the candidate judged with it. None, and nothing changes, where the words are the same.

    `digest` is the evidence that was shown. Raises `StaleEvidence` where it is another by now.
    """
    with transaction.atomic():
        candidate = selectors.candidate_by_id(candidate_id, by)
        permissions.require_can_summarise(by, candidate.submitted_by_id)
        text = _checked(text)
        candidate = gating.locked_candidate(candidate_id)
        evidence = selectors.latest_evidence(candidate)
        if evidence is None or candidate.state not in WRITTEN_IN:
            raise Conflict(
                f"{candidate} is {candidate.state.replace('_', ' ')}; its risk is summarised once it is judged, until "
                "it is approved."
            )
        if evidence.digest != digest:
            raise StaleEvidence(
                "The evidence changed since it was shown. Read it again before you summarise it.",
                shown=digest,
                current=evidence.digest,
            )
        newest = candidate.risk_summaries.first()
        document = evidence_module.document_of(evidence)
        turns = panels.safety_turns(comparing.comparisons_of(document))
        before = newest.text if newest else risk_summary.summary(document, turns)
        if text == before:
            return None
        written = RiskSummary.objects.create(
            candidate=candidate, text=text, written_by=by, written_at=timezone.now()
        )
        audit.record("candidate.summarised", subject=candidate, actor=by, text=text)
        gating.judge_now(candidate_id, by=by)
    return written


def _checked(text: str) -> str:
    said = text.replace("\r\n", "\n").strip()
    words = len(said.split())
    if not 1 <= len(said) <= MAX_CHARS:
        raise InvalidInput("text", f"must be 1 to {MAX_CHARS} characters.")
    if words > risk_summary.MOST_WORDS:
        raise InvalidInput("text", f"must be at most {risk_summary.MOST_WORDS} words; it has {words}.")
    return said
