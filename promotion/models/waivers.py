"""Waivers: two persons let one unmet gate be, for a time."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from rollouts.models.visibility import SeenByReaders


class Waiver(models.Model):
    """For one gate of one candidate's measurements. Granted by a second person; void when anything measured changes."""

    candidate = models.ForeignKey("promotion.Candidate", models.PROTECT, related_name="waivers")
    gate = models.CharField(max_length=60)
    suite_digest = models.CharField(max_length=64, blank=True)  # "" where the gate names no suite
    measurement_digest = models.CharField(max_length=64)
    reason = models.TextField()
    requested_by = models.ForeignKey("auth.User", models.PROTECT, related_name="+")
    requested_at = models.DateTimeField()
    granted_by = models.ForeignKey("auth.User", models.PROTECT, null=True, related_name="+")
    granted_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)  # refused or withdrawn
    ended_by = models.ForeignKey("auth.User", models.PROTECT, null=True, related_name="+")

    seen_with = "candidate__track"
    objects = SeenByReaders.as_manager()

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(
                fields=["candidate", "gate", "suite_digest", "measurement_digest"],
                condition=Q(ended_at__isnull=True),
                name="waiver_one_open_per_gate",
            ),
            models.CheckConstraint(
                condition=Q(granted_by__isnull=True, granted_at__isnull=True)
                | (Q(granted_by__isnull=False, granted_at__isnull=False) & ~Q(granted_by=F("requested_by"))),
                name="waiver_granted_by_another_person",
            ),
            models.CheckConstraint(condition=~Q(reason=""), name="waiver_has_reason"),
        ]

    def __str__(self) -> str:
        return f"waiver of {self.gate}"
