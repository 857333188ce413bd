"""What remains risky about a candidate, in at most 120 words made from its evidence. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from promotion.attention import near_threshold
from promotion.gates.base import Counts
from promotion.suite_rules import rule_of

MOST_WORDS = 120
MOST_NAME = 40
NEAREST, WEAKEST = 2, 2
SHARED = ("ids", "groups", "texts", "near")
Document = Mapping[str, Any]


class SafetyTurns(NamedTuple):
    """Cases where any call is wrong, held against the champion: right to wrong, and wrong to right. None: not compared."""

    lost: int | None
    won: int | None


def summary(document: Document, safety: SafetyTurns) -> str:
    """Sentences in the order of their weight. What no longer fits is left out whole, never cut."""
    said: list[str] = []
    words = 0
    for sentence in _sentences(document, safety):
        words += len(sentence.split())
        if words > MOST_WORDS:
            break
        said.append(sentence)
    return " ".join(said)


def _sentences(document: Document, safety: SafetyTurns) -> Iterator[str]:
    yield _what(document)
    if document["policy"] is None:
        yield "No gate judges it and nothing was measured: two signatures adopt it."
        return
    yield _flips(document, safety)
    yield _nearest(document)
    yield _masked(document)
    yield _waivers(document)
    yield _overlaps(document)
    yield _looks(document)
    yield from _weakest(document)


def _what(document: Document) -> str:
    candidate, champion = document["candidate"], document["champion"]
    name, track = _short(candidate["name"]), _short(candidate["track"])
    if candidate["baseline"]:
        return f"{name} is proposed as the ungated baseline of {track}."
    if champion is None:
        return f"{name} is proposed for {track}, which has no champion."
    return f"{name} is to replace v{champion['entry']} ({_short(champion['name'])}) of {track}."


def _flips(document: Document, safety: SafetyTurns) -> str:
    if document["champion"] is None:
        return "There is nothing to compare it with."
    if safety.lost is None:
        return "Its cases are not compared with the champion's yet."
    return (
        f"Where any call is wrong it loses {safety.lost} cases that the champion had right and wins "
        f"{safety.won} others."
    )


def _nearest(document: Document) -> str:
    near = sorted(near_threshold(document), key=lambda found: found.room)[:NEAREST]
    if not near:
        return "No bound is nearer than a margin to its threshold."
    named = [
        f"{_short(found.family or 'all')} on {_short(found.suite_name)} ({_room(found.room)})"
        for found in near
    ]
    return f"Nearest to failing: {', '.join(named)}."


def _room(room: Decimal) -> str:
    return f"{room} to spare" if room >= 0 else f"{-room} short"


def _masked(document: Document) -> str:
    runs = [part["candidate"] for part in document["suites"] if part["candidate"]]
    if not runs:
        return "Nothing was measured."
    missing = sum(run["masked"] + run["unscored"] for run in runs)
    planned = sum(run["planned"] for run in runs)
    return f"{missing} of {planned} rollouts have no score." if missing else "Every rollout has a score."


def _waivers(document: Document) -> str:
    gates = sorted({waiver["gate"] for waiver in document.get("waivers", ())})
    if not gates:
        return "No gate is waived."
    return f"Waived: {', '.join(gates[:3])}{f' and {len(gates) - 3} more' if len(gates) > 3 else ''}."


def _overlaps(document: Document) -> str:
    datasets = document.get("datasets") or []
    if not datasets:
        return "It declares no dataset, so what it has seen of the suites is unknown."
    reports = [overlap["report"] for part in datasets for overlap in part["overlaps"]]
    if not reports:
        return "Its data was compared with nothing yet."
    shared = {kind: max(report[kind] for report in reports) for kind in SHARED}
    if not any(shared.values()):
        return "Its data shares nothing that was found with what judges it."
    found = ", ".join(f"{n} {kind}" for kind, n in shared.items() if n)
    return f"Its data shares up to {found} with another set or suite."


def _looks(document: Document) -> str:
    looks = [
        f"{part['candidate']['look'] or 'uncounted'} on {_short(part['name'])}"
        for part in document["suites"]
        if part["candidate"]
    ]
    return f"Looks: {', '.join(looks[:3])}{' and more' if len(looks) > 3 else ''}." if looks else ""


def _weakest(document: Document) -> Iterator[str]:
    policy = document["policy"]["document"]
    rates = []
    for part in document["suites"]:
        run, metric = part["candidate"], rule_of(policy, part["digest"]).metric
        for family, metrics in (run["families"] if run else {}).items():
            counts = Counts(**metrics[metric])
            if counts.n and counts.successes < counts.n:
                rates.append((Decimal(counts.successes) / counts.n, family, counts))
    weakest = [
        f"{_short(family)} ({counts.successes} of {counts.n})"
        for _, family, counts in sorted(rates, key=lambda found: found[:2])[:WEAKEST]
    ]
    if weakest:
        yield f"Weakest families: {', '.join(weakest)}."


def _short(name: str) -> str:
    """A name of somebody else's, so that it cannot fill the summary."""
    joined = "_".join(name.split())
    return joined if len(joined) <= MOST_NAME else f"{joined[:MOST_NAME]}…"
