"""Versioned policies."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from rollouts.models.visibility import SeenByReaders


class Policy(models.Model):
    """One version of a track's rules. The document is canonical JSON; once locked nothing in it changes."""

    track = models.ForeignKey("promotion.Track", models.PROTECT, related_name="policies")
    version = models.PositiveIntegerField()
    document = models.JSONField()
    digest = models.CharField(max_length=64)
    created_at = models.DateTimeField()
    created_by = models.ForeignKey("auth.User", models.PROTECT, null=True, related_name="+")
    locked_at = models.DateTimeField(null=True)
    locked_by = models.ForeignKey("auth.User", models.PROTECT, null=True, related_name="+")

    seen_with = "track"
    audited = True
    objects = SeenByReaders.as_manager()

    class Meta:
        ordering = ["track", "-version"]
        constraints = [
            models.UniqueConstraint(fields=["track", "version"], name="policy_one_version"),
            models.UniqueConstraint(
                fields=["track"], condition=Q(locked_at__isnull=True), name="policy_one_draft_per_track"
            ),
            models.CheckConstraint(
                condition=Q(locked_at__isnull=True, locked_by__isnull=True)
                | Q(locked_at__isnull=False, locked_by__isnull=False),
                name="policy_lock_has_a_person",
            ),
        ]

    def __str__(self) -> str:
        return f"policy {self.version} of {self.track}"
