"""Eval runs, rollouts, and the claims and invocations that execute them."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from rollouts.models.visibility import SeenByReaders


class RunState(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    SCORED = "scored"
    FAILED = "failed"  # cannot be trusted: error_code says why
    CANCELLED = "cancelled"


ACTIVE_RUN_STATES = (RunState.QUEUED, RunState.RUNNING)
RUN_MOVES: dict[str, frozenset[str]] = {
    RunState.QUEUED: frozenset([RunState.RUNNING, RunState.FAILED, RunState.CANCELLED]),
    RunState.RUNNING: frozenset([RunState.SCORED, RunState.FAILED, RunState.CANCELLED]),
    # "run again what failed" opens a scored run whose masked or unscored rollouts can still be measured; a run that took
    # answers from one that proved invalid fails with it
    RunState.SCORED: frozenset([RunState.QUEUED, RunState.FAILED]),
    # and a cancelled one is gone on with
    RunState.CANCELLED: frozenset([RunState.QUEUED]),
}


class EvalRun(models.Model):
    """One model under test x one suite x k samples a case."""

    uid = models.UUIDField(unique=True)
    subject = models.ForeignKey("rollouts.Subject", models.PROTECT, related_name="runs")
    suite = models.ForeignKey("rollouts.Suite", models.PROTECT, related_name="runs")
    backend = models.ForeignKey("rollouts.Backend", models.PROTECT, related_name="runs")
    samples = models.PositiveSmallIntegerField(default=1)
    label = models.CharField(max_length=200, blank=True)  # what a person calls the model under test
    # whether an answer given before to the same attempt key may be taken instead of a call; evidence never counts such
    reuse = models.BooleanField(default=False)
    judge_backend = models.ForeignKey("rollouts.Backend", models.PROTECT, null=True, related_name="+")
    judge_model = models.CharField(max_length=200, blank=True)
    independence = models.CharField(max_length=12, default="independent")  # of repeats: the backend's word
    # most calls, tokens, micro-dollars and seconds, each null where unlimited; null: no budget at all
    budget = models.JSONField(null=True)
    spent_calls = models.PositiveIntegerField(default=0)
    spent_tokens = models.PositiveBigIntegerField(default=0)
    spent_microusd = models.PositiveBigIntegerField(default=0)
    state = models.CharField(max_length=10, choices=RunState, default=RunState.QUEUED)
    plan_digest = models.CharField(max_length=64)
    suite_digest = models.CharField(max_length=64)  # of the cases as they were read for the plan
    planned = models.PositiveIntegerField()
    # counted from the rows when the run closes; null before
    scored = models.PositiveIntegerField(null=True)
    masked = models.PositiveIntegerField(null=True)
    unscored = models.PositiveIntegerField(null=True)
    cancelled = models.PositiveIntegerField(null=True)
    server_facts = models.JSONField(
        null=True
    )  # what answered: build, files, template; equal over the whole run
    peak_memory_bytes = models.PositiveBigIntegerField(
        null=True
    )  # of the local model server; null: not known
    error_code = models.CharField(max_length=40, blank=True)
    error_detail = models.TextField(blank=True)
    created_by = models.ForeignKey("auth.User", models.PROTECT, null=True, related_name="+")
    reopened_by = models.JSONField(default=list)  # user names: who had failed rollouts run again may not sign
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    last_sent_at = models.DateTimeField(null=True)
    # bumped by whatever changes the scores of a closed run: closing, scoring again, an amended case
    revision = models.PositiveIntegerField(default=0)
    # what the page of a closed run shows (rollouts.overview), counted once; null: not counted yet
    overview = models.JSONField(null=True)
    # who may see it besides auditors and administrators; none: everybody with a role
    readers = models.ManyToManyField("auth.Group", related_name="+")

    seen_with = ""
    audited = True
    objects = SeenByReaders.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(condition=Q(samples__gte=1, planned__gte=1), name="evalrun_has_work"),
            models.CheckConstraint(condition=Q(state__in=RunState.values), name="evalrun_known_state"),
            models.CheckConstraint(
                condition=~Q(state="scored")
                | Q(
                    # a null count would make the sum null, which a check lets pass
                    scored__isnull=False,
                    masked__isnull=False,
                    unscored__isnull=False,
                    cancelled__isnull=False,
                    planned=F("scored") + F("masked") + F("unscored") + F("cancelled"),
                ),
                name="evalrun_accounting_identity",
            ),
            models.CheckConstraint(
                condition=Q(state__in=["scored", "failed", "cancelled"], finished_at__isnull=False)
                | Q(state__in=["queued", "running"], finished_at__isnull=True),
                name="evalrun_finished_at_iff_final",
            ),
            models.UniqueConstraint(
                fields=["suite", "subject", "samples"],
                condition=Q(state__in=["queued", "running"]),
                name="evalrun_one_active",
            ),
        ]
        # the sweeper asks for active runs every few seconds
        indexes = [
            models.Index(
                fields=["state"], condition=Q(state__in=["queued", "running"]), name="evalrun_active"
            )
        ]

    def __str__(self) -> str:
        return f"run {self.pk}"


class RolloutState(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    SCORED = "scored"
    MASKED = "masked"
    UNSCORED = "unscored"
    CANCELLED = "cancelled"


class Claim(models.Model):
    """A worker's hold on a batch of rollouts. Its id is the fencing token: ids only grow."""

    run = models.ForeignKey(EvalRun, models.PROTECT, related_name="claims")
    worker = models.CharField(max_length=200)
    created_at = models.DateTimeField()
    lease_expires_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    lost = models.BooleanField(default=False)
    # counted with each group of results, so that progress is read from a few rows
    done = models.PositiveIntegerField(default=0)
    masked = models.PositiveIntegerField(default=0)
    cost_microusd = models.PositiveBigIntegerField(default=0)
    # of the run's budget, for calls in flight; settled when they answer, spent when the claim is lost
    reserved_tokens = models.PositiveBigIntegerField(default=0)
    reserved_microusd = models.PositiveBigIntegerField(default=0)

    class Meta:
        indexes = [
            models.Index(
                fields=["lease_expires_at"], condition=Q(ended_at__isnull=True), name="claim_open_by_lease"
            )
        ]


class Rollout(models.Model):
    """One sample of one case in one eval run. Metric columns are null where the metric does not apply.

    Each rollout is updated twice and each update touches every index, so only those that a query needs are here: a
    foreign key without one is covered by a constraint below, or never searched by.
    """

    run = models.ForeignKey(EvalRun, models.PROTECT, related_name="rollouts", db_index=False)
    case = models.ForeignKey("rollouts.Case", models.PROTECT, related_name="rollouts", db_index=False)
    sample_index = models.PositiveSmallIntegerField(default=0)
    state = models.CharField(max_length=10, choices=RolloutState, default=RolloutState.QUEUED)
    claim = models.ForeignKey(Claim, models.PROTECT, null=True, related_name="rollouts", db_index=False)
    lost_workers = models.PositiveSmallIntegerField(default=0)
    # digest of everything that shapes the answer, without the sample index for sample 0 (engine.planner)
    attempt_key = models.CharField(max_length=64, blank=True)
    # the invocation whose captured calls hold the answer; another rollout's where the answer was reused
    answered_by = models.ForeignKey(
        "rollouts.Invocation", models.PROTECT, null=True, related_name="+", db_index=False
    )
    failure_kind = models.CharField(max_length=20, blank=True)
    failure_reason = models.TextField(blank=True)
    answer = models.TextField(null=True)  # noqa: DJ001  (null: no answer came; "": an empty answer came)
    answer_class = models.CharField(max_length=20, blank=True)
    finish_reason = models.CharField(max_length=40, blank=True)
    json_valid = models.BooleanField(null=True)
    decision = models.BooleanField(null=True)
    tool = models.BooleanField(null=True)
    exact = models.BooleanField(null=True)
    safe = models.BooleanField(null=True)
    reason_code = models.BooleanField(null=True)
    arguments_valid = models.BooleanField(null=True)
    score = models.FloatField(null=True)  # share of the task done, 0 to 1, where the scorer gives one
    tool_evidence = models.CharField(
        max_length=10, blank=True
    )  # executed, claimed, none; "" on the text route
    details = models.JSONField(null=True)  # the scorer's, for people
    latency_ms = models.FloatField(null=True)
    prompt_tokens = models.PositiveIntegerField(null=True)
    completion_tokens = models.PositiveIntegerField(null=True)
    cost_microusd = models.PositiveBigIntegerField(
        null=True
    )  # of all its calls, also judges' and failed ones'
    avoided_microusd = models.PositiveBigIntegerField(null=True)  # what the reused answer had cost
    finished_at = models.DateTimeField(null=True)

    seen_with = "run"
    objects = SeenByReaders.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "case", "sample_index"], name="rollout_once_per_sample"),
            models.CheckConstraint(condition=Q(state__in=RolloutState.values), name="rollout_known_state"),
            models.CheckConstraint(
                condition=~Q(state="scored") | Q(exact__isnull=False),
                name="rollout_scored_has_scores",
            ),
            models.CheckConstraint(
                condition=Q(state="scored")
                | Q(
                    decision__isnull=True,
                    json_valid__isnull=True,
                    tool__isnull=True,
                    exact__isnull=True,
                    safe__isnull=True,
                    reason_code__isnull=True,
                    arguments_valid__isnull=True,
                    score__isnull=True,
                ),
                name="rollout_only_scored_has_scores",
            ),
            models.CheckConstraint(
                condition=Q(score__isnull=True) | Q(score__gte=0, score__lte=1),
                name="rollout_score_is_a_share",
            ),
            models.CheckConstraint(
                condition=~Q(state__in=["masked", "unscored"]) | ~Q(failure_kind=""),
                name="rollout_failure_has_kind",
            ),
            models.CheckConstraint(
                condition=~Q(state="running") | Q(claim__isnull=False), name="rollout_running_has_claim"
            ),
        ]
        indexes = [
            models.Index(fields=["run", "state", "id"], name="rollout_by_run_state"),
            models.Index(fields=["claim"], condition=Q(state="running"), name="rollout_running_by_claim"),
            # the attempt cache: answers there are, and calls under way for the same key
            models.Index(
                fields=["attempt_key"],
                condition=Q(state="running") | Q(answered_by__isnull=False),
                name="rollout_by_attempt_key",
            ),
        ]


class InvocationState(models.TextChoices):
    RUNNING = "running"
    FINISHED = "finished"
    LOST = "lost"  # its worker vanished
    LATE = "late"  # it answered after its lease was taken away: kept as a fact, never scored


class Invocation(models.Model):
    """One execution of a rollout."""

    rollout = models.ForeignKey(Rollout, models.PROTECT, related_name="invocations")
    claim = models.ForeignKey(Claim, models.PROTECT, related_name="invocations")
    state = models.CharField(max_length=10, choices=InvocationState, default=InvocationState.RUNNING)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["rollout", "claim"], name="invocation_once_per_claim"),
            models.UniqueConstraint(
                fields=["rollout"], condition=Q(state="running"), name="invocation_one_running"
            ),
        ]
