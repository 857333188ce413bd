"""Signatures."""

from __future__ import annotations

from django.db import models
from django.db.models import Q


class Decision(models.TextChoices):
    APPROVE = "approve"
    REQUEST_CHANGES = "request_changes"
    REJECT = "reject"


class Meaning(models.TextChoices):
    REVIEWED = "reviewed", "I reviewed the evidence"
    ACCEPTS_RISK = "accepts_risk", "I accept the remaining risk"
    AUTHORISES = "authorises", "I authorise the release"
    ADOPTS_BASELINE = "adopts_baseline", "I adopt this model as the ungated baseline"


class Approval(models.Model):
    """A person's signature on one evidence digest. It is valid only while that digest is the current one."""

    candidate = models.ForeignKey("promotion.Candidate", models.PROTECT, related_name="approvals")
    evidence = models.ForeignKey("promotion.Evidence", models.PROTECT, related_name="approvals")
    evidence_digest = models.CharField(max_length=64)
    policy_digest = models.CharField(max_length=64, blank=True)
    approver = models.ForeignKey("auth.User", models.PROTECT, related_name="approvals")
    printed_name = models.CharField(max_length=200)
    role = models.CharField(max_length=60)
    decision = models.CharField(max_length=16, choices=Decision)
    meaning = models.CharField(max_length=20, choices=Meaning, blank=True)
    comment = models.TextField(blank=True)
    method = models.CharField(max_length=20)
    authenticated_at = models.DateTimeField()
    signed_at = models.DateTimeField()
    withdrawn_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(
                fields=["approver", "evidence_digest"],
                condition=Q(withdrawn_at__isnull=True),
                name="approval_one_per_person_and_digest",
            ),
            models.CheckConstraint(
                condition=~Q(decision="approve") | ~Q(meaning=""), name="approval_says_what_it_means"
            ),
            models.CheckConstraint(
                condition=Q(decision="approve") | ~Q(comment=""), name="approval_refusal_has_reason"
            ),
        ]
