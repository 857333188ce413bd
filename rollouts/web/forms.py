"""Filters. They check shape only."""

from __future__ import annotations

from django import forms

from rollouts.failures import FAILURE_KINDS
from rollouts.models import RolloutState, RunState
from rollouts.selectors import METRICS

ANY = ("", "any")


class RunFilter(forms.Form):
    state = forms.ChoiceField(choices=[ANY, *((state, state) for state in RunState.values)], required=False)
    suite = forms.SlugField(required=False, max_length=100)
    label = forms.CharField(required=False, max_length=200, label="Model")
    subject = forms.RegexField(r"^[0-9a-fA-F]{1,64}$", required=False, label="Subject digest")


class RolloutFilter(forms.Form):
    state = forms.ChoiceField(
        choices=[ANY, *((state, state) for state in RolloutState.values)], required=False
    )
    family = forms.CharField(required=False, max_length=100)
    wrong = forms.ChoiceField(
        choices=[ANY, *((metric, metric) for metric in METRICS)], required=False, label="Metric wrong"
    )
    kind = forms.ChoiceField(
        choices=[ANY, *((kind, kind) for kind in FAILURE_KINDS)], required=False, label="Failure kind"
    )
    key = forms.CharField(required=False, max_length=200, label="Case")


class CaseFilter(forms.Form):
    family = forms.CharField(required=False, max_length=100)
    key = forms.CharField(required=False, max_length=200, label="Case")


class SuiteFilter(forms.Form):
    name = forms.CharField(required=False, max_length=100)
