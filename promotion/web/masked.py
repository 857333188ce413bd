"""Rollouts without a score on the review page: how many of each kind, and ten at a time with the model calls that failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rollouts import overview
from rollouts.captured import CallShown, calls_shown
from rollouts.failures import FAILURE_KINDS
from rollouts.models import EvalRun, ModelCall, Rollout, RolloutState

PAGE = 10
BODY_BYTES = 2_000
# of all rollouts of a page together; what is left out is on the page of the rollout
CALLS_A_PAGE = 60
WITHOUT_SCORE = (RolloutState.MASKED, RolloutState.UNSCORED)


class Kind(NamedTuple):
    """A failure kind of one run: what it means, what it counts as, and of how many rollouts."""

    who: str
    run: EvalRun
    kind: str
    means: str
    state: str
    n: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A rollout without a score, and its model calls, oldest first."""

    who: str
    rollout: Rollout
    calls: list[CallShown]


@dataclass(frozen=True, slots=True)
class MaskedSection:
    """Shown by review_masked. `uncounted` are runs of which the kinds are not counted yet, with how many have no score."""

    total: int = 0
    kinds: list[Kind] = field(default_factory=list)
    uncounted: list[tuple[str, EvalRun, int]] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    first: bool = True
    next: int | None = None


def masked_section(
    document: Mapping[str, Any] | None, runs: Iterable[EvalRun], params: Mapping[str, str]
) -> MaskedSection:
    """`runs` are those that the document counts. Their counts are of their closing; rows are read over an index. Two queries."""
    sides = _sides(document, {str(run.uid): run for run in runs})
    total = sum(_without_score(run) for _, run in sides)
    if not total:
        return MaskedSection()
    kinds, uncounted = _kinds(sides)
    after = _cursor(params.get("masked", ""))
    page = _page({run.pk: who for who, run in sides}, after)
    following = page[PAGE - 1].rollout.pk if len(page) > PAGE else None
    return MaskedSection(total, kinds, uncounted, page[:PAGE], after is None, following)


def _sides(document: Mapping[str, Any] | None, runs: Mapping[str, EvalRun]) -> list[tuple[str, EvalRun]]:
    """The candidate's runs that the document counts, then the champion's."""
    parts = document["suites"] if document else []
    return [
        (who, runs[part[who]["run"]])
        for who in ("candidate", "champion")
        for part in parts
        if part[who] and part[who]["run"] in runs
    ]


def _without_score(run: EvalRun) -> int:
    return (run.masked or 0) + (run.unscored or 0)


def _kinds(sides: list[tuple[str, EvalRun]]) -> tuple[list[Kind], list[tuple[str, EvalRun, int]]]:
    kinds, uncounted = [], []
    for who, run in sides:
        counted = overview.stored(run)
        if counted is None and _without_score(run):
            uncounted.append((who, run, _without_score(run)))
        for failure in counted.failures if counted else ():
            if failure.state in WITHOUT_SCORE:
                means = FAILURE_KINDS.get(failure.kind, "")
                kinds.append(Kind(who, run, failure.kind, means, failure.state, failure.n))
    return kinds, uncounted


def _cursor(given: str) -> int | None:
    """The rollout after which the page begins; what no page gave is the first page."""
    return int(given) if given.isascii() and given.isdigit() and len(given) < 19 else None


def _page(who: Mapping[int, str], after: int | None) -> list[Failed]:
    """One more than a page holds, newest first."""
    rows = Rollout.objects.filter(run__in=who, state__in=WITHOUT_SCORE)
    if after is not None:
        rows = rows.filter(id__lt=after)
    # the answer and the details of what has no score are on its own page
    light = rows.select_related("case").defer("case__content", "answer", "details")
    found = list(light.order_by("-id")[: PAGE + 1])
    calls = ModelCall.objects.filter(invocation__rollout__in=[rollout.pk for rollout in found[:PAGE]])
    ordered = calls.select_related("invocation").order_by(
        "-invocation__rollout", "invocation", "turn", "attempt"
    )
    by_rollout: dict[int, list[CallShown]] = {}
    for shown in calls_shown(ordered, CALLS_A_PAGE, limit=BODY_BYTES) if found else ():
        by_rollout.setdefault(shown.call.invocation.rollout_id, []).append(shown)
    return [Failed(who[rollout.run_id], rollout, by_rollout.get(rollout.pk, [])) for rollout in found]
