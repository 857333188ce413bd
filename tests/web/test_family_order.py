"""Suites of the family table stand nearest to their threshold first, also where the threshold is the champion."""

from __future__ import annotations

from typing import Any

import pytest

from promotion import comparing
from promotion import evidence as evidence_module
from promotion.models import Candidate, Evidence
from promotion.services import gating, policies
from promotion.web import families
from tests import factories

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sent")]

COMPARES = {
    "arena_max_regression": {"gate": "arena_max_regression", "metric": "decision", "max_drop": "0.05"},
    "paired_non_inferiority": {
        "gate": "paired_non_inferiority",
        "metric": "decision",
        "margin": "0.30",
        "alpha": "0.05",
    },
}


def order_of(candidate: Candidate) -> list[str]:
    evidence = Evidence.objects.filter(candidate=candidate).latest("id")
    document = evidence_module.document_of(evidence)
    results = gating.results_of(candidate, evidence)
    entries = document["policy"]["document"]["gates"]
    outcomes: dict[tuple[str, str], str] = {
        (result.gate, entry.get("suite", "")): str(result.outcome)
        for result, entry in zip(results, entries, strict=True)
    }
    table = families.table(document, outcomes, comparing.comparisons_of(document))
    assert table is not None
    return [group.name for group in table.groups]


@pytest.mark.parametrize("gate", COMPARES)
def test_a_suite_that_fails_against_the_champion_stands_before_one_that_clears_its_floor(gate: str) -> None:
    house = factories.house(calls=20, champion=True)
    other = factories.suite(house.engineer, name="z-other", calls=20)
    extra: list[dict[str, Any]] = [
        factories.floor("generalization_accuracy_floor", house.suite.digest, "decision", "0.60"),
        {**COMPARES[gate], "suite": other.digest},
    ]
    document = factories.policy_document([house.suite, other], extra=extra)
    draft = policies.draft(track=house.track, document=document, by=house.administrator)
    policies.lock(policy_id=draft.pk, by=house.approver_2)

    lost = {f"z-other-call-{number}": "wrong" for number in range(10)}
    failing = house.evaluated("failing", lost)
    assert order_of(failing) == ["z-other", "named"]

    near = house.evaluated("near", {f"named-call-{number}": "wrong" for number in range(4)})
    assert order_of(near) == ["named", "z-other"]
