"""The registry and its exports."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from rollouts.models.visibility import SeenByReaders


class RegistryEntry(models.Model):
    """An immutable, numbered model version."""

    track = models.ForeignKey("promotion.Track", models.PROTECT, related_name="entries")
    number = models.PositiveIntegerField()
    candidate = models.OneToOneField("promotion.Candidate", models.PROTECT, related_name="entry")
    gguf = models.ForeignKey("rollouts.Artifact", models.PROTECT, related_name="+")
    evidence = models.ForeignKey("promotion.Evidence", models.PROTECT, related_name="+")
    ungated = models.BooleanField(default=False)
    record = models.JSONField()  # digests, counts and signatures as they stood, with names copied
    created_at = models.DateTimeField()

    seen_with = "track"
    objects = SeenByReaders.as_manager()

    class Meta:
        ordering = ["track", "-number"]
        constraints = [
            models.UniqueConstraint(fields=["track", "number"], name="registryentry_one_number"),
            models.CheckConstraint(condition=Q(number__gte=1), name="registryentry_number_gte_1"),
        ]

    def __str__(self) -> str:
        return f"{self.track} v{self.number}"


class Export(models.Model):
    """A published file made from an entry. No row, no file to give out."""

    entry = models.ForeignKey(RegistryEntry, models.PROTECT, related_name="exports")
    name = models.CharField(max_length=200)
    kind = models.CharField(max_length=20, default="gguf")
    artifact = models.ForeignKey("rollouts.Artifact", models.PROTECT, related_name="+")
    manifest = models.JSONField()
    published_at = models.DateTimeField()

    seen_with = "entry__track"
    objects = SeenByReaders.as_manager()

    class Meta:
        ordering = ["entry", "id"]
        constraints = [models.UniqueConstraint(fields=["entry", "name"], name="export_one_name")]

    def __str__(self) -> str:
        return self.name
