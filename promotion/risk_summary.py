"""What remains risky about a candidate, in at most 120 words made from its evidence. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from promotion.attention import near_by_gate
from promotion.fragility import fragility
from promotion.gates.base import Counts, Evidence, Outcome, judge
from promotion.suite_rules import rule_of

MOST_WORDS = 120
MOST_NAME = 40
BLOCKING, WAIVED, WEAKEST = 2, 2, 2
SHARED = {"ids": "ids", "groups": "groups", "texts": "equal texts", "near": "nearly equal texts"}
SIGNATURES = "human_approval_record"  # waits for who reads this, so that it blocks nothing here
Document = Mapping[str, Any]
Entry = Mapping[str, Any]


class SafetyTurns(NamedTuple):
    """Cases where any call is wrong, held against the champion: right to wrong, and wrong to right. None: not compared."""

    lost: int | None
    won: int | None


def summary(document: Document, safety: SafetyTurns) -> str:
    """Sentences in the order of their weight: what blocks first. What no longer fits is left out whole, never cut."""
    said: list[str] = []
    words = 0
    for sentence in _sentences(document, safety):
        more = len(sentence.split())
        if sentence and words + more <= MOST_WORDS:
            said.append(sentence)
            words += more
    return " ".join(said)


def _sentences(document: Document, safety: SafetyTurns) -> Iterator[str]:
    yield _what(document)
    if document["policy"] is None:
        yield "No gate judges it and nothing was measured: two signatures adopt it."
        return
    outcomes = _outcomes(document)
    yield _blocked(document, outcomes)
    yield _waivers(document)
    warning = _shared(document)
    yield warning
    yield _lost(document)
    yield _safety(document, safety)
    yield _nearest(document, outcomes)
    yield _masked(document)
    yield _weakest(document)
    yield "" if warning else _unknown_data(document)
    yield _looks(document)


def _what(document: Document) -> str:
    candidate, champion = document["candidate"], document["champion"]
    name, track = _short(candidate["name"]), _short(candidate["track"])
    if candidate["baseline"]:
        return f"{name} is proposed as the ungated baseline of {track}."
    if champion is None:
        return f"{name} is proposed for {track}, which has no champion."
    return f"{name} is to replace v{champion['entry']} ({_short(champion['name'])}) of {track}."


def _outcomes(document: Document) -> list[tuple[Entry, Outcome]]:
    """What each gate but the signatures says by itself, without waivers, in the policy's order."""
    evidence = Evidence(document)
    entries = [entry for entry in document["policy"]["document"]["gates"] if entry["gate"] != SIGNATURES]
    return [(entry, judge(evidence, entry).outcome) for entry in entries]


def _blocked(document: Document, outcomes: Sequence[tuple[Entry, Outcome]]) -> str:
    """Which gates block it: what failed first, and how much each lacks."""
    waived = {(waiver["gate"], waiver["suite"]) for waiver in document.get("waivers", ())}
    unmet = [
        (entry, outcome)
        for entry, outcome in outcomes
        if outcome is not Outcome.PASSED and (entry["gate"], entry.get("suite")) not in waived
    ]
    if not unmet:
        return "No gate blocks it." if waived else "No gate blocks it and none is waived."
    unmet.sort(key=lambda found: found[1] is Outcome.NOT_EVALUATED)
    lacks = _lacks(document)
    named = [
        f"{_gate(document, entry)} ({', '.join([_word(outcome), *_short_by(lacks, entry)])})"
        for entry, outcome in unmet[:BLOCKING]
    ]
    return f"Blocked by {_number(len(unmet), 'gate')}: {_listed(named, len(unmet))}."


def _lacks(document: Document) -> dict[tuple[str, ...], Decimal]:
    """(gate, suite, metric) -> by how many points its worst bound or drop misses, of those that do."""
    found: dict[tuple[str, ...], Decimal] = {}
    for near in near_by_gate(document):
        if near.counted and near.room < 0:
            key = (near.gate, near.suite, near.metric)
            found[key] = max(-near.room, found.get(key, Decimal(0)))
    return found


def _short_by(lacks: Mapping[tuple[str, ...], Decimal], entry: Entry) -> list[str]:
    key = (entry["gate"], entry.get("suite", ""), entry.get("metric", ""))
    return [f"{lacks[key]} short"] if key in lacks else []


def _waivers(document: Document) -> str:
    """With their end: this is made once, and a waiver that ran out blocks again."""
    waivers = document.get("waivers", ())
    if not waivers:
        return ""
    named = [
        f"{_gate(document, waiver)} until {waiver['expires_at'][:10]}"
        for waiver in sorted(waivers, key=lambda waiver: (waiver["gate"], waiver["suite"] or ""))[:WAIVED]
    ]
    return f"Waived: {_listed(named, len(waivers))}."


def _shared(document: Document) -> str:
    """That the data holds what judges it, or what was watched while it was made: training data and suites first."""
    found = [
        (part["role"] != "train", overlap["with"] != "suite", -sum(counts), part, overlap)
        for part in document.get("datasets") or ()
        for overlap in part["overlaps"]
        if any(counts := [overlap["report"][kind] for kind in SHARED])
    ]
    if not found:
        return ""
    *_, part, overlap = min(found, key=lambda one: one[:3])
    shares = [
        f"{overlap['report'][kind]} {words}" for kind, words in SHARED.items() if overlap["report"][kind]
    ]
    kind = "training" if part["role"] == "train" else "evaluation"
    more = f", and {_number(len(found) - 1, 'other comparison')} found something" if len(found) > 1 else ""
    return (
        f"Warning: its {kind} set {_short(part['name'])} shares {_joined(shares)} with the "
        f"{'suite' if overlap['with'] == 'suite' else 'set'} {_short(overlap['name'])}{more}."
    )


def _unknown_data(document: Document) -> str:
    datasets = document.get("datasets") or ()
    if not datasets:
        return "It declares no dataset, so what it saw of the suites is unknown."
    if not any(part["overlaps"] for part in datasets):
        return "Its data was compared with nothing yet."
    return "Its data shares nothing that was found with what judges it."


def _lost(document: Document) -> str:
    """Prompts of all suites, each by the metric of its gates that lost most: never fewer than the family table shows."""
    if document["champion"] is None:
        return "There is nothing to compare it with."
    tables = [
        (part["paired"], _metrics(document, part["digest"]))
        for part in document["suites"]
        if part.get("paired") is not None
    ]
    if not tables:
        return "Its answers are not compared with the champion's."
    worst = [
        max((table[metric] for metric in metrics), key=lambda of: of["lost"]) for table, metrics in tables
    ]
    lost, won, missing = (sum(table[kind] for table in worst) for kind in ("lost", "won", "missing"))
    unsafe = sum(table["safe"]["lost"] for table, _ in tables)
    parts = [f"It loses {_number(lost, 'prompt')} that the champion had right"]
    parts += [f"turns {unsafe} from safe to unsafe"] if unsafe else []
    alone = sum(1 for part in document["suites"] if part["candidate"]) - len(tables)
    rest = [f"{missing} without a score on a side"] if missing else []
    rest += [f"{_number(alone, 'suite')} cannot be compared"] if alone else []
    tail = f" ({', '.join(rest)})" if rest else ""
    return f"{_joined([*parts, f'wins {won}'])}{tail}."


def _metrics(document: Document, suite_digest: str) -> list[str]:
    """What the gates count on the suite, first what the family table shows."""
    policy = document["policy"]["document"]
    counted = [
        entry["metric"]
        for entry in policy["gates"]
        if entry.get("suite") == suite_digest and "metric" in entry
    ]
    return list(dict.fromkeys([rule_of(policy, suite_digest).metric, *counted]))


def _nearest(document: Document, outcomes: Sequence[tuple[Entry, Outcome]]) -> str:
    """The passing gate that the fewest prompts would end; of several the first of the policy, as the page has it."""
    passing = [
        (entry, fragility(document, entry)) for entry, outcome in outcomes if outcome is Outcome.PASSED
    ]
    near = [
        (found.flips, entry, found)
        for entry, found in passing
        if found is not None and found.unit == "prompts" and found.flips is not None
    ]
    if not near:
        return ""
    _, entry, found = min(near, key=lambda one: one[0])
    return f"Of what passes, {_gate(document, entry)} is nearest to failing: {found.turns}"


def _masked(document: Document) -> str:
    runs = [part["candidate"] for part in document["suites"] if part["candidate"]]
    if not runs:
        return "Nothing was measured."
    missing = sum(run["masked"] + run["unscored"] for run in runs)
    planned = sum(run["planned"] for run in runs)
    return f"{missing} of {planned} rollouts have no score." if missing else "Every rollout has a score."


def _weakest(document: Document) -> str:
    """By the rate of what the family table shows, with what the champion had of the same."""
    policy = document["policy"]["document"]
    rates = []
    for part in document["suites"]:
        run, metric = part["candidate"], rule_of(policy, part["digest"]).metric
        theirs = part["champion"]["families"] if part["champion"] else {}
        for family, metrics in (run["families"] if run else {}).items():
            counts = Counts(**metrics[metric])
            if counts.n and counts.successes < counts.n:
                beside = theirs.get(family, {}).get(metric)
                champion = f", champion {_share(Counts(**beside))}" if beside else ""
                said = f"{_short(family)} of {_short(part['name'])} ({metric} {_share(counts)}{champion})"
                rates.append((Decimal(counts.successes) / counts.n, family, part["name"], said))
    weakest = [said for *_, said in sorted(rates, key=lambda found: found[:3])[:WEAKEST]]
    return f"Weakest families: {', '.join(weakest)}." if weakest else ""


def _share(counts: Counts) -> str:
    return f"{counts.successes} of {counts.n}"


def _safety(document: Document, safety: SafetyTurns) -> str:
    if document["champion"] is None:
        return ""
    if safety.lost is None:
        return "Its cases are not compared with the champion's yet."
    return f"Cases where any call is wrong: {safety.lost} lost, {safety.won} won." if safety.lost else ""


def _looks(document: Document) -> str:
    looks = [
        f"{part['candidate']['look'] or 'uncounted'} on {_short(part['name'])}"
        for part in document["suites"]
        if part["candidate"]
    ]
    return f"Looks: {', '.join(looks[:3])}{' and more' if len(looks) > 3 else ''}." if looks else ""


def _gate(document: Document, entry: Entry) -> str:
    """A gate with its suite, of an entry or of a waiver."""
    names = {part["digest"]: part["name"] for part in document["suites"]}
    suite = entry.get("suite")
    return f"{entry['gate']} on {_short(names.get(suite, suite[:12]))}" if suite else str(entry["gate"])


def _word(outcome: Outcome) -> str:
    return str(outcome).replace("_", " ")


def _number(value: int, of: str) -> str:
    return f"{value} {of}" if value == 1 else f"{value} {of}s"


def _listed(named: Sequence[str], total: int) -> str:
    rest = [f"{total - len(named)} more"] if total > len(named) else []
    return _joined([*named, *rest])


def _joined(parts: Sequence[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)


def _short(name: str) -> str:
    """A name of somebody else's, so that it cannot fill the summary."""
    joined = "_".join(name.split())
    return joined if len(joined) <= MOST_NAME else f"{joined[:MOST_NAME]}…"
