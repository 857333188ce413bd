"""What was imported from another system, as it was recorded there, with the faults that it shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from promotion.importers.foundry_faults import FAULTS, STANDINGS
from promotion.services import imports as service
from rollouts.web.http import reads
from rollouts.web.lists import page_of

# standing -> (outcome whose sign it has, word)
WORDS = {
    "verified": ("passed", "verified"),
    "agrees": ("not_evaluated", "recorded, not verified"),
    "recorded": ("not_evaluated", "recorded, not verified"),
    "contradicted": ("failed", "contradicted"),
    "not_measured": ("failed", "not measured"),
    "vacuous": ("failed", "cannot fail"),
}


@dataclass(frozen=True, slots=True)
class Round:
    """A round's record with what a person must still settle before its draft can be locked."""

    record: dict[str, Any]
    reasons: list[str]


@reads
def imports(request: HttpRequest) -> HttpResponse:
    page = page_of(service.imports(), request, sorts={"imported": "-pk"})
    return render(request, "promotion/imports.html", {"area": "registry", "page": page})


@reads
def imported(request: HttpRequest, digest: str) -> HttpResponse:
    found = service.imported(digest)
    rounds = [
        Round(part, service.why_not_lockable(part["policy"]) if part["policy"] else [])
        for part in found.record["rounds"]
    ]
    context = {
        "area": "registry",
        "digest": digest,
        "record": found.record,
        "counts": service.counts_of(found.record),
        "event": found.event,
        "rounds": rounds,
        "faults": FAULTS,
        "standings": STANDINGS,
        "words": WORDS,
    }
    return render(request, "promotion/import.html", context)
