"""Filters, and the form of a new run. They check shape only; what may run is for the services to say."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from django import forms
from django.db.models import QuerySet

from rollouts.backends import kinds
from rollouts.clusters import Cluster
from rollouts.failures import FAILURE_KINDS
from rollouts.models import Backend, BaseModel, RolloutState, RunState, Suite
from rollouts.scoring import SCORER_METRICS
from rollouts.selectors import APART, METRICS, backends_in_use, base_models, suites
from rollouts.services.runs import MAX_SAMPLES

ANY = ("", "any")
MAX_TOKENS = 32768


class RunFilter(forms.Form):
    state = forms.ChoiceField(choices=[ANY, *((state, state) for state in RunState.values)], required=False)
    suite = forms.SlugField(required=False, max_length=100)
    label = forms.CharField(required=False, max_length=200, label="Model")
    subject = forms.RegexField(r"^[0-9a-fA-F]{1,64}$", required=False, label="Subject digest")


class RolloutFilter(forms.Form):
    """`cluster` is one of the run's groups of misses, by what it did."""

    state = forms.ChoiceField(
        choices=[ANY, *((state, state) for state in RolloutState.values)], required=False
    )
    family = forms.CharField(required=False, max_length=100)
    wrong = forms.ChoiceField(
        choices=[ANY, *((metric, metric.replace("_", " ")) for metric in (*METRICS, *APART))],
        required=False,
        label="Metric wrong",
    )
    kind = forms.ChoiceField(
        choices=[ANY, *((kind, kind) for kind in FAILURE_KINDS)], required=False, label="Failure kind"
    )
    read_as = forms.RegexField(r"^[a-z_]{1,20}$", required=False, label="Answer read as")
    key = forms.CharField(required=False, max_length=200, label="Case")
    cluster = forms.ChoiceField(
        required=False,
        label="What went wrong",
        error_messages={
            "invalid_choice": "This run has no such group of misses now. Its page shows those it has."
        },
    )

    def __init__(self, clusters: Iterable[Cluster], *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        found = [(cluster.did, f"{cluster.did} ({cluster.n:,})") for cluster in clusters]
        self.fields["cluster"].choices = [ANY, *found]
        if not found and not self.data.get("cluster"):
            del self.fields["cluster"]


class CaseFilter(forms.Form):
    family = forms.CharField(required=False, max_length=100)
    key = forms.CharField(required=False, max_length=200, label="Case")


class SuiteFilter(forms.Form):
    name = forms.CharField(required=False, max_length=100)
    scorer = forms.ChoiceField(
        choices=[ANY, *((scorer, scorer.replace("_", " ")) for scorer in sorted(SCORER_METRICS))],
        required=False,
    )


class DatasetFilter(forms.Form):
    name = forms.CharField(required=False, max_length=100)
    source = forms.CharField(required=False, max_length=200)


class BackendFilter(forms.Form):
    name = forms.CharField(required=False, max_length=100)
    kind = forms.ChoiceField(
        choices=lambda: [ANY, *((kind, kind.replace("_", " ")) for kind in kinds())], required=False
    )


class BaseFilter(forms.Form):
    name = forms.CharField(required=False, max_length=100)


class DatasetForm(forms.Form):
    """A dataset by upload: its rows, and what came with them."""

    name = forms.SlugField(
        max_length=60, help_text="Small letters, digits, - and _. A change is its next version."
    )
    file = forms.FileField(label="Rows (JSONL)", allow_empty_file=True)
    sidecar = forms.FileField(
        required=False,
        label="Sidecar (JSON)",
        help_text="What the export says of the file: digests, streams, review.",
    )
    source = forms.CharField(
        required=False, max_length=200, label="Source", help_text="Where the rows come from."
    )


class _Suites(forms.ModelChoiceField):
    def label_from_instance(self, suite: Suite) -> str:
        return f"{suite} ({suite.case_count:,} cases, scored by {suite.scorer.replace('_', ' ')})"


class _Backends(forms.ModelChoiceField):
    """By name: the newest revision at the moment of the start is used."""

    def __init__(self, **options: Any) -> None:
        super().__init__(Backend.objects.none(), to_field_name="name", **options)

    def label_from_instance(self, backend: Backend) -> str:
        return f"{backend.name} ({backend.kind})"


class RunForm(forms.Form):
    """A run that stands by itself. `FIELD_OF` maps what the service names to the field that asks for it."""

    FIELD_OF = {
        "judge": "judge_backend",
        "judge.backend": "judge_backend",
        "judge.model": "judge_model",
        "budget.calls": "budget_calls",
        "budget.tokens": "budget_tokens",
        "budget.microusd": "budget_usd",
        "budget.wall_s": "budget_wall_s",
    }
    GROUPS = {
        "What is measured": ("suite", "base", "model", "label"),
        "How it is asked": ("backend", "samples", "temperature", "max_tokens", "reuse"),
        "Judge": ("judge_backend", "judge_model"),
        "Budget": ("budget_calls", "budget_tokens", "budget_usd", "budget_wall_s"),
    }
    HINTS = {
        "What is measured": "A registered base model, or what a remote endpoint calls its model.",
        "Judge": "Only for suites that a judge scores. A dual backend brings its own.",
        "Budget": "What is left empty has no limit. When the budget is spent, what was not asked is unscored.",
    }

    suite = _Suites(Suite.objects.none(), empty_label="choose a suite")
    base = forms.ModelChoiceField(
        BaseModel.objects.none(),
        to_field_name="name",
        required=False,
        empty_label="no base model",
        label="Base model",
    )
    model = forms.CharField(max_length=200, required=False, label="Remote model")
    label = forms.CharField(
        max_length=200, required=False, help_text="What the run is called in lists and on its page."
    )
    backend = _Backends(empty_label="choose a backend")
    samples = forms.IntegerField(min_value=1, max_value=MAX_SAMPLES, initial=1, label="Samples of each case")
    temperature = forms.FloatField(min_value=0, max_value=2, initial=0)
    max_tokens = forms.IntegerField(
        min_value=1, max_value=MAX_TOKENS, initial=256, label="Most tokens of an answer"
    )
    reuse = forms.BooleanField(
        required=False,
        label="Take answers that the same attempts got before",
        help_text="Saves calls. Evidence never counts such a run.",
    )
    judge_backend = _Backends(required=False, empty_label="no judge", label="Judge's backend")
    judge_model = forms.CharField(max_length=200, required=False, label="Judge's model")
    budget_calls = forms.IntegerField(min_value=1, required=False, label="Most calls")
    budget_tokens = forms.IntegerField(min_value=1, required=False, label="Most tokens")
    budget_usd = forms.DecimalField(
        min_value=Decimal("0.000001"),
        max_digits=15,
        decimal_places=6,
        required=False,
        label="Most cost in USD",
    )
    budget_wall_s = forms.IntegerField(min_value=1, required=False, label="Most seconds from the start")

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        rows: dict[str, QuerySet[Any]] = {
            "suite": suites(),
            "base": base_models(),
            "backend": backends_in_use(),
            "judge_backend": backends_in_use(),
        }
        for name, found in rows.items():
            self.fields[name].queryset = found

    def clean(self) -> dict[str, Any]:
        cleaned = self.cleaned_data
        if not {"base", "model"} & self.errors.keys() and bool(cleaned["base"]) is bool(cleaned["model"]):
            self.add_error("model", "Give exactly one: a base model, or a remote model's name.")
        if (
            cleaned.get("judge_model")
            and not cleaned.get("judge_backend")
            and "judge_backend" not in self.errors
        ):
            self.add_error("judge_backend", "Choose where the judge answers.")
        return cleaned

    @property
    def groups(self) -> list[tuple[str, str, list[forms.BoundField]]]:
        """Heading, hint and fields of each part, in order."""
        return [
            (heading, self.HINTS.get(heading, ""), [self[name] for name in names])
            for heading, names in self.GROUPS.items()
        ]

    @property
    def sampling(self) -> dict[str, int | float]:
        temperature = self.cleaned_data["temperature"]
        whole = temperature.is_integer()
        return {
            "temperature": int(temperature) if whole else temperature,
            "max_tokens": self.cleaned_data["max_tokens"],
        }

    @property
    def budget(self) -> dict[str, int | None]:
        cleaned = self.cleaned_data
        usd = cleaned["budget_usd"]
        return {
            "calls": cleaned["budget_calls"],
            "tokens": cleaned["budget_tokens"],
            "microusd": None if usd is None else int(usd * 1_000_000),
            "wall_s": cleaned["budget_wall_s"],
        }
