"""What the API takes for bases, tracks, policies, candidates and tokens, and the queries of their lists."""

from __future__ import annotations

from rest_framework import serializers

from promotion.models import CandidateState
from promotion.services.candidates import OUTTYPES
from rollouts.api.fields import Document, FormTrueFalse, Name, QueryId, StrictSerializer, Text, Upload, Whole
from rollouts.api.inputs import RunInput
from rollouts.api.pagination import PageQuery
from rollouts.api.strict_json import MAX_SAFE_INTEGER


class TokenInput(StrictSerializer):
    username = Text(max_length=150)
    password = Text(max_length=4096)


class BaseForm(StrictSerializer):
    """A GGUF with a chat template."""

    name = Name()
    file = Upload()


class TrackInput(StrictSerializer):
    name = Name()
    purpose = Text(max_length=2000, help_text="What the track's models are for, in a sentence.")


class PolicyInput(StrictSerializer):
    """A draft. The document is checked strictly; what is wrong is named by its path."""

    track = Name()
    document = Document()


class CandidateForm(StrictSerializer):
    """A PEFT LoRA adapter for a track."""

    track = Name()
    name = Name()
    base = Name(help_text="The registered base model that the adapter is for.")
    outtype = serializers.ChoiceField(choices=OUTTYPES, default="f16")
    baseline = FormTrueFalse(default=False, help_text="Adopt it as the track's first champion, ungated.")
    adapter_config = Upload()
    adapter_model = Upload()


class EvaluateInput(StrictSerializer):
    backend = Name(help_text="Its newest revision serves the runs.")


class WithdrawInput(StrictSerializer):
    reason = Text(max_length=2000)


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


class EvidenceQuery(PageQuery):
    candidate = QueryId()


class MoveQuery(TrackQuery):
    name = Name(required=False)


class ExportQuery(TrackQuery):
    entry = QueryId(required=False)
