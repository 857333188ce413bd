"""Sealed sets of cases."""

from __future__ import annotations

from django.db import models
from django.db.models import Q


class Suite(models.Model):
    """A sealed, hashed, versioned set of cases. Its digest covers every case; nothing in it changes later."""

    name = models.SlugField(max_length=100)
    version = models.PositiveIntegerField()
    digest = models.CharField(max_length=64, unique=True)
    scorer = models.CharField(max_length=40)
    case_count = models.PositiveIntegerField()
    schema_sha256 = models.CharField(
        max_length=64, blank=True
    )  # of the tools shown; "" where cases show none
    # which single feature of the prompts says most of the label (rollouts.leakage); null: not looked for
    leak = models.JSONField(null=True)
    source = models.CharField(max_length=200, blank=True)
    sealed_at = models.DateTimeField()
    sealed_by = models.ForeignKey("auth.User", models.PROTECT, null=True, related_name="+")

    class Meta:
        ordering = ["name", "-version"]
        constraints = [
            models.UniqueConstraint(fields=["name", "version"], name="suite_one_version"),
            models.CheckConstraint(condition=Q(case_count__gte=1), name="suite_has_cases"),
        ]

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"


class Case(models.Model):
    """One task of a suite. `content` is the canonical content that shapes both prompt and scoring."""

    suite = models.ForeignKey(Suite, models.PROTECT, related_name="cases")
    position = models.PositiveIntegerField()
    key = models.CharField(max_length=200)
    family = models.CharField(max_length=100)
    group = models.CharField(max_length=200, blank=True)
    content = models.JSONField()
    # what is expected since an accepted dispute, in place of content["expected"]; null: as it was sealed
    amended_expected = models.JSONField(null=True)
    # whether a call is right: `tool` applies only then, `safe` only otherwise
    expects_call = models.BooleanField()
    digest = models.CharField(max_length=64)
    # of what the model is shown: cases with the same prompt are one observation; "" for suites sealed before it was kept
    prompt_sha256 = models.CharField(max_length=64, blank=True)

    class Meta:
        ordering = ["suite", "position"]
        constraints = [
            models.UniqueConstraint(fields=["suite", "key"], name="case_one_key"),
            models.UniqueConstraint(fields=["suite", "position"], name="case_one_position"),
        ]

    def __str__(self) -> str:
        return self.key


class Look(models.Model):
    """The n-th time that results on a sealed suite were seen: once per subject, when its run closes."""

    suite = models.ForeignKey(Suite, models.PROTECT, related_name="looks")
    subject = models.ForeignKey("rollouts.Subject", models.PROTECT, related_name="looks")
    number = models.PositiveIntegerField()
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["suite", "subject"], name="look_once_per_subject"),
            models.UniqueConstraint(fields=["suite", "number"], name="look_one_number"),
        ]
