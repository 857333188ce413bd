"""Candidates: what is proposed for a track."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from rollouts.models.visibility import SeenByReaders


class CandidateState(models.TextChoices):
    SUBMITTED = "submitted"  # registered; its GGUF is not built yet
    BUILD_FAILED = "build_failed"  # error_detail says why; can be tried again
    BUILT = "built"  # the GGUF is stored, read back and verified; nothing measured yet
    EVALUATING = "evaluating"
    BLOCKED = "blocked"  # judged; at least one gate is unmet
    IN_REVIEW = "in_review"  # judged; only signatures are missing
    APPROVED = "approved"
    PUBLISHING = "publishing"
    PUBLISH_FAILED = "publish_failed"  # can be tried again
    PROMOTED = "promoted"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"


CANDIDATE_MOVES: dict[str, frozenset[str]] = {
    "submitted": frozenset(["built", "build_failed", "withdrawn"]),
    "build_failed": frozenset(["submitted", "withdrawn"]),
    "built": frozenset(["evaluating", "in_review", "blocked", "withdrawn"]),
    "evaluating": frozenset(["blocked", "in_review", "withdrawn"]),
    "blocked": frozenset(["evaluating", "in_review", "rejected", "withdrawn"]),
    "in_review": frozenset(["evaluating", "blocked", "approved", "rejected", "withdrawn"]),
    "approved": frozenset(["publishing", "in_review", "blocked", "withdrawn"]),
    "publishing": frozenset(["promoted", "publish_failed", "in_review", "blocked"]),
    "publish_failed": frozenset(["publishing", "in_review", "blocked", "withdrawn"]),
}
OPEN_STATES = tuple(CANDIDATE_MOVES)


class Candidate(models.Model):
    """A PEFT LoRA adapter proposed for a track. `baseline` candidates become the first champion, ungated."""

    track = models.ForeignKey("promotion.Track", models.PROTECT, related_name="candidates")
    name = models.SlugField(max_length=100)
    base = models.ForeignKey("rollouts.BaseModel", models.PROTECT, related_name="candidates")
    adapter_config = models.ForeignKey("rollouts.Artifact", models.PROTECT, related_name="+")
    adapter_weights = models.ForeignKey("rollouts.Artifact", models.PROTECT, related_name="+")
    adapter_source_sha256 = models.CharField(max_length=64)
    outtype = models.CharField(max_length=8, default="f16")
    baseline = models.BooleanField(default=False)
    # of the tool schemas that it was trained for and that its runtime shows; "" where nobody said
    tool_schema_sha256 = models.CharField(max_length=64, blank=True)
    state = models.CharField(max_length=16, choices=CandidateState, default=CandidateState.SUBMITTED)
    gguf = models.ForeignKey("rollouts.Artifact", models.PROTECT, null=True, related_name="+")
    verification = models.JSONField(null=True)  # promotion.export.verify's report
    warnings = models.JSONField(default=list)
    backend = models.ForeignKey("rollouts.Backend", models.PROTECT, null=True, related_name="+")
    # bumped by every change, so that a state that was changed and changed back needs a new signature
    revision = models.PositiveIntegerField(default=1)
    error_detail = models.TextField(blank=True)
    submitted_by = models.ForeignKey("auth.User", models.PROTECT, related_name="+")
    created_at = models.DateTimeField()
    last_sent_at = models.DateTimeField(null=True)

    seen_with = "track"
    audited = True
    objects = SeenByReaders.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["track", "name"], name="candidate_one_name"),
            # the same bytes are one candidate of a track: a refused adapter cannot try again under a new name
            models.UniqueConstraint(
                fields=["track", "base", "adapter_source_sha256", "outtype"],
                condition=~Q(state="withdrawn"),
                name="candidate_one_per_bytes",
            ),
            models.CheckConstraint(
                condition=Q(state__in=CandidateState.values), name="candidate_known_state"
            ),
            models.CheckConstraint(
                condition=Q(state__in=["submitted", "build_failed", "withdrawn"]) | Q(gguf__isnull=False),
                name="candidate_past_build_has_gguf",
            ),
        ]
        indexes = [
            # the sweeper looks for candidates that a worker must act on
            models.Index(
                fields=["state"],
                condition=Q(state__in=["submitted", "evaluating", "approved", "publishing"]),
                name="candidate_needs_work",
            )
        ]

    def __str__(self) -> str:
        return f"{self.track}/{self.name}"


class DatasetRole(models.TextChoices):
    TRAIN = "train"
    EVAL = "eval"  # watched while it was trained, so seen


class CandidateDataset(models.Model):
    """What a candidate says it was made from."""

    candidate = models.ForeignKey(Candidate, models.PROTECT, related_name="dataset_uses")
    dataset = models.ForeignKey("rollouts.Dataset", models.PROTECT, related_name="+")
    role = models.CharField(max_length=5, choices=DatasetRole)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["candidate", "dataset"], name="candidatedataset_once"),
            models.CheckConstraint(
                condition=Q(role__in=DatasetRole.values), name="candidatedataset_known_role"
            ),
        ]
