"""Threads about a row of the evidence: started, answered, resolved, opened again. An unresolved one blocks approval."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from promotion import anchors, permissions, selectors
from promotion import evidence as evidence_module
from promotion.models import Candidate, CandidateState, Comment, Thread
from promotion.services import gating
from rollouts import audit
from rollouts.errors import Conflict, InvalidInput, NotFound

MAX_TEXT = 4000
ENDED = (CandidateState.PROMOTED, CandidateState.REJECTED, CandidateState.WITHDRAWN)


def start(*, candidate_id: int, anchor: str, text: str, by: User) -> Thread:
    """Ask about a row of the newest evidence. Under the candidate's lock: nobody approves past it unseen."""
    permissions.require_can_comment(by)
    text = _said(text)
    with transaction.atomic():
        candidate = _locked(candidate_id, by)
        evidence = selectors.latest_evidence(candidate)
        if evidence is None:
            raise Conflict(f"Nothing is judged of {candidate} yet, so there is nothing to comment on.")
        document = evidence_module.document_of(evidence)
        row = anchors.rows_of(evidence, document, [anchor]).get(anchor)
        if row is None:
            raise InvalidInput("anchor", "must name a row of the present evidence. Load the page again.")
        now = timezone.now()
        thread = Thread.objects.create(
            candidate=candidate,
            anchor=anchor,
            anchor_label=row.label,
            anchor_digest=row.digest,
            evidence_digest=evidence.digest,
            started_by=by,
            started_at=now,
        )
        Comment.objects.create(thread=thread, text=text, written_by=by, written_at=now)
        audit.record(
            "candidate.thread_started",
            subject=candidate,
            actor=by,
            thread=thread.pk,
            anchor=anchor,
            evidence=evidence.digest,
            text=text,
        )
    return thread


def reply(*, candidate_id: int, thread_id: int, text: str, by: User) -> Comment:
    permissions.require_can_comment(by)
    text = _said(text)
    with transaction.atomic():
        candidate, thread = _thread(candidate_id, thread_id, by)
        comment = Comment.objects.create(thread=thread, text=text, written_by=by, written_at=timezone.now())
        audit.record(
            "candidate.thread_answered", subject=candidate, actor=by, thread=thread.pk, text=comment.text
        )
    return comment


def resolve(*, candidate_id: int, thread_id: int, by: User) -> Thread:
    with transaction.atomic():
        candidate, thread = _thread(candidate_id, thread_id, by)
        permissions.require_can_resolve_thread(
            by, started_by_id=thread.started_by_id, submitted_by_id=candidate.submitted_by_id
        )
        if thread.resolved_at is not None:
            raise Conflict("The thread is resolved already.")
        thread.resolved_by, thread.resolved_at = by, timezone.now()
        thread.save(update_fields=["resolved_by", "resolved_at"])
        audit.record("candidate.thread_resolved", subject=candidate, actor=by, thread=thread.pk)
    return thread


def reopen(*, candidate_id: int, thread_id: int, by: User) -> Thread:
    permissions.require_can_comment(by)
    with transaction.atomic():
        candidate, thread = _thread(candidate_id, thread_id, by)
        if thread.resolved_at is None:
            raise Conflict("The thread is not resolved.")
        thread.resolved_by, thread.resolved_at = None, None
        thread.save(update_fields=["resolved_by", "resolved_at"])
        audit.record("candidate.thread_reopened", subject=candidate, actor=by, thread=thread.pk)
    return thread


def _said(text: str) -> str:
    said = text.replace("\r\n", "\n").strip()
    if not 1 <= len(said) <= MAX_TEXT:
        raise InvalidInput("text", f"must be 1 to {MAX_TEXT} characters.")
    return said


def _locked(candidate_id: int, by: User) -> Candidate:
    selectors.candidate_by_id(candidate_id, by)
    candidate = gating.locked_candidate(candidate_id)
    if candidate.state in ENDED:
        raise Conflict(f"{candidate} is {candidate.state}: nothing about it is discussed any more.")
    return candidate


def _thread(candidate_id: int, thread_id: int, by: User) -> tuple[Candidate, Thread]:
    candidate = _locked(candidate_id, by)
    thread = Thread.objects.filter(candidate=candidate, pk=thread_id).first()
    if thread is None:
        raise NotFound("There is no such thread.")
    return candidate, thread
