"""The page of a registry entry: its record as it was signed, and the ways to what stands behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from promotion import evidence as evidence_module
from promotion import selectors
from promotion.models import AliasMove, RegistryEntry
from promotion.services.glass import due
from promotion.web.glass import glass_behind
from promotion.web.review_gates import gate_rows
from rollouts.models import EvalRun
from rollouts.web.http import reads


@reads
def entry(request: HttpRequest, name: str, number: int) -> HttpResponse:
    found = selectors.entry_by_number(name, number, request.user)
    document = evidence_module.document_of(found.evidence)
    broken = glass_behind([found]).get(found.pk)
    context = {
        "area": "registry",
        "entry": found,
        "broken": broken,
        "due": due(broken) if broken else None,
        "gates": gate_rows(
            found.candidate, found.evidence, document, list(found.evidence.gate_results.all())
        ),
        "policy": found.evidence.policy,
        "runs": _runs(document, request.user),
        "before": _before(found),
    }
    return render(request, "promotion/entry.html", context)


def _runs(document: Mapping[str, Any], person: User) -> list[tuple[str, EvalRun]]:
    """Whose run it is and the run, of those in the evidence that the person may see, in the order of its suites."""
    sides = [
        (who, part[who]["run"])
        for part in document["suites"]
        for who in ("candidate", "champion")
        if part[who] is not None
    ]
    visible = EvalRun.objects.visible_to(person).select_related("suite").defer("overview")
    runs = {str(run.uid): run for run in visible.filter(uid__in=[uid for _, uid in sides])}
    return [(who, runs[uid]) for who, uid in sides if uid in runs]


def _before(entry: RegistryEntry) -> RegistryEntry | None:
    """The champion whose place it took first; None for the track's first one, and for what never was champion."""
    moves = AliasMove.objects.filter(new=entry, name="champion").select_related("old__candidate")
    first = moves.order_by("id").first()
    return first.old if first else None
