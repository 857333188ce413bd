"""The candidate's runs beside the champion's, as an evidence document names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from promotion.suite_rules import rule_of
from rollouts import comparisons
from rollouts.comparisons import Pair
from rollouts.models import Comparison, EvalRun

Document = Mapping[str, Any]


def runs_of(document: Document | None) -> dict[str, EvalRun]:
    """By uid, the runs that the document counts. One query."""
    if document is None:
        return {}
    uids = [part[who]["run"] for part in document["suites"] for who in ("candidate", "champion") if part[who]]
    found = EvalRun.objects.filter(uid__in=uids).select_related("suite", "created_by", "backend", "subject")
    return {str(run.uid): run for run in found.order_by("id")}


def pairs_of(document: Document, runs: Mapping[str, EvalRun]) -> list[Pair]:
    """One a suite that the candidate has a run on, in the policy's order, with the metric that the suite's main gate counts."""
    if document["policy"] is None:
        return []
    return [
        Pair(
            run=runs[part["candidate"]["run"]],
            other=runs.get(part["champion"]["run"]) if part["champion"] else None,
            metric=rule_of(document["policy"]["document"], part["digest"]).metric,
        )
        for part in document["suites"]
        if part["candidate"] and part["candidate"]["run"] in runs
    ]


_SIDES = ("candidate", "champion")


def keys_of(document: Document, runs: Mapping[str, EvalRun]) -> dict[str, str]:
    """Suite digest -> the key of its comparison, with the runs at the revisions that the document counted."""
    if document["policy"] is None:
        return {}
    keys = {}
    for part in document["suites"]:
        sides = [part[who] and (runs[part[who]["run"]].pk, part[who].get("revision", 0)) for who in _SIDES]
        if sides[0]:
            metric = rule_of(document["policy"]["document"], part["digest"]).metric
            keys[part["digest"]] = comparisons.key_of(sides[0], sides[1], metric)
    return keys


def missing_pairs(document: Document) -> list[Pair]:
    """Pairs of the document that are not written down, and whose runs still are as the document counted them."""
    runs = runs_of(document)
    keys = set(keys_of(document, runs).values())
    there = comparisons.stored(keys)
    return [pair for pair in pairs_of(document, runs) if pair.key in keys and pair.key not in there]


def comparisons_of(
    document: Document | None, runs: Mapping[str, EvalRun] | None = None
) -> dict[str, Comparison] | None:
    """Suite digest -> its comparison, in the policy's order; None where one is not written down yet. At most two queries."""
    if document is None:
        return {}
    keys = keys_of(document, runs_of(document) if runs is None else runs)
    found = comparisons.stored(keys.values())
    if len(found) < len(keys):
        return None
    return {digest: found[key] for digest, key in keys.items()}
