"""Where models answer."""

from __future__ import annotations

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q


class Backend(models.Model):
    """One immutable revision of a backend. A change makes a new revision; the newest one is in use."""

    name = models.SlugField(max_length=100)
    revision = models.PositiveIntegerField()
    kind = models.CharField(max_length=40)
    config = models.JSONField()
    digest = models.CharField(max_length=64)
    key_env = models.CharField(max_length=100, blank=True)  # the variable's name, never the key
    concurrency = models.PositiveIntegerField(validators=[MinValueValidator(1)])
    timeout_s = models.PositiveIntegerField()
    max_attempts = models.PositiveSmallIntegerField()
    requests_per_minute = models.PositiveIntegerField(null=True)  # null: no limit of ours
    # micro-dollars per million tokens: integers, so that sums are exact; null means unknown, not free
    prompt_price = models.PositiveBigIntegerField(null=True)
    completion_price = models.PositiveBigIntegerField(null=True)
    created_at = models.DateTimeField()
    created_by = models.ForeignKey("auth.User", models.PROTECT, null=True, related_name="+")

    class Meta:
        ordering = ["name", "-revision"]
        constraints = [
            models.UniqueConstraint(fields=["name", "revision"], name="backend_one_revision"),
            models.CheckConstraint(
                condition=Q(concurrency__gte=1, max_attempts__gte=1, timeout_s__gte=1, revision__gte=1),
                name="backend_limits_gte_1",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} revision {self.revision}"


class Pace(models.Model):
    """When the next request to a backend may be sent, over all workers; one row for all revisions of a name."""

    backend_name = models.SlugField(max_length=100, unique=True)
    next_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.backend_name
