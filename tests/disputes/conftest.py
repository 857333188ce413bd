"""A candidate and a champion whose answers were captured, so that they can be scored again."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from django.utils import timezone

from promotion.models import Candidate, Dispute
from promotion.services import disputes, gating
from rollouts.hashing import sha256_bytes
from rollouts.models import (
    CallState,
    Case,
    Claim,
    EvalRun,
    Invocation,
    InvocationState,
    ModelCall,
    Payload,
    Rollout,
)
from rollouts.services import rescoring, runs
from tests import factories
from tests.engine.scripted import completion
from tests.factories import House, digest_of

# what the scripted champions and candidates answer where their answer is wrong by the sealed case
NO_TOOL = {"decision": "no_tool"}
REASON = "The request names no file, so no call can be right."
RESOLUTION = "Read the request again: it names no file."


def capture(run: EvalRun) -> None:
    """The calls behind the answers that a run was given, as the recorder leaves them."""
    now = timezone.now()
    claim = Claim.objects.create(run=run, worker="w:1", created_at=now, lease_expires_at=now, ended_at=now)
    for rollout in Rollout.objects.filter(run=run, answer__isnull=False):
        invocation = Invocation.objects.create(
            rollout=rollout, claim=claim, state=InvocationState.FINISHED, started_at=now, finished_at=now
        )
        ModelCall.objects.create(
            invocation=invocation,
            attempt=1,
            dialect="openai.chat",
            state=CallState.ANSWERED,
            status=200,
            request=payload(b"{}"),
            response=payload(completion(rollout.answer)),
            latency_ms=12.5,
            created_at=now,
            finished_at=now,
        )
        rollout.answered_by, rollout.finish_reason = invocation, "stop"
        rollout.save(update_fields=["answered_by", "finish_reason"])
    # a fabricated score lacks what the scorer says beside the metrics
    answered = run.rollouts.filter(answered_by__isnull=False).values_list("pk", flat=True)
    rescoring.write(rescoring.score_again(runs.asker_of(run), answered))


def payload(body: bytes) -> Payload:
    values = {"size_bytes": len(body), "data": zlib.compress(body)}
    return Payload.objects.get_or_create(sha256=sha256_bytes(body), defaults=values)[0]


@pytest.fixture
def house() -> House:
    return factories.house(calls=8, declines=2, champion=True)


@pytest.fixture
def candidate(house: House) -> Candidate:
    return measured(house)


def measured(house: House, name: str = "cand", *, wrong: tuple[str, ...] = ("named-call-0",)) -> Candidate:
    """In review. It answered `wrong` cases with NO_TOOL; the champion's answers are all right by the sealed cases."""
    made = house.candidate(name)
    for run in gating.start_evaluation(candidate_id=made.pk, backend=house.backend, by=house.engineer):
        outcomes = dict.fromkeys(wrong, "wrong") if run.label == name else {}
        factories.finish_run(run, outcomes)
        capture(run)
    gating.judge_if_measured(made.pk)
    made.refresh_from_db()
    return made


def case_of(house: House, key: str = "named-call-0") -> Case:
    return Case.objects.select_related("suite").get(suite=house.suite, key=key)


def run_of(label: str) -> EvalRun:
    return EvalRun.objects.filter(label=label).latest("id")


def rollout_of(label: str, key: str = "named-call-0") -> Rollout:
    return run_of(label).rollouts.get(case__key=key)


def raised(house: House, candidate: Candidate, key: str = "named-call-0", **words: Any) -> Dispute:
    values = {
        "candidate_id": candidate.pk,
        "case_id": case_of(house, key).pk,
        "evidence_digest": digest_of(candidate),
        "expected": NO_TOOL,
        "reason": REASON,
        "by": house.engineer,
    }
    return disputes.raise_dispute(**{**values, **words})


def accepted(house: House, candidate: Candidate, key: str = "named-call-0", **words: Any) -> Dispute:
    dispute = raised(house, candidate, key, **words)
    return disputes.accept(dispute_id=dispute.pk, by=house.approver, resolution=RESOLUTION)
