"""What the API says of backends, suites, runs, rollouts, calls and audit events."""

from __future__ import annotations

import base64
import json
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

from django.urls import reverse
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from rollouts.amendments import amended_scores_of
from rollouts.models import (
    AmendedScore,
    AuditEvent,
    Backend,
    Case,
    Dataset,
    EvalRun,
    Invocation,
    ModelCall,
    Overlap,
    Payload,
    Rollout,
    RolloutState,
    Subject,
    Suite,
)
from rollouts.overview import summary_of
from rollouts.selectors import APART, METRICS, declared_streams, reused_from

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@extend_schema_field({"type": "string"})
class Address(serializers.Field[Any, Any, str, Any]):
    """The address of a thing in this API."""

    def __init__(self, view: str, *, kwarg: str = "id", attribute: str = "pk") -> None:
        super().__init__(source="*", read_only=True)
        self.view, self.kwarg, self.attribute = view, kwarg, attribute

    def to_representation(self, value: Any) -> str:
        return address(self.view, **{self.kwarg: getattr(value, self.attribute)})


@extend_schema_field({"type": "object", "additionalProperties": {}})
class AnyObject(serializers.JSONField):
    """A JSON object as it is stored."""


@extend_schema_field({"type": ["object", "null"], "additionalProperties": {}})
class AnyObjectOrNull(serializers.JSONField):
    """A JSON object as it is stored, or null."""


def address(view: str, **kwargs: Any) -> str:
    return reverse(view, kwargs=kwargs)


class Person(serializers.CharField):
    """A user name, or null where nobody did it. Its source is selected along with the row."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_null=True, read_only=True, **options)

    def to_representation(self, value: Any) -> str:
        name: str = value.get_username()
        return name


class OrNull(serializers.CharField):
    """A text, or null where the column is empty."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_null=True, read_only=True, **options)

    def to_representation(self, value: Any) -> str | None:  # type: ignore[override]
        return value or None


class BackendOutput(serializers.ModelSerializer[Backend]):
    url = Address("api-backend-detail", kwarg="name", attribute="name")
    config = AnyObject()
    created_by = Person()

    class Meta:
        model = Backend
        fields = [
            "name", "url", "revision", "kind", "config", "digest", "key_env", "concurrency", "timeout_s",
            "max_attempts", "requests_per_minute", "prompt_price", "completion_price", "created_at", "created_by",
        ]  # fmt: skip


class TranscriptOutput(serializers.Serializer[Any]):
    """A stored transcript: `digest` is what a scripted backend names as `transcript_sha256`."""

    digest = serializers.CharField()
    url = Address("api-transcript-detail", kwarg="digest", attribute="digest")
    size_bytes = serializers.IntegerField(source="artifact.size_bytes")
    rows = serializers.IntegerField()
    replies = serializers.IntegerField()
    created_at = serializers.DateTimeField(source="artifact.created_at")


class SuiteOutput(serializers.ModelSerializer[Suite]):
    url = Address("api-suite-detail", kwarg="digest", attribute="digest")
    sealed_by = Person()

    class Meta:
        model = Suite
        fields = [
            "name", "url", "version", "digest", "scorer", "case_count", "source", "sealed_at", "sealed_by",
        ]  # fmt: skip


class DatasetOutput(serializers.ModelSerializer[Dataset]):
    """Counts are of the registered file; `declared_sha256` is what its sidecar says of the bytes, null where nothing."""

    url = Address("api-dataset-detail", kwarg="digest", attribute="digest")
    file_sha256 = serializers.CharField(source="artifact_id")
    size_bytes = serializers.IntegerField(source="artifact.size_bytes")
    declared_sha256 = OrNull()
    rows = serializers.IntegerField(source="row_count")
    distinct_texts = serializers.IntegerField(source="text_count")
    schema_sha256 = OrNull()
    streams = serializers.SerializerMethodField()
    registered_by = Person()

    class Meta:
        model = Dataset
        fields = [
            "name", "url", "version", "digest", "file_sha256", "size_bytes", "declared_sha256", "rows",
            "distinct_texts", "without_id", "repeated_ids", "schema_sha256", "streams", "source", "registered_at",
            "registered_by",
        ]  # fmt: skip

    def get_streams(self, dataset: Dataset) -> list[str]:
        return declared_streams(dataset.sidecar)


class OverlapOutput(serializers.Serializer[Any]):
    """What a dataset shares with a suite or another dataset: counts of rows, ids and groups, and examples."""

    kind = serializers.SerializerMethodField()
    digest = serializers.SerializerMethodField()
    name = serializers.SerializerMethodField()
    report = AnyObject()
    created_at = serializers.DateTimeField()

    @extend_schema_field({"type": "string", "enum": ["suite", "dataset"]})
    def get_kind(self, overlap: Overlap) -> str:
        return "suite" if overlap.suite else "dataset"

    def get_digest(self, overlap: Overlap) -> str:
        return _other(overlap).digest

    def get_name(self, overlap: Overlap) -> str:
        return str(_other(overlap))


def _other(overlap: Overlap) -> Suite | Dataset:
    other = overlap.suite or overlap.other
    assert other is not None
    return other


class DatasetDetail(DatasetOutput):
    """A dataset with its sidecar, and what it was compared with so far."""

    sidecar = AnyObjectOrNull()
    overlaps = OverlapOutput(many=True, source="overlaps_found")

    class Meta(DatasetOutput.Meta):
        fields = [*DatasetOutput.Meta.fields, "sidecar", "overlaps"]


@extend_schema_field(
    {
        "oneOf": [
            {"type": "object", "additionalProperties": {}},
            {"type": "array", "items": {}},
        ]
    }
)
class AmendedExpected(serializers.JSONField):
    """What a case expects since two people amended it, in the form that it was sealed in; null: as it was sealed."""


class CaseOutput(serializers.ModelSerializer[Case]):
    content = AnyObject()
    amended_expected = AmendedExpected(allow_null=True, help_text="Null: it expects what it was sealed with.")

    class Meta:
        model = Case
        fields = [
            *("position", "key", "family", "group", "expects_call", "digest", "content"),
            "amended_expected",
        ]


class CaseName(serializers.ModelSerializer[Case]):
    class Meta:
        model = Case
        fields = ["key", "family", "group", "digest"]


class SuiteName(serializers.ModelSerializer[Suite]):
    class Meta:
        model = Suite
        fields = ["name", "version", "digest"]


class BackendName(serializers.ModelSerializer[Backend]):
    class Meta:
        model = Backend
        fields = ["name", "revision"]


class SubjectOutput(serializers.ModelSerializer[Subject]):
    base = serializers.CharField(source="base.name", allow_null=True)
    adapter = serializers.CharField(source="adapter_id", allow_null=True)
    sampling = AnyObject()

    class Meta:
        model = Subject
        fields = ["digest", "base", "adapter", "adapter_source_sha256", "remote_model", "sampling"]


class JudgeOutput(serializers.Serializer[Any]):
    backend = serializers.CharField(source="judge_backend.name")
    revision = serializers.IntegerField(source="judge_backend.revision")
    model = serializers.CharField(source="judge_model")


class BudgetOutput(serializers.Serializer[Any]):
    """The most that may be used; null where there is no limit."""

    calls = serializers.IntegerField(allow_null=True, default=None)
    tokens = serializers.IntegerField(allow_null=True, default=None)
    microusd = serializers.IntegerField(allow_null=True, default=None)
    wall_s = serializers.IntegerField(allow_null=True, default=None)


class SpentOutput(serializers.Serializer[Any]):
    """Counted against the budget, since the run was last started; 0 where the run has none."""

    calls = serializers.IntegerField(source="spent_calls")
    tokens = serializers.IntegerField(source="spent_tokens")
    microusd = serializers.IntegerField(source="spent_microusd")


class RunOutput(serializers.ModelSerializer[EvalRun]):
    """Counts are null until the run closes."""

    url = Address("api-run-detail")
    suite = SuiteName()
    backend = BackendName()
    subject = SubjectOutput()
    judge = serializers.SerializerMethodField()
    budget = BudgetOutput(allow_null=True)
    spent = SpentOutput(source="*")
    created_by = Person()

    class Meta:
        model = EvalRun
        fields = [
            "id", "uid", "url", "state", "label", "samples", "suite", "backend", "subject", "reuse",
            "independence", "judge", "budget", "spent", "planned", "scored", "masked", "unscored", "cancelled",
            "error_code", "error_detail", "created_by", "created_at", "started_at", "finished_at",
        ]  # fmt: skip

    @extend_schema_field(JudgeOutput(allow_null=True))
    def get_judge(self, run: EvalRun) -> Any:
        return None if run.judge_backend is None else JudgeOutput(run).data


class MetricOutput(serializers.Serializer[Any]):
    """Scored rollouts that the metric applies to."""

    name = serializers.ChoiceField(choices=METRICS)
    right = serializers.IntegerField()
    wrong = serializers.IntegerField()


class ApartOutput(MetricOutput):
    """Counted apart from the metrics: no gate asks for it."""

    name = serializers.ChoiceField(choices=APART)


class FailureOutput(serializers.Serializer[Any]):
    state = serializers.ChoiceField(choices=RolloutState.choices)
    kind = serializers.CharField()
    n = serializers.IntegerField()


class FlagOutput(serializers.Serializer[Any]):
    """What must be known before the scores are read. `code` is stable; `n` is what the text counts."""

    code = serializers.CharField()
    text = serializers.CharField()
    n = serializers.IntegerField()


class PassAtOutput(serializers.Serializer[Any]):
    """Mean pass@k over `n` cases, 0 to 1; `skipped` cases have fewer than `k` scored samples."""

    k = serializers.IntegerField()
    value = serializers.FloatField(allow_null=True)
    n = serializers.IntegerField()
    skipped = serializers.IntegerField()


class RepeatsOutput(serializers.Serializer[Any]):
    """How far samples of one case agree, on `exact`; `undecided` cases have fewer than two scored samples."""

    agree = serializers.IntegerField()
    disagree = serializers.IntegerField()
    undecided = serializers.IntegerField()
    mean_rate = serializers.FloatField(
        allow_null=True, help_text="Mean of the cases' shares of right samples."
    )
    answers = serializers.IntegerField()
    distinct_answers = serializers.IntegerField(help_text="Distinct within their cases.")
    pass_at = PassAtOutput(many=True)


class ProgressOutput(serializers.Serializer[Any]):
    """Counted as it is asked for."""

    done = serializers.IntegerField(source="progress.done")
    masked = serializers.IntegerField(source="progress.masked")
    states = serializers.DictField(child=serializers.IntegerField(), help_text="Rollouts by state.")
    rate_per_s = serializers.FloatField(
        source="progress.rate_per_s", allow_null=True, help_text="Null where no worker is at it."
    )
    eta_s = serializers.FloatField(
        source="progress.eta_s", allow_null=True, help_text="Seconds that are left at this rate."
    )
    failures = FailureOutput(many=True)
    metrics = MetricOutput(many=True)
    apart = ApartOutput(many=True)
    answer_classes = serializers.DictField(
        child=serializers.IntegerField(), help_text="Rollouts by what their answer was read as."
    )
    tool_evidence = serializers.DictField(
        child=serializers.IntegerField(),
        help_text="Rollouts on a route with tools: executed, claimed or none.",
    )
    mean_share = serializers.FloatField(
        allow_null=True, help_text="Mean share of the task done, of scorers that give one."
    )
    p50_ms = serializers.FloatField(allow_null=True)
    p95_ms = serializers.FloatField(allow_null=True)
    look = serializers.IntegerField(
        allow_null=True, help_text="The how-manieth subject that this suite has seen."
    )


class RunDetail(RunOutput):
    """A run with its progress of this moment."""

    cost_microusd = serializers.IntegerField(
        source="summary.progress.cost_microusd",
        allow_null=True,
        help_text="Of all calls so far; null where a backend that is asked has no prices.",
    )
    flags = FlagOutput(many=True, source="summary.flags")
    repeats = RepeatsOutput(
        source="summary.repeats",
        allow_null=True,
        help_text="Null for one sample a case, and where repeats are not proven to be draws of their own.",
    )
    progress = ProgressOutput(source="summary")
    server_facts = AnyObjectOrNull()

    class Meta(RunOutput.Meta):
        fields = [
            *RunOutput.Meta.fields,
            *("plan_digest", "suite_digest", "server_facts"),
            *("cost_microusd", "flags", "repeats", "progress"),
        ]

    def to_representation(self, instance: EvalRun) -> dict[str, Any]:
        instance.summary = summary_of(instance)  # type: ignore[attr-defined]
        said: dict[str, Any] = super().to_representation(instance)
        return said


class ScoresOutput(serializers.ModelSerializer[Rollout]):
    """Null where the metric does not apply or the rollout has no score."""

    class Meta:
        model = Rollout
        fields = list(METRICS)


class RolloutOutput(serializers.ModelSerializer[Rollout]):
    url = Address("api-rollout-detail")
    run = serializers.IntegerField(source="run_id")
    case = CaseName()
    scores = ScoresOutput(source="*")
    answered_by = serializers.IntegerField(
        source="answered_by_id", allow_null=True, help_text="The invocation that holds the answer."
    )
    reused_from = serializers.SerializerMethodField()

    class Meta:
        model = Rollout
        fields = [
            "id", "url", "run", "case", "sample_index", "state", "failure_kind", "answer_class",
            "finish_reason", "scores", "score", "reason_code", "arguments_valid", "tool_evidence",
            "attempt_key", "answered_by", "reused_from", "latency_ms", "prompt_tokens", "completion_tokens",
            "cost_microusd", "avoided_microusd", "finished_at",
        ]  # fmt: skip

    @extend_schema_field({"type": ["integer", "null"]})
    def get_reused_from(self, rollout: Rollout) -> int | None:
        return reused_from(rollout)


class InvocationOutput(serializers.ModelSerializer[Invocation]):
    worker = serializers.CharField(source="claim.worker")

    class Meta:
        model = Invocation
        fields = ["id", "state", "worker", "started_at", "finished_at"]


class AmendedScoreOutput(serializers.ModelSerializer[AmendedScore]):
    """A rollout's scores by the case before an amendment, and since."""

    proposed_by, accepted_by = Person(source="amendment.proposed_by"), Person(source="amendment.accepted_by")
    reason = serializers.CharField(source="amendment.reason")
    at = serializers.DateTimeField(source="amendment.created_at")
    before, after = AnyObject(), AnyObject()

    class Meta:
        model = AmendedScore
        fields = ["proposed_by", "accepted_by", "reason", "at", "before", "after"]


class RolloutDetail(RolloutOutput):
    """A rollout with its case, its answer and its invocations. Its calls stand at `/calls?rollout=`."""

    case = CaseOutput()
    details = AnyObjectOrNull(help_text="What the scorer says, for people.")
    invocations = InvocationOutput(many=True)
    amended_scores = serializers.SerializerMethodField()

    class Meta(RolloutOutput.Meta):
        fields = [
            *RolloutOutput.Meta.fields,
            *("failure_reason", "lost_workers", "answer", "details", "invocations", "amended_scores"),
        ]

    @extend_schema_field(AmendedScoreOutput(many=True))
    def get_amended_scores(self, rollout: Rollout) -> Any:
        return AmendedScoreOutput(amended_scores_of(rollout), many=True).data


class CallOutput(serializers.ModelSerializer[ModelCall]):
    """One HTTP attempt. Unknown numbers are null, never 0."""

    url = Address("api-call-detail")
    rollout = serializers.IntegerField(source="invocation.rollout_id")
    invocation = serializers.IntegerField(source="invocation_id")
    response_headers = AnyObjectOrNull()

    class Meta:
        model = ModelCall
        fields = [
            "id", "url", "rollout", "invocation", "turn", "attempt", "purpose", "dialect", "state", "status",
            "error_kind", "error_text", "provider_response_id", "response_headers", "prompt_tokens",
            "completion_tokens", "cost_microusd", "latency_ms", "first_byte_ms", "created_at", "finished_at",
        ]  # fmt: skip


class BodyOutput(serializers.Serializer[Any]):
    """Bytes as they went over the wire: as text where they are UTF-8, else in base64."""

    sha256 = serializers.CharField()
    size_bytes = serializers.IntegerField()
    encoding = serializers.ChoiceField(choices=["text", "base64"])
    body = serializers.CharField()

    def to_representation(self, instance: Payload) -> dict[str, Any]:
        raw = zlib.decompress(bytes(instance.data))
        try:
            encoding, body = "text", raw.decode()
        except UnicodeDecodeError:
            encoding, body = "base64", base64.b64encode(raw).decode()
        return {
            "sha256": instance.sha256,
            "size_bytes": instance.size_bytes,
            "encoding": encoding,
            "body": body,
        }


class CallDetail(CallOutput):
    """A call with what was sent and what came back."""

    request = BodyOutput()
    response = BodyOutput(allow_null=True)

    class Meta(CallOutput.Meta):
        fields = [*CallOutput.Meta.fields, "request", "response"]


class AuditEventOutput(serializers.ModelSerializer[AuditEvent]):
    """One event of the chain. `data` are the stored bytes, parsed; `manage.py verify_audit` checks them."""

    at = serializers.SerializerMethodField()
    data = serializers.SerializerMethodField()

    class Meta:
        model = AuditEvent
        fields = [
            "sequence", "at", "actor", "action", "subject_type", "subject_id", "subject_label", "data",
            "previous_hash", "hash",
        ]  # fmt: skip

    def get_at(self, event: AuditEvent) -> datetime:
        return EPOCH + timedelta(microseconds=event.at_us)

    @extend_schema_field({"type": "object", "additionalProperties": {}})
    def get_data(self, event: AuditEvent) -> Any:
        return json.loads(bytes(event.data))
