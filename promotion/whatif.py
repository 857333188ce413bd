"""What another policy would have said: a document run over the stored evidence of past candidates. Writes nothing.

Evidence is judged as if the document had been locked when its own policy was. In earnest that is not so: a run that was
planned before a lock cannot serve it, so a new policy needs new runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db.models import OuterRef, Subquery

from promotion import evidence as evidence_module
from promotion.gates import OPENS, GateOutcome
from promotion.models import Candidate, Evidence, Policy, Track
from promotion.services import gating, policies
from promotion.services.policy_rules import canonical_gate
from rollouts.errors import AssayError, NotFound
from rollouts.hashing import sha256_json

MOST = 50
Document = Mapping[str, Any]
Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Difference:
    """A gate of which the two policies get different words. "" where a policy does not ask it."""

    gate: str
    suite: str  # its name, "" where the gate names none
    now: str
    then: str
    reason: str  # what the gate says under the other policy; under its own where only that one asks it


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate by its newest evidence. A verdict is `passes` or `blocked`, signatures aside.

    `then` is None, and `why_not` says why, where the evidence does not hold what the other policy asks.
    """

    candidate: Candidate
    evidence: Evidence
    policy_version: int | None
    now: str | None
    then: str | None
    differences: list[Difference] = field(default_factory=list)
    why_not: str = ""

    @property
    def pk(self) -> int:
        return int(self.candidate.pk)

    @property
    def turned(self) -> bool:
        return self.then is not None and self.then != self.now


@dataclass(frozen=True, slots=True)
class Replay:
    """`digest` is of the document; `version` of the policy that it is, None for one that is not stored."""

    track: Track
    digest: str
    version: int | None
    rows: list[Row]

    @property
    def opened(self) -> int:
        """Candidates that were blocked and would pass."""
        return sum(row.turned and row.then == "passes" for row in self.rows)

    @property
    def closed(self) -> int:
        """Candidates that passed and would be blocked."""
        return sum(row.turned and row.then == "blocked" for row in self.rows)

    @property
    def same(self) -> int:
        return sum(row.then is not None and not row.turned for row in self.rows)

    @property
    def unknown(self) -> int:
        return sum(row.then is None for row in self.rows)


def replay_policy(track: Track, version: int | None = None) -> Replay:
    """A stored version; left out, the track's draft, and where there is none its policy in force.

    Raises `NotFound` where the track has none.
    """
    found = Policy.objects.filter(track=track).order_by("-version")
    policy = (found if version is None else found.filter(version=version)).first()
    if policy is None:
        raise NotFound(
            f"{track} has no such policy." if version is not None else f"{track} has no policy yet."
        )
    return _replay(track, policy.document, policy.version)


def replay(track: Track, document: Any) -> Replay:
    """Any document of a policy's shape, lockable or not. Raises `InvalidInput` where its shape is wrong."""
    return _replay(track, policies.canonical(policies.parse(document)), None)


def _replay(track: Track, document: dict[str, Any], version: int | None) -> Replay:
    newest = Evidence.objects.filter(candidate=OuterRef("pk")).order_by("-id").values("pk")[:1]
    candidates = list(
        Candidate.objects.filter(track=track)
        .annotate(newest_evidence=Subquery(newest))
        .filter(newest_evidence__isnull=False)
        .order_by("-id")[:MOST]
    )
    evidence = Evidence.objects.in_bulk([candidate.newest_evidence for candidate in candidates])
    rows = [_row(candidate, evidence[candidate.newest_evidence], document) for candidate in candidates]
    return Replay(track, sha256_json(document), version, rows)


def _row(candidate: Candidate, evidence: Evidence, document: Document) -> Row:
    try:
        before = evidence_module.document_of(evidence)
    except AssayError as error:
        return Row(candidate, evidence, None, None, None, why_not=error.message)
    if before["policy"] is None:
        return Row(candidate, evidence, None, None, None, why_not="Adopted or proposed without gates.")
    at = evidence.created_at
    now = gating.outcomes_of(before, at)
    version: int = before["policy"]["version"]
    why_not = _why_not(before, document)
    if why_not:
        return Row(candidate, evidence, version, _verdict(now), None, why_not=why_not)
    after = under(before, document)
    then = gating.outcomes_of(after, at)
    return Row(
        candidate, evidence, version, _verdict(now), _verdict(then), _differences(before, now, after, then)
    )


def _why_not(before: Document, document: Document) -> str:
    """Why this evidence cannot say what the document would; empty where it can."""
    asked = before["policy"]["document"]
    for key in ("samples", "sampling"):
        if asked[key] != document[key]:
            return (
                f"It was measured with {key} {_plain(asked[key])}, and this asks for {_plain(document[key])}."
            )
    held = {part["digest"] for part in before["suites"]}
    absent = [part["digest"] for part in document["suites"] if part["digest"] not in held]
    return f"It was not measured on {', '.join(digest[:12] for digest in absent)}." if absent else ""


def _plain(value: Any) -> str:
    return (
        ", ".join(f"{key} {part}" for key, part in value.items()) if isinstance(value, dict) else str(value)
    )


def under(before: Document, document: Document) -> dict[str, Any]:
    """The evidence as it would have been frozen had `document` been its policy: with the suites that it asks for.

    A waiver is of what was measured: with other suites it is of something else, and waives nothing.
    """
    parts = {part["digest"]: part for part in before["suites"]}
    return {
        **before,
        "policy": {
            **before["policy"],
            "version": None,
            "digest": sha256_json(document),
            "document": document,
        },
        "suites": [parts[part["digest"]] for part in document["suites"]],
    }


def _verdict(outcomes: list[tuple[str, GateOutcome]]) -> str:
    measured = [outcome for gate, outcome in outcomes if gate != gating.APPROVAL_GATE]
    return "passes" if all(outcome.outcome in OPENS for outcome in measured) else "blocked"


def _differences(
    before: Document,
    now: list[tuple[str, GateOutcome]],
    after: Document,
    then: list[tuple[str, GateOutcome]],
) -> list[Difference]:
    names = {part["digest"]: part["name"] for part in (*before["suites"], *after["suites"])}
    ours, theirs = _by_key(before, now), _by_key(after, then)
    found = []
    for key in dict.fromkeys([*theirs, *ours]):
        was, would = ours.get(key, []), theirs.get(key, [])
        for index in range(max(len(was), len(would))):
            one = was[index] if index < len(was) else None
            other = would[index] if index < len(would) else None
            said, would_say = (outcome.outcome.value if outcome else "" for outcome in (one, other))
            if said != would_say:
                reason = (other or one).reason  # type: ignore[union-attr]
                found.append(Difference(key[0], names.get(key[1], ""), said, would_say, reason))
    return found


def _by_key(document: Document, outcomes: list[tuple[str, GateOutcome]]) -> dict[Key, list[GateOutcome]]:
    """Outcomes by gate, suite and metric: what makes two policies' entries the same demand."""
    found: dict[Key, list[GateOutcome]] = defaultdict(list)
    for entry, (gate, outcome) in zip(document["policy"]["document"]["gates"], outcomes, strict=True):
        key = canonical_gate(gate), str(entry.get("suite") or ""), str(entry.get("metric") or "")
        found[key].append(outcome)
    return dict(found)
