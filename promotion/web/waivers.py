"""Waivers: what of them a review shows, and the pages on which they are asked for, granted and ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from promotion import evidence as evidence_module
from promotion import permissions, selectors
from promotion.gates import GATES
from promotion.models import OPEN_STATES, Candidate, Evidence, GateResult, Policy, Waiver
from promotion.services import gating, policies, waivers
from promotion.web.review import allowed
from rollouts.errors import AssayError, Conflict, InvalidInput, NotFound
from rollouts.models import Suite
from rollouts.web.http import acts, reads

SHOWN = 50
UNMET = ("failed", "not_evaluated")


@dataclass(frozen=True, slots=True)
class Line:
    """A waiver as it stands now. `suite` is the suite's name; `applies`: what it waives is what was judged."""

    waiver: Waiver
    state: str
    suite: str
    applies: bool

    @property
    def counts(self) -> bool:
        return self.state == "granted" and self.applies

    @property
    def word(self) -> str:
        if self.state in ("requested", "granted") and not self.applies:
            return f"{self.state}, of other measurements"
        return self.state


@dataclass(frozen=True, slots=True)
class Unmet:
    """A gate that could be waived: `value` names it in a form."""

    value: str
    gate: str
    suite: str
    reason: str


@dataclass(frozen=True, slots=True)
class Exceptions:
    """Where this candidate's bar is lower than it was: waivers, and what its policy loosened."""

    lines: list[Line]
    may_request: bool
    loosened: list[policies.Change]
    before: Policy | None
    suites: dict[str, Suite]

    @property
    def any(self) -> bool:
        return bool(self.lines or self.may_request or self.loosened)


def exceptions(
    candidate: Candidate, evidence: Evidence | None, document: dict[str, Any] | None, person: User
) -> Exceptions:
    """Of the evidence that a review shows."""
    lines = lines_of(candidate, document)
    may = (
        candidate.state in waivers.JUDGED
        and allowed(permissions.require_can_request_waiver, person)
        and evidence is not None
        and document is not None
        and bool(_open_gates(candidate, evidence, document, lines))
    )
    policy = evidence.policy if evidence else None
    before = policies.previous(policy) if policy else None
    loosened = policies.loosening(before.document, policy.document) if policy and before else []
    digests = {change.suite for change in loosened if change.suite}
    suites = {s.digest: s for s in Suite.objects.filter(digest__in=digests)} if digests else {}
    return Exceptions(lines, may, loosened, before, suites)


def lines_of(candidate: Candidate, document: dict[str, Any] | None) -> list[Line]:
    return _lines(waivers.waivers_of(candidate)[:SHOWN], document)


def _lines(rows: Iterable[Waiver], document: dict[str, Any] | None) -> list[Line]:
    measured = evidence_module.measurement_digest(document) if document else ""
    names = {part["digest"]: part["name"] for part in document["suites"]} if document else {}
    now = timezone.now()
    return [
        Line(
            waiver,
            waivers.state_of(waiver, now),
            names.get(waiver.suite_digest, waiver.suite_digest[:12]),
            waiver.measurement_digest == measured,
        )
        for waiver in rows
    ]


def _open_gates(
    candidate: Candidate, evidence: Evidence, document: dict[str, Any], lines: list[Line]
) -> list[Unmet]:
    """Unmet gates that two persons may waive, and for which nothing is requested or granted."""
    entries = document["policy"]["document"]["gates"] if document["policy"] else []
    names = {part["digest"]: part["name"] for part in document["suites"]}
    taken = {
        (line.waiver.gate, line.waiver.suite_digest)
        for line in lines
        if line.applies and line.state in ("requested", "granted")
    }
    found: dict[tuple[str, str], Unmet] = {}
    for result, entry in zip(gating.results_of(candidate, evidence), entries, strict=False):
        key = (result.gate, entry.get("suite") or "")
        gate = GATES.get(result.gate)
        if result.outcome in UNMET and gate and gate.waivable and key not in taken and key not in found:
            found[key] = Unmet(":".join(key), key[0], names.get(key[1], ""), result.reason)
    return list(found.values())


# asking


class WaiverForm(forms.Form):
    gate = forms.ChoiceField(label="Gate", error_messages={"required": "Choose the gate."})
    reason = forms.CharField(
        max_length=waivers.MAX_REASON,
        widget=forms.Textarea(attrs={"rows": 5}),
        label="Why may the gate be waived?",
        help_text="Whoever grants it and whoever signs reads this. It stays in the evidence.",
        error_messages={"required": "Say why. Whoever grants it and whoever signs reads it."},
    )
    days = forms.IntegerField(
        min_value=waivers.MIN_DAYS,
        max_value=waivers.MAX_DAYS,
        initial=7,
        label="For how many days, from now?",
        help_text=f"{waivers.MIN_DAYS} to {waivers.MAX_DAYS}. After that the gate counts again.",
    )

    def __init__(self, gates: list[Unmet], *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        choices = [
            (unmet.value, f"{unmet.gate} on {unmet.suite}" if unmet.suite else unmet.gate) for unmet in gates
        ]
        self.fields["gate"].choices = [("", "choose a gate"), *choices]


class EndForm(forms.Form):
    reason = forms.CharField(
        max_length=waivers.MAX_REASON,
        widget=forms.Textarea(attrs={"rows": 3}),
        label="Why is it ended?",
        error_messages={"required": "Say why. It stays in the history."},
    )


def _askable(candidate: Candidate) -> list[Unmet]:
    evidence = selectors.latest_evidence(candidate)
    if evidence is None:
        return []
    document = evidence_module.document_of(evidence)
    return _open_gates(candidate, evidence, document, lines_of(candidate, document))


@reads
def ask(request: HttpRequest, pk: int) -> HttpResponse:
    permissions.require_can_request_waiver(request.user)
    found = selectors.candidate_by_id(pk, request.user)
    gates = _askable(found)
    # a gate that a link names is chosen already
    return _render_ask(
        request, found, gates, WaiverForm(gates, initial={"gate": request.GET.get("gate", "")})
    )


def _render_ask(
    request: HttpRequest, found: Candidate, gates: list[Unmet], form: WaiverForm, status: int = 200
) -> HttpResponse:
    context = {
        "area": "tracks",
        "candidate": found,
        "judged": found.state in waivers.JUDGED,
        "gates": gates,
        "form": form,
    }
    return render(request, "promotion/waiver_ask.html", context, status=status)


@acts(permissions.require_can_read)
def request_waiver(request: HttpRequest, pk: int) -> HttpResponse:
    """The service decides who may, and keeps what it refused in the history."""
    found = selectors.candidate_by_id(pk, request.user)
    gates = _askable(found)
    form = WaiverForm(gates, request.POST)
    if not form.is_valid():
        permissions.require_can_request_waiver(request.user)
        return _render_ask(request, found, gates, form, 422)
    gate, _, suite = form.cleaned_data["gate"].partition(":")
    try:
        made = waivers.request(
            candidate_id=pk,
            gate=gate,
            suite_digest=suite,
            reason=form.cleaned_data["reason"],
            days=form.cleaned_data["days"],
            by=request.user,
        )
    except (InvalidInput, Conflict) as error:
        _refused(form, error)
        status = 422 if isinstance(error, InvalidInput) else error.status
        return _render_ask(request, found, gates, form, status)
    messages.success(request, "Requested. It waives nothing until a second person grants it.")
    return redirect("promotion:waiver", pk, made.pk)


def _refused(form: forms.Form, error: AssayError) -> None:
    name = getattr(error, "field", "")
    form.add_error(name if name in form.fields else None, error.message.removeprefix(f"{name}: "))


# one waiver


@reads
def waiver(request: HttpRequest, pk: int, number: int) -> HttpResponse:
    found = selectors.candidate_by_id(pk, request.user)
    return _render_waiver(request, found, _waiver_of(found, number), EndForm())


def _waiver_of(candidate: Candidate, number: int) -> Waiver:
    found = waivers.waivers_of(candidate).filter(pk=number).first()
    if found is None:
        raise NotFound("There is no such waiver.")
    return found


def _render_waiver(
    request: HttpRequest,
    found: Candidate,
    shown: Waiver,
    form: EndForm,
    *,
    error: str = "",
    status: int = 200,
) -> HttpResponse:
    evidence = selectors.latest_evidence(found)
    document = evidence_module.document_of(evidence) if evidence else None
    (line,) = _lines([shown], document)
    context = {
        "area": "tracks",
        "candidate": found,
        "line": line,
        "waiver": shown,
        "results": _results(found, evidence, document, shown),
        "why_not": _why_not_grant(found, document, line, request.user),
        "may_end": shown.ended_at is None
        and found.state in OPEN_STATES
        and allowed(permissions.require_can_end_waiver, request.user, shown.requested_by_id),
        "form": form,
        "error": error,
    }
    return render(request, "promotion/waiver.html", context, status=status)


def _results(
    found: Candidate, evidence: Evidence | None, document: dict[str, Any] | None, shown: Waiver
) -> list[GateResult]:
    """What the gates that it is about say now."""
    entries = document["policy"]["document"]["gates"] if document and document["policy"] else []
    results = gating.results_of(found, evidence) if evidence else []
    return [
        result
        for result, entry in zip(results, entries, strict=False)
        if (result.gate, entry.get("suite") or "") == (shown.gate, shown.suite_digest)
    ]


def _why_not_grant(found: Candidate, document: dict[str, Any] | None, line: Line, person: User) -> str:
    """Why this person cannot grant it; empty where they can."""
    if line.state != "requested":
        return f"It is {line.state}."
    if not line.applies or document is None:
        return "Something was measured since it was requested: it waives nothing of what stands now."
    if found.state not in waivers.JUDGED:
        return f"The candidate is {found.state.replace('_', ' ')}."
    try:
        permissions.require_can_grant_waiver(
            person,
            requested_by=line.waiver.requested_by.get_username(),
            involved=waivers.involved_in(document, waivers.waivers_of(found)),
        )
    except AssayError as error:
        return error.message
    return ""


@acts(permissions.require_can_read)
def grant(request: HttpRequest, pk: int, number: int) -> HttpResponse:
    found = selectors.candidate_by_id(pk, request.user)
    shown = _waiver_of(found, number)
    try:
        waivers.grant(waiver_id=shown.pk, by=request.user)
    except (InvalidInput, Conflict) as error:
        return _again(request, pk, number, EndForm(), error)
    messages.success(
        request, "Granted, and the candidate was judged again. Earlier signatures no longer count."
    )
    return redirect("promotion:candidate", pk)


@acts(permissions.require_can_read)
def end(request: HttpRequest, pk: int, number: int) -> HttpResponse:
    found = selectors.candidate_by_id(pk, request.user)
    shown, form = _waiver_of(found, number), EndForm(request.POST)
    permissions.require_can_end_waiver(request.user, shown.requested_by_id)
    if not form.is_valid():
        return _render_waiver(request, found, shown, form, status=422)
    try:
        waivers.end(waiver_id=shown.pk, by=request.user, reason=form.cleaned_data["reason"])
    except (InvalidInput, Conflict) as error:
        return _again(request, pk, number, form, error)
    messages.success(request, "Ended. Its history stays.")
    return redirect("promotion:candidate", pk)


def _again(request: HttpRequest, pk: int, number: int, form: EndForm, error: AssayError) -> HttpResponse:
    """The page as things stand by now, with what was refused."""
    found = selectors.candidate_by_id(pk, request.user)
    status = 422 if isinstance(error, InvalidInput) else error.status
    return _render_waiver(request, found, _waiver_of(found, number), form, error=error.message, status=status)


# what waits


def to_grant(person: User, limit: int) -> QuerySet[Waiver]:
    """Requests that wait for a second person, oldest first."""
    of_open = Waiver.objects.visible_to(person).filter(candidate__state__in=waivers.JUDGED)
    waiting = waivers.in_state(of_open, "requested", timezone.now())
    return waiting.select_related("candidate__track", "requested_by").order_by("id")[:limit]
