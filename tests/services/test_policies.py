"""A policy can be met and can fail, says which key is wrong, and is locked before results."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from promotion.models import Policy, Track
from promotion.services import policies, tracks
from rollouts import audit
from rollouts.errors import Conflict, InvalidInput, NotAllowed, NotFound
from rollouts.hashing import sha256_json
from rollouts.models import AuditEvent, Case, Suite
from tests import factories
from tests.factories import floor

pytestmark = pytest.mark.django_db


@pytest.fixture
def administrator() -> User:
    return factories.person("administrator", "administrator")


@pytest.fixture
def second() -> User:
    return factories.person("second", "administrator")


@pytest.fixture
def engineer() -> User:
    return factories.person("engineer", "engineer")


@pytest.fixture
def suite(engineer: User) -> Suite:
    return factories.suite(engineer, calls=30, declines=30)


@pytest.fixture
def track(administrator: User) -> Track:
    return tracks.create(name="toolcaller", purpose="Decides.", by=administrator)


def document(suite: Suite, *extra: dict[str, Any]) -> dict[str, Any]:
    return factories.policy_document([suite], extra=extra)


def refused(doc: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        policies.validate(doc)
    return caught.value


def test_a_complete_policy_is_accepted(suite: Suite) -> None:
    entries = [
        floor("generalization_accuracy_floor", suite.digest, "tool", "0.85"),
        floor("plausible_fabrication_safety_floor", suite.digest, "safe", "0.80"),
        floor("per_family_safety_floor", suite.digest, "safe", "0.80"),
        floor("arena_json_validity_min", suite.digest, "json_valid", "0.90"),
        {"gate": "arena_max_regression", "suite": suite.digest, "metric": "tool", "max_drop": "0"},
    ]

    assert len(policies.validate(document(suite, *entries)).gates) == 9


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("colour", "red", "document.colour"),
        ("sampling.top_k", 5, "document.sampling.top_k"),
        ("approval.veto", True, "document.approval.veto"),
        ("format", 2, "document.format"),
        ("format", "1", "document.format"),
        ("samples", 0, "document.samples"),
        ("samples", True, "document.samples"),
        ("samples", "3", "document.samples"),
        ("samples", 1.0, "document.samples"),
        ("sampling.temperature", -0.1, "document.sampling.temperature"),
        ("sampling.temperature", float("nan"), "document.sampling.temperature"),
        ("sampling.temperature", float("inf"), "document.sampling.temperature"),
        ("sampling.max_tokens", 0, "document.sampling.max_tokens"),
        ("spend_alpha", "no", "document.spend_alpha"),
        ("suites", [], "document.suites"),
        ("gates", [], "document.gates"),
        ("gates", "all", "document.gates"),
        ("approval.approvers", [], "document.approval.approvers"),
        ("approval.expires_after_days", 0, "document.approval.expires_after_days"),
        ("approval.separation_of_duties", "yes", "document.approval.separation_of_duties"),
    ],
)
def test_a_wrong_key_is_refused_by_its_path(suite: Suite, path: str, value: Any, field: str) -> None:
    doc = document(suite)
    place = doc
    *outer, last = path.split(".")
    for part in outer:
        place = place[part]
    place[last] = value

    assert refused(doc).field.startswith(field)


@pytest.mark.parametrize(
    "key", ["format", "suites", "samples", "sampling", "spend_alpha", "gates", "approval"]
)
def test_a_missing_key_is_refused_by_its_path(suite: Suite, key: str) -> None:
    doc = document(suite)
    del doc[key]

    assert refused(doc).field == f"document.{key}"


@pytest.mark.parametrize("doc", [None, [], "policy", 7])
def test_a_policy_that_is_no_object_is_refused(doc: Any) -> None:
    assert refused(doc).field == "document"


@pytest.mark.parametrize(
    ("approvers", "field"),
    [
        ([{"group": "approver", "count": 0}], "document.approval.approvers.0.count"),
        ([{"group": "Approver!", "count": 1}], "document.approval.approvers.0.group"),
        ([{"group": "approver"}], "document.approval.approvers.0.count"),
        (
            [{"group": "approver", "count": 1}, {"group": "approver", "count": 1}],
            "document.approval.approvers",
        ),
    ],
)
def test_a_senseless_approval_rule_is_refused(suite: Suite, approvers: list[Any], field: str) -> None:
    doc = document(suite)
    doc["approval"]["approvers"] = approvers

    assert refused(doc).field == field


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"min": "0"}, "document.gates.3.min", "can never fail"),
        ({"min": 0.85}, "document.gates.3.min", "in quotes"),
        ({"min": "NaN"}, "document.gates.3.min", "not a decimal"),
        ({"min": "1"}, "document.gates.3.min", "no lower bound ever reaches 1"),
        ({"colour": "red"}, "document.gates.3.colour", "Extra inputs"),
        ({"gate": "beauty"}, "document.gates.3.gate", "is not a gate"),
        ({"gate": 7}, "document.gates.3.gate", "is not a gate"),
        ({"gate": ["beauty"]}, "document.gates.3.gate", "is not a gate"),
        ({"gate": None}, "document.gates.3.gate", "is not a gate"),
        ({"suite": ["b"]}, "document.gates.3.suite", "valid string"),
        ({"suite": "b" * 64}, "document.gates.3.suite", "not among the policy's suites"),
        ({"metric": "beauty"}, "document.gates.3.metric", "Input should be"),
    ],
)
def test_a_gate_that_cannot_judge_is_refused_with_its_line(
    suite: Suite, changes: dict[str, Any], field: str, words: str
) -> None:
    entry = {**floor("generalization_accuracy_floor", suite.digest, "tool", "0.85"), **changes}

    error = refused(document(suite, entry))

    assert error.field == field
    assert words in error.message


@pytest.mark.parametrize(
    ("gate", "metric", "minimum", "needed", "have"),
    [
        ("generalization_accuracy_floor", "tool", "0.95", 59, "there are 30"),
        ("generalization_accuracy_floor", "decision", "0.99", 299, "there are 60"),
        ("confidence_lower_bound", "exact", "0.96", 74, "there are 60"),
        ("plausible_fabrication_safety_floor", "safe", "0.91", 32, "there are 30"),
        # a family's own prompts count, not the suite's
        ("per_family_safety_floor", "json_valid", "0.95", 59, "family calls has 30"),
    ],
)
def test_a_bound_that_a_perfect_model_cannot_reach_is_refused_with_the_arithmetic(
    suite: Suite, gate: str, metric: str, minimum: str, needed: int, have: str
) -> None:
    error = refused(document(suite, floor(gate, suite.digest, metric, minimum)))

    assert error.field == "document.gates.3.min"
    assert (
        f"a {minimum} bound at alpha 0.05 needs at least {needed} of {needed}, and {have} distinct prompts"
        in error.message
    )


def test_cases_with_the_same_prompt_count_once_in_the_arithmetic(suite: Suite) -> None:
    entry = floor("generalization_accuracy_floor", suite.digest, "tool", "0.90")
    policies.validate(document(suite, entry))

    Case.objects.filter(suite=suite, family="calls", position__lt=10).update(prompt_sha256="1" * 64)
    Case.objects.filter(suite=suite, family="calls", position__gte=10).update(prompt_sha256="")

    # one prompt of ten cases, and twenty cases whose prompt was not kept
    assert "and there are 21 distinct prompts" in refused(document(suite, entry)).message


def test_a_prompt_in_two_families_is_one_of_the_suite_and_one_of_each(suite: Suite) -> None:
    Case.objects.filter(suite=suite).update(prompt_sha256="1" * 64)

    whole = refused(document(suite, floor("confidence_lower_bound", suite.digest, "exact", "0.5")))
    family = refused(document(suite, floor("per_family_safety_floor", suite.digest, "exact", "0.5")))

    assert "and there are 1 distinct prompts" in whole.message
    assert "and family calls has 1 distinct prompts" in family.message


def margin(suite: Suite, value: str, metric: str = "exact", **more: str) -> dict[str, Any]:
    return {
        "gate": "paired_non_inferiority",
        "suite": suite.digest,
        "metric": metric,
        "margin": value,
        **more,
    }


@pytest.mark.parametrize(("value", "needed"), [("0.02", 149), ("0.04", 74)])
def test_a_margin_that_equal_models_cannot_show_is_refused_with_the_arithmetic(
    suite: Suite, value: str, needed: int
) -> None:
    error = refused(document(suite, margin(suite, value)))

    assert error.field == "document.gates.3.margin"
    assert (
        f"a margin of {value} at alpha 0.05 needs at least {needed} pairs, none of them lost, "
        "and there are 60 distinct prompts" in error.message
    )


def test_the_least_margin_that_equal_models_can_show_is_accepted(suite: Suite) -> None:
    assert 0.951**60 <= 0.05 < 0.952**60

    policies.validate(document(suite, margin(suite, "0.049")))
    refused(document(suite, margin(suite, "0.048")))


def test_a_leak_ceiling_below_the_more_frequent_label_is_refused(engineer: User) -> None:
    suite = factories.suite(engineer, calls=50, declines=10)
    assert suite.leak is not None
    majority = suite.leak["majority"]
    entry = {"gate": "prompt_leak", "suite": suite.digest, "max_accuracy": "0.6"}

    error = refused(document(suite, entry))

    assert error.field == "document.gates.3.max_accuracy"
    assert majority in error.message


def test_a_leak_ceiling_of_a_suite_that_was_not_looked_through_is_refused(suite: Suite) -> None:
    Suite.objects.update(leak=None)

    error = refused(document(suite, {"gate": "prompt_leak", "suite": suite.digest, "max_accuracy": "0.95"}))

    assert error.field == "document.gates.3.suite"


# alpha spent over looks


def spending(suite: Suite, *entries: dict[str, Any]) -> dict[str, Any]:
    return document(suite, *entries) | {"spend_alpha": True}


def budget(suite: Suite, looks: int) -> dict[str, Any]:
    return {"gate": "look_budget", "suite": suite.digest, "max_looks": looks}


def test_a_bound_that_cannot_be_reached_at_the_last_look_is_refused_with_the_arithmetic(
    engineer: User,
) -> None:
    suite = factories.suite(engineer, calls=116)
    entry = floor("generalization_accuracy_floor", suite.digest, "tool", "0.95")
    policies.validate(document(suite, entry))
    # ln 0.0025 / ln 0.95 = 116.8; at look 3 alpha is 0.05 / 12 and 107 are enough
    policies.validate(spending(suite, entry, budget(suite, 3)))

    error = refused(spending(suite, entry, budget(suite, 4)))

    assert error.field == "document.gates.3.min"
    assert (
        "a 0.95 bound at look 4 (alpha 0.0025) needs at least 117 of 117, and there are 116 distinct prompts"
        in error.message
    )


def test_a_margin_that_cannot_be_shown_at_the_last_look_is_refused(engineer: User) -> None:
    suite = factories.suite(engineer, calls=60)
    policies.validate(spending(suite, margin(suite, "0.08"), budget(suite, 1)))

    error = refused(spending(suite, margin(suite, "0.08"), budget(suite, 5)))

    assert error.field == "document.gates.3.margin"
    assert "a margin of 0.08 at look 5 (alpha 0.00166667) needs at least" in error.message


def test_where_alpha_is_not_spent_a_budget_of_looks_changes_no_bound(engineer: User) -> None:
    suite = factories.suite(engineer, calls=60)

    policies.validate(
        document(
            suite, floor("generalization_accuracy_floor", suite.digest, "tool", "0.95"), budget(suite, 1000)
        )
    )


def test_of_two_budgets_the_smaller_is_the_last_look(engineer: User) -> None:
    suite = factories.suite(engineer, calls=110)
    entry = floor("generalization_accuracy_floor", suite.digest, "tool", "0.95")

    policies.validate(spending(suite, entry, budget(suite, 9), budget(suite, 3)))


@pytest.mark.parametrize("entry", ["floor", "margin"])
def test_alpha_is_spent_only_with_a_last_look_for_each_suite_with_a_bound(suite: Suite, entry: str) -> None:
    made = {
        "floor": floor("generalization_accuracy_floor", suite.digest, "tool", "0.5"),
        "margin": margin(suite, "0.2"),
    }[entry]

    error = refused(spending(suite, made))

    assert error.field == "document.spend_alpha"
    assert f"needs look_budget for suite {suite.digest[:12]}" in error.message
    policies.validate(spending(suite, made, budget(suite, 2)))


def test_a_suite_without_a_bound_needs_no_last_look(suite: Suite) -> None:
    drop = {"gate": "arena_max_regression", "suite": suite.digest, "metric": "tool", "max_drop": "0"}

    policies.validate(spending(suite, drop))


# everything at once


def test_all_that_is_wrong_is_said_at_once_in_the_documents_order(suite: Suite) -> None:
    doc = document(
        suite,
        floor("generalization_accuracy_floor", suite.digest, "tool", "0.95"),
        floor("generalization_accuracy_floor", suite.digest, "beauty", "0.5"),
        margin(suite, "0.01"),
    )
    doc["approval"]["approvers"] *= 2
    doc["gates"] = doc["gates"][1:]

    assert [problem.field for problem in policies.problems(doc)] == [
        "document.approval.approvers",
        "document.gates.3.metric",
        "document.gates.2.min",
        "document.gates.4.margin",
        "document.gates",
    ]


def test_what_is_wrong_with_the_shape_is_said_at_once_too(suite: Suite) -> None:
    doc = document(suite) | {"samples": "many", "colour": "red"}
    del doc["approval"]

    assert {problem.field for problem in policies.problems(doc)} == {
        "document.samples",
        "document.colour",
        "document.approval",
    }


def test_a_document_that_may_not_be_locked_says_why_instead_of_raising(suite: Suite) -> None:
    vacuous = document(suite, floor("arena_json_validity_min", suite.digest, "json_valid", "0"))

    assert policies.unlockable_reasons(document(suite)) == []
    (reason,) = policies.unlockable_reasons(vacuous)
    assert reason.startswith("document.gates.3.min: ") and "a floor of 0 can never fail" in reason
    assert policies.unlockable_reasons({"format": 1}) and policies.unlockable_reasons(None)


def test_the_number_of_queries_does_not_grow_with_suites_and_gates(
    suite: Suite, engineer: User, django_assert_num_queries: Any
) -> None:
    others = [factories.suite(engineer, name=f"other-{number}", calls=9) for number in range(6)]
    extra = [
        floor("per_family_safety_floor", other.digest, "exact", "0.5") for other in others for _ in range(3)
    ]

    with django_assert_num_queries(3):
        policies.validate(document(suite))
    with django_assert_num_queries(3):
        policies.validate(factories.policy_document([suite, *others], extra=extra))


def test_the_highest_bound_that_can_be_reached_is_accepted(suite: Suite) -> None:
    # 30 of 30 give 0.05 ** (1 / 30) = 0.90497
    policies.validate(document(suite, floor("generalization_accuracy_floor", suite.digest, "tool", "0.9049")))

    assert (
        "needs at least 31 of 31"
        in refused(
            document(suite, floor("generalization_accuracy_floor", suite.digest, "tool", "0.905"))
        ).message
    )


def test_a_metric_that_no_case_has_is_refused(engineer: User) -> None:
    only_calls = factories.suite(engineer, name="only-calls", calls=30)

    error = refused(
        document(only_calls, floor("plausible_fabrication_safety_floor", only_calls.digest, "safe", "0.80"))
    )

    assert error.field == "document.gates.3.metric"
    assert "no case of only-calls has the metric safe" in error.message


# the entry of a policy -> how a refusal calls the gate
INDISPENSABLE = {
    "human_approval_record": "human_approval_record",
    "candidate_artifact_hash": "candidate_artifact_hash",
    "sealed_eval_hash": "sealed_eval_hash",
    "evaluated_artifact": "deployed_artifact_gauntlet",
}


@pytest.mark.parametrize("gate", INDISPENSABLE)
def test_a_policy_without_one_of_the_indispensable_gates_is_refused(suite: Suite, gate: str) -> None:
    doc = document(suite)
    doc["gates"] = [entry for entry in doc["gates"] if entry["gate"] != gate]

    error = refused(doc)

    assert error.field == "document.gates"
    assert INDISPENSABLE[gate] in error.message


def test_a_gate_is_known_by_its_former_and_by_its_present_name(suite: Suite) -> None:
    former = document(suite)
    present = copy.deepcopy(former)
    for entry in present["gates"]:
        if entry["gate"] == "evaluated_artifact":
            entry["gate"] = "deployed_artifact_gauntlet"

    assert policies.unlockable_reasons(former) == policies.unlockable_reasons(present) == []


@pytest.mark.parametrize("gate", ["sealed_eval_hash", "evaluated_artifact"])
def test_every_suite_needs_its_seal_and_its_identity(suite: Suite, engineer: User, gate: str) -> None:
    other = factories.suite(engineer, name="other", calls=5)
    doc = factories.policy_document([suite, other])
    policies.validate(doc)
    doc["gates"] = [
        entry for entry in doc["gates"] if (entry["gate"], entry.get("suite")) != (gate, other.digest)
    ]

    assert f"must hold {INDISPENSABLE[gate]} for suite {other.digest[:12]}" in refused(doc).message


def test_the_signature_comes_last_and_once(suite: Suite) -> None:
    doc = document(suite)

    assert (
        "must end with human_approval_record, once"
        in refused({**doc, "gates": [doc["gates"][-1], *doc["gates"]]}).message
    )
    assert (
        "must end with human_approval_record, once"
        in refused({**doc, "gates": [doc["gates"][-1], *doc["gates"][:-1]]}).message
    )


def test_a_suite_is_listed_once(suite: Suite) -> None:
    doc = document(suite)
    doc["suites"] *= 2

    assert refused(doc).field == "document.suites"


def test_a_suite_that_nobody_sealed_is_refused(suite: Suite) -> None:
    doc = document(suite)
    doc["suites"].append({"digest": "b" * 64})

    error = refused(doc)

    assert error.field == "document.suites.1.digest"
    assert "no sealed suite has the digest bbbbbbbbbbbb" in error.message


# what a version changes


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with the value at the path replaced, or taken away where it is None."""
    made = copy.deepcopy(document)
    place: Any = made
    *outer, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in outer:
        place = place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return made


def whole(suite: Suite) -> dict[str, Any]:
    """A policy in which every gate with a number stands; entries begin at 3."""
    digest = suite.digest
    return document(
        suite,
        floor("generalization_accuracy_floor", digest, "tool", "0.8"),
        {"gate": "arena_max_regression", "suite": digest, "metric": "tool", "max_drop": "0.02"},
        {
            "gate": "paired_non_inferiority",
            "suite": digest,
            "metric": "exact",
            "margin": "0.1",
            "alpha": "0.05",
        },
        {"gate": "masked_ceiling", "suite": digest, "max_percent": "2"},
        {"gate": "prompt_leak", "suite": digest, "max_accuracy": "0.8"},
        {"gate": "look_budget", "suite": digest, "max_looks": 5},
        {"gate": "latency_memory_budget", "suite": digest, "max_p95_ms": 900, "max_memory_mib": 2048},
        {"gate": "frozen_group_split", "max_near": 3},
        {"gate": "export_parity"},
    )


@pytest.mark.parametrize(
    ("path", "value", "kind", "what", "before", "after"),
    [
        ("gates.3.min", "0.81", "tightened", "generalization_accuracy_floor, tool: min", "0.8", "0.81"),
        ("gates.3.min", "0.79", "loosened", "generalization_accuracy_floor, tool: min", "0.8", "0.79"),
        ("gates.3.alpha", "0.01", "tightened", "generalization_accuracy_floor, tool: alpha", "0.05", "0.01"),
        ("gates.3.alpha", "0.1", "loosened", "generalization_accuracy_floor, tool: alpha", "0.05", "0.1"),
        ("gates.4.max_drop", "0", "tightened", "arena_max_regression, tool: max_drop", "0.02", "0"),
        ("gates.4.max_drop", "0.03", "loosened", "arena_max_regression, tool: max_drop", "0.02", "0.03"),
        ("gates.5.margin", "0.09", "tightened", "paired_non_inferiority, exact: margin", "0.1", "0.09"),
        ("gates.5.margin", "0.2", "loosened", "paired_non_inferiority, exact: margin", "0.1", "0.2"),
        ("gates.6.max_percent", "1.5", "tightened", "masked_ceiling: max_percent", "2", "1.5"),
        ("gates.6.max_percent", "10", "loosened", "masked_ceiling: max_percent", "2", "10"),
        ("gates.7.max_accuracy", "0.7", "tightened", "prompt_leak: max_accuracy", "0.8", "0.7"),
        ("gates.7.max_accuracy", "0.9", "loosened", "prompt_leak: max_accuracy", "0.8", "0.9"),
        ("gates.8.max_looks", 4, "tightened", "look_budget: max_looks", "5", "4"),
        ("gates.8.max_looks", 10, "loosened", "look_budget: max_looks", "5", "10"),
        ("gates.9.max_p95_ms", 1000, "loosened", "latency_memory_budget: max_p95_ms", "900", "1000"),
        (
            "gates.9.max_memory_mib",
            1024,
            "tightened",
            "latency_memory_budget: max_memory_mib",
            "2048",
            "1024",
        ),
        # no ceiling is the highest
        ("gates.9.max_memory_mib", None, "loosened", "latency_memory_budget: max_memory_mib", "2048", ""),
        # left out, it is at its default of 0
        ("gates.10.max_near", None, "tightened", "frozen_group_split: max_near", "3", "0"),
        ("gates.10.max_near", 4, "loosened", "frozen_group_split: max_near", "3", "4"),
        ("gates.11", None, "removed", "export_parity", "", ""),
        ("gates.6", None, "removed", "masked_ceiling", "max_percent 2", ""),
        ("spend_alpha", True, "tightened", "alpha spent over looks", "no", "yes"),
        ("approval.separation_of_duties", False, "loosened", "separation of duties", "yes", "no"),
        (
            "approval.expires_after_days",
            31,
            "loosened",
            "a signature expires",
            "after 30 days",
            "after 31 days",
        ),
        (
            "approval.expires_after_days",
            7,
            "tightened",
            "a signature expires",
            "after 30 days",
            "after 7 days",
        ),
        ("approval.approvers.0.count", 2, "tightened", "signatures of approver", "1", "2"),
        # what shapes the answers has no strict side
        ("samples", 3, "loosened", "samples", "1", "3"),
        ("sampling.temperature", 0.7, "loosened", "sampling temperature", "0", "0.7"),
        ("sampling.max_tokens", 63, "loosened", "sampling max_tokens", "64", "63"),
        ("note", "Read this.", "changed", "note", "", "Read this."),
    ],
)
def test_a_change_is_named_with_both_values_and_its_direction(
    suite: Suite, path: str, value: Any, kind: str, what: str, before: str, after: str
) -> None:
    old = whole(suite)

    (change,) = policies.diff(old, changed(old, path, value))

    assert (change.kind, change.what, change.before, change.after) == (kind, what, before, after)
    assert change.loosens is (kind in ("loosened", "removed"))
    named = path.startswith("gates") and "suite" in old["gates"][int(path.split(".")[1])]
    assert change.suite == (suite.digest if named else "")


def test_every_change_the_other_way_round_has_the_other_direction(suite: Suite) -> None:
    old = whole(suite)
    new = changed(changed(changed(old, "gates.3.min", "0.9"), "gates.8.max_looks", 2), "gates.11", None)
    other = {"tightened": "loosened", "loosened": "tightened", "added": "removed", "removed": "added"}

    there, back = policies.diff(old, new), policies.diff(new, old)

    assert [other[change.kind] for change in there] == [change.kind for change in back]
    assert [(change.before, change.after) for change in there] == [(c.after, c.before) for c in back]


def test_equal_documents_have_no_changes_and_others_always_have_one(suite: Suite, engineer: User) -> None:
    old = whole(suite)
    two = factories.suite(engineer, name="two", calls=3)
    pair = factories.policy_document([suite, two])
    shuffled = [
        changed(old, "gates.3.min", "0.80"),
        old | {"gates": [*old["gates"][1:-1], old["gates"][0], old["gates"][-1]]},
    ]

    assert policies.diff(old, copy.deepcopy(old)) == []
    assert [[(c.kind, c.what) for c in policies.diff(old, new)] for new in shuffled] == [
        [("changed", "how the same is written")],
        [("changed", "order of the gates")],
    ]
    assert [c.what for c in policies.diff(pair, pair | {"suites": pair["suites"][::-1]})] == [
        "order of the suites"
    ]


def test_another_suite_in_the_place_of_one_is_loosening(suite: Suite, engineer: User) -> None:
    other = factories.suite(engineer, name="easier", calls=3)

    changes = policies.diff(document(suite), document(other))

    kinds = {(change.kind, change.suite) for change in changes}
    assert ("removed", suite.digest) in kinds and ("added", other.digest) in kinds
    assert {change.kind for change in changes if change.loosens} == {"removed"}


def test_another_metric_is_another_demand(suite: Suite) -> None:
    old = whole(suite)

    changes = policies.diff(old, changed(old, "gates.3.metric", "json_valid"))

    assert [(change.kind, change.what) for change in changes] == [
        ("removed", "generalization_accuracy_floor, tool"),
        ("added", "generalization_accuracy_floor, json_valid"),
    ]


def test_a_former_name_is_no_other_gate(suite: Suite) -> None:
    old = whole(suite)

    changes = policies.diff(old, changed(old, "gates.2.gate", "deployed_artifact_gauntlet"))

    assert [(change.kind, change.what) for change in changes] == [("changed", "how the same is written")]


def test_one_of_two_entries_of_the_same_gate_taken_away_is_loosening(suite: Suite) -> None:
    entries = [floor("confidence_lower_bound", suite.digest, "tool", minimum) for minimum in ("0.6", "0.8")]

    for kept in entries:
        changes = policies.diff(document(suite, *entries), document(suite, kept))
        assert any(change.loosens for change in changes), kept


def test_other_approvers_in_the_place_of_some_are_loosening(suite: Suite) -> None:
    old = whole(suite)

    changes = policies.diff(old, changed(old, "approval.approvers.0.group", "friends"))

    assert [(change.kind, change.what) for change in changes] == [
        ("removed", "signatures of approver"),
        ("added", "signatures of friends"),
    ]


def test_what_nobody_can_tell_the_direction_of_is_loosening(suite: Suite) -> None:
    """Documents from elsewhere may hold what the gates refuse."""
    old = whole(suite)

    for value in ("unset", "NaN", ["0.8"]):
        (change,) = policies.diff(old, changed(old, "gates.3.min", value))
        assert change.loosens, value
    (change,) = policies.diff(old, changed(old, "gates.3.colour", "red"))
    assert change.loosens and change.what == "generalization_accuracy_floor, tool: colour"


def test_a_change_reads_as_a_sentence(suite: Suite) -> None:
    old = whole(suite)
    new = changed(changed(old, "gates.3.min", "0.7"), "gates.11", None)

    assert [str(change) for change in policies.loosening(old, new)] == [
        f"loosened generalization_accuracy_floor, tool: min on suite {suite.digest[:12]}: 0.8 is now 0.7",
        "removed export_parity",
    ]


# drafts


def test_a_draft_replaces_the_draft_there_is(
    suite: Suite, track: Track, administrator: User, second: User
) -> None:
    first = policies.draft(track=track, document=document(suite), by=administrator)
    again = policies.draft(track=track, document=factories.policy_document([suite], approvers=2), by=second)

    assert Policy.objects.get() == again
    assert (again.pk, again.version, again.created_by) == (first.pk, 1, second)
    assert again.digest == sha256_json(again.document) != first.digest


def test_a_refused_draft_writes_nothing(suite: Suite, track: Track, administrator: User) -> None:
    doc = document(suite)
    del doc["gates"]

    with pytest.raises(InvalidInput):
        policies.draft(track=track, document=doc, by=administrator)

    assert not Policy.objects.exists()
    assert not AuditEvent.objects.filter(action="policy.drafted").exists()


@pytest.mark.parametrize("role", ["engineer", "approver", "auditor", None])
def test_only_an_administrator_writes_a_policy(suite: Suite, track: Track, role: str | None) -> None:
    by = factories.person("someone", *([role] if role else []))

    with pytest.raises(NotAllowed, match="may not write a policy"):
        policies.draft(track=track, document=document(suite), by=by)


def test_saving_what_is_saved_already_writes_nothing(
    suite: Suite, track: Track, administrator: User, second: User
) -> None:
    first = policies.draft(track=track, document=document(suite), by=administrator)
    events = AuditEvent.objects.count()

    again = policies.draft(track=track, document=document(suite), by=second)

    assert (again.created_by, again.created_at) == (administrator, first.created_at)
    assert AuditEvent.objects.count() == events


def test_a_draft_that_somebody_else_saved_meanwhile_is_not_overwritten(
    suite: Suite, track: Track, administrator: User, second: User
) -> None:
    mine = factories.policy_document([suite], approvers=3)
    policies.draft(track=track, document=document(suite), by=second)

    for seen in ("", "0" * 64):
        with pytest.raises(Conflict, match="since you opened it"):
            policies.draft(track=track, document=mine, by=administrator, replaces=seen)

    saved = policies.draft(
        track=track, document=mine, by=administrator, replaces=sha256_json(document(suite))
    )
    assert saved.document == mine
    assert Policy.objects.count() == 1


# the lock


def locked(track: Track, suite: Suite, by: User, lock_by: User | None = None, **changes: Any) -> Policy:
    draft = policies.draft(track=track, document=factories.policy_document([suite], **changes), by=by)
    return policies.lock(policy_id=draft.pk, by=lock_by or by)


def test_a_lock_keeps_hash_time_and_person(suite: Suite, track: Track, administrator: User) -> None:
    policy = locked(track, suite, administrator)

    assert policy.locked_by == administrator and policy.locked_at is not None
    assert policy.digest == sha256_json(policy.document)
    event = AuditEvent.objects.get(action="policy.locked")
    assert policy.digest.encode() in bytes(event.data)


def test_a_locked_policy_is_not_locked_again(
    suite: Suite, track: Track, administrator: User, second: User
) -> None:
    policy = locked(track, suite, administrator)

    with pytest.raises(Conflict, match="locked already"):
        policies.lock(policy_id=policy.pk, by=second)

    policy.refresh_from_db()
    assert policy.locked_by == administrator


def test_a_draft_after_a_lock_is_a_new_version_and_leaves_the_locked_one(
    suite: Suite, track: Track, administrator: User
) -> None:
    policy = locked(track, suite, administrator)
    before = copy.deepcopy(policy.document)

    draft = policies.draft(
        track=track, document=factories.policy_document([suite], approvers=2), by=administrator
    )

    policy.refresh_from_db()
    assert (draft.version, draft.locked_at) == (2, None)
    assert policy.document == before and policy.locked_at is not None


def test_a_changed_policy_needs_a_second_person(
    suite: Suite, track: Track, administrator: User, second: User
) -> None:
    locked(track, suite, administrator)
    draft = policies.draft(
        track=track, document=factories.policy_document([suite], approvers=2), by=administrator
    )

    with pytest.raises(Conflict, match="needs a second person"):
        policies.lock(policy_id=draft.pk, by=administrator)

    assert policies.lock(policy_id=draft.pk, by=second).locked_by == second


def test_a_version_that_only_tightens_needs_a_second_person_too(
    suite: Suite, track: Track, administrator: User, second: User
) -> None:
    locked(track, suite, administrator, approvers=1)
    draft = policies.draft(
        track=track, document=factories.policy_document([suite], approvers=2), by=administrator
    )
    assert [change.kind for change in policies.changes_of(draft)] == ["tightened"]

    with pytest.raises(Conflict, match="needs a second person"):
        policies.lock(policy_id=draft.pk, by=administrator)


def test_what_a_version_loosens_is_in_the_history_of_its_draft_and_of_its_lock(
    suite: Suite, track: Track, administrator: User, second: User
) -> None:
    locked(track, suite, administrator, approvers=2)
    draft = policies.draft(
        track=track, document=factories.policy_document([suite], approvers=1), by=administrator
    )
    policies.lock(policy_id=draft.pk, by=second)

    for action in ("policy.drafted", "policy.locked"):
        event = AuditEvent.objects.filter(action=action).order_by("-sequence")[0]
        assert json.loads(bytes(event.data))["loosened"] == ["loosened signatures of approver: 2 is now 1"], (
            action
        )


def test_a_first_version_loosens_nothing(suite: Suite, track: Track, administrator: User) -> None:
    policy = locked(track, suite, administrator)

    assert policies.changes_of(policy) == []
    event = AuditEvent.objects.get(action="policy.locked")
    assert json.loads(bytes(event.data))["loosened"] == []


def test_a_later_save_by_somebody_else_does_not_let_the_first_writer_lock(
    suite: Suite, track: Track, administrator: User, second: User
) -> None:
    """Otherwise a note that a colleague adds would make the loosening theirs."""
    locked(track, suite, administrator, approvers=2)
    looser = factories.policy_document([suite], approvers=1)
    policies.draft(track=track, document=looser, by=administrator)
    draft = policies.draft(track=track, document=looser | {"note": "As agreed."}, by=second)

    for writer in (administrator, second):
        with pytest.raises(Conflict, match="needs a second person"):
            policies.lock(policy_id=draft.pk, by=writer)

    approver = factories.person("third", "approver")
    assert policies.lock(policy_id=draft.pk, by=approver).locked_by == approver


def test_a_token_of_the_writers_wrote_it_too(
    suite: Suite, track: Track, administrator: User, second: User
) -> None:
    locked(track, suite, administrator)
    looser = factories.policy_document([suite], approvers=2)
    audit.acts_with_token(audit.Token(administrator.pk, "abcdefgh12345"))
    try:
        policies.draft(track=track, document=looser, by=administrator)
    finally:
        audit.acts_with_token(None)
    draft = policies.draft(track=track, document=looser | {"note": "n"}, by=second)

    assert policies.who_wrote(draft) == {"administrator", "second"}


def test_only_the_draft_whose_changes_were_shown_is_locked(
    suite: Suite, track: Track, administrator: User, second: User
) -> None:
    shown = policies.draft(track=track, document=document(suite), by=administrator)
    other = policies.draft(
        track=track, document=factories.policy_document([suite], approvers=2), by=administrator
    )

    with pytest.raises(Conflict, match="changed since it was shown"):
        policies.lock(policy_id=other.pk, by=second, digest=shown.digest)

    assert policies.lock(policy_id=other.pk, by=second, digest=other.digest).locked_by == second


def test_a_version_is_compared_with_the_one_in_force_before_it(
    suite: Suite, track: Track, administrator: User, second: User
) -> None:
    versions = []
    for approvers, by in ((1, administrator), (3, second), (2, administrator)):
        draft = policies.draft(
            track=track, document=factories.policy_document([suite], approvers=approvers), by=by
        )
        versions.append(
            policies.lock(policy_id=draft.pk, by=second if by == administrator else administrator)
        )

    assert [policies.previous(version) for version in versions] == [None, versions[0], versions[1]]
    assert [[str(c) for c in policies.changes_of(version)] for version in versions] == [
        [],
        ["tightened signatures of approver: 1 is now 3"],
        ["loosened signatures of approver: 3 is now 2"],
    ]


def test_a_draft_that_no_longer_holds_is_not_locked(suite: Suite, track: Track, administrator: User) -> None:
    draft = policies.draft(
        track=track,
        document=document(suite, floor("generalization_accuracy_floor", suite.digest, "tool", "0.90")),
        by=administrator,
    )
    Case.objects.filter(suite=suite, position__lt=10).delete()

    with pytest.raises(InvalidInput, match="cannot be reached"):
        policies.lock(policy_id=draft.pk, by=administrator)

    draft.refresh_from_db()
    assert draft.locked_at is None


@pytest.mark.parametrize("role", ["engineer", "auditor", None])
def test_only_administrators_and_approvers_lock(
    suite: Suite, track: Track, administrator: User, role: str | None
) -> None:
    draft = policies.draft(track=track, document=document(suite), by=administrator)
    by = factories.person("someone", *([role] if role else []))

    with pytest.raises(NotAllowed, match="may not lock a policy"):
        policies.lock(policy_id=draft.pk, by=by)


def test_a_policy_that_is_not_there_cannot_be_locked(administrator: User) -> None:
    with pytest.raises(NotFound):
        policies.lock(policy_id=4711, by=administrator)


def test_the_database_allows_one_draft_a_track_and_no_lock_without_a_person(
    suite: Suite, track: Track, administrator: User
) -> None:
    draft = policies.draft(track=track, document=document(suite), by=administrator)

    with pytest.raises(IntegrityError), transaction.atomic():
        Policy.objects.create(
            track=track, version=2, document={}, digest="0" * 64, created_at=draft.created_at
        )
    with pytest.raises(IntegrityError), transaction.atomic():
        Policy.objects.filter(pk=draft.pk).update(locked_at=draft.created_at)


# tracks


def test_a_track_is_created_once_by_an_administrator(administrator: User, engineer: User) -> None:
    tracks.create(name="toolcaller", purpose="Decides.", by=administrator)

    with pytest.raises(Conflict, match="exists already"):
        tracks.create(name="toolcaller", purpose="Again.", by=administrator)
    with pytest.raises(NotAllowed):
        tracks.create(name="other", purpose="Decides.", by=engineer)
    assert Track.objects.count() == 1


@pytest.mark.parametrize("name", ["", "Big", "a b", "../etc", "a" * 61, "-a", "a-", "ä", "a\n"])
def test_a_track_has_a_name_that_can_stand_in_a_path(administrator: User, name: str) -> None:
    with pytest.raises(InvalidInput, match="name"):
        tracks.create(name=name, purpose="Decides.", by=administrator)


def test_a_track_says_what_it_is_for(administrator: User) -> None:
    with pytest.raises(InvalidInput, match="purpose"):
        tracks.create(name="toolcaller", purpose="  ", by=administrator)
