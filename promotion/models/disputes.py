"""Disputed scores."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from rollouts.models.visibility import SeenByReaders


class DisputeState(models.TextChoices):
    OPEN = "open"
    ACCEPTED = "accepted"
    DECLINED = "declined"
    WITHDRAWN = "withdrawn"


class Dispute(models.Model):
    """Somebody says that a case expects the wrong thing. A second person decides; accepted, every run is scored by it."""

    candidate = models.ForeignKey("promotion.Candidate", models.PROTECT, related_name="disputes")
    case = models.ForeignKey("rollouts.Case", models.PROTECT, related_name="+")
    evidence_digest = models.CharField(max_length=64)  # on which it was raised
    expected_before = models.JSONField()
    expected_after = models.JSONField()
    reason = models.TextField()
    state = models.CharField(max_length=10, choices=DisputeState, default=DisputeState.OPEN)
    raised_by = models.ForeignKey("auth.User", models.PROTECT, related_name="+")
    raised_at = models.DateTimeField()
    resolved_by = models.ForeignKey("auth.User", models.PROTECT, null=True, related_name="+")
    resolved_at = models.DateTimeField(null=True)
    resolution = models.TextField(blank=True)

    seen_with = "candidate__track"
    objects = SeenByReaders.as_manager()

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(
                fields=["case"], condition=Q(state="open"), name="dispute_one_open_a_case"
            ),
            models.CheckConstraint(condition=Q(state__in=DisputeState.values), name="dispute_known_state"),
            models.CheckConstraint(
                condition=Q(state="open", resolved_by__isnull=True, resolved_at__isnull=True)
                | (~Q(state="open") & Q(resolved_by__isnull=False, resolved_at__isnull=False)),
                name="dispute_resolved_iff_not_open",
            ),
            models.CheckConstraint(
                condition=~Q(state__in=["accepted", "declined"]) | ~Q(resolved_by=F("raised_by")),
                name="dispute_decided_by_another_person",
            ),
            models.CheckConstraint(condition=~Q(reason=""), name="dispute_has_reason"),
        ]

    def __str__(self) -> str:
        return f"dispute {self.pk}"
