"""Forms check shape only; whether something may happen is for the services to say."""

from __future__ import annotations

from datetime import UTC, datetime, time
from typing import Any

from django import forms
from django.contrib.auth.models import Group, User

from promotion.models import CandidateState, DatasetRole, Decision, Meaning, Method, Policy
from promotion.services.candidate_datasets import MAX_SCHEMA_BYTES, tool_schema_digest
from promotion.services.candidates import OUTTYPES
from rollouts.audit import ACTIONS
from rollouts.models import Backend, BaseModel, Dataset
from rollouts.selectors import backends_in_use, base_models, datasets

ANY = ("", "any")


class SignForm(forms.Form):
    """The signature. The password is never echoed; nothing is chosen beforehand."""

    evidence_digest = forms.RegexField(r"^[0-9a-f]{64}$", widget=forms.HiddenInput)
    decision = forms.ChoiceField(
        choices=Decision.choices, error_messages={"required": "Choose sign, request changes or reject."}
    )
    meaning = forms.ChoiceField(choices=[ANY, *Meaning.choices], required=False)
    comment = forms.CharField(required=False, max_length=4000, strip=True)
    unopened_reason = forms.CharField(required=False, max_length=4000, strip=True)
    method = forms.ChoiceField(choices=[ANY, *Method.choices], required=False)
    password = forms.CharField(required=False, strip=False)

    WORDS = ("evidence_digest", "decision", "meaning", "comment", "unopened_reason")

    @property
    def words(self) -> dict[str, str]:
        """What is signed, without how the person proves who they are."""
        return {name: self.cleaned_data[name] for name in self.WORDS}

    def clean(self) -> dict[str, Any]:
        cleaned = self.cleaned_data
        cleaned["method"] = cleaned.get("method") or Method.PASSWORD
        if cleaned["method"] == Method.PASSWORD and not cleaned.get("password"):
            self.add_error("password", "Give your password: it is asked each time.")
        decision = cleaned.get("decision")
        if decision == Decision.APPROVE and not cleaned.get("meaning") and "meaning" not in self.errors:
            self.add_error("meaning", "Say what your signature means.")
        if (
            decision
            and decision != Decision.APPROVE
            and not cleaned.get("comment")
            and "comment" not in self.errors
        ):
            self.add_error("comment", "Say why. The submitter reads it.")
        return cleaned


class EvaluateForm(forms.Form):
    backend = forms.ModelChoiceField(Backend.objects.none(), empty_label="choose a backend")

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.fields["backend"].queryset = backends_in_use().filter(kind="llama_cpp")


class WithdrawForm(forms.Form):
    reason = forms.CharField(
        max_length=2000, widget=forms.Textarea(attrs={"rows": 4}), label="Why is it withdrawn?"
    )


class _Datasets(forms.ModelMultipleChoiceField):
    def __init__(self, **options: Any) -> None:
        options.setdefault("required", False)
        widget = forms.SelectMultiple(attrs={"size": 5})
        super().__init__(Dataset.objects.none(), to_field_name="digest", widget=widget, **options)

    def label_from_instance(self, dataset: Dataset) -> str:
        return f"{dataset} ({dataset.row_count:,} rows)"


class DatasetsForm(forms.Form):
    """What a candidate was made from."""

    train = _Datasets(label="Training data", help_text="Registered datasets that it was trained on.")
    eval = _Datasets(label="Evaluation data", help_text="Watched while it was trained.")
    tool_schema = forms.FileField(
        required=False, label="Tool schemas (JSON)", help_text="Of the tools that its runtime shows."
    )

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        for role in DatasetRole.values:
            self.fields[role].queryset = datasets()

    @property
    def uses(self) -> list[dict[str, str]]:
        """{digest, role} of every dataset that was chosen."""
        return [
            {"digest": dataset.digest, "role": role}
            for role in DatasetRole.values
            for dataset in self.cleaned_data[role]
        ]

    @property
    def schema_digest(self) -> str:
        """Raises `InvalidInput` where the file holds no schemas."""
        file = self.cleaned_data["tool_schema"]
        return tool_schema_digest(file.read(MAX_SCHEMA_BYTES + 1)) if file else ""


class SubmitForm(DatasetsForm):
    """A candidate by upload: the adapter's two files, and what it was made from."""

    field_order = (
        "name",
        "base",
        "adapter_config",
        "adapter_model",
        "outtype",
        "train",
        "eval",
        "tool_schema",
    )
    name = forms.SlugField(
        max_length=60, help_text="Small letters, digits, - and _. It becomes part of the file name."
    )
    base = forms.ModelChoiceField(
        BaseModel.objects.none(), empty_label="choose a base model", label="Base model"
    )
    adapter_config = forms.FileField(label="adapter_config.json")
    adapter_model = forms.FileField(label="adapter_model.safetensors")
    outtype = forms.ChoiceField(choices=[(kind, kind) for kind in OUTTYPES], initial="f16", label="GGUF type")
    baseline = forms.BooleanField(
        required=False,
        label="Adopt as the ungated baseline",
        help_text="Only for a track without a champion. It takes two signatures and no gates.",
    )

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.fields["base"].queryset = base_models()


class _OneDataset(forms.ModelChoiceField):
    def __init__(self, **options: Any) -> None:
        super().__init__(
            Dataset.objects.none(), to_field_name="digest", required=False, empty_label="none", **options
        )

    def label_from_instance(self, dataset: Dataset) -> str:
        return f"{dataset} ({dataset.row_count:,} rows)"


class _Policies(forms.ModelChoiceField):
    def label_from_instance(self, policy: Policy) -> str:
        return f"{policy.track.name}, version {policy.version}{'' if policy.locked_at else ' (draft)'}"


class PreflightForm(forms.Form):
    """Registered data or files, and the documents that go with them."""

    GROUPS = {
        "Training data": ("train", "train_file"),
        "Evaluation data": ("eval", "eval_file"),
        "What they must meet": ("policy", "policy_file", "config", "sidecar", "tool_schema"),
    }

    train = _OneDataset(label="Registered")
    train_file = forms.FileField(required=False, allow_empty_file=True, label="Or a file (JSONL)")
    eval = _OneDataset(label="Registered")
    eval_file = forms.FileField(required=False, allow_empty_file=True, label="Or a file (JSONL)")
    policy = _Policies(Policy.objects.none(), required=False, empty_label="none", label="Policy")
    policy_file = forms.FileField(required=False, label="Or a policy's file (JSON)")
    config = forms.FileField(
        required=False,
        label="Round's configuration (JSON)",
        help_text="Its status, and what it asks of its data.",
    )
    sidecar = forms.FileField(
        required=False, label="Sidecar (JSON)", help_text="Of both files. Registered data has its own."
    )
    tool_schema = forms.FileField(required=False, label="Tool schemas (JSON)")

    def __init__(self, person: User, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.fields["train"].queryset = self.fields["eval"].queryset = datasets()
        policies = Policy.objects.visible_to(person).select_related("track")
        self.fields["policy"].queryset = policies.order_by("track__name", "-version")

    def clean(self) -> dict[str, Any]:
        cleaned = self.cleaned_data
        for name in ("train", "eval", "policy"):
            if cleaned.get(name) and cleaned.get(f"{name}_file"):
                self.add_error(f"{name}_file", "Give one of the two.")
        return cleaned

    @property
    def groups(self) -> list[tuple[str, list[forms.BoundField]]]:
        return [(heading, [self[name] for name in names]) for heading, names in self.GROUPS.items()]


class ReadersForm(forms.Form):
    """Which groups may see a track. None ticked: everybody with a role."""

    readers = forms.MultipleChoiceField(
        required=False, widget=forms.CheckboxSelectMultiple, label="Only these groups"
    )

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        names = Group.objects.order_by("name").values_list("name", flat=True)
        self.fields["readers"].choices = [(name, name) for name in names]


class TrackFilter(forms.Form):
    name = forms.CharField(required=False, max_length=60)


class PolicyFilter(forms.Form):
    track = forms.SlugField(required=False, max_length=60)
    state = forms.ChoiceField(choices=[ANY, ("locked", "locked"), ("draft", "draft")], required=False)


class TrackCandidateFilter(forms.Form):
    state = forms.ChoiceField(
        choices=[ANY, *((state, state.replace("_", " ")) for state in CandidateState.values)], required=False
    )
    name = forms.CharField(required=False, max_length=100)


class CandidateFilter(TrackCandidateFilter):
    field_order = ("track", "state", "name", "submitter", "mine")
    track = forms.SlugField(required=False, max_length=60)
    submitter = forms.CharField(required=False, max_length=150, label="Submitted by")
    mine = forms.BooleanField(required=False, label="Only mine")


class EntryFilter(forms.Form):
    track = forms.SlugField(required=False, max_length=60)


class AuditFilter(forms.Form):
    action = forms.ChoiceField(required=False)
    actor = forms.CharField(required=False, max_length=200)
    subject = forms.CharField(required=False, max_length=200)
    since = forms.DateField(required=False, widget=forms.DateInput(attrs={"type": "date"}), label="From day")
    until = forms.DateField(required=False, widget=forms.DateInput(attrs={"type": "date"}), label="To day")

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.fields["action"].choices = [ANY, *((action, action) for action in sorted(ACTIONS))]

    def filters(self, chosen: dict[str, Any]) -> dict[str, Any]:
        """What `rollouts.selectors.events_where` takes: days become microseconds, the last day included."""
        since, until = chosen.pop("since", None), chosen.pop("until", None)
        if since:
            chosen["since_us"] = _us(since)
        if until:
            # the last day of the calendar has no next one
            chosen["until_us"] = _us(until) + 86_400_000_000
        return chosen


def _us(day: Any) -> int:
    return int(datetime.combine(day, time.min, tzinfo=UTC).timestamp()) * 1_000_000
