"""Signatures."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from rollouts.models.visibility import SeenByReaders


class Decision(models.TextChoices):
    APPROVE = "approve"
    REQUEST_CHANGES = "request_changes"
    REJECT = "reject"


class Meaning(models.TextChoices):
    REVIEWED = "reviewed", "I reviewed the evidence"
    ACCEPTS_RISK = "accepts_risk", "I accept the remaining risk"
    AUTHORISES = "authorises", "I authorise the release"
    ADOPTS_BASELINE = "adopts_baseline", "I adopt this model as the ungated baseline"


class Method(models.TextChoices):
    """How a person proved at the act who they are."""

    PASSWORD = "password"  # noqa: S105
    PASSKEY = "passkey"
    OIDC = "oidc", "single sign-on"


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
    method = models.CharField(max_length=20, choices=Method)
    authenticated_at = models.DateTimeField()
    signed_at = models.DateTimeField()
    template_version = models.CharField(max_length=64, blank=True)  # digest of what rendered the page
    # panels that had to be opened and were, and why the signer left others closed
    panels_opened = models.JSONField(default=list)
    panels_unopened = models.JSONField(default=list)
    unopened_reason = models.TextField(blank=True)
    checklist = models.JSONField(default=list)  # the policy's items as they were answered
    withdrawn_at = models.DateTimeField(null=True)
    withdrawn_reason = models.TextField(blank=True)

    seen_with = "candidate__track"
    objects = SeenByReaders.as_manager()

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


class GlassVerdict(models.TextChoices):
    UPHELD = "upheld"
    CONDEMNED = "condemned"


class BrokenGlass(models.Model):
    """A promotion without the signatures that its rule asks for: one evidence digest, one person, one reason.

    The gates are not passed over. Somebody else reviews it afterwards.
    """

    candidate = models.ForeignKey("promotion.Candidate", models.PROTECT, related_name="broken_glass")
    evidence = models.ForeignKey("promotion.Evidence", models.PROTECT, related_name="+")
    evidence_digest = models.CharField(max_length=64, unique=True)
    broken_by = models.ForeignKey("auth.User", models.PROTECT, related_name="+")
    printed_name = models.CharField(max_length=200)
    reason = models.TextField()
    method = models.CharField(max_length=20, choices=Method)
    authenticated_at = models.DateTimeField()
    broken_at = models.DateTimeField()
    review_due_at = models.DateTimeField()
    verdict = models.CharField(max_length=10, choices=GlassVerdict, blank=True)
    reviewed_by = models.ForeignKey("auth.User", models.PROTECT, null=True, related_name="+")
    reviewed_at = models.DateTimeField(null=True)
    review_comment = models.TextField(blank=True)

    seen_with = "candidate__track"
    objects = SeenByReaders.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(condition=~Q(reason=""), name="brokenglass_has_reason"),
            models.CheckConstraint(
                condition=Q(verdict="", reviewed_by__isnull=True, reviewed_at__isnull=True)
                | (
                    Q(
                        verdict__in=["upheld", "condemned"],
                        reviewed_by__isnull=False,
                        reviewed_at__isnull=False,
                    )
                    & ~Q(reviewed_by=F("broken_by"))
                    & ~Q(review_comment="")
                ),
                name="brokenglass_reviewed_by_another_person",
            ),
        ]
