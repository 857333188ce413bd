"""Bytes by content, base models and subjects."""

from __future__ import annotations

from django.db import models
from django.db.models import Q


class Artifact(models.Model):
    """A file in the content-addressed store (`rollouts.store`), known by its digest."""

    sha256 = models.CharField(max_length=64, primary_key=True)
    size_bytes = models.PositiveBigIntegerField()
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.sha256[:12]


class Payload(models.Model):
    """A request or response body, compressed; equal bytes are stored once."""

    sha256 = models.CharField(max_length=64, primary_key=True)
    size_bytes = models.PositiveIntegerField()
    data = models.BinaryField()  # zlib


class BaseModel(models.Model):
    """A registered GGUF that adapters are for. `header` is what `promotion.export` read from it."""

    name = models.SlugField(max_length=100, unique=True)
    artifact = models.ForeignKey(Artifact, models.PROTECT, related_name="+")
    architecture = models.CharField(max_length=40)
    header = models.JSONField()
    chat_template_sha256 = models.CharField(max_length=64)
    created_at = models.DateTimeField()
    created_by = models.ForeignKey("auth.User", models.PROTECT, null=True, related_name="+")

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["artifact"], name="basemodel_one_per_file")]

    def __str__(self) -> str:
        return self.name


class Subject(models.Model):
    """What an eval run tests. The digest covers base, adapter source, built GGUF, chat template and sampling.

    A remote model has no base here: then `remote_model` names it and nothing proves which bytes answer.
    """

    digest = models.CharField(max_length=64, unique=True)
    base = models.ForeignKey(BaseModel, models.PROTECT, null=True, related_name="subjects")
    adapter = models.ForeignKey(Artifact, models.PROTECT, null=True, related_name="+")
    adapter_source_sha256 = models.CharField(max_length=64, blank=True)
    remote_model = models.CharField(max_length=200, blank=True)
    sampling = models.JSONField()
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(base__isnull=False, remote_model="")
                | (Q(base__isnull=True) & ~Q(remote_model="")),
                name="subject_is_base_or_remote",
            ),
            models.CheckConstraint(
                condition=Q(adapter__isnull=True) | Q(base__isnull=False), name="subject_adapter_needs_base"
            ),
        ]

    def __str__(self) -> str:
        return self.digest[:12]
