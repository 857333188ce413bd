"""A candidate says what it was made from until it is judged, and is judged again when the comparison is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from promotion import tasks
from promotion.models import Candidate, CandidateDataset, CandidateState
from promotion.selectors import datasets_part
from promotion.services import candidate_datasets, candidates, gating
from promotion.services.candidate_datasets import attach_datasets, compare_all, tool_schema_digest
from rollouts import store
from rollouts.errors import Conflict, InvalidInput, NotAllowed, NotFound
from rollouts.leakage import schema_sha256
from rollouts.models import AuditEvent, BaseModel, Dataset, Overlap
from tests import factories
from tests.datasets.conftest import made, row
from tests.export import tiny

pytestmark = pytest.mark.django_db
SCHEMA = "5" * 64


def use(dataset: Dataset, role: str = "train") -> dict[str, str]:
    return {"digest": dataset.digest, "role": role}


def declared(candidate: Candidate) -> list[tuple[str, str]]:
    return [(part["name"], part["role"]) for part in datasets_part(candidate.pk, [])]


@pytest.fixture
def adapter(house: factories.House, tmp_path: Path) -> dict[str, Any]:
    """What `submit` takes, of an adapter that fits the house's base."""
    base = tiny.write_base(tmp_path / "tiny.gguf")
    BaseModel.objects.filter(pk=house.base.pk).update(artifact=store.put_file(base))
    house.base.refresh_from_db()
    config, weights = tiny.adapter().write(tmp_path / "adapter")
    return {
        "track": house.track,
        "name": "r3",
        "base": house.base,
        "adapter_config": config,
        "adapter_weights": weights,
        "by": house.engineer,
    }


def test_a_candidate_is_submitted_with_its_data_and_its_schema(house: factories.House, adapter: Any) -> None:
    train, watched = made(house.engineer, "bulk"), made(house.engineer, "watched")
    candidate = candidates.submit(
        **adapter, datasets=[use(train), use(watched, "eval")], tool_schema_sha256=SCHEMA
    )
    assert declared(candidate) == [("bulk", "train"), ("watched", "eval")]
    assert candidate.tool_schema_sha256 == SCHEMA
    event = AuditEvent.objects.get(action="candidate.submitted", subject_id=str(candidate.pk))
    assert json.loads(bytes(event.data))["datasets"][1] == {
        "name": "watched v1",
        "digest": watched.digest,
        "role": "eval",
    }


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"datasets": [{"digest": "0" * 64, "role": "train"}]}, "datasets.0.digest"),
        ({"datasets": ["train", "judge"]}, "datasets.1.role"),
        ({"datasets": ["train", "eval"]}, "datasets.1.digest"),
        ({"datasets": ["train"] * 101}, "datasets"),
        ({"tool_schema_sha256": "5" * 63}, "tool_schema_sha256"),
        ({"tool_schema_sha256": "G" * 64}, "tool_schema_sha256"),
    ],
)
def test_data_that_is_not_there_or_is_named_twice_makes_no_candidate(
    house: factories.House, adapter: Any, change: dict[str, Any], field: str
) -> None:
    train = made(house.engineer, "bulk")
    uses = change.get("datasets", [])
    change = {**change, "datasets": [use(train, part) if isinstance(part, str) else part for part in uses]}
    with pytest.raises(InvalidInput) as refused:
        candidates.submit(**adapter, **change)
    assert refused.value.field == field
    assert not Candidate.objects.filter(name="r3").exists()


def test_data_is_added_and_never_taken_away_until_the_candidate_is_judged(house: factories.House) -> None:
    candidate, by = house.candidate(), house.engineer
    train, watched, later = made(by, "bulk"), made(by, "watched"), made(by, "later")
    attach_datasets(candidate_id=candidate.pk, by=by, datasets=[use(train)])
    found = attach_datasets(
        candidate_id=candidate.pk,
        by=by,
        datasets=[use(train), use(watched, "eval")],
        tool_schema_sha256=SCHEMA,
    )
    assert declared(found) == [("bulk", "train"), ("watched", "eval")]
    assert (found.revision, found.tool_schema_sha256) == (3, SCHEMA)
    event = AuditEvent.objects.filter(action="candidate.datasets_attached").order_by("-sequence")[0]
    assert [part["name"] for part in json.loads(bytes(event.data))["datasets"]] == ["watched v1"]
    house.measure(candidate)
    with pytest.raises(Conflict, match="is judged or closed"):
        attach_datasets(candidate_id=candidate.pk, by=by, datasets=[use(later)])
    assert declared(candidate) == [("bulk", "train"), ("watched", "eval")]


def test_nothing_new_is_no_change(house: factories.House) -> None:
    candidate, train = house.candidate(), made(house.engineer, "bulk")
    for _ in range(2):
        found = attach_datasets(
            candidate_id=candidate.pk, by=house.engineer, datasets=[use(train)], tool_schema_sha256=SCHEMA
        )
    assert found.revision == 2
    assert AuditEvent.objects.filter(action="candidate.datasets_attached").count() == 1


def test_the_role_and_the_schema_that_were_named_stand(house: factories.House) -> None:
    candidate, train = house.candidate(), made(house.engineer, "bulk")
    attach_datasets(
        candidate_id=candidate.pk, by=house.engineer, datasets=[use(train)], tool_schema_sha256=SCHEMA
    )
    with pytest.raises(Conflict, match="cannot be both"):
        attach_datasets(candidate_id=candidate.pk, by=house.engineer, datasets=[use(train, "eval")])
    with pytest.raises(Conflict, match="already"):
        attach_datasets(candidate_id=candidate.pk, by=house.engineer, tool_schema_sha256="6" * 64)


def test_a_candidate_that_is_judged_again_later_stays_closed(house: factories.House) -> None:
    """Otherwise data could be left out until a gate has shown what it finds."""
    candidate, train = house.evaluated(), made(house.engineer, "bulk")
    Candidate.objects.filter(pk=candidate.pk).update(state=CandidateState.EVALUATING)
    with pytest.raises(Conflict, match="is judged or closed"):
        attach_datasets(candidate_id=candidate.pk, by=house.engineer, datasets=[use(train)])


@pytest.mark.parametrize("state", sorted(set(CandidateState.values) - set(candidate_datasets.TAKES_DATASETS)))
def test_no_other_state_takes_data(house: factories.House, state: str) -> None:
    candidate, train = house.candidate(), made(house.engineer, "bulk")
    Candidate.objects.filter(pk=candidate.pk).update(state=state)
    with pytest.raises(Conflict):
        attach_datasets(candidate_id=candidate.pk, by=house.engineer, datasets=[use(train)])
    assert not CandidateDataset.objects.exists()


def test_only_the_submitter_says_what_a_candidate_was_made_from(house: factories.House) -> None:
    """Who says so is involved, and evidence knows the submitter alone as that."""
    candidate, train = house.candidate(), made(house.engineer, "bulk")
    for by in (factories.person("bob", "engineer"), house.administrator, house.approver, house.auditor):
        with pytest.raises(NotAllowed):
            attach_datasets(candidate_id=candidate.pk, by=by, datasets=[use(train)])
    with pytest.raises(NotFound):
        attach_datasets(candidate_id=10**6, by=house.engineer)
    assert not CandidateDataset.objects.exists()


def test_a_file_of_schemas_has_the_digest_of_its_tools() -> None:
    tools = [{"name": "a", "description": "A."}, {"name": "b", "parameters": {"type": "object"}}]
    expected = schema_sha256(tools)
    for document in (tools, {"tools": tools}, {"families": [{"tools": tools[1:]}, {"tools": tools[:1]}]}):
        assert tool_schema_digest(json.dumps(document, indent=1).encode()) == expected


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'["a"]', b'[{"name": "a"}]', b'[{"description": "a"}]', b"\xff"]
)
def test_a_file_without_schemas_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="tool_schema"):
        tool_schema_digest(data)


# comparing


def test_all_pairs_are_compared_and_none_twice(house: factories.House) -> None:
    candidate, by = house.candidate(), house.engineer
    train, more, watched = made(by, "bulk"), made(by, "more"), made(by, "watched")
    attach_datasets(candidate_id=candidate.pk, by=by, datasets=[use(train), use(more), use(watched, "eval")])
    assert compare_all(candidate.pk) == 7
    pairs = {(overlap.dataset.name, str(overlap.suite or overlap.other)) for overlap in Overlap.objects.all()}
    assert pairs == {
        *((name, "named v1") for name in ("bulk", "more", "watched")),
        ("bulk", "watched v1"),
        ("more", "watched v1"),
        ("watched", "bulk v1"),
        ("watched", "more v1"),
    }
    assert compare_all(candidate.pk) == 0
    assert compare_all(10**6) == 0


def test_a_baseline_has_no_suites_to_be_compared_with(house: factories.House) -> None:
    candidate, by = house.candidate("base-line", baseline=True), house.engineer
    attach_datasets(
        candidate_id=candidate.pk,
        by=by,
        datasets=[use(made(by, "bulk")), use(made(by, "watched"), "eval")],
    )
    assert compare_all(candidate.pk) == 2


def test_data_added_while_it_is_evaluated_is_sent_to_be_compared(
    house: factories.House, sent: Any, django_capture_on_commit_callbacks: Any
) -> None:
    candidate, by = house.candidate(), house.engineer
    with django_capture_on_commit_callbacks(execute=True):
        attach_datasets(candidate_id=candidate.pk, by=by, datasets=[use(made(by, "bulk"))])
    assert not [name for name, _ in sent if name.endswith("compare_datasets")]
    gating.start_evaluation(candidate_id=candidate.pk, backend=house.backend, by=by)
    sent.clear()
    with django_capture_on_commit_callbacks(execute=True):
        attach_datasets(candidate_id=candidate.pk, by=by, datasets=[use(made(by, "more"))])
    assert sent == [("promotion.tasks.compare_datasets", (candidate.pk,))]


def test_a_candidate_that_was_judged_before_the_comparison_is_judged_again_with_it(
    house: factories.House,
) -> None:
    candidate, by = house.candidate(), house.engineer
    attach_datasets(candidate_id=candidate.pk, by=by, datasets=[use(made(by, "bulk"))])
    house.measure(candidate)
    before = factories.digest_of(candidate)
    tasks.compare_datasets(candidate.pk)
    after = factories.digest_of(candidate)
    assert after != before
    tasks.compare_datasets(candidate.pk)
    assert factories.digest_of(candidate) == after


def test_a_comparison_whose_message_was_lost_is_sent_again(
    house: factories.House, sent: Any, django_capture_on_commit_callbacks: Any
) -> None:
    candidate, by = house.candidate(), house.engineer
    attach_datasets(candidate_id=candidate.pk, by=by, datasets=[use(made(by, "bulk"))])
    gating.start_evaluation(candidate_id=candidate.pk, backend=house.backend, by=by)
    Candidate.objects.filter(pk=candidate.pk).update(last_sent_at=None)

    def swept() -> list[str]:
        sent.clear()
        with django_capture_on_commit_callbacks(execute=True):
            candidate_datasets.send_lost_comparisons()
        return [name for name, _ in sent]

    assert swept() == ["promotion.tasks.compare_datasets"]
    assert swept() == []  # somebody may be at work on it
    Candidate.objects.filter(pk=candidate.pk).update(last_sent_at=None)
    compare_all(candidate.pk)
    assert swept() == []


def test_an_overlap_with_the_suite_is_in_the_evidence(house: factories.House) -> None:
    candidate, by = house.candidate(), house.engineer
    case = house.suite.cases.get(position=0)
    stolen = made(by, "stolen", [row("s", case.content["messages"][-1]["content"])])
    attach_datasets(candidate_id=candidate.pk, by=by, datasets=[use(stolen)])
    compare_all(candidate.pk)
    (part,) = datasets_part(candidate.pk, [house.suite.digest])
    assert part["overlaps"][0]["report"]["texts"] == 1
