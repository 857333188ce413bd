"""Training and evaluation data of candidates, and what they share with the suites that judge them."""

from __future__ import annotations

from django.db import models
from django.db.models import Q


class Dataset(models.Model):
    """One version of a JSONL file of chat rows, kept whole in the store. Counts are of the file as it was registered."""

    name = models.SlugField(max_length=100)
    version = models.PositiveIntegerField()
    artifact = models.ForeignKey("rollouts.Artifact", models.PROTECT, related_name="+")  # the bytes
    digest = models.CharField(max_length=64, unique=True)  # of the rows, whatever the line ends
    declared_sha256 = models.CharField(max_length=64, blank=True)  # of the bytes, as its sidecar says
    sidecar = models.JSONField(null=True)
    row_count = models.PositiveIntegerField()
    text_count = models.PositiveIntegerField()  # distinct texts, normalised
    without_id = models.PositiveIntegerField(default=0)
    repeated_ids = models.PositiveIntegerField(default=0)
    schema_sha256 = models.CharField(max_length=64, blank=True)  # of the tools shown; "" where rows show none
    source = models.CharField(max_length=200, blank=True)
    registered_at = models.DateTimeField()
    registered_by = models.ForeignKey("auth.User", models.PROTECT, null=True, related_name="+")

    class Meta:
        ordering = ["name", "-version"]
        constraints = [
            models.UniqueConstraint(fields=["name", "version"], name="dataset_one_version"),
        ]

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"


class Overlap(models.Model):
    """What a dataset shares with a suite, or with another dataset. Both are immutable, so it is found once."""

    dataset = models.ForeignKey(Dataset, models.PROTECT, related_name="overlaps")
    suite = models.ForeignKey("rollouts.Suite", models.PROTECT, null=True, related_name="+")
    other = models.ForeignKey(Dataset, models.PROTECT, null=True, related_name="+")
    report = models.JSONField()
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(suite__isnull=False, other__isnull=True)
                | Q(suite__isnull=True, other__isnull=False),
                name="overlap_with_one_thing",
            ),
            models.UniqueConstraint(
                fields=["dataset", "suite"], condition=Q(suite__isnull=False), name="overlap_once_per_suite"
            ),
            models.UniqueConstraint(
                fields=["dataset", "other"], condition=Q(other__isnull=False), name="overlap_once_per_dataset"
            ),
        ]
