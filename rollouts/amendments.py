"""What cases expect since disputes were accepted.

An amendment is of a case, for every run of its suite: nothing is said of one answer. What was sealed stays as it was,
and so does everything that a model is shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from rollouts.hashing import sha256_json
from rollouts.models import AmendedScore, Amendment, Case, Rollout
from rollouts.suite_format import EXPECTED_KEYS


def expected_key(content: Mapping[str, Any]) -> str | None:
    """Where the case's content holds what is expected; None where a judge scores it."""
    return next((key for key in EXPECTED_KEYS.values() if key in content), None)


def content_now(content: dict[str, Any], amended: Any) -> dict[str, Any]:
    """The content by which a case is scored: as sealed, with what is expected since it was amended (None: it was not)."""
    key = expected_key(content)
    return content if amended is None or key is None else {**content, key: amended}


def expected_now(case: Case) -> Any:
    """What the case expects; None where a judge scores it."""
    key = expected_key(case.content)
    return None if key is None else content_now(case.content, case.amended_expected)[key]


def newest_of_suite(suite_id: int) -> dict[int, int]:
    """Amended case -> its newest amendment, by ids. One query."""
    found = Amendment.objects.filter(case__suite=suite_id).order_by("id").values_list("case_id", "id")
    return dict(found)


def amendments_of_case(case: Case) -> list[Amendment]:
    """Every amendment, oldest first, with who agreed on it. One query."""
    return list(case.amendments.select_related("proposed_by", "accepted_by").order_by("id"))


def amended_scores_of(rollout: Rollout) -> list[AmendedScore]:
    """What the rollout's scores were before and after each amendment of its case that changed them, oldest first."""
    people = ("amendment__proposed_by", "amendment__accepted_by")
    return list(rollout.amended_scores.select_related(*people).order_by("id"))


def amendments_of(suite_ids: Iterable[int]) -> dict[int, list[dict[str, Any]]]:
    """By suite id its amended cases, in the order of their keys, each with who agreed on it. One query."""
    found = Amendment.objects.filter(case__suite__in=list(suite_ids)).select_related(
        "case", "proposed_by", "accepted_by"
    )
    newest = {amendment.case_id: amendment for amendment in found.order_by("id")}
    amended: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for amendment in sorted(newest.values(), key=lambda amendment: amendment.case.key):
        amended[amendment.case.suite_id].append(
            {
                "case": amendment.case.key,
                "expected_sha256": sha256_json(amendment.expected_after),
                "proposed_by": amendment.proposed_by.get_username(),
                "accepted_by": amendment.accepted_by.get_username(),
            }
        )
    return amended
