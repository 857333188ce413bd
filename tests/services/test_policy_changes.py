"""What the diff does not call loosening lets nothing more pass: tried against the gates themselves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promotion.gates import GATES, OPENS, Evidence, judge, parse_params
from promotion.services.policy_diff import diff
from promotion.services.policy_rules import LAST_GATE
from tests.gates.documents import ENTRIES, METRICS, SUITE, counts, document, leak, pairs, run, suite, whole

FLOORS = ("arena_json_validity_min", "confidence_lower_bound", "generalization_accuracy_floor")
# parameter -> values of which some pass and some do not on the evidence below
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "min": st.sampled_from(["0.5", "0.7", "0.80", "0.8", "0.9", "0.95"]),
    "alpha": st.sampled_from(["0.001", "0.01", "0.05", "0.1"]),
    "max_drop": st.sampled_from(["0", "0.01", "0.05", "0.1"]),
    "margin": st.sampled_from(["0.01", "0.02", "0.05", "0.1"]),
    "max_percent": st.sampled_from(["0", "1", "5", "10"]),
    "max_accuracy": st.sampled_from(["0.6", "0.8", "0.9"]),
    "max_looks": st.integers(1, 6),
    "max_p95_ms": st.integers(1, 30),
    "max_memory_mib": st.one_of(st.none(), st.integers(200, 400)),
    "max_near": st.integers(0, 3),
}
NUMBERED = [name for name, gate in GATES.items() if set(gate.params.model_fields) & set(VALUES)]


def policy(entries: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "note": "",
        "suites": [{"digest": SUITE}],
        "samples": 1,
        "sampling": {"temperature": 0, "max_tokens": 64},
        "spend_alpha": False,
        "gates": [*entries, {"gate": LAST_GATE}],
        "approval": {
            "approvers": [{"group": "approver", "count": 1}],
            "separation_of_duties": True,
            "expires_after_days": 30,
        },
        **changes,
    }


@st.composite
def entries(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A few gates with numbers, each at most once."""
    names = draw(st.lists(st.sampled_from(NUMBERED), max_size=4, unique=True))
    found = []
    for name in names:
        entry: dict[str, Any] = {"gate": name, **ENTRIES[name]}
        for key in GATES[name].params.model_fields:
            if key in VALUES and draw(st.booleans()):
                value = draw(VALUES[key])
                if value is None:
                    entry.pop(key, None)
                else:
                    entry[key] = value
        found.append(entry)
    return found


@st.composite
def evidence(draw: st.DrawFn) -> dict[str, Any]:
    """On the brink for most of the values: some right, some wrong, a few without a score."""
    n = 200
    missing = draw(st.integers(0, 12))
    right = draw(st.integers(140, n - missing))
    table = {metric: counts(right, n, missing) for metric in METRICS}
    lost = draw(st.integers(0, n - right - missing))
    candidate = run(
        n=n,
        metrics=table,
        look=draw(st.integers(1, 7)),
        latency_ms={"p50": 5, "p95": draw(st.integers(1, 30)), "n": n - missing},
        peak_memory_bytes=draw(st.integers(200, 400)) << 20,
    )
    part = suite(
        n=n,
        candidate=candidate,
        paired=pairs(right, lost=lost, neither=n - right - lost - missing, missing=missing),
        leak=leak(draw(st.sampled_from(["0.650000", "0.850000", "0.950000"])), n=n),
    )
    return whole(part)


def opens(rules: dict[str, Any], found: dict[str, Any]) -> bool:
    """Whether every gate but the signatures opens the door."""
    found = {**found, "policy": {**found["policy"], "document": rules}}
    judged = [judge(Evidence(found), entry) for entry in rules["gates"] if entry["gate"] != LAST_GATE]
    assert all(outcome.outcome != "error" for outcome in judged), judged
    return all(outcome.outcome in OPENS for outcome in judged)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(old=entries(), new=entries(), spend=st.tuples(st.booleans(), st.booleans()), found=evidence())
def test_what_is_not_called_loosening_lets_nothing_more_pass(
    old: list[dict[str, Any]], new: list[dict[str, Any]], spend: tuple[bool, bool], found: dict[str, Any]
) -> None:
    before, after = policy(old, spend_alpha=spend[0]), policy(new, spend_alpha=spend[1])

    if not any(change.loosens for change in diff(before, after)):
        assert not opens(after, found) or opens(before, found)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(old=entries(), data=st.data(), found=evidence())
def test_one_value_changed_is_loosening_wherever_it_lets_more_pass(
    old: list[dict[str, Any]], data: st.DataObject, found: dict[str, Any]
) -> None:
    """As above, but with documents that differ in one place: few of the random pairs are as near."""
    tunable = [(i, key) for i, entry in enumerate(old) for key in entry if key in VALUES]
    if not tunable:
        return
    index, key = data.draw(st.sampled_from(tunable))
    new = [dict(entry) for entry in old]
    new[index][key] = data.draw(VALUES[key].filter(lambda value: value is not None))

    changes = diff(policy(old), policy(new))

    assert len(changes) <= 1
    if not any(change.loosens for change in changes):
        assert not opens(policy(new), found) or opens(policy(old), found)
    else:
        assert not opens(policy(old), found) or opens(policy(new), found), "loosening takes nothing away"


@settings(max_examples=100, deadline=None, derandomize=True)
@given(old=entries(), new=entries())
def test_a_diff_is_empty_exactly_where_the_documents_are_equal(
    old: list[dict[str, Any]], new: list[dict[str, Any]]
) -> None:
    assert diff(policy(old), policy(old)) == []
    assert bool(diff(policy(old), policy(new))) is (policy(old) != policy(new))


def test_the_evidence_above_opens_some_doors_and_keeps_others_shut() -> None:
    """Otherwise the properties would hold of anything."""
    strict, lax = ENTRIES | {}, {"min": "0.5", "margin": "0.1", "max_drop": "0.1"}
    shaky = whole(
        suite(n=200, candidate=run(n=200, metrics={metric: counts(170, 200) for metric in METRICS}))
    )

    for gate in FLOORS:
        entry = {"gate": gate, **strict[gate]}
        assert not opens(policy([entry]), shaky), gate
        assert opens(policy([entry | {"min": lax["min"]}]), shaky), gate
    assert opens(policy([]), document())


@pytest.mark.parametrize("gate", NUMBERED)
def test_every_number_of_every_gate_has_a_strict_side(gate: str) -> None:
    """A parameter of a new gate whose direction the diff does not know would read loosened both ways."""
    entry = {"gate": gate, **ENTRIES[gate]}
    fields = parse_params(entry, "entry").model_dump()

    for key in fields.keys() - {"gate", "suite", "metric"}:
        low, high = ("1", "2") if key == "max_percent" else (1, 2)
        if not key.startswith("max_") or key in ("max_accuracy", "max_drop"):
            low, high = ("0.6", "0.7") if key == "max_accuracy" else ("0.05", "0.1")
        kinds = {
            change.kind
            for one, other in ((low, high), (high, low))
            for change in diff(policy([entry | {key: one}]), policy([entry | {key: other}]))
        }
        assert kinds == {"tightened", "loosened"}, key
