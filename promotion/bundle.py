"""One file with which a stranger judges again, years later: frozen evidence, what the gates said of it, who signed it.

`regate` reads that file and nothing else, and decides by the same functions as services, pages and API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any

from promotion.evidence import document_of
from promotion.gates import OPENS, Evidence, GateOutcome, judge
from promotion.gates.approval import Glass, Signature, approval_outcome
from promotion.models import Evidence as EvidenceRow
from promotion.selectors import glass_of, signatures_of
from promotion.services.gating import (
    APPROVAL_GATE,
    ARTIFACT_GATE,
    approval_rule,
    involved_people,
    outcomes_of,
)
from rollouts.errors import InvalidInput
from rollouts.hashing import sha256_json

FORMAT = 1
TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
PARTS = {"candidate": dict, "artifact": dict, "policy": dict | None, "suites": list, "people": dict}


def bundle_of(evidence: EvidenceRow) -> dict[str, Any]:
    """The bundle of a stored evidence. `at` is when its outcomes were computed: what had expired then is expired."""
    glass = glass_of(evidence.candidate, evidence.digest)
    return {
        "format": FORMAT,
        "digest": evidence.digest,
        "at": evidence.created_at.strftime(TIME),
        "document": document_of(evidence),
        "outcomes": [
            {
                "gate": result.gate,
                "outcome": result.outcome,
                "reason": result.reason,
                "numbers": result.numbers,
            }
            for result in evidence.gate_results.order_by("position")
        ],
        "approvals": [
            {
                "person": signature.person,
                "role": signature.role,
                "evidence_digest": signature.evidence_digest,
                "signed_at": signature.signed_at.strftime(TIME),
            }
            for signature in signatures_of(evidence.candidate)
            if signature.evidence_digest == evidence.digest
        ],
        "broken_glass": glass
        and {
            "person": glass.person,
            "evidence_digest": glass.evidence_digest,
            "broken_at": glass.broken_at.strftime(TIME),
        },
    }


@dataclass(frozen=True, slots=True)
class Judged:
    """One policy entry judged again. `stored` is what the bundle says of it, None where it says nothing."""

    gate: str
    suite: str | None  # its name
    outcome: GateOutcome
    stored: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Regated:
    """A bundle judged again at `at`. `signatures` is None where the bundle holds no approvals."""

    digest: str
    at: datetime
    ruled: bool  # whether there were rules to judge by: a locked policy, or those of a baseline
    gates: list[Judged]
    signatures: GateOutcome | None
    stored: bool  # whether the bundle holds outcomes to compare with

    @property
    def blocked_by(self) -> list[str]:
        """Each gate that does not open the door; the signatures where they were judged."""
        if not self.ruled:
            return ["policy: the track had no locked policy when this was frozen."]
        found = [(judged.gate, judged.outcome) for judged in self.gates if judged.gate != APPROVAL_GATE]
        if self.signatures is not None:
            found.append((APPROVAL_GATE, self.signatures))
        return [f"{gate}: {outcome.reason}" for gate, outcome in found if outcome.outcome not in OPENS]

    @property
    def differences(self) -> list[str]:
        """Entries whose outcome or numbers are others than the stored ones. Words may change between releases."""
        found = []
        for position, judged in enumerate(self.gates, 1):
            was, now = judged.stored or {}, judged.outcome
            if was.get("outcome") != now.outcome:
                found.append(f"{position} {judged.gate}: {was.get('outcome')} is stored, {now.outcome} now")
            elif not _holds(now.numbers, was["numbers"]):
                found.append(f"{position} {judged.gate}: {now.outcome} with other numbers than are stored")
        return found


def _holds(now: Any, stored: Any) -> bool:
    """Whether everything that was stored is said now: a later release may say more beside it."""
    if isinstance(stored, Mapping) and isinstance(now, Mapping):
        return all(key in now and _holds(now[key], stored[key]) for key in stored)
    return bool(now == stored)


def regate(bundle: Any, at: datetime | None = None) -> Regated:
    """Judges a bundle, or a bare evidence document, by what the file holds.

    `at` is the time against which waivers and signatures expire; left out it is the bundle's own (for signatures that of
    the last one, if that is later), and now where the file names none. Raises `InvalidInput` where the file is no
    bundle, or holds another document than its digest says.
    """
    bundle = _unpacked(bundle)
    digest = sha256_json(bundle["document"])
    if bundle.get("digest", digest) != digest:
        raise InvalidInput(
            "digest",
            f"says {str(bundle['digest'])[:12]}, but the document's is {digest[:12]}: it was changed. "
            "Export the evidence again.",
        )
    try:
        return _judged(bundle, digest, at)
    except (AttributeError, KeyError, TypeError) as error:
        raise InvalidInput("document", f"is not shaped as evidence is: {error!r}") from error


def _judged(bundle: Mapping[str, Any], digest: str, at: datetime | None) -> Regated:
    document, stored = bundle["document"], _list(bundle, "outcomes")
    ruled = document["policy"] is not None or document["candidate"]["baseline"]
    judged_at = at or (_time(bundle["at"], "at") if "at" in bundle else datetime.now(UTC))
    outcomes = _outcomes(document, judged_at)
    if stored and len(stored) != len(outcomes):
        raise InvalidInput("outcomes", f"holds {len(stored)} of the policy's {len(outcomes)} gates.")
    names = {suite["digest"]: suite["name"] for suite in document["suites"]}
    gates = [
        Judged(entry["gate"], names.get(entry.get("suite")), outcome, was)
        for (entry, outcome), was in zip_longest(outcomes, stored)
    ]
    signatures = _signed(bundle, digest, at, judged_at) if ruled and "approvals" in bundle else None
    return Regated(digest, judged_at, ruled, gates, signatures, bool(stored))


def _signed(bundle: Mapping[str, Any], digest: str, at: datetime | None, judged_at: datetime) -> GateOutcome:
    """The approval gate, at the time of the last act where no other is given."""
    document = bundle["document"]
    signatures = [_signature(entry, index) for index, entry in enumerate(_list(bundle, "approvals"))]
    glass = _glass(bundle.get("broken_glass"))
    acts = [signature.signed_at for signature in signatures] + ([glass.broken_at] if glass else [])
    return approval_outcome(
        rule=approval_rule(document),
        signatures=signatures,
        digest=digest,
        involved=involved_people(document),
        now=at or max([judged_at, *acts]),
        glass=glass,
    )


def _outcomes(document: dict[str, Any], at: datetime) -> list[tuple[Mapping[str, Any], GateOutcome]]:
    """Each entry of the policy with its outcome. A baseline, which has no policy, is held to its artifact alone."""
    if document["candidate"]["baseline"]:
        entry = {"gate": ARTIFACT_GATE}
        return [(entry, judge(Evidence(document), entry, at))]
    entries = [] if document["policy"] is None else document["policy"]["document"]["gates"]
    found = [outcome for _, outcome in outcomes_of(document, at)]
    return list(zip(entries, found, strict=True))


def as_json(regated: Regated) -> dict[str, Any]:
    """For programs."""

    def outcome(found: GateOutcome) -> dict[str, Any]:
        return {"outcome": str(found.outcome), "reason": found.reason, "numbers": dict(found.numbers)}

    return {
        "digest": regated.digest,
        "at": regated.at.strftime(TIME),
        "gates": [
            {"gate": judged.gate, "suite": judged.suite, **outcome(judged.outcome)}
            for judged in regated.gates
        ],
        "signatures": outcome(regated.signatures) if regated.signatures else None,
        "blocked_by": regated.blocked_by,
        "differences": regated.differences if regated.stored else None,
    }


def _unpacked(bundle: Any) -> dict[str, Any]:
    """A bare evidence document, as the API gives it, is a bundle that says nothing more."""
    if isinstance(bundle, dict) and "document" not in bundle and "suites" in bundle:
        bundle = {"format": FORMAT, "document": bundle}
    if not isinstance(bundle, dict) or bundle.get("format") != FORMAT or "document" not in bundle:
        raise InvalidInput(
            "bundle",
            f"is neither a bundle of format {FORMAT} nor an evidence document. Make one with: "
            "manage.py export_evidence TRACK/NAME",
        )
    document = bundle["document"]
    for part, kind in PARTS.items():
        if not isinstance(document, dict) or not isinstance(document.get(part), kind):
            raise InvalidInput(f"document.{part}", "is missing, so this is no evidence document.")
    return bundle


def _list(bundle: Mapping[str, Any], name: str) -> list[Any]:
    found = bundle.get(name, [])
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise InvalidInput(name, "must be a list of objects.")
    return found


def _signature(entry: Mapping[str, Any], index: int) -> Signature:
    where = f"approvals.{index}"
    person, role, digest = (_text(entry, name, where) for name in ("person", "role", "evidence_digest"))
    return Signature(person, role, digest, _time(entry.get("signed_at"), f"{where}.signed_at"))


def _glass(entry: Any) -> Glass | None:
    where = "broken_glass"
    if entry is None:
        return None
    if not isinstance(entry, dict):
        raise InvalidInput(where, "must be an object or null.")
    person, digest = (_text(entry, name, where) for name in ("person", "evidence_digest"))
    return Glass(person, digest, _time(entry.get("broken_at"), f"{where}.broken_at"))


def _text(entry: Mapping[str, Any], name: str, where: str) -> str:
    found = entry.get(name)
    if not isinstance(found, str):
        raise InvalidInput(f"{where}.{name}", "must be a text.")
    return found


def _time(value: Any, where: str) -> datetime:
    try:
        return datetime.strptime(value, TIME).replace(tzinfo=UTC)
    except (TypeError, ValueError):
        raise InvalidInput(where, f"{value!r} is no time such as 2026-08-04T19:52:18.000000Z.") from None
