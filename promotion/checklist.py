"""Questions of a policy's checklist that the evidence itself answers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Document = Mapping[str, Any]
REVIEWER = "reviewer"  # an item that whoever signs answers


def _runs(document: Document) -> list[Mapping[str, Any]] | None:
    """The candidate's run on each suite; None where one was not measured, or there is none."""
    runs = [part["candidate"] for part in document["suites"]]
    return runs if runs and all(runs) else None


def _no_waivers(document: Document) -> bool:
    return not document.get("waivers")


def _no_masked(document: Document) -> bool:
    runs = _runs(document)
    return runs is not None and not any(run["masked"] or run["unscored"] for run in runs)


def _datasets_declared(document: Document) -> bool:
    return bool(document.get("datasets"))


def _no_overlaps(document: Document) -> bool:
    """Where nothing was declared, or a dataset was not compared with a suite, nobody knows: that is no."""
    datasets = document.get("datasets") or []
    suites = {part["digest"] for part in document["suites"]}
    if not datasets or not all(_compared(part, suites) for part in datasets):
        return False
    reports = [overlap["report"] for part in datasets for overlap in part["overlaps"]]
    return not any(report[kind] for report in reports for kind in ("ids", "groups", "texts", "near"))


def _compared(dataset: Mapping[str, Any], suites: set[str]) -> bool:
    return bool(dataset["overlaps"]) and suites <= {overlap["digest"] for overlap in dataset["overlaps"]}


def _first_look(document: Document) -> bool:
    runs = _runs(document)
    return runs is not None and all(run["look"] == 1 for run in runs)


class _Question(NamedTuple):
    answer: Callable[[Document], bool]
    basis: str


_QUESTIONS: dict[str, _Question] = {
    "no_waivers": _Question(_no_waivers, "the waivers that stand in the evidence"),
    "no_masked": _Question(_no_masked, "the masked and unscored rollouts of the candidate's runs"),
    "datasets_declared": _Question(_datasets_declared, "the datasets that the candidate declares"),
    "no_overlaps": _Question(_no_overlaps, "the comparisons of its datasets with suites and other sets"),
    "first_look": _Question(_first_look, "the number of looks at each suite"),
}
QUESTIONS = tuple(_QUESTIONS)


def answer(question: str, document: Document) -> bool:
    """Whether the evidence document says yes. Raises `KeyError` for an unknown question."""
    return _QUESTIONS[question].answer(document)


def basis(question: str) -> str:
    """From what the evidence answers; empty where a person does."""
    return _QUESTIONS[question].basis if question in _QUESTIONS else ""
