"""Over random evidence: what is taken away, halved, masked or no number never opens a door that was shut."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from promotion.gates import OPENS
from tests.gates.documents import (
    ENTRIES,
    EVAL,
    FLOORS,
    MEASURING,
    METRICS,
    NOW,
    SUITE,
    TRAIN,
    Prompts,
    dataset,
    decide,
    leak,
    run,
    suite_of,
    verification,
    waived,
    whole,
    with_policy,
    with_run,
    with_suite,
)
from tests.gates.taking_away import paths, without

SECOND = "73" * 32
quick = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
OUTCOMES = ("right", "right", "right", "wrong", "bad_json", "missing")
PARAMS: dict[str, dict[str, list[Any]]] = {
    **{gate: {"min": ["0.05", "0.5", "0.8", "0.95"], "alpha": ["0.05", "0.2"]} for gate in FLOORS},
    "arena_max_regression": {"max_drop": ["0", "0.02", "0.3"], "metric": list(METRICS)},
    "paired_non_inferiority": {"margin": ["0.02", "0.1", "0.4"], "metric": list(METRICS)},
    "masked_ceiling": {"max_percent": ["0", "2", "30"]},
    "frozen_group_split": {"max_near": [0, 2]},
    "latency_memory_budget": {"max_memory_mib": [None, 512]},
}


@st.composite
def prompts(draw: st.DrawFn, *, even: bool = False) -> list[Prompts]:
    """Up to six kinds of prompts in two families, from one to many of each."""
    kinds = draw(st.integers(1, 6))
    times = st.sampled_from([2, 4, 20, 60, 300] if even else [1, 2, 7, 40, 250])
    return [
        Prompts(
            draw(st.sampled_from(["calls", "declines"])),
            draw(st.booleans()),
            draw(st.sampled_from(OUTCOMES)),
            draw(st.sampled_from(OUTCOMES)),
            draw(times),
        )
        for _ in range(kinds)
    ]


def evidence_of(listed: Iterable[Prompts]) -> dict[str, Any]:
    """Whole evidence in which the runs did this."""
    return whole(suite_of(listed))


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Evidence with up to three things about it that may be wrong."""
    doc = evidence_of(draw(prompts()))
    for flaw in draw(st.lists(st.sampled_from(FLAWS), max_size=3, unique=True)):
        doc = flaw(doc, draw)
    doc = with_policy(doc, spend_alpha=draw(st.booleans()))
    return with_run(doc, look=draw(st.sampled_from([1, 2, 6, None])))


def other_data(doc: dict[str, Any], draw: st.DrawFn) -> dict[str, Any]:
    flaws = st.sampled_from(
        [
            {},
            {"declared_sha256": None},
            {"declared_sha256": "0" * 64},
            {"schema_sha256": None},
            {"schema_sha256": "0" * 64},
            {"without_id": 1},
            {"rows": 0, "distinct_texts": 0},
            {"streams": []},
        ]
    )
    sets = [dataset("train", **draw(flaws)), dataset("eval", **draw(flaws))]
    if draw(st.booleans()):
        sets.append(dataset(draw(st.sampled_from(["train", "eval"])), **{**draw(flaws), "digest": SECOND}))
    pair = draw(st.sampled_from([(TRAIN, EVAL), (TRAIN, SUITE), (EVAL, SUITE), (SECOND, SUITE)]))
    kind = draw(st.sampled_from(["ids", "groups", "texts", "near"]))
    shared = {pair: {kind: draw(st.sampled_from([0, 1, 3]))}}
    part = doc["suites"][0]
    return {**doc, "datasets": whole(part, datasets=sets, shared=shared)["datasets"]}


def other_champion(doc: dict[str, Any], draw: st.DrawFn) -> dict[str, Any]:
    changes = st.sampled_from(
        [
            None,
            {"gguf_sha256": doc["artifact"]["gguf_sha256"]},
            {"gguf_sha256": None},
            {"stored": False},
            {"subject_digest": "0" * 64},
        ]
    )
    change = draw(changes)
    return {**doc, "champion": change and doc["champion"] and {**doc["champion"], **change}}


def other_run(doc: dict[str, Any], draw: st.DrawFn) -> dict[str, Any]:
    who = draw(st.sampled_from(["candidate", "champion"]))
    served = run(who)["served"]
    changes = st.sampled_from(
        [
            {"subject_digest": "0" * 64},
            {"suite_digest": "0" * 64},
            {"planned_at": "2026-03-01T00:00:00.000000Z"},
            {"sampling": {"temperature": 1}},
            {"samples": 2},
            {"cancelled": 1},
            {"independence": "unknown"},
            {"independence": "ignored"},
            {"peak_memory_bytes": None},
            {"peak_memory_bytes": 1 << 33},
            {"latency_ms": {"p50": 12, "p95": 900, "n": doc["suites"][0]["case_count"]}},
            {"served": None},
            {"served": {**served, "build": None}},
            {"served": {**served, "build": "another"}},
            {"served": {**served, "adapter_sha256": "0" * 64}},
        ]
    )
    return with_run(doc, who, **draw(changes))


def other_suite(doc: dict[str, Any], draw: st.DrawFn) -> dict[str, Any]:
    n = doc["suites"][0]["case_count"]
    changes = st.sampled_from(
        [
            {"schema_sha256": None},
            {"schema_sha256": "0" * 64},
            {"leak": None},
            {"leak": leak("0.950000", n=n)},
            {"leak": leak("1.000000", "1.000000", n=n, features_tried=0)},
            {"leak": leak(n=n + 1)},
            {"sealed_at": "2026-04-01T00:00:00.000000Z"},
            {"prompt_count": n + 1},
            {"paired": None},
            {"champion": None},
            {"candidate": None},
        ]
    )
    return with_suite(doc, **draw(changes))


def other_artifact(doc: dict[str, Any], draw: st.DrawFn) -> dict[str, Any]:
    changes = st.sampled_from(
        [
            {"gguf_sha256": None},
            {"tool_schema_sha256": None},
            {"tool_schema_sha256": "0" * 64},
            {"verification": None},
            {"verification": {**verification(), "status": "failed"}},
            {"verification": {**verification(), "comparisons": []}},
        ]
    )
    return {**doc, "artifact": {**doc["artifact"], **draw(changes)}}


def an_old_waiver(doc: dict[str, Any], draw: st.DrawFn) -> dict[str, Any]:
    """Waivers that waive nothing: expired, of something else, by one person alone."""
    changes = st.sampled_from(
        [
            {"expires_at": "2026-03-09T00:00:00.000000Z"},
            {"measurement_digest": "0" * 64},
            {"granted_by": "engineer"},
            {"granted_by": None},
        ]
    )
    return waived(doc, draw(st.sampled_from(list(ENTRIES))), **draw(changes))


FLAWS = [other_data, other_champion, other_run, other_run, other_suite, other_artifact, an_old_waiver]


@st.composite
def params_of(draw: st.DrawFn, gate: str) -> dict[str, Any]:
    """Parameters of an entry, looser and stricter than usual."""
    return {name: draw(st.sampled_from(values)) for name, values in PARAMS.get(gate, {}).items()}


def opens(gate: str, doc: dict[str, Any], params: dict[str, Any]) -> bool:
    return decide(gate, doc, NOW, **params).outcome in OPENS


@pytest.mark.parametrize("gate", ENTRIES)
@settings(quick, max_examples=30)
@given(data=st.data())
def test_taking_any_part_away_never_opens_a_door(gate: str, data: st.DataObject) -> None:
    doc = data.draw(documents())
    params = data.draw(params_of(gate))
    if opens(gate, doc, params):
        return

    for path in paths(doc):
        for null in (False, True):
            assert not opens(gate, without(doc, path, null=null), params), (path, null)


@pytest.mark.parametrize("gate", MEASURING)
@settings(quick, max_examples=40)
@given(data=st.data())
def test_half_of_everything_is_never_enough_where_the_whole_was_not(gate: str, data: st.DataObject) -> None:
    listed = data.draw(prompts(even=True))
    params = data.draw(params_of(gate))
    look, spend = data.draw(st.sampled_from([1, 3])), data.draw(st.booleans())
    full, half = (
        with_policy(
            with_run(evidence_of([part._replace(times=part.times // share) for part in listed]), look=look),
            spend_alpha=spend,
        )
        for share in (1, 2)
    )

    assert opens(gate, full, params) or not opens(gate, half, params)


@pytest.mark.parametrize("gate", MEASURING)
@settings(quick, max_examples=60)
@given(data=st.data())
def test_masking_a_prompt_on_either_side_never_opens_a_door(gate: str, data: st.DataObject) -> None:
    listed = data.draw(prompts())
    who = data.draw(st.sampled_from(["candidate", "champion"]))
    scored = [part for part in listed if getattr(part, who) != "missing"]
    if not scored:
        return
    chosen = data.draw(st.sampled_from(scored))
    params = data.draw(params_of(gate))
    doc = evidence_of(listed)
    if opens(gate, doc, params):
        return

    left = [part for part in listed if part is not chosen]
    masked = evidence_of(
        [*left, chosen._replace(times=chosen.times - 1), chosen._replace(**{who: "missing", "times": 1})]
    )
    # what was masked may have been the slowest
    for part in ("candidate", "champion"):
        masked["suites"][0][part]["latency_ms"] |= {"p50": 1, "p95": 1}

    assert not opens(gate, masked, params)


JUNK = [float("nan"), float("inf"), float("-inf"), -1, -0.5, 0.5, "1", "", None, True, [], {}, 1e400]


@settings(quick, max_examples=40)
@given(data=st.data())
def test_a_count_that_is_no_count_never_opens_a_door(data: st.DataObject) -> None:
    doc = whole()
    places = [path for path in paths(doc["suites"][0]) if is_count(path)]
    place, junk = data.draw(st.sampled_from(places)), data.draw(st.sampled_from(JUNK))

    changed = copy.deepcopy(doc)
    target = changed["suites"][0]
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = junk

    for gate in MEASURING:
        assert not opens(gate, changed, {}), gate


def is_count(path: tuple[Any, ...]) -> bool:
    """Whether every gate that measures must have read it."""
    if path[0] in ("case_count", "prompt_count") or (path[0] == "family_prompts" and len(path) == 2):
        return True
    if path[0] != "candidate" or len(path) < 2:
        return False
    if path[1] in ("planned", "scored", "masked", "unscored", "cancelled", "samples"):
        return True
    return (path[1] == "metrics" and len(path) == 4) or (
        path[1] == "families" and len(path) == 5 and path[3] == "decision"
    )
