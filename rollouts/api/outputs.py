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

from rollouts.models import (
    AuditEvent,
    Backend,
    Case,
    EvalRun,
    Invocation,
    ModelCall,
    Payload,
    Rollout,
    RolloutState,
    Subject,
    Suite,
)
from rollouts.selectors import METRICS, run_summary

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


class BackendOutput(serializers.ModelSerializer[Backend]):
    url = Address("api-backend-detail", kwarg="name", attribute="name")
    config = AnyObject()
    created_by = Person()

    class Meta:
        model = Backend
        fields = [
            "name", "url", "revision", "kind", "config", "digest", "key_env", "concurrency", "timeout_s",
            "max_attempts", "prompt_price", "completion_price", "created_at", "created_by",
        ]  # fmt: skip


class SuiteOutput(serializers.ModelSerializer[Suite]):
    url = Address("api-suite-detail", kwarg="digest", attribute="digest")
    sealed_by = Person()

    class Meta:
        model = Suite
        fields = [
            "name", "url", "version", "digest", "scorer", "case_count", "source", "sealed_at", "sealed_by",
        ]  # fmt: skip


class CaseOutput(serializers.ModelSerializer[Case]):
    content = AnyObject()

    class Meta:
        model = Case
        fields = ["position", "key", "family", "group", "expects_call", "digest", "content"]


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


class RunOutput(serializers.ModelSerializer[EvalRun]):
    """Counts are null until the run closes."""

    url = Address("api-run-detail")
    suite = SuiteName()
    backend = BackendName()
    subject = SubjectOutput()
    created_by = Person()

    class Meta:
        model = EvalRun
        fields = [
            "id", "uid", "url", "state", "label", "samples", "suite", "backend", "subject", "planned",
            "scored", "masked", "unscored", "cancelled", "error_code", "error_detail", "created_by",
            "created_at", "started_at", "finished_at",
        ]  # fmt: skip


class MetricOutput(serializers.Serializer[Any]):
    """Scored rollouts that the metric applies to."""

    name = serializers.ChoiceField(choices=METRICS)
    right = serializers.IntegerField()
    wrong = serializers.IntegerField()


class FailureOutput(serializers.Serializer[Any]):
    state = serializers.ChoiceField(choices=RolloutState.choices)
    kind = serializers.CharField()
    n = serializers.IntegerField()


class ProgressOutput(serializers.Serializer[Any]):
    """Counted as it is asked for."""

    done = serializers.IntegerField()
    states = serializers.DictField(child=serializers.IntegerField(), help_text="Rollouts by state.")
    failures = FailureOutput(many=True)
    metrics = MetricOutput(many=True)
    p50_ms = serializers.FloatField(allow_null=True)
    p95_ms = serializers.FloatField(allow_null=True)
    look = serializers.IntegerField(
        allow_null=True, help_text="The how-manieth subject that this suite has seen."
    )


class RunDetail(RunOutput):
    """A run with its progress of this moment."""

    progress = serializers.SerializerMethodField()
    server_facts = AnyObjectOrNull()

    class Meta(RunOutput.Meta):
        fields = [*RunOutput.Meta.fields, "plan_digest", "suite_digest", "server_facts", "progress"]

    @extend_schema_field(ProgressOutput)
    def get_progress(self, run: EvalRun) -> Any:
        return ProgressOutput(run_summary(run)).data


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

    class Meta:
        model = Rollout
        fields = [
            "id", "url", "run", "case", "sample_index", "state", "failure_kind", "answer_class",
            "finish_reason", "scores", "latency_ms", "prompt_tokens", "completion_tokens", "finished_at",
        ]  # fmt: skip


class InvocationOutput(serializers.ModelSerializer[Invocation]):
    worker = serializers.CharField(source="claim.worker")

    class Meta:
        model = Invocation
        fields = ["id", "state", "worker", "started_at", "finished_at"]


class RolloutDetail(RolloutOutput):
    """A rollout with its case, its answer and its invocations. Its calls stand at `/calls?rollout=`."""

    case = CaseOutput()
    invocations = InvocationOutput(many=True)

    class Meta(RolloutOutput.Meta):
        fields = [*RolloutOutput.Meta.fields, "failure_reason", "lost_workers", "answer", "invocations"]


class CallOutput(serializers.ModelSerializer[ModelCall]):
    """One HTTP attempt. Unknown numbers are null, never 0."""

    url = Address("api-call-detail")
    rollout = serializers.IntegerField(source="invocation.rollout_id")
    invocation = serializers.IntegerField(source="invocation_id")
    response_headers = AnyObjectOrNull()

    class Meta:
        model = ModelCall
        fields = [
            "id", "url", "rollout", "invocation", "turn", "attempt", "dialect", "state", "status",
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
