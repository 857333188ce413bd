"""Preflight: every fault is a finding, in one order, and nothing raises whatever the files hold."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promotion.preflight import STEPS, Finding, Inputs, SuiteCases, findings
from rollouts.leakage import asked, schema_sha256
from tests.datasets.conftest import row, rows
from tests.factories import jsonl

TOOLS = [{"name": "play", "description": "Plays.", "parameters": {"type": "object"}}]
TRAIN = [row(f"t{n}", f"train question {n} of many", group=f"tg{n}") for n in range(4)]
EVAL = [row(f"e{n}", f"eval matter {n} to weigh", group=f"eg{n}") for n in range(3)]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sidecar_of(train: bytes, evaluation: bytes) -> dict[str, Any]:
    return {
        "train_sha256": sha(train),
        "eval_sha256": sha(evaluation),
        "train_count": len(train.splitlines()),
        "eval_count": len(evaluation.splitlines()),
        "contains_pending": False,
        "validator": {"verdict": "PASS"},
        "tool_schema_hash": schema_sha256(TOOLS),
        "lineage_groups": {"train": ["a"], "eval": ["b"]},
    }


def good(train: Any = TRAIN, evaluation: Any = EVAL, **changes: Any) -> Inputs:
    """Inputs in which nothing is found, but for what `changes` and the rows bring in."""
    files = _file(train), _file(evaluation)
    values = {
        "train": files[0],
        "evaluation": files[1],
        "sidecar": sidecar_of(*(data or b"" for data in files)),
        "policy": {"gates": []},
        "config": {"status": "active", "gates": {"tool_schema_hash": schema_sha256(TOOLS)}},
        "tool_schema": TOOLS,
        "has_champion": True,
    }
    return Inputs(**{**values, **changes})


def _file(rows: Any) -> bytes | None:
    return rows if rows is None or isinstance(rows, bytes) else jsonl(rows)


def only(inputs: Inputs) -> Finding:
    (found,) = findings(inputs)
    return found


def codes(inputs: Inputs) -> list[tuple[str, str]]:
    return [(found.code, found.severity) for found in findings(inputs)]


def changed(**values: Any) -> Inputs:
    """The good inputs with these values in the sidecar; None takes the key out."""
    inputs = good()
    sidecar = {**inputs.sidecar, **values}
    return good(sidecar={key: value for key, value in sidecar.items() if value is not None})


def config(**gates: Any) -> dict[str, Any]:
    return {"status": "active", "gates": {"tool_schema_hash": schema_sha256(TOOLS), **gates}}


def test_good_data_has_no_findings() -> None:
    assert findings(good()) == []


def test_every_finding_says_where_and_what_to_do() -> None:
    for inputs in (Inputs(), Inputs(train=b"[]\n{}\n", evaluation=b"", sidecar=[], policy=b"x", config={})):
        for found in findings(inputs):
            assert found.where and found.text and found.remedy.endswith("."), found


# shape, track, files


def test_a_document_that_is_no_json_object_is_a_finding() -> None:
    for name in ("sidecar", "config", "policy"):
        for value in (b"{", b"\xff", b"[]", [], "x", 5):
            found = [f for f in findings(good(**{name: value})) if f.code == "config" and f.where == name]
            assert [f.severity for f in found] == ["error"], (name, value)


def test_what_the_rules_of_policies_refuse_is_a_finding() -> None:
    found = only(good(policy_problems=[("document.gates.0.min", "a floor of 0 can never fail")]))
    assert found[:3] == ("policy", "error", "document.gates.0.min")


def test_without_a_policy_it_is_said_that_its_needs_are_not_known() -> None:
    assert codes(good(policy=None)) == [("policy", "warning")]


def test_a_track_that_is_a_template_ends_the_checks_with_its_reason() -> None:
    blocked = {"status": "template", "gates": {"blocked_reason": "no baseline yet"}}
    found = only(good(config=blocked, evaluation=[{}]))
    assert (found.code, found.severity) == ("track_blocked", "error")
    assert "no baseline yet" in found.text


def test_a_configuration_without_status_or_gates_is_a_finding() -> None:
    assert codes(good(config={"gates": {"tool_schema_hash": schema_sha256(TOOLS)}})) == [("config", "error")]
    assert ("config", "error") in codes(good(config={"status": "active", "gates": None}))


@pytest.mark.parametrize(("missing", "where"), [("train", "train"), ("evaluation", "eval")])
def test_a_missing_file_ends_the_checks(missing: str, where: str) -> None:
    found = only(good(**{missing: None}))
    assert (found.code, found.where) == ("dataset", where)


# rows


def test_each_line_that_is_no_json_object_is_a_finding_with_its_number() -> None:
    data = jsonl(TRAIN) + b'[1]\n"x"\n{"a": NaN}\n\xff\nnull\n'
    found = [f for f in findings(good(train=data, sidecar=None)) if f.code == "json"]
    assert [f.where for f in found] == [f"train line {n}" for n in (5, 6, 7, 8, 9)]
    assert "a list" in found[0].text


def test_a_file_with_a_byte_order_mark_is_a_finding() -> None:
    found = [f for f in findings(good(train=b"\xef\xbb\xbf" + jsonl(TRAIN))) if f.code == "json"]
    assert len(found) == 1 and "byte order mark" in found[0].text


def test_many_faults_are_listed_in_part_and_counted_in_all() -> None:
    found = [f for f in findings(good(train=jsonl(TRAIN) + b"[]\n" * 500)) if f.code == "json"]
    assert len(found) == 21
    assert "480 more" in found[-1].text


def test_no_rows_are_too_few() -> None:
    found = [f for f in findings(good(train=[], evaluation=[])) if f.code == "count"]
    assert [(f.where, f.severity) for f in found] == [("train", "error"), ("eval", "error")]


def test_a_configuration_may_ask_for_more_rows() -> None:
    found = only(good(config=config(min_train_examples=5, min_eval_examples=3)))
    assert (found.code, found.where) == ("count", "train")
    assert [f.where for f in findings(good(config=config(min_train_examples="x", min_eval_examples=0)))] == [
        "config.gates.min_train_examples",
        "config.gates.min_eval_examples",
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"example_id": "x"}, "is missing"),
        ({"example_id": "x", "messages": [[]]}, "must be an object"),
        ({"example_id": "x", "messages": [{"role": "user", "content": "q"}]}, "no answer to learn"),
        (row("x", "a new thing", decision="call") | {"decision": "no_tool"}, "its answer decides"),
        (
            {
                **row("x", "a new thing"),
                "decision": "call",
                "messages": [
                    {"role": "user", "content": "a new thing"},
                    {"role": "assistant", "content": "sure!"},
                ],
            },
            "is no JSON object",
        ),
    ],
)
def test_a_row_in_another_form_is_a_finding(line: dict[str, Any], says: str) -> None:
    lines = [*TRAIN, {"lineage_group_id": "x", **line}]
    found = [f for f in findings(good(train=lines)) if f.code == "format"]
    assert [f.where.partition(":")[0] for f in found] == ["train line 5"]
    assert says in found[0].text


def test_rows_without_id_are_errors_and_repeated_ids_and_lone_rows_are_warned_of() -> None:
    lines = [*TRAIN, row(None, "one more thing", group="x"), row("t0", "another thing at last")]
    assert [(f.code, f.severity) for f in findings(good(train=lines))] == [
        ("ids", "error"),
        ("ids", "warning"),
        ("ids", "warning"),
    ]


def test_questions_that_repeat_are_counted_and_torn_ones_named() -> None:
    lines = [*TRAIN, row("t9", "Train question 0 of many!", group="tg0", decision="call")]
    assert [f.text for f in findings(good(train=lines)) if f.code == "duplicates"] == [
        "5 rows ask only 4 different things.",
        "1 questions have several answers with the same tools.",
    ]


# the sidecar


def test_a_missing_sidecar_blocks_only_where_something_needs_it() -> None:
    assert set(codes(good(sidecar=None, config=None))) >= {("meta", "warning")}
    for needing in (
        {"policy": {"gates": [{"gate": "dataset_hash"}]}},
        {"config": config(reject_pending_review=True)},
    ):
        assert [code for code in codes(good(sidecar=None, **needing)) if code[0] == "meta"] == [
            ("meta", "error")
        ] * 2


def test_a_path_of_somebodys_machine_is_a_finding() -> None:
    found = findings(changed(source="F:\\Ai\\data", sources={"a": {"path": "/home/ann/t.jsonl"}, "b": "x/y"}))
    assert [(f.code, f.where) for f in found] == [
        ("meta", "sidecar.source"),
        ("meta", "sidecar.sources.a.path"),
    ]
    assert [f.where for f in findings(changed(notes=["C:\\x", "/home/a"]))] == [
        "sidecar.notes.0",
        "sidecar.notes.1",
    ]


@pytest.mark.parametrize("pending", [True, None, "no", 1])
def test_rows_that_wait_for_review_are_a_finding_and_an_error_where_a_round_forbids_them(
    pending: Any,
) -> None:
    assert codes(changed(contains_pending=pending)) == [("review", "warning")]
    sidecar = changed(contains_pending=pending).sidecar
    assert codes(good(sidecar=sidecar, config=config(reject_pending_review=True))) == [("review", "error")]


@pytest.mark.parametrize("validator", [{"verdict": "N/A"}, {"verdict": "FAIL"}, {}, "PASS", None])
def test_a_validator_that_did_not_pass_is_a_finding(validator: Any) -> None:
    assert codes(changed(validator=validator)) == [("validator", "warning")]
    sidecar = changed(validator=validator).sidecar
    assert codes(good(sidecar=sidecar, config=config(require_validator_pass=True))) == [
        ("validator", "error")
    ]


def test_a_digest_that_is_not_declared_is_a_finding_and_one_that_differs_an_error() -> None:
    assert codes(changed(eval_sha256=None)) == [("drift", "warning")]
    gates = {"gates": [{"gate": "dataset_hash"}]}
    assert codes(good(sidecar=changed(eval_sha256=None).sidecar, policy=gates)) == [("drift", "error")]
    assert codes(changed(train_sha256="0" * 64, eval_sha256=5)) == [("drift", "error")] * 2


def test_line_ends_that_differ_are_told_apart_from_other_rows() -> None:
    data = jsonl(TRAIN)
    found = only(good(train=data.replace(b"\n", b"\r\n"), sidecar=sidecar_of(data, jsonl(EVAL))))
    assert "Only line ends differ" in found.text


def test_counts_that_differ_are_warned_of() -> None:
    assert codes(changed(train_count=2572)) == [("drift", "warning")]


# schemas


def test_tool_schemas_are_pinned_by_their_bytes_or_by_their_tools() -> None:
    raw = json.dumps(TOOLS).encode().replace(b"]", b"]\r\n")
    pinned = sha(raw.replace(b"\r\n", b"\n"))
    sidecar = {**good().sidecar, "tool_schema_hash": pinned}
    assert findings(good(tool_schema=raw, config=config(tool_schema_hash=pinned), sidecar=sidecar)) == []
    assert findings(good(tool_schema=raw)) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tool_schema": None}, [("schema", "error")]),
        ({"tool_schema": b"{"}, [("config", "error"), ("schema", "error")]),
        ({"tool_schema": ["play"]}, [("schema", "error")]),
        ({"tool_schema": [{**TOOLS[0], "description": "x"}]}, [("schema", "error")]),
        ({"config": config(tool_schema_hash=[])}, [("schema", "error")]),
        ({"config": config(tool_schema_hash=None)}, [("schema", "warning")]),
        ({"config": config(tool_schema_path=None)}, [("schema", "warning")]),
        (
            {
                "config": config(tool_schema_hash=None),
                "policy": {"gates": [{"gate": "runtime_schema_identity"}]},
            },
            [("schema", "error")],
        ),
    ],
)
def test_a_schema_that_is_missing_or_another_is_a_finding(
    changes: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert codes(good(**changes)) == expected


def test_a_sidecar_that_names_no_schema_blocks_only_where_a_gate_compares_schemas() -> None:
    assert codes(changed(tool_schema_hash=None)) == [("schema", "warning")]
    gates = {"gates": [{"gate": "runtime_schema_identity"}]}
    assert codes(good(sidecar=changed(tool_schema_hash=None).sidecar, policy=gates)) == [("schema", "error")]
    assert codes(changed(tool_schema_hash={"a": 1})) == [("schema", "error")]


def test_rows_that_show_other_schemas_than_a_suite_are_a_finding() -> None:
    train = [{**line, "tools": TOOLS} for line in TRAIN]
    suite = SuiteCases("arena v1", schema_sha256([{**TOOLS[0], "description": "x"}]), [])
    assert codes(good(train=train, suites=[suite])) == [("schema", "warning")]
    evaluation = [{**line, "tools": [{**TOOLS[0], "description": "x"}]} for line in EVAL]
    assert codes(good(train=train, evaluation=evaluation)) == [("schema", "warning")]


# isolation


@pytest.mark.parametrize("decision", ["call", "clarify", "no_tool", "unsupported"])
def test_a_question_in_both_files_is_an_error_whatever_its_decision_and_answer(decision: str) -> None:
    """Also where a round's configuration turns isolation off."""
    evaluation = [*EVAL, row("e9", "Train question 1, of many", group="eg9", decision=decision)]
    off = config(require_lineage_split_isolation=False)
    found = only(good(evaluation=evaluation, config=off))
    assert (found.code, found.severity) == ("leakage", "error")
    assert "t1 and e9" in found.text


def test_the_same_file_twice_is_no_split() -> None:
    found = [f for f in findings(good(evaluation=TRAIN)) if f.code == "leakage"]
    assert len(found) == 3 and {f.severity for f in found} == {"error"}


def test_shared_ids_groups_and_declared_groups_are_errors_and_near_questions_warnings() -> None:
    lines = [
        row("t0", "something of its own here", group="x1"),
        row("x2", "something else of its own", group="tg1"),
        row("x3", "train question 2 of very many", group="x3"),
    ]
    assert codes(good(evaluation=lines)) == [
        ("leakage", "error"),
        ("leakage", "error"),
        ("leakage", "warning"),
    ]
    both = {"train": ["a", "b"], "eval": ["b", "c"]}
    assert codes(changed(lineage_groups=both)) == [("leakage", "error")]
    for odd in ([], {"train": "a", "eval": "a"}, {"train": [["a"], 1], "eval": [1]}):
        assert codes(changed(lineage_groups=odd)) == []


def test_rows_that_a_suite_asks_too_are_errors_for_both_files() -> None:
    cases = [
        asked(name="c1", id="c1", group=None, text="train question 3 of many"),
        asked(name="c2", id="e0", group=None, text="wholly different words here"),
    ]
    found = findings(good(suites=[SuiteCases("arena v1", "", cases)]))
    assert [(f.code, f.severity, f.where) for f in found] == [
        ("suite_leakage", "error", "train and arena v1"),
        ("suite_leakage", "error", "eval and arena v1"),
    ]


def test_a_feature_that_gives_the_label_away_is_warned_of() -> None:
    lines = [
        row(
            f"t{n}",
            f"write file {n} {'approved' if n % 2 else 'pending'}",
            group=f"g{n}",
            decision="call" if n % 2 else "clarify",
        )
        for n in range(30)
    ]
    found = [f for f in findings(good(train=lines)) if f.code == "prompt_leak"]
    assert [f.severity for f in found] == ["warning"]
    assert 'the word "approved"' in found[0].text


# baseline


def test_gates_that_compare_need_a_champion() -> None:
    gates = {"gates": [{"gate": "arena_max_regression"}, {"gate": "prompt_leak"}]}
    for known in (False, None):
        assert codes(good(policy=gates, has_champion=known)) == [("baseline", "warning")]
    assert codes(good(policy=gates)) == []
    assert codes(good(has_champion=False)) == []


def test_a_baseline_report_is_a_finding_that_everybody_sees() -> None:
    found = only(good(config=config(baseline_report="baselines/v0/"), has_champion=None))
    assert (found.code, found.severity, found.where) == (
        "baseline",
        "warning",
        "config.gates.baseline_report",
    )


# never a traceback

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = [
    "status", "gates", "gate", "suites", "digest", "min_train_examples", "tool_schema_hash", "tool_schema_path",
    "baseline_report", "train_sha256", "eval_sha256", "train_count", "contains_pending", "validator", "verdict",
    "lineage_groups", "train", "eval", "sources", "messages", "role", "content", "example_id", "decision", "tools",
    "name", "function", "prompt", "completion", "tool_calls", "families", "description",
]  # fmt: skip
documents = st.recursive(
    json_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)
files = (
    st.none()
    | st.binary(max_size=60)
    | st.lists(documents, max_size=5).map(
        lambda lines: b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    )
)


@settings(max_examples=300, deadline=None)
@given(
    st.builds(
        Inputs,
        train=files,
        evaluation=files,
        sidecar=documents | st.binary(max_size=20),
        evaluation_sidecar=documents,
        policy=documents,
        config=documents | st.dictionaries(st.just("status"), st.just("active")),
        tool_schema=documents | st.binary(max_size=20),
        has_champion=st.none() | st.booleans(),
    )
)
def test_no_input_breaks_a_check_off(inputs: Inputs) -> None:
    for found in findings(inputs):
        assert found.code != "unfinished", found
        assert found.severity in ("error", "warning")
        json.dumps(found._asdict())


def test_a_fault_of_ours_is_a_finding_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(check: Any) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr("promotion.preflight.STEPS", (broken, *STEPS))
    found = findings(good())
    assert [f.code for f in found] == ["unfinished"]
    assert "RuntimeError: a bug" in found[0].text


def test_rows_that_can_be_read_are_checked_though_others_cannot() -> None:
    data = jsonl([*TRAIN, *rows("x", 1)]) + b"{\n"
    evaluation = jsonl([*EVAL, row("e9", "x asks for x0", group="q")])
    found = [f.code for f in findings(good(train=data, evaluation=evaluation)) if f.severity == "error"]
    assert "json" in found and "leakage" in found
