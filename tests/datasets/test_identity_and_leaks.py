"""The identity of prompts and of tool schemas, and the one feature that gives a label away."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollouts.leakage import Labelled, best_single_feature, prompt_sha256, schema_sha256

ASK = [{"role": "system", "content": "Decide."}, {"role": "user", "content": "Volume 3."}]
TOOL = {
    "name": "volume",
    "description": "Sets it.",
    "parameters": {"type": "object", "properties": {"to": {}}},
}


def test_a_prompt_is_its_messages_and_the_tools_sent_beside_them() -> None:
    same = prompt_sha256([{"content": "Decide.", "role": "system"}, dict(ASK[1])], None)
    assert prompt_sha256(ASK, None) == same == prompt_sha256(ASK, [])
    others = [
        prompt_sha256(ASK[1:], None),
        prompt_sha256([ASK[0], {"role": "user", "content": "Volume 4."}], None),
        prompt_sha256(ASK, [TOOL]),
        prompt_sha256(ASK, [{**TOOL, "description": "Turns it."}]),
    ]
    assert len({same, *others}) == 5


def test_names_alone_are_no_schema() -> None:
    assert schema_sha256([]) == schema_sha256(["a", "b"]) == schema_sha256([{"name": "a"}]) == ""


def test_the_order_of_tools_keys_and_repeats_make_no_other_schema() -> None:
    other = {"name": "stop", "description": "Stops."}
    turned = dict(reversed(TOOL.items()))
    assert schema_sha256([TOOL, other]) == schema_sha256([other, turned, TOOL])
    assert schema_sha256([{"type": "function", "function": TOOL}]) == schema_sha256([TOOL])
    assert schema_sha256([{**TOOL, "strict": None}]) == schema_sha256([TOOL])


@pytest.mark.parametrize(
    "changed",
    [
        {**TOOL, "description": "Turns it."},
        {**TOOL, "name": "loudness"},
        {**TOOL, "parameters": {"type": "object", "properties": {"by": {}}}},
    ],
)
def test_a_changed_tool_is_another_schema(changed: dict[str, Any]) -> None:
    assert len({schema_sha256([TOOL]), schema_sha256([changed]), schema_sha256([TOOL, changed])}) == 3


def case(text: str, call: bool, *tools: str) -> Labelled:
    return Labelled(text, tools, call)


def leak(*cases: Labelled) -> dict[str, Any]:
    found = best_single_feature(cases)
    assert found is not None
    return found


def test_a_suffix_that_tells_the_label_is_found() -> None:
    found = leak(
        *[case(f"write file {n} approval granted", True) for n in range(10)],
        *[case(f"write file {n} approval pending", False) for n in range(6)],
    )
    assert found["accuracy"] == "1.000000"
    assert found["feature"] == 'the word "granted": a call'
    assert (found["n"], found["majority"], found["label"], found["format"]) == (
        16,
        "0.625000",
        "expects_call",
        1,
    )


@pytest.mark.parametrize(
    ("cases", "feature"),
    [
        ([case(f"{'x' * n} {n}", n > 9) for n in range(20)], "the text has at least 13 characters: a call"),
        (
            [case(f"t{n}", n % 2 == 0, *["a", "b", "c"][: 1 + n % 2]) for n in range(8)],
            'the tool "b": no call',
        ),
        (
            [case(f"t{n}", n % 2 == 0, *[f"{n}{k}" for k in range(1 + n % 2)]) for n in range(8)],
            "at least 2 tools are shown: no call",
        ),
        ([case(f"t{n}{'?' * (n % 2)}", n % 2 == 1) for n in range(8)], "a question mark at the end: a call"),
        (
            [case(f"please t{n} now" if n % 2 else f"t{n} now please", n % 2 == 1) for n in range(8)],
            'the first word "please": a call',
        ),
    ],
)
def test_each_kind_of_feature_is_tried(cases: list[Labelled], feature: str) -> None:
    found = leak(*cases)
    assert (found["feature"], found["accuracy"]) == (feature, "1.000000")


def test_a_word_of_a_single_case_is_no_feature() -> None:
    found = leak(case("aa bb", True), case("cc dd", False), case("aa ee", True), case("cc ff", False))
    assert found["feature"] == 'the word "aa": a call'
    assert found["features_tried"] == 6  # aa, cc as word and as first word, length, number of tools


def test_one_label_leaves_nothing_to_tell() -> None:
    found = leak(case("a b", False), case("a c", False))
    assert (found["majority"], found["accuracy"], found["feature"], found["features_tried"]) == (
        "1.000000",
        "1.000000",
        "",
        0,
    )
    assert best_single_feature([]) is None


cases = st.lists(
    st.builds(
        Labelled,
        text=st.lists(st.sampled_from(["go", "stop", "now", "please?", "why"]), min_size=1, max_size=5).map(
            " ".join
        ),
        tools=st.lists(st.sampled_from(["a", "b"]), max_size=2, unique=True).map(tuple),
        expects_call=st.booleans(),
    ),
    min_size=1,
    max_size=25,
)


@settings(deadline=None)
@given(cases, st.randoms(use_true_random=False))
def test_the_search_never_does_worse_than_the_commonest_label_and_knows_no_order(
    found: list[Labelled], random: Any
) -> None:
    first = leak(*found)
    assert float(first["majority"]) <= float(first["accuracy"]) <= 1
    shuffled = found[:]
    random.shuffle(shuffled)
    assert json.dumps(leak(*shuffled)) == json.dumps(first)
