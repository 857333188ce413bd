"""Frozen evidence and what the gates said of it."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from rollouts.models.visibility import SeenByReaders


class Evidence(models.Model):
    """One canonical document of a candidate's state. `document` holds the bytes that were hashed; never changed."""

    candidate = models.ForeignKey("promotion.Candidate", models.PROTECT, related_name="evidence")
    policy = models.ForeignKey("promotion.Policy", models.PROTECT, null=True, related_name="+")
    digest = models.CharField(max_length=64, unique=True)
    document = models.BinaryField()
    # of what the document was counted from, without the counting (promotion.evidence.basis); null: frozen before it was kept
    basis_digest = models.CharField(max_length=64, null=True)  # noqa: DJ001
    created_at = models.DateTimeField()

    seen_with = "candidate__track"
    objects = SeenByReaders.as_manager()

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return self.digest[:8]


class GateResult(models.Model):
    """What one policy entry said of one evidence. Computed again it is the same: gates are pure."""

    evidence = models.ForeignKey(Evidence, models.PROTECT, related_name="gate_results")
    position = models.PositiveSmallIntegerField()
    gate = models.CharField(max_length=60)
    outcome = models.CharField(max_length=16)
    reason = models.TextField()
    numbers = models.JSONField()

    class Meta:
        ordering = ["evidence", "position"]
        constraints = [
            models.UniqueConstraint(fields=["evidence", "position"], name="gateresult_one_position"),
            models.CheckConstraint(
                condition=Q(outcome__in=["passed", "failed", "not_evaluated", "waived", "error"]),
                name="gateresult_known_outcome",
            ),
        ]
