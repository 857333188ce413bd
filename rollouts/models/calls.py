"""Every HTTP attempt at a provider."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from rollouts.models.visibility import SeenByReaders


class CallState(models.TextChoices):
    OPEN = "open"  # committed before the request is sent
    ANSWERED = "answered"  # a usable answer: a step of the trajectory
    FAILED = "failed"  # error_kind says how; never a step
    LOST = "lost"  # the worker vanished; the provider may have seen it


class CallPurpose(models.TextChoices):
    POLICY = "policy"  # the model under test
    JUDGE = "judge"


class ModelCall(models.Model):
    """One attempt, owned by exactly one invocation. Unknown numbers are null, never 0."""

    invocation = models.ForeignKey(
        "rollouts.Invocation", models.PROTECT, related_name="calls", db_index=False
    )
    turn = models.PositiveSmallIntegerField(default=0)
    attempt = models.PositiveSmallIntegerField(default=1)
    purpose = models.CharField(max_length=10, choices=CallPurpose, default=CallPurpose.POLICY)
    dialect = models.CharField(max_length=40)
    state = models.CharField(max_length=10, choices=CallState, default=CallState.OPEN)
    status = models.PositiveSmallIntegerField(null=True)
    error_kind = models.CharField(max_length=20, blank=True)
    error_text = models.TextField(blank=True)
    provider_response_id = models.CharField(max_length=200, blank=True)
    request = models.ForeignKey("rollouts.Payload", models.PROTECT, related_name="+", db_index=False)
    response = models.ForeignKey(
        "rollouts.Payload", models.PROTECT, null=True, related_name="+", db_index=False
    )
    response_headers = models.JSONField(null=True)
    prompt_tokens = models.PositiveIntegerField(null=True)
    completion_tokens = models.PositiveIntegerField(null=True)
    cost_microusd = models.PositiveBigIntegerField(null=True)
    latency_ms = models.FloatField(null=True)
    first_byte_ms = models.FloatField(null=True)
    created_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)

    seen_with = "invocation__rollout__run"
    objects = SeenByReaders.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["invocation", "turn", "attempt"], name="modelcall_one_attempt"),
            models.CheckConstraint(condition=Q(state__in=CallState.values), name="modelcall_known_state"),
            models.CheckConstraint(
                condition=~Q(state="answered")
                # a plug-in answers without HTTP, so without a status
                | (Q(status__isnull=False) | Q(dialect="plugin")) & Q(response__isnull=False, error_kind=""),
                name="modelcall_answered_has_response",
            ),
            models.CheckConstraint(
                condition=~Q(state="failed") | ~Q(error_kind=""), name="modelcall_failed_has_kind"
            ),
        ]
