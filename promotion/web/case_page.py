"""One case of the evidence: what was asked and expected, and the champion's and the candidate's answers side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from promotion import comparing, panels, selectors
from promotion import evidence as evidence_module
from promotion.models import Candidate
from promotion.permissions import require_can_review
from promotion.services import reviews
from promotion.web.cases import TURNS, request_of
from promotion.web.review import allowed
from rollouts import captured, reading
from rollouts.amendments import amendments_of_case, expected_now
from rollouts.beside import beside
from rollouts.comparisons import compared_cases
from rollouts.errors import NotFound
from rollouts.models import Case, ComparedCase, Comparison, EvalRun, Rollout, RolloutState
from rollouts.selectors import APART, METRICS
from rollouts.trajectory import Event
from rollouts.web.http import reads

WHO = ("champion", "candidate")


class Place(NamedTuple):
    """Where the case stands among those that are not right on both sides. `number` counts from 1 within its turn."""

    turn: str
    label: str
    number: int
    total: int
    previous: int | None
    next: int | None


@dataclass(frozen=True, slots=True)
class Side:
    """A side's answer to the case: its rollout, None where it has no run on the suite or no such sample."""

    who: str
    run: EvalRun | None
    rollout: Rollout | None
    events: list[Event]
    more: bool

    @property
    def scores(self) -> list[tuple[str, bool | None]]:
        found = [(name, getattr(self.rollout, name)) for name in (*METRICS, *APART)] if self.rollout else []
        return [(name, value) for name, value in found if value is not None]


@reads
def case(request: HttpRequest, pk: int, case_pk: int) -> HttpResponse:
    candidate = selectors.candidate_by_id(pk, request.user)
    document, part, found = _case_of(candidate, case_pk)
    runs = comparing.runs_of(document)
    comparisons = comparing.comparisons_of(document, runs) or {}
    comparison = comparisons.get(part["digest"])
    metric = comparison.metric if comparison else "exact"
    samples, sides = _sides(found, part, runs, metric, request.GET.get("sample", ""))
    rows = beside(*(side.events for side in sides))
    context = {
        "area": "candidates",
        "candidate": candidate,
        "case": found,
        "request_text": request_of(found),
        "expected": _expected(found),
        "expected_now": expected_now(found) if found.amended_expected is not None else None,
        "amendments": amendments_of_case(found) if found.amended_expected is not None else [],
        "sides": sides,
        "samples": samples,
        "rows": rows,
        "parted": any(row.parts for row in rows),
        "alike": _alike(sides, metric),
        "place": _place(found, comparisons),
        "panel": _panel(candidate, document, found, comparisons, request.user),
    }
    return render(request, "promotion/case.html", context)


def _case_of(candidate: Candidate, case_id: int) -> tuple[dict[str, Any], dict[str, Any], Case]:
    """The newest evidence, its part of the case's suite, and the case. Raises `NotFound` for every other case."""
    evidence = selectors.latest_evidence(candidate)
    document = evidence_module.document_of(evidence) if evidence else None
    parts = {part["digest"]: part for part in document["suites"]} if document else {}
    found = Case.objects.select_related("suite").filter(pk=case_id, suite__digest__in=parts).first()
    if document is None or found is None:
        raise NotFound("The candidate's evidence has no such case.")
    return document, parts[found.suite.digest], found


def _expected(case: Case) -> list[tuple[str, Any]]:
    """As it was sealed, by labels."""
    content = case.content
    return [(label, content[key]) for key, label in reading.WANTED.items() if content.get(key) is not None]


# sides


def _sides(
    case: Case,
    part: Mapping[str, Any],
    runs: Mapping[str, EvalRun],
    metric: str,
    wanted: str,
) -> tuple[list[tuple[int, bool]], list[Side]]:
    """The samples there are, each with whether it is shown, and both sides of the shown one."""
    by_who = {who: runs.get(part[who]["run"]) if part[who] else None for who in WHO}
    ids = {run.pk: who for who, run in by_who.items() if run is not None}
    rollouts: dict[str, dict[int, Rollout]] = {who: {} for who in WHO}
    for rollout in Rollout.objects.filter(run__in=ids, case=case).order_by("sample_index"):
        rollout.case, rollout.run = case, by_who[ids[rollout.run_id]]
        rollouts[ids[rollout.run_id]][rollout.sample_index] = rollout
    samples = sorted({index for side in rollouts.values() for index in side})
    shown = _sample(samples, rollouts["candidate"], metric, wanted)
    sides = [_side(who, by_who[who], rollouts[who].get(shown)) for who in WHO]
    return [(index, index == shown) for index in samples], sides


def _sample(samples: list[int], ours: Mapping[int, Rollout], metric: str, wanted: str) -> int:
    """The sample that was asked for, else the candidate's first that is not right, else the first."""
    if wanted.isascii() and wanted.isdigit() and int(wanted[:6]) in samples:
        return int(wanted[:6])
    open_ones = (index for index in samples if index in ours and getattr(ours[index], metric) is not True)
    return next(open_ones, samples[0] if samples else 0)


def _side(who: str, run: EvalRun | None, rollout: Rollout | None) -> Side:
    if rollout is None:
        return Side(who, run, None, [], False)
    found = captured.trajectory(rollout)
    # of an attempt that failed and was made again, the answer is what is compared
    answered = rollout.state == RolloutState.SCORED
    events = [event for event in found.events if not (answered and event.kind == "failed")]
    return Side(who, run, rollout, events or _without_calls(rollout), found.next is not None)


def _alike(sides: list[Side], metric: str) -> str:
    """What both sides are by the metric that compares them; empty where they differ or one has no score."""
    found = {getattr(side.rollout, metric, None) for side in sides}
    return "" if len(found) > 1 or None in found else "right" if found == {True} else "wrong"


def _without_calls(rollout: Rollout) -> list[Event]:
    """The case's messages and the stored answer, where no model call was captured."""
    asked = [
        Event("message", str(message.get("content") or ""), str(message.get("role") or "message"))
        for message in rollout.case.content.get("messages", [])
    ]
    if rollout.answer is None:
        return [*asked, Event("failed", rollout.failure_reason, rollout.failure_kind or rollout.state)]
    return [*asked, Event("said", rollout.answer, finish=rollout.finish_reason)]


# its place among the others


def _place(case: Case, comparisons: Mapping[str, Comparison]) -> Place | None:
    """None where both sides got it right, or the comparison is not written down yet. At most seven queries."""
    mine = comparisons.get(case.suite.digest)
    stands = mine and ComparedCase.objects.filter(comparison=mine, case=case).first()
    if not stands:
        return None
    found, turns = list(comparisons.values()), [str(turn) for turn in TURNS]
    same, at = compared_cases(found, stands.turn), turns.index(stands.turn)
    before, after = same.filter(_beyond(stands, "lt")), same.filter(_beyond(stands, "gt"))
    previous = before.reverse().values_list("case_id", flat=True).first()
    following = after.values_list("case_id", flat=True).first()
    if previous is None:
        previous = _first_of(found, turns[:at][::-1], last=True)
    if following is None:
        following = _first_of(found, turns[at + 1 :], last=False)
    total = sum(one.summary["turns"].get(stands.turn, 0) for one in found)
    label = {str(turn): said for turn, said in TURNS.items()}[stands.turn]
    return Place(stands.turn, label, before.count() + 1, total, previous, following)


def _beyond(stands: ComparedCase, side: str) -> Q:
    """Before or after a case in the order of `compared_cases`."""
    same = {"expects_call": stands.expects_call}
    beyond = Q(**same, **{f"family__{side}": stands.family}) | Q(
        **same, family=stands.family, **{f"case_id__{side}": stands.case_id}
    )
    if stands.expects_call is (side == "lt"):
        beyond |= Q(expects_call=not stands.expects_call)
    return beyond


def _first_of(comparisons: list[Comparison], turns: list[str], *, last: bool) -> int | None:
    """The first (or last) case of the first of these turns that has any."""
    for turn in turns:
        if any(one.summary["turns"].get(turn) for one in comparisons):
            cases = compared_cases(comparisons, turn)
            ordered = cases.reverse() if last else cases
            found: int | None = ordered.values_list("case_id", flat=True).first()
            return found
    return None


class Panel(NamedTuple):
    """The case as a part that must be opened. `may` is whether this person's reading is recorded."""

    key: str
    reason: str
    opened: bool
    may: bool


def _panel(
    candidate: Candidate,
    document: Mapping[str, Any],
    case: Case,
    comparisons: Mapping[str, Comparison],
    person: User,
) -> Panel | None:
    listed, _ = panels.case_panels(comparisons.values()) if comparisons else ([], 0)
    found = next((panel for panel in listed if panel.case == case.pk), None)
    if found is None:
        return None
    may = candidate.state in reviews.REVIEWED_STATES and allowed(_may_review, person, document)
    return Panel(found.key, found.reason, found.key in reviews.opened_by(candidate, person), may)


def _may_review(person: User, document: Any) -> None:
    require_can_review(person, groups=reviews.groups_that_sign(document))
