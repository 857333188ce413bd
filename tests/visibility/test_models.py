"""Whatever hangs on a track or on an eval run is seen by its readers: no model is left out."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.db import models, transaction

from promotion.models import CandidateDataset, Comment, GateResult, Track
from rollouts import audit
from rollouts.models import AmendedScore, Claim, ComparedCase, Comparison, EvalRun, Invocation
from rollouts.models.visibility import SeenByReaders
from tests.visibility.conftest import Hidden

# read only along with what has readers, never looked up by themselves
PARTS = {AmendedScore, CandidateDataset, Claim, Comment, ComparedCase, Comparison, GateResult, Invocation}


def test_every_model_that_hangs_on_a_track_or_a_run_is_seen_by_its_readers() -> None:
    hanging: set[type[models.Model]] = {Track, EvalRun}
    before: set[type[models.Model]] = set()
    while hanging != before:
        before = set(hanging)
        hanging |= {model for model in _ours() if before & _needed_by(model)}
    unseen = {model for model in hanging if not isinstance(model._default_manager.all(), SeenByReaders)}
    assert unseen == PARTS


@pytest.mark.django_db
def test_what_is_no_subject_of_the_audit_history_cannot_become_one_unnoticed(hidden: Hidden) -> None:
    with transaction.atomic(), pytest.raises(AssertionError, match="must be audited"):
        audit.record("run.scored", subject=hidden.rollout, actor="system:test")


def _ours() -> list[type[models.Model]]:
    return [model for model in apps.get_models() if model._meta.app_label in ("promotion", "rollouts")]


def _needed_by(model: type[models.Model]) -> set[type[models.Model]]:
    """What a row cannot be without."""
    fields = (field for field in model._meta.get_fields() if isinstance(field, models.ForeignKey))
    return {field.related_model for field in fields if not field.null}
