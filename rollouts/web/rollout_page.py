"""The page of one rollout: its answer, its trajectory, every model call, and the raw bytes."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render

from rollouts import captured, reading, selectors
from rollouts.amendments import amended_scores_of
from rollouts.errors import NotFound
from rollouts.failures import FAILURE_KINDS
from rollouts.models import Rollout
from rollouts.web.http import raw_pieces, raw_text, reads


@reads
def rollout(request: HttpRequest, pk: int) -> HttpResponse:
    found = selectors.rollout_by_id(pk, request.user)
    start = captured.cursor(request.GET.get("from", ""))
    context = {
        "area": "runs",
        "rollout": found,
        "reused_from": selectors.reused_from(found),
        "expected": expected_of(found),
        "amended_scores": amended_scores_of(found),
        "kind_says": FAILURE_KINDS.get(found.failure_kind, ""),
        "trajectory": captured.trajectory(found, start),
        "executions": captured.executions_of(found),
        **scores_of(found),
    }
    return render(request, "rollouts/rollout.html", context)


def scores_of(rollout: Rollout) -> dict[str, Any]:
    """The scores by metric, and what some scorers say beside them."""
    return {
        "scores": [(metric, getattr(rollout, metric)) for metric in selectors.METRICS],
        "apart": [
            (name, getattr(rollout, name)) for name in selectors.APART if getattr(rollout, name) is not None
        ],
    }


def expected_of(rollout: Rollout) -> list[tuple[str, Any]]:
    """What the case wants, as it was sealed, by labels."""
    content = rollout.case.content
    return [(label, content[key]) for key, label in reading.WANTED.items() if content.get(key) is not None]


@reads
def answer(request: HttpRequest, pk: int) -> HttpResponse:
    found = selectors.rollout_by_id(pk, request.user)
    if found.answer is None:
        raise NotFound("This rollout has no answer.")
    return raw_text(found.answer.encode(), f"rollout-{pk}-answer.txt")


@reads
def body(request: HttpRequest, pk: int, part: str) -> HttpResponseBase:
    size_bytes, pieces = captured.body_of(selectors.call_by_id(pk, request.user), part)
    return raw_pieces(pieces, size_bytes, f"call-{pk}-{part}.txt")
