"""What a comment may be about: rows of the evidence, and what each says, so that a thread knows when it is outdated.

An anchor is `page`, `gate:<position>`, `suite:<digest>`, `family:<digest>:<name>`, `case:<id>` or `dataset:<digest>`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from promotion import comparing
from promotion.models import Evidence
from rollouts.hashing import sha256_json
from rollouts.models import Case, Rollout

Document = Mapping[str, Any]
PAGE = "page"
MOST_LABEL = 300
_CASE = re.compile(r"case:([1-9][0-9]{0,17})")
_SCORES = ("state", "failure_kind", "json_valid", "decision", "tool", "exact", "safe")


class Row(NamedTuple):
    """What people call a row of the evidence, and the digest of what it says."""

    label: str
    digest: str


def of_gate(position: int) -> str:
    return f"gate:{position}"


def of_suite(digest: str) -> str:
    return f"suite:{digest}"


def of_family(digest: str, family: str) -> str:
    return f"family:{digest}:{family}"


def of_case(pk: int) -> str:
    return f"case:{pk}"


def of_dataset(digest: str) -> str:
    return f"dataset:{digest}"


def rows_of(evidence: Evidence, document: Document, anchors: Iterable[str]) -> dict[str, Row]:
    """Those of the anchors that this evidence has, with their rows. At most four queries."""
    wanted = list(dict.fromkeys(anchors))
    parts = _parts(evidence, document) | _cases(document, wanted)
    return {
        anchor: Row(parts[anchor][0][:MOST_LABEL], sha256_json(parts[anchor][1]))
        for anchor in wanted
        if anchor in parts
    }


def choices(evidence: Evidence, document: Document) -> list[tuple[str, str]]:
    """(anchor, label) of every row but the cases, which are too many to choose from."""
    return [(anchor, label) for anchor, (label, _) in _parts(evidence, document).items()]


def _parts(evidence: Evidence, document: Document) -> dict[str, tuple[str, Any]]:
    """Anchor -> its label and what the row is made of; all but cases."""
    found: dict[str, tuple[str, Any]] = {PAGE: ("the candidate as a whole", document)}
    found |= _gates(evidence, document)
    for part in document["suites"]:
        digest, name = part["digest"], part["name"]
        sides = {who: part[who] for who in ("candidate", "champion")}
        found[of_suite(digest)] = (f"suite {name}", part)
        for family in part["families"]:
            counts = {who: run and run["families"].get(family) for who, run in sides.items()}
            found[of_family(digest, family)] = (f"family {family} of {name}", counts)
    for part in document.get("datasets", ()):
        found[of_dataset(part["digest"])] = (f"dataset {part['name']} v{part['version']}", part)
    return found


def _gates(evidence: Evidence, document: Document) -> dict[str, tuple[str, Any]]:
    entries = document["policy"]["document"]["gates"] if document["policy"] else []
    names = {part["digest"]: part["name"] for part in document["suites"]}
    found = {}
    for result, entry in zip(evidence.gate_results.all(), entries, strict=False):
        said = [entry, str(result.outcome), result.reason, result.numbers]
        suite = entry.get("suite")
        where = f" on {names.get(suite, suite[:12])}" if suite else ""
        found[of_gate(result.position)] = (f"gate {result.gate}{where}", said)
    return found


def _cases(document: Document, anchors: list[str]) -> dict[str, tuple[str, Any]]:
    """What both sides' samples scored, and what was expected of them."""
    wanted = {int(match[1]): anchor for anchor in anchors if (match := _CASE.fullmatch(anchor))}
    if not wanted:
        return {}
    runs = comparing.runs_of(document)
    suites = {run.suite_id for run in runs.values()}
    cases = Case.objects.filter(pk__in=wanted, suite__in=suites).in_bulk()
    side_of = {
        runs[part[who]["run"]].pk: who
        for part in document["suites"]
        for who in ("candidate", "champion")
        if part[who] and part[who]["run"] in runs
    }
    scored: dict[int, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    rows = Rollout.objects.filter(run__in=side_of, case__in=cases).order_by("run_id", "sample_index")
    for case_id, run_id, *scores in rows.values_list("case_id", "run_id", *_SCORES):
        scored[case_id][side_of[run_id]].append(scores)
    return {
        wanted[pk]: (
            f"case {case.key} ({case.family})",
            [case.content.get("expected"), case.amended_expected, scored[pk]],
        )
        for pk, case in cases.items()
        if pk in scored
    }
