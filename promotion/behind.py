"""The candidates to which an eval run belongs. A run knows nothing of them: it tests a model, and who asks for it is for governance."""

from __future__ import annotations

from typing import NamedTuple

from django.db.models import QuerySet

from promotion.models import Candidate
from rollouts.models import Comparison, EvalRun
from rollouts.roles import Person

SHOWN = 5


class Behind(NamedTuple):
    """The newest first; `more` where some are left out."""

    measured: list[Candidate]
    beside: list[Candidate]
    more: bool


def behind(run: EvalRun, person: Person) -> Behind:
    """Candidates that the person may see: whose model the run measured, and who are compared with it. Two queries at most."""
    if run.subject.adapter_id is None:
        return Behind([], [], False)
    measured = list(_of(person).filter(**_model(run))[: SHOWN + 1])
    beside = list(_beside(run, person)[: SHOWN + 1])
    return Behind(measured[:SHOWN], beside[:SHOWN], max(len(measured), len(beside)) > SHOWN)


def _of(person: Person) -> QuerySet[Candidate]:
    return Candidate.objects.visible_to(person).select_related("track").order_by("-pk")


def _model(run: EvalRun) -> dict[str, object]:
    subject = run.subject
    return {
        "gguf": subject.adapter_id,
        "base": subject.base_id,
        "adapter_source_sha256": subject.adapter_source_sha256,
    }


def _beside(run: EvalRun, person: Person) -> QuerySet[Candidate]:
    """Of the tracks that have the run's model, those whose own run stands beside this one."""
    compared = Comparison.objects.filter(other=run).values("run__subject__adapter")
    tracks = Candidate.objects.filter(**_model(run)).values("track")
    return _of(person).filter(gguf__in=compared, track__in=tracks)
