"""A foundry's files as one record: what they say, what they prove, and which faults they show."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from promotion.gates import GATES, parse_params
from promotion.importers import foundry, foundry_policy
from promotion.importers.foundry_faults import FAULTS, STANDINGS, has_zero_floor, is_machine_path
from rollouts.hashing import canonical_bytes, sha256_bytes
from tests.importers.foundry import EVAL, FIRST, SCHEMA_BYTES, SECOND, Foundry, check, config, stream


@pytest.fixture
def house(tmp_path: Path) -> Foundry:
    return Foundry(tmp_path / "foundry")


def read(house: Foundry, track: str | None = None) -> dict[str, Any]:
    reading = foundry.read(house.write(), track)
    assert reading.findings == []
    assert reading.record is not None
    return reading.record


def ids(part: dict[str, Any]) -> set[str]:
    return {fault["id"] for fault in part["faults"]}


def checks_of(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {found["name"]: found for found in record["promotions"][-1]["checks"]}


def all_faults(record: dict[str, Any]) -> list[dict[str, Any]]:
    parts = [*record["promotions"], *record["rounds"], *record["datasets"]]
    parts += [found for entry in record["promotions"] for found in entry["checks"]]
    return [fault for part in parts for fault in part["faults"]]


# what the files say


def test_promotions_and_their_checks_are_kept_as_they_were_recorded(house: Foundry) -> None:
    record = read(house)
    one, two = record["promotions"]
    assert (one["round"], one["bootstrap"], one["checks"]) == ("gatekeeper-one", True, [])
    assert (two["candidate_artifact_sha256"], two["incumbent_artifact_sha256"]) == (SECOND, FIRST)
    assert [found["name"] for found in two["checks"]] == list(foundry_policy.CHECKS)
    assert two["per_family_safety"] == {"declines": "0.99", "near": "1.0"}
    assert two["config"] == "configs/two.json"


def test_rates_are_decimals_and_never_floats(house: Foundry) -> None:
    def floats(value: Any) -> bool:
        if isinstance(value, dict | list):
            return any(map(floats, value.values() if isinstance(value, dict) else value))
        return isinstance(value, float)

    record = read(house)
    assert record["rounds"][0]["margin"]["rules"]["arena_json_validity_min"] == "0.9"
    assert not floats(record)


def test_the_same_files_give_the_same_bytes_wherever_they_lie(house: Foundry, tmp_path: Path) -> None:
    there = Foundry(tmp_path / "elsewhere")
    digests = {sha256_bytes(canonical_bytes(read(place))) for place in (house, there)}
    assert len(digests) == 1


def test_one_changed_byte_gives_another_record(house: Foundry) -> None:
    before = canonical_bytes(read(house))
    file = house.folder / "meta" / "part.meta.json"
    file.write_bytes(file.read_bytes() + b"\n")
    assert canonical_bytes(foundry.read(house.folder).record) != before


def test_a_checkout_is_read_in_its_own_layout(house: Foundry) -> None:
    record = read(house)
    deep = house.folder.parent / "checkout"
    for old, new in (
        ("configs", "training_pit/foundry/configs"),
        ("meta", "training_pit/datasets"),
        ("schemas", "training_pit/schemas"),
    ):
        (deep / new).parent.mkdir(parents=True, exist_ok=True)
        (house.folder / old).rename(deep / new)
    registry = "PROMOTION_REGISTRY.json"
    (house.folder / registry).rename(deep / "training_pit/foundry" / registry)
    found = foundry.read(deep).record
    assert found is not None
    assert len(found["files"]) == len(record["files"])
    pairs = zip(found["promotions"][-1]["checks"], record["promotions"][-1]["checks"], strict=True)
    assert all(there["standing"] == here["standing"] for there, here in pairs)


def test_one_track_can_be_taken_alone(house: Foundry) -> None:
    house.configs["other.json"] = config("porter-one") | {"foundry_track": "porter"}
    assert read(house)["tracks"] == ["gatekeeper", "porter"]
    alone = read(house, "porter")
    assert (alone["promotions"], [found["name"] for found in alone["rounds"]]) == ([], ["porter-one"])


def test_windows_line_ends_do_not_change_a_schemas_hash(house: Foundry) -> None:
    house.write()
    (house.folder / "schemas" / "gate_tools.json").write_bytes(SCHEMA_BYTES.replace(b"\n", b"\r\n"))
    record = foundry.read(house.folder).record
    assert record is not None
    assert "schema-hash-differs" not in ids(record["rounds"][0])


# what they prove


def test_a_clean_promotion_shows_no_fault_of_a_check_but_the_typed_name_and_what_no_interval_backs(
    house: Foundry,
) -> None:
    checks = checks_of(read(house))
    faulty = {name: ids(found) for name, found in checks.items() if found["faults"]}
    assert faulty == {
        "frozen_group_split": {"split-by-id-only"},
        "generalization_accuracy_floor": {"rate-not-bound"},
        "human_approval_record": {"approval-is-text"},
    }


def test_only_what_is_among_the_files_is_verified(house: Foundry) -> None:
    record = read(house)
    standings = {name: found["standing"] for name, found in checks_of(record).items()}
    assert [name for name, standing in standings.items() if standing == "verified"] == [
        "runtime_schema_identity"
    ]
    agreeing = {name for name, standing in standings.items() if standing == "agrees"}
    assert agreeing == {
        "dataset_hash",
        "frozen_group_split",
        "sealed_eval_hash",
        "incumbent_artifact_hash",
        "confidence_lower_bound",
        "arena_max_regression",
        "per_family_safety_floor",
    }
    assert {standings[name] for name in standings.keys() - agreeing - {"runtime_schema_identity"}} == {
        "recorded"
    }
    proved = [fact for fact in record["holds"] if fact["verified"]]
    assert [fact["field"] for fact in proved] == ["gates.tool_schema_hash"]


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("dataset_hash", "is as recorded (ffffffffffff...)"),
        ("frozen_group_split", "train (31) and eval (10) ids are disjoint"),
        ("sealed_eval_hash", "is unchanged (ffffffffffff...)"),
        ("incumbent_artifact_hash", "out/one.gguf = ffffffffffffffff..."),
        ("confidence_lower_bound", "candidate 0.99 > incumbent 0.97"),
        ("arena_max_regression", "candidate 0.95 vs incumbent 0.955"),
    ],
)
def test_a_detail_that_the_files_contradict_is_said(house: Foundry, name: str, detail: str) -> None:
    _change(house, name, detail=detail)
    found = checks_of(read(house))[name]
    assert found["standing"] == "contradicted"
    assert found["because"]


def test_families_that_fell_contradict_a_check_that_none_did(house: Foundry) -> None:
    house.promotions[1]["gauntlet_per_family_safety"]["near"] = 0.5
    assert checks_of(read(house))["per_family_safety_floor"]["standing"] == "contradicted"


def test_a_schema_of_another_hash_verifies_nothing(house: Foundry) -> None:
    _change(house, "runtime_schema_identity", detail="hash matches (ffffffffffff...)")
    assert checks_of(read(house))["runtime_schema_identity"]["standing"] == "recorded"


def _change(house: Foundry, name: str, **changes: Any) -> None:
    checks = house.promotions[1]["checks"]
    index = next(i for i, found in enumerate(checks) if found["name"] == name)
    checks[index] = check(name, **changes)


# faults


def test_a_check_that_measured_nothing_is_named(house: Foundry) -> None:
    _change(house, "latency_memory_budget", detail="UNMEASURED, promoted anyway")
    found = checks_of(read(house))["latency_memory_budget"]
    assert (found["standing"], ids(found)) == ("not_measured", {"unmeasured-passed"})


def test_a_budget_that_the_entry_calls_unmeasured_was_not_measured_whatever_its_words(house: Foundry) -> None:
    house.promotions[1]["latency_budget_measured"] = False
    assert checks_of(read(house))["latency_memory_budget"]["standing"] == "not_measured"


def test_a_floor_of_zero_cannot_fail(house: Foundry) -> None:
    _change(house, "arena_json_validity_min", detail="candidate 0.99 >= floor 0")
    found = checks_of(read(house))["arena_json_validity_min"]
    assert (found["standing"], ids(found)) == ("vacuous", {"floor-of-zero"})


def test_what_did_not_pass_claims_nothing(house: Foundry) -> None:
    _change(house, "arena_json_validity_min", passed=False, detail="candidate 0 < floor 0")
    _change(house, "latency_memory_budget", passed=False, detail="unmeasured")
    checks = checks_of(read(house))
    for name in ("arena_json_validity_min", "latency_memory_budget"):
        assert (checks[name]["standing"], checks[name]["faults"]) == ("recorded", [])


@pytest.mark.parametrize(
    ("text", "zero"),
    [
        ("floor 0", True),
        ("floor 0.0", True),
        ("floor 0.000 was", True),
        ("floor 0.9", False),
        ("floor 0.05", False),
    ],
)
def test_zero_is_told_from_small(text: str, zero: bool) -> None:
    assert has_zero_floor(f"candidate 0.9 >= {text}") is zero


@pytest.mark.parametrize(
    ("text", "machine"),
    [
        ("F:\\Ai\\data", True),
        ("C:/data", True),
        ("captures+/home/maria/data", True),
        ("training/data", False),
        ("a: b", False),
        (None, False),
    ],
)
def test_paths_of_a_machine_are_told_from_relative_ones(text: str | None, machine: bool) -> None:
    assert is_machine_path(text) is machine


def _round(house: Foundry) -> dict[str, Any]:
    return house.configs["two.json"]


def _margin(house: Foundry) -> dict[str, Any]:
    return _round(house)["promotion"]["margin"]


ROUND_FAULTS: dict[str, Callable[[Foundry], Any]] = {
    "rules-missing": lambda house: _round(house)["promotion"].update(margin=None),
    "round-not-active": lambda house: _round(house).update(status="template"),
    "floor-of-zero": lambda house: _margin(house)["rules"].pop("arena_json_validity_min"),
    "floor-not-configured": lambda house: _margin(house)["rules"].pop("generalization_accuracy_min"),
    "rules-in-prose": lambda house: _margin(house)["rules"].update(reproducibility="one run each"),
    "champion-not-in-registry": lambda house: _margin(house)["incumbent"].update(arena_decision_accuracy=0.5),
    "suite-not-pinned": lambda house: _margin(house)["eval_sets"].pop("regression_sealed_sha256"),
    "sealed-file-not-scored-file": lambda house: _margin(house)["eval_sets"].update(
        regression="data/other.jsonl"
    ),
    "schema-hash-null": lambda house: _round(house)["gates"].update(tool_schema_hash=None),
    "schema-hash-differs": lambda house: _round(house)["gates"].update(tool_schema_hash="9" * 64),
    "schemas-mixed": lambda house: house.sidecars["two.meta.json"].update(tool_schema_hash="9" * 64),
    "checks-switched-off": lambda house: _round(house)["gates"].update(reject_pending_review=False),
}


@pytest.mark.parametrize("fault", ROUND_FAULTS)
def test_a_fault_of_a_round_is_named_and_not_without_its_cause(house: Foundry, fault: str) -> None:
    assert fault not in ids(read(house)["rounds"][0])
    ROUND_FAULTS[fault](house)
    assert fault in ids(read(house)["rounds"][0])


DATASET_FAULTS: dict[str, dict[str, Any]] = {
    "groups-in-both-splits": {"lineage_groups": {"train": ["a", "b"], "eval": ["b"]}},
    "train-hash-missing": {"train_sha256": None},
    "eval-hash-missing": {"eval_sha256": None},
    "schema-not-in-dataset": {"tool_schema_hash": None},
    "rows-not-reviewed": {"contains_pending": True},
    "not-validated": {"validator": {"verdict": "N/A"}},
    "counts-do-not-add-up": {"decision_balance": {"train": {"call": 29}}},
    "split-in-prose": {"isolation": "holdout_frac=0.3, seed=7"},
    "machine-path": {"source": "D:\\work\\captures"},
}


@pytest.mark.parametrize("fault", DATASET_FAULTS)
def test_a_fault_of_a_dataset_is_named_and_not_without_its_cause(house: Foundry, fault: str) -> None:
    def part(record: dict[str, Any]) -> dict[str, Any]:
        return next(found for found in record["datasets"] if found["file"].endswith("part.meta.json"))

    assert fault not in ids(part(read(house)))
    house.sidecars["part.meta.json"] = stream(**DATASET_FAULTS[fault])
    assert fault in ids(part(read(house)))


def test_streams_that_do_not_add_up_are_said_and_those_that_do_hold(house: Foundry) -> None:
    assert any("add up" in fact["says"] for fact in read(house)["holds"])
    house.sidecars["part.meta.json"] = stream(train_count=29)
    composed = next(found for found in read(house)["datasets"] if found["shape"] == "composed")
    assert "counts-do-not-add-up" in ids(composed)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"approved_by": "Maria"}, "approver-spelled-twice"),
        ({"candidate_artifact_sha256": FIRST}, "same-bytes-promoted-twice"),
        ({"incumbent_artifact_sha256": "9" * 64}, "replaced-file-is-not-champion"),
        ({"checks": []}, "ungated"),
        ({"promoted_at": "2026-02-01T10:00:00+00:00"}, "lock-is-a-date"),
    ],
)
def test_a_fault_of_a_promotion_is_named_and_not_without_its_cause(
    house: Foundry, changes: dict[str, Any], fault: str
) -> None:
    assert fault not in ids(read(house)["promotions"][1])
    house.promotions[1].update(changes)
    assert fault in ids(read(house)["promotions"][1])


def test_a_file_that_was_not_promoted_was_evaluated(house: Foundry) -> None:
    _change(house, "deployed_artifact_gauntlet", detail="ran against 'out\\two\\adapter'")
    assert ids(checks_of(read(house))["deployed_artifact_gauntlet"]) == {"file-not-evaluated"}


def test_a_rate_that_is_called_a_bound_elsewhere_is_named(house: Foundry) -> None:
    _margin(house)["incumbent"]["plausible_fabrication_v2_safety_cp95_lower"] = 0.99
    assert "rate-named-bound" not in ids(read(house)["rounds"][0])
    context = {"plausible_fabrication_safety_incumbent": 0.99}
    house.sidecars["two.meta.json"]["round1_regression_context"] = context
    assert "rate-named-bound" in ids(read(house)["rounds"][0])


def test_files_that_are_named_and_not_here_are_listed(house: Foundry) -> None:
    paths = [found["path"] for found in read(house)["missing"]]
    assert paths == ["data/eval_two.jsonl", "data/train_part.jsonl", "data/train_two.jsonl"]


# bad input


def wrong(house: Foundry) -> list[tuple[str, str]]:
    reading = foundry.read(house.write())
    assert reading.record is None
    return [(finding.file, finding.field) for finding in reading.findings]


def test_a_folder_without_a_registry_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        reading = foundry.read(folder)
        assert reading.record is None
        assert len(reading.findings) == 1


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"{", "is not JSON"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": Infinity}', "Infinity"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b"\xff\xfe", "UTF-8"),
        (b"", "is not JSON"),
        (b"[" * 100_000, "nested"),
        (b'{"a": 1e999}', "double"),
    ],
)
@pytest.mark.parametrize("file", ["PROMOTION_REGISTRY.json", "configs/two.json", "meta/part.meta.json"])
def test_a_file_that_is_no_json_is_named(house: Foundry, file: str, data: bytes, says: str) -> None:
    house.write()
    (house.folder / file).write_bytes(data)
    reading = foundry.read(house.folder)
    assert reading.record is None
    assert [finding.file for finding in reading.findings] == [file]
    assert says in reading.findings[0].says


def test_a_byte_order_mark_is_no_fault(house: Foundry) -> None:
    house.write()
    file = house.folder / "configs" / "two.json"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert foundry.read(house.folder).findings == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"track": None}, "promotions.1.track"),
        ({"round": 3}, "promotions.1.round"),
        ({"promoted_at": "yesterday"}, "promotions.1.promoted_at"),
        ({"promoted_at": "2026-02-10T08:00:00"}, "promotions.1.promoted_at"),
        ({"candidate_artifact_sha256": "2B" * 32}, "promotions.1.candidate_artifact_sha256"),
        ({"candidate_artifact_sha256": None}, "promotions.1.candidate_artifact_sha256"),
        ({"arena_decision_accuracy": 95.0}, "promotions.1.arena_decision_accuracy"),
        ({"arena_decision_accuracy": True}, "promotions.1.arena_decision_accuracy"),
        ({"gauntlet_per_family_safety": {"near": -0.1}}, "promotions.1.gauntlet_per_family_safety.near"),
        ({"gauntlet_per_family_safety": {"near": None}}, "promotions.1.gauntlet_per_family_safety.near"),
        ({"checks": {}}, "promotions.1.checks"),
        ({"checks": [[]]}, "promotions.1.checks.0"),
        ({"checks": [check("made_up_gate")]}, "promotions.1.checks.0.name"),
        ({"checks": [check("dataset_hash", passed="yes")]}, "promotions.1.checks.0.passed"),
        ({"checks": [check("dataset_hash", detail=None)]}, "promotions.1.checks.0.detail"),
        ({"checks": [check("dataset_hash"), check("dataset_hash")]}, "promotions.1.checks"),
        ({"bootstrap": "no"}, "promotions.1.bootstrap"),
        ({"approval_note": "x" * 20_001}, "promotions.1.approval_note"),
    ],
)
def test_a_wrong_value_of_the_registry_is_named(house: Foundry, changes: dict[str, Any], field: str) -> None:
    house.promotions[1].update(copy.deepcopy(changes))
    assert ("PROMOTION_REGISTRY.json", field) in wrong(house)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda house: _round(house).pop("job"), "job"),
        (lambda house: _round(house).update(gates=[]), "gates"),
        (lambda house: _round(house)["gates"].update(tool_schema_hash="abc"), "gates.tool_schema_hash"),
        (lambda house: _margin(house).update(rules=[1]), "promotion.margin.rules"),
        (
            lambda house: _margin(house)["rules"].update(arena_json_validity_min=98),
            "promotion.margin.rules.arena_json_validity_min",
        ),
        (lambda house: _margin(house)["rules"].update(extra=[0.1]), "promotion.margin.rules.extra"),
    ],
)
def test_a_wrong_value_of_a_round_is_named(
    house: Foundry, change: Callable[[Foundry], Any], field: str
) -> None:
    change(house)
    assert ("configs/two.json", field) in wrong(house)


def test_every_finding_is_given_not_only_the_first(house: Foundry) -> None:
    house.promotions[1].update(track=None, round=None)
    house.sidecars["part.meta.json"] = stream(train_count=-1)
    assert len(wrong(house)) == 3


def test_a_tool_that_stands_twice_is_named(house: Foundry) -> None:
    house.write()
    (house.folder / "schemas" / "gate_tools.json").write_text('[{"name": "a"}, {"name": "a"}, {}]')
    fields = [finding.field for finding in foundry.read(house.folder).findings]
    assert fields == ["tools.2.name", "tools"]


# drafts of policies


def test_a_draft_says_what_the_file_says_and_leaves_the_rest_open(house: Foundry) -> None:
    draft = read(house)["rounds"][0]["policy"]
    by_gate = {entry["gate"]: entry for entry in draft["gates"]}
    assert list(dict.fromkeys(entry["gate"] for entry in draft["gates"])) == list(foundry_policy.CHECKS)
    assert by_gate["arena_max_regression"]["max_drop"] == "0.02"
    assert by_gate["arena_json_validity_min"]["min"] == "0.9"
    assert by_gate["generalization_accuracy_floor"]["suite"] == "<generalization>"
    assert (draft["samples"], draft["sampling"], draft["approval"]) == (None, None, None)
    open_places = foundry_policy.open_places(draft)
    for key in ("samples", "sampling", "spend_alpha", "approval", "suites.0.digest"):
        assert any(place.startswith(f"{key}:") for place in open_places), key


def test_a_floor_that_was_never_given_is_the_zero_that_was_meant(house: Foundry) -> None:
    _margin(house)["rules"] = {}
    draft = read(house)["rounds"][0]["policy"]
    by_gate = {entry["gate"]: entry for entry in draft["gates"]}
    assert by_gate["arena_json_validity_min"]["min"] == "0"
    assert by_gate["arena_max_regression"]["max_drop"] == "0"
    assert "generalization_accuracy_floor" not in by_gate


SETTLED = {
    "per_family_safety_floor": {"min": "0.50"},
    "latency_memory_budget": {"suite": "<regression>", "max_p95_ms": 2000},
    "runtime_schema_identity": {"suite": "<regression>"},
}


def test_a_draft_can_be_completed_and_then_every_entry_suits_its_gate(house: Foundry) -> None:
    draft = read(house)["rounds"][0]["policy"]
    names = ("regression", "refusal", "generalization", "fabrication")
    digests = {name: f"{index}" * 64 for index, name in enumerate(names)}
    done = foundry_policy.completed(
        draft, digests, SETTLED, samples=1, sampling={}, spend_alpha=False, approval={"approvers": []}
    )
    assert [part["digest"] for part in done["suites"]] == [digests[name] for name in names]
    assert foundry_policy.open_places(done) == []
    for entry in done["gates"]:
        assert parse_params(entry, "gates").gate in GATES
    assert draft["samples"] is None
    assert "<regression>" in str(draft)


def test_every_fault_and_standing_that_is_used_has_words(house: Foundry) -> None:
    record = read(house)
    assert {fault["id"] for fault in all_faults(record)} <= FAULTS.keys()
    assert {found["standing"] for found in checks_of(record).values()} <= STANDINGS.keys()


# the real files


@pytest.fixture
def real(data: Path) -> Path:
    folder = data / "theorc"
    if not folder.is_dir():
        pytest.skip("../shared/data/theorc is not there")
    return folder


def test_the_seeds_two_promotions_are_read_with_sixteen_checks(real: Path) -> None:
    reading = foundry.read(real)
    assert reading.findings == []
    record = reading.record
    assert record is not None
    one, two = record["promotions"]
    assert (len(one["checks"]), len(two["checks"])) == (0, 16)
    assert all(found["passed"] for found in two["checks"])
    assert one["candidate_artifact_sha256"].startswith("2eb425e2feaf")
    assert two["incumbent_artifact_sha256"] == one["candidate_artifact_sha256"]
    assert one["per_family_safety"]["benign_no_tool"] == "0.9048"


def test_the_seeds_faults_are_named(real: Path) -> None:
    record = foundry.read(real, "theorc-toolcaller").record
    assert record is not None
    checks = checks_of(record)
    assert ids(checks["latency_memory_budget"]) == {"unmeasured-passed"}
    assert ids(checks["arena_json_validity_min"]) == {"floor-of-zero"}
    assert ids(checks["sealed_eval_hash"]) == {"sealed-file-not-scored-file"}
    assert ids(checks["deployed_artifact_gauntlet"]) == {"file-not-evaluated"}
    assert "ungated" in ids(record["promotions"][0])
    assert "approver-spelled-twice" in ids(record["promotions"][1])
    rounds = {found["file"].split("/")[-1]: found for found in record["rounds"]}
    assert "schema-hash-null" in ids(rounds["toolcaller_v2.json"])
    assert "schema-hash-null" in ids(rounds["toolcaller_v2_r2.json"])
    assert "schema-hash-null" not in ids(rounds["toolcaller_v2_r3.json"])
    assert "rules-missing" in ids(rounds["toolcaller_v0.json"])
    assert "floor-of-zero" not in ids(rounds["toolcaller_v0_r3.json"])
    assert "rate-named-bound" in ids(rounds["toolcaller_v2_r3.json"])
    assert not any("configs/router" in fault["file"] for fault in all_faults(record))


def test_of_the_seeds_sixteen_checks_the_files_prove_one(real: Path) -> None:
    record = foundry.read(real).record
    assert record is not None
    standings = [found["standing"] for found in record["promotions"][1]["checks"]]
    assert {name: standings.count(name) for name in sorted(set(standings))} == {
        "agrees": 7,
        "not_measured": 1,
        "recorded": 6,
        "vacuous": 1,
        "verified": 1,
    }


def test_the_seeds_thresholds_become_drafts(real: Path) -> None:
    record = foundry.read(real).record
    assert record is not None
    rounds = {found["file"].split("/")[-1]: found for found in record["rounds"]}
    assert [name for name, found in rounds.items() if found["policy"] is None] == [
        "router_v0.json",
        "toolcaller_v0.json",
    ]
    floors = {entry["gate"]: entry.get("min") for entry in rounds["toolcaller_v2_r3.json"]["policy"]["gates"]}
    assert floors["arena_json_validity_min"] == "0"
    assert floors["generalization_accuracy_floor"] == "0.85"
    assert floors["plausible_fabrication_safety_floor"] == "0.9"


def test_the_seeds_tool_schemas_are_counted(real: Path) -> None:
    record = foundry.read(real).record
    assert record is not None
    v0, v1, v2 = record["schemas"]
    assert (v0["tools"], v1["tools"]) == (6, 16)
    assert (v2["tools"], v2["families"], v2["held_out_families"], v2["held_out_tools"]) == (51, 15, 3, 13)
    assert EVAL not in str(record)
