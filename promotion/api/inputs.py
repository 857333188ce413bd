"""What the API takes for bases, tracks, policies, candidates and tokens, and the queries of their lists."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from promotion.models import CandidateState, DatasetRole
from promotion.services.candidates import OUTTYPES
from promotion.services.waivers import MAX_DAYS, MAX_REASON, MIN_DAYS, STATES
from rollouts.api.fields import (
    Digest,
    Document,
    FormTrueFalse,
    Name,
    Query,
    QueryId,
    StrictSerializer,
    Text,
    Upload,
    Whole,
)
from rollouts.api.inputs import RunInput
from rollouts.api.pagination import PageQuery
from rollouts.api.strict_json import MAX_SAFE_INTEGER, parse_json
from rollouts.errors import InvalidInput


class TokenInput(StrictSerializer):
    username = Text(max_length=150)
    password = Text(max_length=4096)


class BaseForm(StrictSerializer):
    """A GGUF with a chat template."""

    name = Name()
    file = Upload()


class Groups(serializers.ListField):
    """Names of groups."""

    def __init__(self, **options: Any) -> None:
        help_text = (
            "Groups that may see it, besides auditors and administrators; none: everybody with a role."
        )
        super().__init__(child=Text(max_length=150), max_length=100, help_text=help_text, **options)


class TrackInput(StrictSerializer):
    name = Name()
    purpose = Text(max_length=2000, help_text="What the track's models are for, in a sentence.")
    readers = Groups(required=False)


class ReadersInput(StrictSerializer):
    """All of them: who is not named no longer reads it."""

    readers = Groups()


class PolicyInput(StrictSerializer):
    """A draft. The document is checked strictly; what is wrong is named by its path."""

    track = Name()
    document = Document()


class WhatIfInput(StrictSerializer):
    """Exactly one of `policy`, a stored version of the track, and `document`. Neither: its draft, else what is in force."""

    policy = Whole(min_value=1, max_value=2**31 - 1, required=False)
    document = Document(required=False)


class DatasetUseInput(StrictSerializer):
    digest = Digest(help_text="Of a registered dataset.")
    role = serializers.ChoiceField(
        choices=DatasetRole.choices, help_text="train, or eval: watched while it was trained."
    )


class DatasetUsesText(Text):
    """The list of {digest, role}, written as JSON in a form."""

    def __init__(self, **options: Any) -> None:
        super().__init__(max_length=100_000, **options)

    def to_internal_value(self, data: Any) -> Any:
        try:
            listed = parse_json(super().to_internal_value(data).encode())
        except InvalidInput as error:
            raise serializers.ValidationError(f"is not the JSON of a list: {error.message}") from error
        uses = DatasetUseInput(data=listed, many=True)
        if not uses.is_valid():
            raise serializers.ValidationError('must be a list of {"digest", "role"}, role train or eval.')
        return uses.validated_data


@extend_schema_field(
    {"oneOf": [{"type": "array", "items": {}}, {"type": "object", "additionalProperties": {}}]}
)
class ToolSchemas(serializers.JSONField):
    """The tools themselves: a list of {name, description, parameters}, or an object that holds it."""

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, list | dict):
            raise serializers.ValidationError("must be a list or an object.")
        return data


class CandidateForm(StrictSerializer):
    """A PEFT LoRA adapter for a track."""

    track = Name()
    name = Name()
    base = Name(help_text="The registered base model that the adapter is for.")
    outtype = serializers.ChoiceField(choices=OUTTYPES, default="f16")
    baseline = FormTrueFalse(default=False, help_text="Adopt it as the track's first champion, ungated.")
    adapter_config = Upload()
    adapter_model = Upload()
    datasets = DatasetUsesText(
        required=False, help_text='What it was made from: [{"digest": "…", "role": "train"}, …].'
    )
    tool_schema = Upload(required=False, help_text="The file of the tool schemas that its runtime shows.")
    tool_schema_sha256 = Digest(required=False, help_text="Instead of the file: the schemas' digest.")


class DatasetsInput(StrictSerializer):
    """What a candidate was made from. It is added to what is there; nothing is taken away."""

    datasets = DatasetUseInput(many=True, required=False)
    tool_schema = ToolSchemas(required=False)
    tool_schema_sha256 = Digest(required=False, help_text="Instead of `tool_schema`: the schemas' digest.")


class PreflightInput(StrictSerializer):
    """Registered datasets by digest, and the documents. What is left out is a finding where it is needed."""

    train = Digest(required=False)
    eval = Digest(required=False)
    policy = Document(required=False, help_text="A draft.")
    sidecar = Document(required=False, help_text="Of both files; left out, the datasets' own.")
    config = Document(required=False, help_text="A round's configuration: status and gates.")
    tool_schema = ToolSchemas(required=False)
    track = Name(required=False)


class PreflightForm(StrictSerializer):
    """The same with files. `train_digest` and `eval_digest` name registered datasets instead."""

    train = Upload(required=False)
    eval = Upload(required=False)
    train_digest = Digest(required=False)
    eval_digest = Digest(required=False)
    policy = Upload(required=False)
    sidecar = Upload(required=False)
    config = Upload(required=False)
    tool_schema = Upload(required=False)
    track = Name(required=False)


class EvaluateInput(StrictSerializer):
    backend = Name(help_text="Its newest revision serves the runs.")


class WithdrawInput(StrictSerializer):
    reason = Text(max_length=2000)


class WaiverInput(StrictSerializer):
    """One unmet gate of a candidate's present measurements. `suite` where the policy's entry names one."""

    candidate = Whole(min_value=1, max_value=MAX_SAFE_INTEGER)
    gate = Text(max_length=60)
    suite = Digest(required=False)
    reason = Text(max_length=MAX_REASON, help_text="Whoever grants it and whoever signs reads this.")
    days = Whole(min_value=MIN_DAYS, max_value=MAX_DAYS, help_text="How long it holds, from now.")


class WaiverEndInput(StrictSerializer):
    reason = Text(max_length=MAX_REASON)


class CandidateRunInput(RunInput):
    """Exactly one of `candidate`, `base` and `model`. Left out, a candidate's sampling is its policy's."""

    candidate = Whole(min_value=1, max_value=MAX_SAFE_INTEGER, required=False)


class TrackQuery(PageQuery):
    track = Name(required=False)


class PolicyQuery(TrackQuery):
    locked = FormTrueFalse(required=False)


class CandidateQuery(TrackQuery):
    state = serializers.ChoiceField(choices=CandidateState.choices, required=False)
    name = Name(required=False)
    base = Name(required=False)


class WaiverQuery(PageQuery):
    candidate = QueryId(required=False)
    state = serializers.ChoiceField(choices=STATES, required=False)


class PolicyDiffQuery(Query):
    against = QueryId(
        required=False, most=2**31 - 1, help_text="A version; left out, the one in force before."
    )


class EvidenceQuery(PageQuery):
    candidate = QueryId()


class MoveQuery(TrackQuery):
    name = Name(required=False)


class ExportQuery(TrackQuery):
    entry = QueryId(required=False)
