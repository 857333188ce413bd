"""How gates read an evidence document: whose run it is, whether it is whole, and the counts in it.

What is absent is `Unusable` and blocks. What is there but cannot be (a negative count, a time that is none) raises
`ValueError`, `KeyError` or `TypeError`, which `judge` turns into an error that blocks. What a policy holds is only ever
read in the second way: it is no measurement, so a waiver outlives its change, and may not gain by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from rollouts.hashing import sha256_json

# not measured: the rules, the waivers of them, and who did what
NOT_MEASURED = ("policy", "waivers", "people", "statement")
ROLES = ("train", "eval")
ACCOUNTED = ("scored", "masked", "unscored", "cancelled")


class Unusable(Exception):
    """The evidence lacks what a gate needs; the message says what would give it."""


class Unmet(Exception):
    """The evidence shows that what a gate asks is not so; the message says what is there instead."""


def count(value: Any) -> int:
    """An integer of 0 or more, as it is. Raises `ValueError` for anything else, true and 3.0 included."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{str(value)[:40]!r} is not a count")
    return value


def moment(value: Any) -> datetime:
    """A UTC time as evidence writes it, with Z at its end. Raises `ValueError` for anything else."""
    if not isinstance(value, str) or not value.endswith("Z"):
        raise ValueError(f"{str(value)[:40]!r} is not a time in UTC")
    return datetime.fromisoformat(value)


def measurement_digest(document: Mapping[str, Any]) -> str:
    """The digest of what was measured: of the document without policy, waivers, people, statement and revision."""
    measured = {name: part for name, part in document.items() if name not in NOT_MEASURED}
    candidate = {name: value for name, value in document["candidate"].items() if name != "revision"}
    return sha256_json({**measured, "candidate": candidate})


def spent_alpha(alpha: Decimal, look: int) -> Decimal:
    """What look `look` (1 or more) may spend of `alpha`: alpha / (k (k + 1)). Over all looks that adds up to alpha."""
    return alpha / (look * (look + 1))


@dataclass(frozen=True, slots=True)
class Counts:
    """Distinct prompts of one metric: right, wrong, and those without a score."""

    successes: int
    failures: int
    missing: int

    def __post_init__(self) -> None:
        for value in (self.successes, self.failures, self.missing):
            count(value)

    @property
    def n(self) -> int:
        return self.successes + self.failures + self.missing


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of the evidence document, already known to be whole, and of the right subject, suite and time."""

    document: Mapping[str, Any]

    def counts(self, metric: str) -> Counts:
        return Counts(**self.document["metrics"][metric])

    def families(self, metric: str) -> dict[str, Counts]:
        return {name: Counts(**metrics[metric]) for name, metrics in self.document["families"].items()}

    @property
    def look(self) -> int | None:
        """Which look at the sealed suite this run was, from 1; None where it was not counted."""
        look = self.document["look"]
        if look is None:
            return None
        if count(look) == 0:
            raise ValueError("looks are counted from 1")
        return int(look)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The canonical document (see promotion.evidence), of format 2 or 1, and how gates read it."""

    document: Mapping[str, Any]

    @property
    def facts(self) -> Mapping[str, Any]:
        """The document as format 2 has it."""
        written_as = self.document["format"]
        if written_as == 2:
            return self.document
        if written_as == 1:
            return _from_format_1(self.document)
        raise ValueError(f"evidence of format {str(written_as)[:40]!r} cannot be read")

    def suite(self, digest: str) -> Mapping[str, Any]:
        found = [suite for suite in self.facts["suites"] if suite["digest"] == digest]
        if not found:
            raise Unusable(f"Suite {digest[:12]} is not in the evidence. Start the candidate's evaluation.")
        return dict(found[0])

    def suites(self) -> list[Mapping[str, Any]]:
        """All suites of the policy. Raises `Unusable` where the evidence holds others."""
        found = [suite["digest"] for suite in self.facts["suites"]]
        asked = [suite["digest"] for suite in self.facts["policy"]["document"]["suites"]]
        if not asked or sorted(found) != sorted(asked):
            raise Unusable(
                "The evidence does not hold the policy's suites. Start the candidate's evaluation."
            )
        return [self.suite(digest) for digest in asked]

    def candidate(self, suite_digest: str) -> Measurement:
        return self._measurement(suite_digest, "candidate", self.facts["artifact"]["subject_digest"])

    def champion(self, suite_digest: str) -> Measurement:
        return self._measurement(suite_digest, "champion", self.incumbent()["subject_digest"])

    def incumbent(self) -> Mapping[str, Any]:
        champion: Mapping[str, Any] | None = self.facts["champion"]
        if champion is None:
            raise Unusable("The track has no champion to compare with. Adopt a baseline first.")
        return champion

    def alpha(self, run: Measurement, alpha: Decimal) -> Decimal:
        """The error that a bound of the candidate's `run` may have: `alpha`, or its share at that run's look."""
        spend = self.facts["policy"]["document"]["spend_alpha"]
        if not isinstance(spend, bool):
            raise ValueError(f"spend_alpha is {str(spend)[:40]!r}, neither true nor false")
        if not spend:
            return alpha
        if run.look is None:
            raise Unusable(
                "The policy spends alpha over looks, and this run's look was not counted. Evaluate it again."
            )
        return spent_alpha(alpha, run.look)

    def datasets(self, role: str | None = None) -> list[Mapping[str, Any]]:
        """What the candidate was made from, in all or of one role.

        Raises `Unusable` unless both roles are there and each training set was compared with each evaluation set, both
        ways: those comparisons name the sets, so that one that was taken away is missed.
        """
        parts: Sequence[Mapping[str, Any]] = self.facts["datasets"]
        by_role = {kind: [part for part in parts if part["role"] == kind] for kind in ROLES}
        lacking = [kind for kind, found in by_role.items() if not found]
        if lacking or sum(map(len, by_role.values())) != len(parts):
            raise Unusable(
                f"The candidate declares no {' and no '.join(lacking) or 'known'} dataset. "
                "Register what it was trained on and what was watched meanwhile, and name both."
            )
        known = {part["digest"] for part in parts}
        for part in parts:
            for overlap in part["overlaps"]:
                if overlap["with"] == "dataset" and overlap["digest"] not in known:
                    raise Unusable(
                        f"{title(part)} was compared with {overlap['name']}, which the candidate does not declare."
                    )
        for train in by_role["train"]:
            for other in by_role["eval"]:
                overlaps_of(train, other)
        return [part for part in parts if role in (None, part["role"])]

    def _measurement(self, suite_digest: str, who: str, subject_digest: str | None) -> Measurement:
        suite = self.suite(suite_digest)
        run, name = suite[who], suite["name"]
        if run is None:
            raise Unusable(f"No closed run of the {who} on {name}. Start its evaluation.")
        if subject_digest is None or run["subject_digest"] != subject_digest:
            raise Unusable(f"The {who}'s run on {name} measured another model. Evaluate the {who} itself.")
        if run["suite_digest"] != suite_digest:
            raise Unusable(f"The {who}'s run was scored on another suite than {name}.")
        expected = count(suite["case_count"]) * count(run["samples"])
        accounted = sum(count(run[part]) for part in ACCOUNTED)
        if not 0 < count(run["planned"]) == expected == accounted:
            raise Unusable(f"The {who}'s run on {name} does not account for all {expected} rollouts.")
        self._require_prompts(suite, run, who)
        if moment(run["planned_at"]) < moment(self.facts["policy"]["locked_at"]):
            raise Unusable(
                f"The {who}'s run on {name} was planned before the policy was locked. Run it again."
            )
        return Measurement(run)

    @staticmethod
    def _require_prompts(suite: Mapping[str, Any], run: Mapping[str, Any], who: str) -> None:
        """Every prompt of the suite and of each family has a result, and no more have a value than were scored."""
        prompts, name = count(suite["prompt_count"]), suite["name"]
        tables = {metric: Counts(**table) for metric, table in run["metrics"].items()}
        counted = tables["decision"].n
        if counted != prompts or max(table.n for table in tables.values()) > prompts:
            raise Unusable(
                f"The {who}'s run on {name} has results of {counted} of {prompts} prompts. "
                "Rows are missing; evaluate it again."
            )
        for table in tables.values():
            if table.successes * run["samples"] + table.failures > run["scored"]:
                raise Unusable(f"The {who}'s run on {name} has more results than scored rollouts.")
        families = suite["family_prompts"]
        if families.keys() != suite["families"].keys() or not families:
            raise Unusable(f"The families of {name} are not known. Seal it again.")
        absent = sorted(family for family in families if family not in run["families"])
        if absent:
            raise Unusable(f"Families missing from the {who}'s results on {name}: {', '.join(absent)}.")
        for family, metrics in run["families"].items():
            if family not in families or Counts(**metrics["decision"]).n != count(families[family]):
                raise Unusable(f"The {who}'s results on {name} are not those of all prompts of {family}.")


def overlaps_of(dataset: Mapping[str, Any], other: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The reports of what a dataset shares with a suite, or with another dataset: then from both sides."""
    is_dataset = "role" in other
    sides = [(dataset, other), (other, dataset)] if is_dataset else [(dataset, other)]
    reports = []
    for mine, theirs in sides:
        found = [
            overlap["report"]
            for overlap in mine["overlaps"]
            if overlap["digest"] == theirs["digest"] and (overlap["with"] == "dataset") is is_dataset
        ]
        if not found:
            raise Unusable(f"{title(mine)} was not compared with {title(theirs)}. Compare them.")
        reports += found
    return reports


def title(part: Mapping[str, Any]) -> str:
    """What a dataset or a suite is called."""
    return f"{part['name']} v{part['version']}"


def _from_format_1(document: Mapping[str, Any]) -> dict[str, Any]:
    """Evidence stored before format 2: prompts were not told apart from cases, and what it lacks is not known."""
    champion = document["champion"]
    return {
        **document,
        "artifact": {**document["artifact"], "tool_schema_sha256": None},
        "champion": champion and {**champion, "baseline": None, "stored": None, "exported_as": None},
        "datasets": [],
        "waivers": [],
        "suites": [
            {
                **suite,
                "prompt_count": suite["case_count"],
                "family_prompts": suite["families"],
                "scorer": None,
                "schema_sha256": None,
                "leak": None,
                "candidate": _run_from_format_1(suite["candidate"]),
                "champion": _run_from_format_1(suite["champion"]),
            }
            for suite in document["suites"]
        ],
    }


def _run_from_format_1(run: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if run is None:
        return None
    served = dict(run["served"] or {})
    for key in ("build", "config"):
        # two servers that said nothing of themselves counted as alike
        if served.get(key) is None:
            served[key] = "unknown"
    return {
        **run,
        "served": served,
        "independence": "unknown",
        "latency_ms": {**run["latency_ms"], "n": None},
        "peak_memory_bytes": None,
    }
