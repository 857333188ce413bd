"""What people do on a review page before they sign: open, tick, ask, summarise."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from rollouts.models.visibility import SeenByReaders


class PanelOpening(models.Model):
    """That a person opened a part of the evidence. `panel` names its content, so a part that changed is unopened again."""

    candidate = models.ForeignKey("promotion.Candidate", models.PROTECT, related_name="openings")
    person = models.ForeignKey("auth.User", models.PROTECT, related_name="+")
    panel = models.CharField(max_length=200)
    opened_at = models.DateTimeField()

    seen_with = "candidate__track"
    objects = SeenByReaders.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["candidate", "person", "panel"], name="panelopening_once"),
            models.CheckConstraint(condition=~Q(panel=""), name="panelopening_names_a_panel"),
        ]


class ReviewVisit(models.Model):
    """Which evidence of a candidate a person saw last."""

    candidate = models.ForeignKey("promotion.Candidate", models.PROTECT, related_name="visits")
    person = models.ForeignKey("auth.User", models.PROTECT, related_name="+")
    evidence = models.ForeignKey("promotion.Evidence", models.PROTECT, related_name="+")
    seen_at = models.DateTimeField()

    seen_with = "candidate__track"
    objects = SeenByReaders.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["candidate", "person"], name="reviewvisit_one_a_person")
        ]


class ChecklistAnswer(models.Model):
    """A person's tick at one item of the policy's checklist, for one evidence digest."""

    candidate = models.ForeignKey("promotion.Candidate", models.PROTECT, related_name="checklist_answers")
    evidence_digest = models.CharField(max_length=64)
    item = models.SlugField(max_length=60)
    person = models.ForeignKey("auth.User", models.PROTECT, related_name="+")
    note = models.TextField(blank=True)  # why it is accepted where the machine says no
    answered_at = models.DateTimeField()

    seen_with = "candidate__track"
    objects = SeenByReaders.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["person", "evidence_digest", "item"], name="checklistanswer_once_a_digest"
            )
        ]


class Thread(models.Model):
    """A discussion of one row of the evidence. An unresolved one blocks approval."""

    candidate = models.ForeignKey("promotion.Candidate", models.PROTECT, related_name="threads")
    anchor = models.CharField(
        max_length=200
    )  # the row, whatever it says; "page" for the candidate as a whole
    anchor_label = models.CharField(max_length=300)
    # of what the row said when the thread began: the thread is outdated once it says something else
    anchor_digest = models.CharField(max_length=64)
    evidence_digest = models.CharField(max_length=64)
    started_by = models.ForeignKey("auth.User", models.PROTECT, related_name="+")
    started_at = models.DateTimeField()
    resolved_by = models.ForeignKey("auth.User", models.PROTECT, null=True, related_name="+")
    resolved_at = models.DateTimeField(null=True)

    seen_with = "candidate__track"
    objects = SeenByReaders.as_manager()

    class Meta:
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(resolved_by__isnull=True, resolved_at__isnull=True)
                | Q(resolved_by__isnull=False, resolved_at__isnull=False),
                name="thread_resolved_by_a_person",
            ),
            models.CheckConstraint(condition=~Q(anchor=""), name="thread_has_anchor"),
        ]


class Comment(models.Model):
    """Something said in a thread. Never changed."""

    thread = models.ForeignKey(Thread, models.PROTECT, related_name="comments")
    text = models.TextField()
    written_by = models.ForeignKey("auth.User", models.PROTECT, related_name="+")
    written_at = models.DateTimeField()

    class Meta:
        ordering = ["id"]
        constraints = [models.CheckConstraint(condition=~Q(text=""), name="comment_says_something")]


class RiskSummary(models.Model):
    """The submitter's own words on what remains risky. The newest stands in the evidence; none is ever changed."""

    candidate = models.ForeignKey("promotion.Candidate", models.PROTECT, related_name="risk_summaries")
    text = models.TextField()
    written_by = models.ForeignKey("auth.User", models.PROTECT, related_name="+")
    written_at = models.DateTimeField()

    seen_with = "candidate__track"
    objects = SeenByReaders.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [models.CheckConstraint(condition=~Q(text=""), name="risksummary_says_something")]
