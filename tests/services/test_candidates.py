"""Candidates move only along the table; every other move is refused and changes nothing."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from promotion.models import CANDIDATE_MOVES, Candidate, CandidateState, Decision
from promotion.services import candidates, gating, policies, registry
from rollouts import store
from rollouts.errors import AssayError, Conflict, InvalidInput, InvalidTransition, NotAllowed
from rollouts.models import Artifact, AuditEvent, BaseModel
from rollouts.services import subjects
from rollouts.states import require_move
from tests import factories
from tests.export import tiny
from tests.factories import House

pytestmark = pytest.mark.django_db


@pytest.fixture
def house() -> House:
    return factories.house()


def in_state(house: House, state: str) -> Candidate:
    candidate = house.evaluated()
    Candidate.objects.filter(pk=candidate.pk).update(state=state)
    candidate.refresh_from_db()
    return candidate


# the table


ALL = list(itertools.product(CandidateState.values, CandidateState.values))


@pytest.mark.parametrize(("state", "to"), [(a, b) for a, b in ALL if b not in CANDIDATE_MOVES.get(a, ())])
def test_a_move_that_is_not_in_the_table_is_refused(state: str, to: str) -> None:
    with pytest.raises(InvalidTransition, match=f"is {state}, so it cannot become {to}") as refused:
        require_move("x", CANDIDATE_MOVES, state, to)

    assert refused.value.facts == {"state": state, "to": to}


def test_final_states_lead_nowhere_and_every_other_state_can_be_reached() -> None:
    assert set(CandidateState.values) - CANDIDATE_MOVES.keys() == {"promoted", "rejected", "withdrawn"}
    assert {to for moves in CANDIDATE_MOVES.values() for to in moves} == set(CandidateState.values)


def evaluate(house: House, candidate: Candidate) -> Any:
    if (
        candidate.state == "in_review"
    ):  # nothing is missing there, and then nothing moves: until the rules are others
        text = {**house.policy.document, "note": "Another."}
        draft = policies.draft(track=house.track, document=text, by=house.administrator)
        policies.lock(policy_id=draft.pk, by=house.approver)
    return gating.start_evaluation(candidate_id=candidate.pk, backend=house.backend, by=house.engineer)


Verb = Callable[[House, Candidate], Any]
VERBS: dict[str, tuple[Verb, set[str]]] = {
    "evaluate": (
        evaluate,
        {"built", "blocked", "in_review"},
    ),
    "withdraw": (
        lambda house, c: candidates.withdraw(
            candidate_id=c.pk, by=house.engineer, reason="A better one comes."
        ),
        {
            "submitted",
            "build_failed",
            "built",
            "evaluating",
            "blocked",
            "in_review",
            "approved",
            "publish_failed",
        },
    ),
    "retry build": (
        lambda house, c: candidates.retry_build(candidate_id=c.pk, by=house.engineer),
        {"build_failed"},
    ),
    "retry publish": (
        lambda house, c: registry.retry_publish(candidate_id=c.pk, by=house.engineer),
        {"publish_failed"},
    ),
    "sign": (lambda house, c: factories.sign(c, house.approver), {"in_review"}),
    "reject": (
        lambda house, c: factories.sign(c, house.approver, decision=Decision.REJECT, comment="No."),
        {"in_review"},
    ),
}


@pytest.mark.parametrize(
    ("verb", "state"),
    [(v, s) for v, (_, allowed) in VERBS.items() for s in CandidateState.values if s not in allowed],
)
def test_a_verb_in_a_state_that_forbids_it_changes_nothing(house: House, verb: str, state: str) -> None:
    candidate = in_state(house, state)
    before = Candidate.objects.values().get(pk=candidate.pk)

    with pytest.raises(Conflict):
        VERBS[verb][0](house, candidate)

    assert Candidate.objects.values().get(pk=candidate.pk) == before


@pytest.mark.parametrize(
    ("verb", "state"), [(v, s) for v, (_, allowed) in VERBS.items() for s in sorted(allowed)]
)
def test_a_verb_in_a_state_that_allows_it_moves_the_candidate_and_is_recorded(
    house: House, verb: str, state: str
) -> None:
    candidate = in_state(house, state)
    events = AuditEvent.objects.count()

    VERBS[verb][0](house, candidate)

    now = Candidate.objects.get(pk=candidate.pk).state
    assert now in CANDIDATE_MOVES[state]
    assert AuditEvent.objects.count() > events


@pytest.mark.parametrize(
    "state", [s for s in CandidateState.values if s not in ("submitted", "build_failed", "withdrawn")]
)
def test_the_database_knows_no_built_candidate_without_a_file(house: House, state: str) -> None:
    candidate = house.candidate()

    with pytest.raises(IntegrityError), transaction.atomic():
        Candidate.objects.filter(pk=candidate.pk).update(state=state, gguf=None)


def test_the_database_knows_no_other_state(house: House) -> None:
    candidate = house.candidate()

    with pytest.raises(IntegrityError), transaction.atomic():
        Candidate.objects.filter(pk=candidate.pk).update(state="superb")


def test_the_same_bytes_are_one_candidate_of_a_track(house: House) -> None:
    first = house.candidate()
    copy = Candidate.objects.get(pk=first.pk)
    copy.pk, copy.name = None, "another-name"

    with pytest.raises(IntegrityError), transaction.atomic():
        copy.save(force_insert=True)


# withdrawing


def test_withdrawing_says_why_and_is_a_new_revision(house: House) -> None:
    candidate = house.candidate()

    with pytest.raises(InvalidInput, match="reason"):
        candidates.withdraw(candidate_id=candidate.pk, by=house.engineer, reason=" ")
    candidates.withdraw(candidate_id=candidate.pk, by=house.engineer, reason="Wrong file.")

    after = Candidate.objects.get()
    assert (after.state, after.revision) == (CandidateState.WITHDRAWN, candidate.revision + 1)


@pytest.mark.parametrize(
    ("who", "may"), [("engineer", True), ("administrator", True), ("approver", False), ("auditor", False)]
)
def test_only_the_submitter_or_an_administrator_withdraws(house: House, who: str, may: bool) -> None:
    candidate = house.candidate()

    def attempt() -> None:
        candidates.withdraw(candidate_id=candidate.pk, by=getattr(house, who), reason="x")

    if may:
        attempt()
    else:
        with pytest.raises(NotAllowed):
            attempt()


def test_an_inactive_submitter_withdraws_nothing(house: House) -> None:
    candidate = house.candidate()
    house.engineer.is_active = False

    with pytest.raises(NotAllowed):
        candidates.withdraw(candidate_id=candidate.pk, by=house.engineer, reason="x")


@pytest.mark.parametrize("who", ["approver", "auditor", "administrator"])
def test_only_an_engineer_starts_an_evaluation(house: House, who: str) -> None:
    candidate = house.candidate()

    with pytest.raises(NotAllowed):
        gating.start_evaluation(candidate_id=candidate.pk, backend=house.backend, by=getattr(house, who))


@pytest.mark.parametrize("who", ["approver", "auditor"])
@pytest.mark.parametrize(
    ("verb", "state"), [(candidates.retry_build, "build_failed"), (registry.retry_publish, "publish_failed")]
)
def test_only_engineers_and_administrators_try_again(house: House, verb: Any, state: str, who: str) -> None:
    candidate = in_state(house, state)

    with pytest.raises(NotAllowed):
        verb(candidate_id=candidate.pk, by=getattr(house, who))


# submitting and building, on a tiny real base


@pytest.fixture
def tiny_base(house: House, tmp_path: Path) -> BaseModel:
    return subjects.register_base(
        name="tiny",
        artifact=store.put_file(tiny.write_base(tmp_path / "tiny.gguf")),
        architecture="llama",
        header={"architecture": "llama"},
        chat_template=factories.TEMPLATE,
        by=house.engineer,
    )


@pytest.fixture
def adapter(tmp_path: Path) -> tuple[Path, Path]:
    return tiny.adapter().write(tmp_path / "adapter")


def submit(house: House, base: BaseModel, adapter: tuple[Path, Path], **changes: Any) -> Candidate:
    values = {"track": house.track, "name": "r1", "base": base, "by": house.engineer, **changes}
    return candidates.submit(adapter_config=adapter[0], adapter_weights=adapter[1], **values)


def test_a_submitted_adapter_is_stored_and_sent_to_be_built(
    house: House,
    tiny_base: BaseModel,
    adapter: tuple[Path, Path],
    sent: list[Any],
    django_capture_on_commit_callbacks: Any,
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        candidate = submit(house, tiny_base, adapter)

    assert candidate.state == CandidateState.SUBMITTED and candidate.gguf is None
    assert factories.stored_bytes(candidate.adapter_config) == adapter[0].read_bytes()
    assert factories.stored_bytes(candidate.adapter_weights) == adapter[1].read_bytes()
    assert sent == [("promotion.tasks.build", (candidate.pk,))]


@pytest.mark.llama
def test_building_stores_a_verified_gguf_once(
    house: House, tiny_base: BaseModel, adapter: tuple[Path, Path]
) -> None:
    candidate = submit(house, tiny_base, adapter)

    candidates.build(candidate.pk)
    first = Candidate.objects.values().get(pk=candidate.pk)
    candidates.build(candidate.pk)

    assert Candidate.objects.values().get(pk=candidate.pk) == first
    candidate.refresh_from_db()
    assert candidate.state == CandidateState.BUILT
    assert candidate.verification["status"] == "verified"
    assert candidate.gguf is not None and factories.stored_bytes(candidate.gguf).startswith(b"GGUF")
    assert AuditEvent.objects.filter(action="candidate.built").count() == 1
    assert list(Path(store.settings.ARTIFACTS_DIR).glob(".*")) == []


def test_a_build_that_fails_says_why_and_can_be_tried_again(
    house: House, tiny_base: BaseModel, adapter: tuple[Path, Path], sent: list[Any]
) -> None:
    candidate = submit(house, tiny_base, adapter)
    weights = store.path_of(candidate.adapter_weights_id)
    kept = weights.read_bytes()
    weights.unlink()

    candidates.build(candidate.pk)

    candidate.refresh_from_db()
    assert candidate.state == CandidateState.BUILD_FAILED
    assert "Restore it from a backup" in candidate.error_detail
    weights.write_bytes(kept)
    retried = candidates.retry_build(candidate_id=candidate.pk, by=house.engineer)
    assert (retried.state, retried.error_detail) == (CandidateState.SUBMITTED, "")


def nothing_submitted() -> bool:
    return (
        not Candidate.objects.exists()
        and not AuditEvent.objects.filter(action="candidate.submitted").exists()
    )


@pytest.mark.parametrize("role", ["approver", "auditor", "administrator"])
def test_only_an_engineer_submits(
    house: House, tiny_base: BaseModel, adapter: tuple[Path, Path], role: str
) -> None:
    with pytest.raises(NotAllowed):
        submit(house, tiny_base, adapter, by=getattr(house, role))

    assert nothing_submitted()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "../../etc/passwd"}, "name"),
        ({"name": ""}, "name"),
        ({"outtype": "q4_0"}, "outtype: must be one of f32, f16, q8_0"),
    ],
)
def test_a_senseless_submission_is_refused(
    house: House, tiny_base: BaseModel, adapter: tuple[Path, Path], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        submit(house, tiny_base, adapter, **changes)

    assert nothing_submitted()


def test_an_adapter_that_does_not_fit_is_refused_before_anything_is_stored(
    house: House, tiny_base: BaseModel, tmp_path: Path
) -> None:
    wrong = tiny.adapter()
    wrong.config["peft_type"] = "PREFIX_TUNING"
    paths = wrong.write(tmp_path / "wrong")
    artifacts = Artifact.objects.count()

    with pytest.raises(InvalidInput, match="peft_type"):
        submit(house, tiny_base, paths)

    assert nothing_submitted() and Artifact.objects.count() == artifacts


def test_weights_that_are_a_pickle_are_refused(
    house: House, tiny_base: BaseModel, adapter: tuple[Path, Path]
) -> None:
    adapter[1].write_bytes(b"\x80\x04\x95" + b"\0" * 64)

    with pytest.raises(AssayError):
        submit(house, tiny_base, adapter)

    assert nothing_submitted()


def test_a_config_that_is_no_json_is_refused(
    house: House, tiny_base: BaseModel, adapter: tuple[Path, Path]
) -> None:
    adapter[0].write_text("{")

    with pytest.raises(InvalidInput):
        submit(house, tiny_base, adapter)

    assert nothing_submitted()


def test_the_same_bytes_or_name_cannot_be_submitted_twice(
    house: House, tiny_base: BaseModel, adapter: tuple[Path, Path], tmp_path: Path
) -> None:
    submit(house, tiny_base, adapter)
    other = tiny.adapter(b_std=0.5).write(tmp_path / "other")

    with pytest.raises(Conflict, match="with these very bytes already"):
        submit(house, tiny_base, adapter, name="r2")
    with pytest.raises(Conflict, match="with this name"):
        submit(house, tiny_base, other)

    assert Candidate.objects.count() == 1


def test_a_baseline_is_only_for_a_track_without_a_champion(
    house: House, tiny_base: BaseModel, adapter: tuple[Path, Path]
) -> None:
    house.adopt()

    with pytest.raises(Conflict, match="has a champion already"):
        submit(house, tiny_base, adapter, baseline=True)


def test_the_config_is_kept_as_it_was_given(
    house: House, tiny_base: BaseModel, adapter: tuple[Path, Path]
) -> None:
    config = json.loads(adapter[0].read_text())
    adapter[0].write_text(json.dumps(config, indent=7))

    candidate = submit(house, tiny_base, adapter)

    assert factories.stored_bytes(candidate.adapter_config) == adapter[0].read_bytes()


def test_a_person_is_named_in_every_refusal(house: House) -> None:
    nobody = factories.person("nobody")

    with pytest.raises(NotAllowed, match="nobody may not submit a candidate: that needs engineer"):
        candidates.submit(
            track=house.track,
            name="x",
            base=house.base,
            adapter_config=Path("x"),
            adapter_weights=Path("x"),
            by=nobody,
        )
    assert isinstance(nobody, User)
