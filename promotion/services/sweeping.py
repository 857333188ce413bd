"""What lost messages left behind is sent for again."""

from __future__ import annotations

import logging
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import OuterRef, Q, Subquery
from django.utils import timezone

from promotion.models import Candidate, CandidateState, Evidence
from promotion.services import approvals, candidate_datasets, candidates, gating
from promotion.services.registry import PUBLISHING_FROM

log = logging.getLogger(__name__)


def sweep() -> None:
    """Send builds, comparisons and publications again, and judge candidates whose runs have all closed."""
    before = timezone.now() - timedelta(seconds=2 * settings.SWEEP_SECONDS)
    stale = Candidate.objects.filter(Q(last_sent_at__isnull=True) | Q(last_sent_at__lt=before))
    for candidate in stale.filter(state=CandidateState.SUBMITTED):
        with transaction.atomic():
            candidates.send_build(candidate)
    for candidate in stale.filter(state__in=PUBLISHING_FROM):
        with transaction.atomic():
            approvals.send_publish(candidate.pk)
    candidate_datasets.send_lost_comparisons()
    waiting = Q(state=CandidateState.EVALUATING) | Q(state=CandidateState.BUILT, baseline=True)
    for candidate_id in Candidate.objects.filter(waiting).values_list("pk", flat=True):
        try:
            gating.judge_if_measured(candidate_id)
        except Exception:  # one that cannot be judged must not keep the others waiting
            log.exception("judging candidate %s failed", candidate_id)
    _judge_what_an_earlier_release_judged()


def _judge_what_an_earlier_release_judged() -> None:
    """Its evidence has no frame, so that every look at it would count all rollouts anew."""
    newest = Evidence.objects.filter(candidate=OuterRef("pk")).order_by("-id")
    judged = Candidate.objects.filter(
        state__in=[CandidateState.BLOCKED, CandidateState.IN_REVIEW],
        pk__in=Evidence.objects.filter(basis_digest=None).values("candidate"),
    ).annotate(frame=Subquery(newest.values("basis_digest")[:1]))
    for candidate_id in judged.filter(frame=None).values_list("pk", flat=True):
        try:
            gating.judge_now(candidate_id)
        except Exception:  # as above
            log.exception("judging candidate %s failed", candidate_id)
