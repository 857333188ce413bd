"""What a request with an `Idempotency-Key` was answered."""

from __future__ import annotations

from django.db import models


class IdempotencyRecord(models.Model):
    """Written in the transaction of the request's effect, so that it exists exactly if the effect does."""

    user = models.ForeignKey("auth.User", models.CASCADE, related_name="+")
    key = models.CharField(max_length=200)
    request_digest = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField(default=0)
    headers = models.JSONField(default=dict)
    body = models.TextField(blank=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="idempotency_one_per_key")]
        # each keyed request forgets what its person's requests of yesterday left
        indexes = [models.Index(fields=["user", "expires_at"], name="idempotency_by_expiry")]

    def __str__(self) -> str:
        return f"record {self.pk}"
