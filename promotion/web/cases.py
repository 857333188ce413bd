"""The cases of the review page: what was lost, won, wrong on both sides or not scored, with both answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db.models import Count

from promotion import anchors
from rollouts.amendments import expected_now
from rollouts.comparisons import compared_cases
from rollouts.models import Case, ComparedCase, Comparison, Rollout, Turn
from rollouts.selectors import rollouts_of_cases

PAGE = 10
# digits of a suite's digest by which an address may name it
LEAST_DIGITS = 12
COMPARED_CHARS = 4_000
TURNS = {
    Turn.LOST: "Right to wrong",
    Turn.WRONG: "Wrong, and not right before",
    Turn.MISSING: "Without a score",
    Turn.WON: "Wrong to right",
}


class Tab(NamedTuple):
    key: str
    label: str
    n: int


class Parts(NamedTuple):
    """An answer around the stretch in which it differs from the other side's."""

    before: str
    differs: str
    after: str
    total: int

    @property
    def cut(self) -> bool:
        return self.total > COMPARED_CHARS


@dataclass(frozen=True, slots=True)
class Side:
    rollout: Rollout
    answer: Parts | None


@dataclass(frozen=True, slots=True)
class ShownCase:
    outcome: ComparedCase
    case: Case
    request: str
    expected: Any
    ours: Side | None
    theirs: Side | None

    @property
    def anchor(self) -> str:
        return anchors.of_case(self.case.pk)


@dataclass(frozen=True, slots=True)
class CaseSection:
    """One page of cases, narrowed to what the address asks for.

    `suite` is a digest, "" where the one asked for is not compared, None where none is asked for.
    """

    tabs: list[Tab]
    shown: str
    cases: list[ShownCase]
    at: int
    next: int | None
    total: int
    suite: str | None
    family: str

    @property
    def narrowed(self) -> bool:
        return self.suite is not None or bool(self.family)


def case_section(
    comparisons: Mapping[str, Comparison] | None, params: Mapping[str, str]
) -> CaseSection | None:
    """One page of cases of one kind: safety first (cases where a call is wrong), then by family.

    `params` may name a suite (its digest or the first 12 digits of it) and a family: then only theirs are counted and
    shown, none where there is no such suite or family. None where nothing is compared: no run of the candidate, or not
    written down yet.
    """
    if not comparisons:
        return None
    suite, family = params.get("suite", ""), params.get("family", "")
    asked = {digest: one for digest, one in comparisons.items() if not suite or _named(digest, suite)}
    found = list(asked.values())
    counts = _counts(found, family)
    tabs = [Tab(key, label, counts[key]) for key, label in TURNS.items()]
    wanted = params.get("cases", "")
    shown = wanted if wanted in TURNS else next((tab.key for tab in tabs if tab.n), str(Turn.LOST))
    total = counts[shown]
    given = params.get("at", "")[:9]
    at = int(given) if given.isascii() and given.isdigit() else 0
    at = min(at, max(0, total - 1))
    page = list(_narrowed(compared_cases(found, shown), family)[at : at + PAGE]) if total else []
    return CaseSection(
        tabs=tabs,
        shown=shown,
        cases=_shown_cases(found, page),
        at=at,
        next=at + PAGE if at + PAGE < total else None,
        total=total,
        suite=next(iter(asked), "") if suite else None,
        family=family,
    )


def _named(digest: str, suite: str) -> bool:
    return len(suite) >= LEAST_DIGITS and digest.startswith(suite)


def _counts(comparisons: Sequence[Comparison], family: str) -> dict[str, int]:
    """Cases by turn: as they were counted when they were written down, or those of one family. At most one query."""
    if not family:
        return {turn: sum(one.summary["turns"].get(turn, 0) for one in comparisons) for turn in TURNS}
    rows = _narrowed(ComparedCase.objects.filter(comparison__in=list(comparisons)), family).order_by()
    counted = dict(rows.values_list("turn").annotate(n=Count("id")))
    return {turn: counted.get(turn, 0) for turn in TURNS}


def _narrowed(cases: Any, family: str) -> Any:
    """Only those of the family, where one is named."""
    if "\x00" in family:
        return cases.none()  # no name holds it, and PostgreSQL refuses to be asked
    return cases.filter(family=family) if family else cases


def _shown_cases(comparisons: Sequence[Comparison], page: Sequence[ComparedCase]) -> list[ShownCase]:
    if not page:
        return []
    ours = {comparison.run_id for comparison in comparisons}
    theirs = {comparison.other_id for comparison in comparisons if comparison.other_id is not None}
    found = rollouts_of_cases(ours | theirs, [turn.case_id for turn in page])
    shown = []
    for turn in page:
        sides = found.get(turn.case_id, {})
        mine = next((sides[run] for run in sides if run in ours), None)
        other = next((sides[run] for run in sides if run in theirs), None)
        case = (mine or other).case  # type: ignore[union-attr]
        left, right = differing(other.answer if other else None, mine.answer if mine else None)
        shown.append(
            ShownCase(
                turn,
                case,
                request_of(case),
                expected_now(case),
                Side(mine, right) if mine else None,
                Side(other, left) if other else None,
            )
        )
    return shown


def request_of(case: Case) -> str:
    """The last thing the user says: what a person calls the case."""
    said = [
        message["content"] for message in case.content.get("messages", []) if message.get("role") == "user"
    ]
    return str(said[-1]) if said else case.key


def differing(left: str | None, right: str | None) -> tuple[Parts | None, Parts | None]:
    """Both answers, each with the stretch between the common beginning and the common end set apart."""
    if left is None or right is None:
        return _whole(left), _whole(right)
    a, b = left[:COMPARED_CHARS], right[:COMPARED_CHARS]
    if a == b:
        return _whole(left), _whole(right)
    start = _common(a, b)
    while start and (a[start - 1].isalnum() or a[start - 1] == "_"):
        start -= 1
    end = _common(a[start:][::-1], b[start:][::-1])
    while end and (a[len(a) - end].isalnum() or a[len(a) - end] == "_"):
        end -= 1
    return _split(a, start, end, len(left)), _split(b, start, end, len(right))


def _common(a: str, b: str) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


def _split(text: str, start: int, end: int, total: int) -> Parts:
    stop = len(text) - end
    return Parts(text[:start], text[start:stop], text[stop:], total)


def _whole(text: str | None) -> Parts | None:
    return None if text is None else Parts(text[:COMPARED_CHARS], "", "", len(text))
