"""Forms check shape only; whether something may happen is for the services to say."""

from __future__ import annotations

from datetime import UTC, datetime, time
from typing import Any

from django import forms

from promotion.models import CandidateState, Decision, Meaning
from promotion.services.candidates import OUTTYPES
from rollouts.audit import ACTIONS
from rollouts.models import Backend, BaseModel
from rollouts.selectors import backends_in_use, base_models

ANY = ("", "any")


class SignForm(forms.Form):
    """The signature. The password is never echoed; nothing is chosen beforehand."""

    evidence_digest = forms.RegexField(r"^[0-9a-f]{64}$", widget=forms.HiddenInput)
    decision = forms.ChoiceField(
        choices=Decision.choices, error_messages={"required": "Choose sign, request changes or reject."}
    )
    meaning = forms.ChoiceField(choices=[ANY, *Meaning.choices], required=False)
    comment = forms.CharField(required=False, max_length=4000, strip=True)
    password = forms.CharField(
        strip=False, error_messages={"required": "Give your password: it is asked each time."}
    )

    def clean(self) -> dict[str, Any]:
        cleaned = self.cleaned_data
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


class SubmitForm(forms.Form):
    """A candidate by upload: the adapter's two files."""

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


class CandidateFilter(forms.Form):
    state = forms.ChoiceField(
        choices=[ANY, *((state, state.replace("_", " ")) for state in CandidateState.values)], required=False
    )
    name = forms.CharField(required=False, max_length=100)


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
