"""Promotions without the signatures that the rule asks for: what pages show of them, and the review afterwards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from promotion import permissions
from promotion.models import (
    Approval,
    BrokenGlass,
    Candidate,
    CandidateState,
    Evidence,
    GlassVerdict,
    RegistryEntry,
)
from promotion.services import glass, signatures
from promotion.services.glass import Due
from rollouts.errors import AssayError, Conflict, NotFound
from rollouts.web.http import acts, reads

SHOWN = 25


class ReviewForm(forms.Form):
    verdict = forms.ChoiceField(
        choices=[
            (GlassVerdict.UPHELD, "Uphold it: this could not wait"),
            (GlassVerdict.CONDEMNED, "Condemn it: this should have waited for the signatures"),
        ],
        widget=forms.RadioSelect,
        error_messages={"required": "Choose one of the two."},
    )
    comment = forms.CharField(
        max_length=glass.MAX_REASON, widget=forms.Textarea(attrs={"rows": 4}), label="Why?"
    )


# what other pages show


@dataclass(frozen=True, slots=True)
class GlassSection:
    """Of a candidate and a person. `signature` is the person's own that they can withdraw.

    `broken` is the newest glass that was broken for the candidate, `due` set until somebody else has reviewed it.
    """

    broken: BrokenGlass | None = None
    due: Due | None = None
    may_break: bool = False
    may_review: bool = False
    signature: Approval | None = None


def glass_section(candidate: Candidate, evidence: Evidence | None, person: User) -> GlassSection:
    people = ("broken_by", "reviewed_by", "evidence")
    broken = BrokenGlass.objects.filter(candidate=candidate).select_related(*people).first()
    signature = None
    if candidate.state in signatures.WITHDRAWN_FROM:
        signature = signatures.standing_of(candidate, person).first()
    return GlassSection(
        broken=broken,
        due=glass.due(broken) if broken else None,
        may_break=evidence is not None and _may_break(candidate, evidence, person),
        may_review=broken is not None and _why_not_review(broken, person) == "",
        signature=signature,
    )


def _may_break(candidate: Candidate, evidence: Evidence, person: User) -> bool:
    if candidate.state != CandidateState.IN_REVIEW or permissions.ADMINISTRATOR not in permissions.own_groups(
        person
    ):
        return False
    try:
        glass.require_can_break(candidate, evidence, person)
    except AssayError:
        return False
    return True


def _why_not_review(broken: BrokenGlass, person: User) -> str:
    """Why this person cannot review it; empty where they can."""
    try:
        glass.require_can_review(broken, person)
    except AssayError as error:
        return error.message
    return ""


def alarms(person: User, limit: int = SHOWN) -> list[Due]:
    """What was promoted without signatures and waits for another's review, the first due first."""
    if permissions.groups_of(person).isdisjoint(glass.ALARMED):
        return []
    waiting = BrokenGlass.objects.visible_to(person).filter(verdict="")
    rows = waiting.select_related("candidate__track", "broken_by").order_by("review_due_at", "id")[:limit]
    return [found for row in rows if (found := glass.due(row))]


def glass_behind(entries: Iterable[RegistryEntry]) -> dict[int, BrokenGlass]:
    """By the entry's key, the glass that was broken for the very evidence it was promoted on. One query."""
    evidence = {entry.evidence_id: entry.pk for entry in entries}
    rows = BrokenGlass.objects.filter(evidence__in=evidence).select_related("broken_by", "reviewed_by")
    return {evidence[row.evidence_id]: row for row in rows}


# the review afterwards


@reads
def broken(request: HttpRequest, pk: int) -> HttpResponse:
    return _render_broken(request, _glass(request, pk), ReviewForm())


def _glass(request: HttpRequest, pk: int) -> BrokenGlass:
    related = ("candidate__track", "candidate__entry", "evidence", "broken_by", "reviewed_by")
    found = BrokenGlass.objects.visible_to(request.user).select_related(*related).filter(pk=pk).first()
    if found is None:
        raise NotFound("There is no such broken glass.")
    return found


def _render_broken(
    request: HttpRequest, found: BrokenGlass, form: ReviewForm, *, status: int = 200
) -> HttpResponse:
    context = {
        "area": "tracks",
        "glass": found,
        "candidate": found.candidate,
        "entry": getattr(found.candidate, "entry", None),
        "due": glass.due(found),
        "why_not": _why_not_review(found, request.user),
        "form": form,
    }
    return render(request, "promotion/glass.html", context, status=status)


@acts(permissions.require_can_read)
def review(request: HttpRequest, pk: int) -> HttpResponse:
    """The service decides who may, and keeps what it refused in the history."""
    found, form = _glass(request, pk), ReviewForm(request.POST)
    if not form.is_valid():
        return _render_broken(request, found, form, status=422)
    try:
        glass.review_glass(glass_id=pk, by=request.user, **form.cleaned_data)
    except Conflict as error:
        form.add_error(None, error.message)
        return _render_broken(request, _glass(request, pk), form, status=error.status)
    messages.success(request, "Recorded: the verdict stands in the history and beside the version.")
    return redirect("promotion:glass", pk)
