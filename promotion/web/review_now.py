"""Whether the evidence on the review page is still that of the present state, and if not, why and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from promotion import evidence as evidence_module
from promotion.models import Candidate, Evidence, GateResult
from promotion.web import compare
from promotion.web.review_gates import turned_since
from rollouts.models import Backend
from rollouts.selectors import backends_in_use

# gates that hold the candidate against the champion
COMPARING = (
    "incumbent_artifact_hash",
    "rollback_artifact_availability",
    "arena_max_regression",
    "paired_non_inferiority",
)


@dataclass(frozen=True, slots=True)
class NewChampion:
    """The champion changed since the evidence was frozen. `unmeasured`: suites on which the new one has no run that may serve.

    `backend` is the newest revision of the one that the candidate was evaluated on, for the runs that are missing.
    """

    entry: int | None
    name: str
    before: str
    gates: list[str]
    unmeasured: list[str]
    backend: Backend | None


@dataclass(frozen=True, slots=True)
class Since:
    """What happened since the evidence was judged. Nothing: it is current."""

    changes: list[str] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)  # gates whose waiver ran out
    champion: NewChampion | None = None

    @property
    def stale(self) -> bool:
        return bool(self.changes or self.expired)


def since(
    candidate: Candidate, evidence: Evidence, document: Mapping[str, Any], results: list[GateResult]
) -> Since:
    """`results` are what the gates say of the evidence now. Builds the evidence as it is now only where
    its frame changed, and compares it. The number of queries is constant.
    """
    expired = turned_since(results, evidence)
    if evidence.basis_digest == evidence_module.basis(candidate):
        return Since(expired=expired)
    built = evidence_module.build(candidate)
    if built.digest == evidence.digest:
        return Since(expired=expired)
    changes = compare.changes(document, built.document) or ["It is written in another form."]
    return Since(changes, expired, _new_champion(candidate, document, built.document))


def _new_champion(candidate: Candidate, old: Mapping[str, Any], new: Mapping[str, Any]) -> NewChampion | None:
    was, now = old["champion"], new["champion"]
    if now is None or new["policy"] is None or (was and was["entry"] == now["entry"]):
        return None
    entries = new["policy"]["document"]["gates"]
    asked = [entry for entry in entries if entry["gate"] in COMPARING]
    suites = {entry["suite"] for entry in asked if entry.get("suite")}
    locked_at = new["policy"]["locked_at"]
    # times are written alike, so that their text is in their order; a run of before the lock serves no gate
    unmeasured = [
        part["name"]
        for part in new["suites"]
        if part["digest"] in suites
        and (part["champion"] is None or part["champion"]["planned_at"] < locked_at)
    ]
    return NewChampion(
        entry=now["entry"],
        name=now["name"],
        before=f"v{was['entry']} ({was['name']})" if was else "none",
        gates=list(dict.fromkeys(entry["gate"] for entry in asked)),
        unmeasured=unmeasured,
        backend=_backend(candidate) if unmeasured else None,
    )


def _backend(candidate: Candidate) -> Backend | None:
    if candidate.backend is None:
        return None
    return backends_in_use().filter(name=candidate.backend.name, kind="llama_cpp").first()
