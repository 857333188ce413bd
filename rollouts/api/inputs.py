"""What the API takes for backends, suites and runs, and the queries of their lists."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rest_framework import serializers

from rollouts import audit
from rollouts.api.fields import (
    Digest,
    Document,
    FormTrueFalse,
    Name,
    Number,
    Query,
    QueryId,
    StrictSerializer,
    Text,
    TrueFalse,
    Upload,
    Whole,
)
from rollouts.api.pagination import PageQuery
from rollouts.api.strict_json import MAX_SAFE_INTEGER
from rollouts.backends import kind_named, kinds
from rollouts.models import CallState, RolloutState, RunState
from rollouts.selectors import APART, METRICS
from rollouts.services.backends import LIMITS
from rollouts.services.runs import MAX_SAMPLES
from rollouts.suite_format import SCORERS

DEFAULT_SAMPLING = {"temperature": 0, "max_tokens": 256}


def _limit(name: str, default: int | None) -> Whole:
    least, most = LIMITS[name]
    return Whole(min_value=least, max_value=most, default=default, allow_null=default is None)


class Kind(serializers.ChoiceField):
    """A backend kind. The choices are those of this moment: DRF makes each field anew for each request."""

    def __init__(self, **options: Any) -> None:
        super().__init__(choices=kinds(), **options)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            raise serializers.ValidationError("must be a string.")
        kind_named(data)  # says which there are, or why a plug-in does not load
        return data


class BackendInput(StrictSerializer):
    """The newest revision will hold these values."""

    name = Name()
    kind = Kind()
    config = Document()
    key_env = Text(
        max_length=100, allow_blank=True, default="", help_text="The key's variable, never the key."
    )
    concurrency = _limit("concurrency", 1)
    timeout_s = _limit("timeout_s", 120)
    max_attempts = _limit("max_attempts", 3)
    requests_per_minute = _limit("requests_per_minute", None)
    prompt_price = Whole(min_value=0, max_value=MAX_SAFE_INTEGER, allow_null=True, default=None)
    completion_price = Whole(min_value=0, max_value=MAX_SAFE_INTEGER, allow_null=True, default=None)


class SuiteForm(StrictSerializer):
    """The JSONL file of a suite, in a form. Its scorer may stand here or in the query."""

    file = Upload()
    scorer = serializers.ChoiceField(choices=SCORERS, required=False)


class DatasetForm(StrictSerializer):
    """The JSONL file of a dataset, in a form, with the JSON that came with it."""

    file = Upload()
    sidecar = Upload(required=False, help_text="What the file declares of itself: digests, streams, review.")


class TranscriptForm(StrictSerializer):
    """The JSONL file of a transcript, in a form."""

    file = Upload()


class SamplingInput(StrictSerializer):
    temperature = Number(min_value=0, max_value=2, default=DEFAULT_SAMPLING["temperature"])
    max_tokens = Whole(min_value=1, max_value=32768, default=DEFAULT_SAMPLING["max_tokens"])


class JudgeInput(StrictSerializer):
    """Who judges the answers, for suites that are scored by a judge."""

    backend = Name(help_text="Its newest revision is used.")
    model = Text(help_text="What that backend calls the judge.")


class BudgetInput(StrictSerializer):
    """The most that may be used. What is left out has no limit."""

    calls = Whole(min_value=1, max_value=MAX_SAFE_INTEGER, required=False)
    tokens = Whole(min_value=1, max_value=MAX_SAFE_INTEGER, required=False)
    microusd = Whole(min_value=1, max_value=MAX_SAFE_INTEGER, required=False, help_text="Micro-dollars.")
    wall_s = Whole(
        min_value=1, max_value=MAX_SAFE_INTEGER, required=False, help_text="Seconds from the start."
    )


class RunInput(StrictSerializer):
    """Exactly one of `base` (a registered base model) and `model` (what a remote endpoint calls it)."""

    suite = Digest(help_text="The suite's digest.")
    backend = Name(help_text="Its newest revision is used.")
    base = Name(required=False)
    model = Text(required=False)
    samples = Whole(min_value=1, max_value=MAX_SAMPLES, default=1)
    label = Text(allow_blank=True, default="")
    sampling = SamplingInput(required=False)
    reuse = TrueFalse(
        default=False,
        help_text="Take answers that the same attempts got before. Evidence never counts such a run.",
    )
    judge = JudgeInput(required=False)
    budget = BudgetInput(required=False)


class BackendQuery(PageQuery):
    kind = Kind(required=False)


class SuiteQuery(PageQuery):
    name = Name(required=False)


class NewSuiteQuery(Query):
    name = Name()
    source = Text(allow_blank=True, default="", help_text="Where the cases come from.")
    scorer = serializers.ChoiceField(choices=SCORERS, required=False, help_text="decision, if none is given.")


class NewDatasetQuery(Query):
    name = Name()
    source = Text(allow_blank=True, default="", help_text="Where the rows come from.")


class RunQuery(PageQuery):
    state = serializers.ChoiceField(choices=RunState.choices, required=False)
    suite = Digest(required=False)
    backend = Name(required=False)
    subject = Digest(required=False)


class RolloutQuery(PageQuery):
    """`metric` alone gives the rollouts it applies to; with `value` those that are right, or wrong."""

    run = QueryId()
    state = serializers.ChoiceField(choices=RolloutState.choices, required=False)
    family = Text(required=False)
    metric = serializers.ChoiceField(choices=[*METRICS, *APART], required=False)
    value = FormTrueFalse(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "value" in attrs and "metric" not in attrs:
            raise serializers.ValidationError({"value": "needs a metric."})
        return attrs


class CallQuery(PageQuery):
    """Of one run or of one rollout."""

    run = QueryId(required=False)
    rollout = QueryId(required=False)
    state = serializers.ChoiceField(choices=CallState.choices, required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("run" in attrs) == ("rollout" in attrs):
            raise serializers.ValidationError({"run": "give either a run or a rollout."})
        return attrs


class AuditQuery(PageQuery):
    """Events from `from` on and before `to`."""

    action = Text(required=False)
    actor = Text(required=False)
    subject_type = Text(required=False)
    subject_id = Text(required=False)

    def get_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = super().get_fields()
        fields["from"] = serializers.DateTimeField(required=False, default_timezone=UTC)
        fields["to"] = serializers.DateTimeField(required=False, default_timezone=UTC)
        return fields

    def validate_action(self, action: str) -> str:
        if action not in audit.ACTIONS:
            raise serializers.ValidationError(
                f"is not an audit action. Use one of: {', '.join(sorted(audit.ACTIONS))}."
            )
        return action


def microseconds(at: datetime) -> int:
    """Since 1970, exactly."""
    passed = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds
