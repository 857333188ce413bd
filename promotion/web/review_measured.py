"""What stands behind the counts on the review page: suites with their looks and leaks, and the declared data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from promotion import anchors
from promotion.gates.base import Evidence, spent_alpha

DEFAULT_ALPHA = "0.05"
ENDS = {
    "truncated": "truncated",
    "reasoning_only": "reasoning without an answer",
    "turns_exhausted": "out of turns",
}


@dataclass(frozen=True, slots=True)
class SuiteLine:
    """A suite as it was measured. `run` is the candidate's run in the evidence, or None."""

    name: str
    version: int
    digest: str
    cases: int
    prompts: int
    run: Mapping[str, Any] | None
    champion: bool
    spending: str
    leak: Mapping[str, Any] | None

    @property
    def repeated(self) -> bool:
        """Whether cases repeat prompts: then bounds are over fewer observations than there are cases."""
        return self.prompts < self.cases

    @property
    def ends(self) -> str:
        """Answers that ended otherwise than with an answer; scored as wrong."""
        run = self.run or {}
        return ", ".join(f"{run[key]} {words}" for key, words in ENDS.items() if run.get(key))

    @property
    def memory_mib(self) -> int | None:
        peak = self.run["peak_memory_bytes"] if self.run else None
        return None if peak is None else -(-int(peak) // (1 << 20))


@dataclass(frozen=True, slots=True)
class DataLine:
    """A dataset that the candidate declares, with what it shares with suites and other sets."""

    part: Mapping[str, Any]
    bytes_word: str  # passed, failed or not_evaluated: whether the file is that of its sidecar
    overlaps: list[Mapping[str, Any]]
    not_compared: list[str]

    @property
    def anchor(self) -> str:
        return anchors.of_dataset(self.part["digest"])

    @property
    def shares(self) -> bool:
        return any(_shared(overlap["report"]) for overlap in self.overlaps)


def _shared(report: Mapping[str, Any]) -> int:
    return sum(int(report[kind]) for kind in ("ids", "groups", "texts", "near"))


def suite_lines(document: Mapping[str, Any]) -> list[SuiteLine]:
    facts = Evidence(document).facts
    policy = facts["policy"]["document"] if facts["policy"] else {}
    return [
        SuiteLine(
            name=part["name"],
            version=part["version"],
            digest=part["digest"],
            cases=part["case_count"],
            prompts=part["prompt_count"],
            run=part["candidate"],
            champion=part["champion"] is not None,
            spending=_spending(policy, part),
            leak=part["leak"],
        )
        for part in facts["suites"]
    ]


def _spending(policy: Mapping[str, Any], part: Mapping[str, Any]) -> str:
    """What this look may spend of each alpha that bounds on the suite are taken at, and what later looks have left."""
    look = part["candidate"]["look"] if part["candidate"] else None
    if not policy.get("spend_alpha"):
        return "not spent over looks"
    if look is None:
        return "spent over looks, and this one was not counted"
    alphas = {
        Decimal(entry.get("alpha") or DEFAULT_ALPHA)
        for entry in policy["gates"]
        if entry.get("suite") == part["digest"] and ("min" in entry or "margin" in entry)
    }
    left = Fraction(1, look + 1)
    spent = "; ".join(
        f"{spent_alpha(alpha, look):.3g} of {alpha} at this look, {float(alpha * left.numerator / left.denominator):.3g} left"
        for alpha in sorted(alphas)
    )
    return spent or "no bound is taken on it"


def data_lines(document: Mapping[str, Any]) -> list[DataLine]:
    facts = Evidence(document).facts
    datasets, suites = facts["datasets"], facts["suites"]
    return [
        DataLine(part, _bytes_word(part), list(part["overlaps"]), _not_compared(part, datasets, suites))
        for part in datasets
    ]


def _bytes_word(part: Mapping[str, Any]) -> str:
    if part["declared_sha256"] is None:
        return "not_evaluated"
    return "passed" if part["declared_sha256"] == part["file_sha256"] else "failed"


def _not_compared(
    part: Mapping[str, Any], datasets: list[Mapping[str, Any]], suites: list[Mapping[str, Any]]
) -> list[str]:
    """Suites, and sets of the other role, that nobody compared it with: a comparison may stand under either side."""
    seen = {overlap["digest"] for overlap in part["overlaps"]}
    seen |= {
        other["digest"]
        for other in datasets
        if any(overlap["digest"] == part["digest"] for overlap in other["overlaps"])
    }
    others = [other for other in datasets if other["role"] != part["role"]]
    return [
        f"{other['name']} v{other['version']}" for other in (*suites, *others) if other["digest"] not in seen
    ]
