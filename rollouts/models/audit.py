"""The append-only audit chain."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from rollouts.models.visibility import SeenWithSubject


class AuditEvent(models.Model):
    """One fact. `data` is stored as the canonical bytes that were hashed, so that no re-encoding can change it."""

    sequence = models.PositiveBigIntegerField(primary_key=True)
    at_us = models.BigIntegerField()  # microseconds since 1970, UTC
    actor = models.CharField(max_length=200)  # user:<name>, token:<name>, system:<task>
    action = models.CharField(max_length=60)
    subject_type = models.CharField(max_length=40)
    subject_id = models.CharField(max_length=64)
    subject_label = models.CharField(max_length=200)
    data = models.BinaryField()
    previous_hash = models.CharField(max_length=64, unique=True)
    hash = models.CharField(max_length=64, unique=True)

    objects = SeenWithSubject.as_manager()

    class Meta:
        ordering = ["sequence"]
        constraints = [models.CheckConstraint(condition=Q(sequence__gte=1), name="auditevent_sequence_gte_1")]
        indexes = [
            models.Index(fields=["subject_type", "subject_id"], name="auditevent_by_subject"),
            models.Index(fields=["action"], name="auditevent_by_action"),
        ]
