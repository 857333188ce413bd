"""Questions of a policy's checklist that the evidence itself answers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Document = Mapping[str, Any]


def _runs(document: Document) -> list[Mapping[str, Any]]:
    return [part["candidate"] for part in document["suites"] if part["candidate"]]


def _no_waivers(document: Document) -> bool:
    return not document.get("waivers")


def _no_masked(document: Document) -> bool:
    runs = _runs(document)
    return bool(runs) and not any(run["masked"] or run["unscored"] for run in runs)


def _datasets_declared(document: Document) -> bool:
    return bool(document.get("datasets"))


def _no_overlaps(document: Document) -> bool:
    """Where nothing was declared or compared, nobody knows: that is no."""
    datasets = document.get("datasets") or []
    reports = [overlap["report"] for part in datasets for overlap in part["overlaps"]]
    shared = ("ids", "groups", "texts", "near")
    return bool(reports) and not any(report[kind] for report in reports for kind in shared)


def _first_look(document: Document) -> bool:
    runs = _runs(document)
    return bool(runs) and all(run["look"] == 1 for run in runs)


_ANSWERS: dict[str, Callable[[Document], bool]] = {
    "no_waivers": _no_waivers,
    "no_masked": _no_masked,
    "datasets_declared": _datasets_declared,
    "no_overlaps": _no_overlaps,
    "first_look": _first_look,
}
QUESTIONS = tuple(_ANSWERS)


def answer(question: str, document: Document) -> bool:
    """Whether the evidence document says yes. Raises `KeyError` for an unknown question."""
    return _ANSWERS[question](document)
