"""What a person wants to see of two runs beside each other, written down once so that no page has to count."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q


class Turn(models.TextChoices):
    """What became of a case from the other run to this one."""

    LOST = "lost"  # right to wrong
    WRONG = "wrong"  # wrong, and not right before
    MISSING = "missing"  # without a score
    WON = "won"  # wrong to right


class Comparison(models.Model):
    """One closed run, alone or beside another, case by case, by one metric. Derived: it can be written anew from the runs.

    `key` names both runs at their revisions and the metric; another state of either is another comparison.
    """

    key = models.CharField(max_length=120, unique=True)
    run = models.ForeignKey("rollouts.EvalRun", models.PROTECT, related_name="+")
    other = models.ForeignKey("rollouts.EvalRun", models.PROTECT, null=True, related_name="+")
    metric = models.CharField(max_length=20)
    summary = models.JSONField()  # counts: rollouts.comparisons.summary_of
    created_at = models.DateTimeField()


class ComparedCase(models.Model):
    """A case of a comparison that at least one side did not get right."""

    comparison = models.ForeignKey(Comparison, models.CASCADE, related_name="cases", db_index=False)
    case = models.ForeignKey("rollouts.Case", models.PROTECT, related_name="+", db_index=False)
    turn = models.CharField(max_length=8, choices=Turn)
    family = models.CharField(max_length=100)
    expects_call = models.BooleanField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["comparison", "case"], name="comparedcase_once"),
            models.CheckConstraint(condition=Q(turn__in=Turn.values), name="comparedcase_known_turn"),
        ]
        indexes = [
            models.Index(
                fields=["comparison", "turn", "expects_call", "family", "case"], name="comparedcase_in_order"
            )
        ]


class AmendedScore(models.Model):
    """The scores that a rollout had before its case was amended, and those it has since. Never changed."""

    rollout = models.ForeignKey("rollouts.Rollout", models.PROTECT, related_name="amended_scores")
    amendment = models.ForeignKey("rollouts.Amendment", models.PROTECT, related_name="scores")
    before = models.JSONField()
    after = models.JSONField()

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["rollout", "amendment"], name="amendedscore_once")]

    @property
    def changes(self) -> list[tuple[str, Any, Any]]:
        """(name, before, after) of what the amendment changed."""
        names = [name for name, value in self.after.items() if self.before.get(name) != value]
        return [(name, self.before.get(name), self.after[name]) for name in names]


class Amendment(models.Model):
    """What a case expects since two people agreed that its sealed expectation is wrong. The newest counts, for every run."""

    case = models.ForeignKey("rollouts.Case", models.PROTECT, related_name="amendments")
    expected_before = models.JSONField()
    expected_after = models.JSONField()
    reason = models.TextField()
    proposed_by = models.ForeignKey("auth.User", models.PROTECT, related_name="+")
    accepted_by = models.ForeignKey("auth.User", models.PROTECT, related_name="+")
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(
                condition=~Q(proposed_by=models.F("accepted_by")), name="amendment_by_two_people"
            )
        ]
