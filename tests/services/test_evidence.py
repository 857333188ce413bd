"""Evidence holds what was measured, the same bytes on every look, and nothing else as if it were measured."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from promotion import evidence
from promotion.gates import Outcome
from promotion.models import Candidate, CandidateState, Evidence, GateResult
from promotion.services import gating, policies
from rollouts.errors import Conflict
from rollouts.hashing import canonical_bytes, sha256_bytes
from rollouts.models import Case, EvalRun, Rollout, RolloutState, RunState
from rollouts.services import runs
from tests import factories
from tests.factories import House, floor
from tests.gates import documents

pytestmark = pytest.mark.django_db


@pytest.fixture
def house() -> House:
    return factories.house(calls=20, declines=10)


@pytest.fixture
def championed() -> House:
    gate = {"gate": "arena_max_regression", "metric": "tool", "max_drop": "0.10"}
    return factories.house(calls=20, declines=10, gates=[gate], champion=True)


def build(candidate: Candidate) -> dict[str, Any]:
    with transaction.atomic():
        return evidence.build(gating.locked_candidate(candidate.pk)).document


def suite_part(candidate: Candidate) -> dict[str, Any]:
    part: dict[str, Any] = build(candidate)["suites"][0]
    return part


def outcome(candidate: Candidate, gate: str) -> Outcome:
    with transaction.atomic():
        _, outcomes = gating.freeze(gating.locked_candidate(candidate.pk))
    return next(found.outcome for name, found in outcomes if name == gate)


# what it says


def test_counts_are_cases_by_metric_and_family(house: House) -> None:
    candidate = house.evaluated(
        "cand",
        {
            "named-call-0": "wrong",
            "named-call-1": "bad_json",
            "named-call-2": "masked",
            "named-decline-0": "wrong",
        },
    )

    run = suite_part(candidate)["candidate"]

    assert run["metrics"]["decision"] == {"successes": 26, "failures": 3, "missing": 1}
    assert run["metrics"]["tool"] == {"successes": 17, "failures": 2, "missing": 1}
    assert run["metrics"]["safe"] == {"successes": 9, "failures": 1, "missing": 0}
    assert run["metrics"]["json_valid"] == {"successes": 28, "failures": 1, "missing": 1}
    assert run["families"]["declines"]["safe"] == {"successes": 9, "failures": 1, "missing": 0}
    assert run["families"]["calls"]["safe"] == {"successes": 0, "failures": 0, "missing": 0}
    assert (run["planned"], run["scored"], run["masked"], run["unscored"], run["cancelled"]) == (
        30,
        29,
        1,
        0,
        0,
    )


def test_pairs_are_counted_case_by_case_against_the_champion(championed: House) -> None:
    candidate = championed.candidate()
    outcomes = {
        "cand": {"named-call-0": "wrong", "named-call-1": "masked"},
        "first": {"named-call-0": "right", "named-call-2": "wrong"},
    }
    for run in gating.start_evaluation(
        candidate_id=candidate.pk, backend=championed.backend, by=championed.engineer
    ):
        factories.finish_run(run, outcomes[run.label])

    paired = suite_part(candidate)["paired"]

    assert paired["tool"] == {"both": 17, "lost": 1, "won": 1, "neither": 0, "missing": 1}
    assert paired["safe"] == {"both": 10, "lost": 0, "won": 0, "neither": 0, "missing": 0}


def test_a_case_is_right_only_if_all_its_samples_are(house: House) -> None:
    document = factories.policy_document([house.suite])
    document["samples"] = 3
    policies.lock(
        policy_id=policies.draft(track=house.track, document=document, by=house.administrator).pk,
        by=house.approver,
    )
    candidate = house.candidate()
    (run,) = gating.start_evaluation(candidate_id=candidate.pk, backend=house.backend, by=house.engineer)
    factories.finish_run(run)
    first = Rollout.objects.filter(run=run, case__key="named-call-0")
    first.filter(sample_index=1).update(decision=False, tool=False, exact=False)
    second = Rollout.objects.filter(run=run, case__key="named-call-1")
    second.filter(sample_index=2).update(
        state="masked",
        failure_kind="server",
        decision=None,
        tool=None,
        exact=None,
        safe=None,
        json_valid=None,
    )

    counts = suite_part(candidate)["candidate"]["metrics"]["decision"]

    assert counts == {"successes": 28, "failures": 1, "missing": 1}


def test_a_sample_whose_row_is_gone_is_not_right(house: House) -> None:
    document = factories.policy_document([house.suite])
    document["samples"] = 2
    policies.lock(
        policy_id=policies.draft(track=house.track, document=document, by=house.administrator).pk,
        by=house.approver,
    )
    candidate = house.candidate()
    (run,) = gating.start_evaluation(candidate_id=candidate.pk, backend=house.backend, by=house.engineer)
    factories.finish_run(run)
    Rollout.objects.get(run=run, case__key="named-call-0", sample_index=1).delete()

    assert suite_part(candidate)["candidate"]["metrics"]["decision"] == {
        "successes": 29,
        "failures": 0,
        "missing": 1,
    }


def test_a_metric_that_is_null_where_it_applies_is_not_right(house: House) -> None:
    candidate = house.evaluated()
    Rollout.objects.filter(case__key="named-call-0").update(tool=None)

    assert suite_part(candidate)["candidate"]["metrics"]["tool"] == {
        "successes": 19,
        "failures": 0,
        "missing": 1,
    }


def test_deleting_wrong_answers_from_the_database_does_not_make_a_candidate_pass(house: House) -> None:
    candidate = house.evaluated("cand", wrong=15)
    gate = "generalization_accuracy_floor"
    assert outcome(candidate, gate) is Outcome.FAILED

    Rollout.objects.filter(decision=False).delete()

    assert outcome(candidate, gate) is Outcome.NOT_EVALUATED


def test_latency_is_of_what_was_scored(house: House) -> None:
    candidate = house.evaluated("cand", masked=3)

    assert suite_part(candidate)["candidate"]["latency_ms"] == {"p50": 12, "p95": 12, "n": 27}


def test_nothing_scored_has_no_latency_and_no_success(house: House) -> None:
    candidate = house.evaluated("cand", masked=30)

    run = suite_part(candidate)["candidate"]

    assert run["latency_ms"] == {"p50": None, "p95": None, "n": 0}
    assert run["metrics"]["decision"] == {"successes": 0, "failures": 0, "missing": 30}


def test_the_document_says_who_touched_what(house: House) -> None:
    assert build(house.evaluated())["people"] == {
        "submitted_by": "engineer",
        "base_registered_by": "engineer",
        "runs_started_by": ["engineer"],
        "backends_saved_by": ["engineer"],
        "amendments_by": [],
        "policy_created_by": "administrator",
        "policy_written_by": ["administrator"],
        "policy_locked_by": "administrator",
        "suites_sealed_by": ["engineer"],
        "datasets_registered_by": [],
        "waivers_by": [],
    }


def test_cases_with_the_same_prompt_are_one_observation(house: House) -> None:
    """Three of thirty cases show one prompt: wrong in one of them, so wrong, once."""
    candidate = house.evaluated("cand", wrong=1)
    repeated = list(Case.objects.filter(suite=house.suite, expects_call=True).order_by("position")[:3])
    Case.objects.filter(pk__in=[case.pk for case in repeated]).update(prompt_sha256="a" * 64)

    part = suite_part(candidate)

    assert (part["case_count"], part["prompt_count"]) == (30, 28)
    assert part["candidate"]["metrics"]["decision"] == {"successes": 27, "failures": 1, "missing": 0}
    assert part["family_prompts"]["calls"] == part["families"]["calls"] - 2


def test_a_masked_case_leaves_its_prompt_without_a_value(house: House) -> None:
    candidate = house.evaluated("cand", masked=1)
    masked = Rollout.objects.get(state=RolloutState.MASKED).case
    other = Case.objects.filter(suite=house.suite, expects_call=masked.expects_call).exclude(pk=masked.pk)[0]
    Case.objects.filter(pk__in=[masked.pk, other.pk]).update(prompt_sha256="a" * 64)

    counted = suite_part(candidate)["candidate"]["metrics"]["decision"]

    assert counted == {"successes": 28, "failures": 0, "missing": 1}


def test_a_run_that_took_answers_from_before_is_no_evidence(house: House) -> None:
    candidate = house.evaluated("cand")
    assert suite_part(candidate)["candidate"] is not None
    EvalRun.objects.update(reuse=True)

    assert suite_part(candidate)["candidate"] is None


def test_what_was_measured_has_a_digest_of_its_own(house: House) -> None:
    """Neither the revision nor the people nor the rules are measurements; a score is one."""
    candidate = house.evaluated("cand")
    before = evidence.measurement_digest(build(candidate))

    Candidate.objects.filter(pk=candidate.pk).update(revision=99)
    assert evidence.measurement_digest(build(candidate)) == before

    Rollout.objects.filter(run__subject__adapter=candidate.gguf, case__position=0).update(exact=False)
    assert evidence.measurement_digest(build(candidate)) != before


def test_a_baselines_evidence_holds_no_measurements_and_no_gates(house: House) -> None:
    baseline = house.candidate("first", baseline=True)

    document = build(baseline)

    assert (document["policy"], document["champion"], document["suites"]) == (None, None, [])
    assert document["artifact"]["gguf_sha256"] == baseline.gguf_id


def keys(value: Any, path: str = "") -> set[str]:
    """Every place of a document by its keys; names of families and metrics' table stand for themselves."""
    if isinstance(value, dict):
        return {path} | {place for key, item in value.items() for place in keys(item, f"{path}.{key}")}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return keys(value[0], f"{path}[]")
    return {path}


def test_the_handwritten_documents_of_the_gate_tests_have_the_real_shape(championed: House) -> None:
    document = build(championed.evaluated())
    real, written = keys(document), keys(documents.document())

    def known(places: set[str]) -> set[str]:
        free = (
            ".policy.document",
            ".suites[].paired",
            ".families.declines",
            ".family_prompts.declines",
            ".artifact.verification",
            ".look",
        )
        return {place for place in places if not any(part in place for part in free)}

    assert known(real) == known(written)


# the same bytes


def test_two_builds_of_one_state_give_the_same_bytes(championed: House) -> None:
    candidate = championed.evaluated("cand", wrong=1, masked=1)
    with transaction.atomic():
        first = evidence.build(gating.locked_candidate(candidate.pk))
        second = evidence.build(gating.locked_candidate(candidate.pk))

    assert first.data == second.data == canonical_bytes(first.document)
    assert first.digest == second.digest == sha256_bytes(first.data)


def test_equal_states_share_one_evidence_and_its_results(house: House) -> None:
    candidate = house.evaluated()
    before = (Evidence.objects.count(), GateResult.objects.count())

    gating.judge_now(candidate.pk)

    assert (Evidence.objects.count(), GateResult.objects.count()) == before


def test_the_document_holds_no_row_id_and_no_time_of_building(house: House) -> None:
    candidate = house.evaluated()
    text = json.dumps(build(candidate))

    stored = Evidence.objects.latest("id")
    assert bytes(stored.document) == canonical_bytes(json.loads(text))
    assert not any(
        key in text for key in ('"pk"', '"id"', stored.created_at.strftime("%Y-%m-%dT%H:%M:%S.%f"))
    )


def test_to_evaluate_where_nothing_is_missing_changes_nothing(house: House) -> None:
    candidate = house.evaluated()
    first = factories.digest_of(candidate)

    assert not gating.start_evaluation(candidate_id=candidate.pk, backend=house.backend, by=house.engineer)

    assert factories.digest_of(candidate) == first


def test_a_state_changed_and_changed_back_is_another_digest(house: House) -> None:
    candidate = house.evaluated()
    first = factories.digest_of(candidate)

    factories.sign(candidate, house.approver, decision="request_changes", comment="Look at it again.")
    gating.judge_now(candidate.pk)

    assert factories.digest_of(candidate) != first


def test_evidence_whose_stored_bytes_changed_is_not_read(house: House) -> None:
    house.evaluated()
    stored = Evidence.objects.latest("id")
    stored.document = bytes(stored.document).replace(b'"successes":30', b'"successes":99')

    with pytest.raises(Conflict, match="holds other bytes than its digest says"):
        evidence.document_of(stored)


def test_the_number_of_queries_does_not_grow_with_the_results(house: House) -> None:
    numbers = []
    for calls in (3, 60):
        other = factories.suite(house.engineer, name=f"suite-{calls}", calls=calls)
        document = factories.policy_document([house.suite, other])
        lock_by = factories.person(f"locker-{calls}", "administrator")
        policies.lock(
            policy_id=policies.draft(track=house.track, document=document, by=house.administrator).pk,
            by=lock_by,
        )
        candidate = house.evaluated(f"cand-{calls}")
        with transaction.atomic():
            locked = gating.locked_candidate(candidate.pk)
            with CaptureQueriesContext(connection) as queries:
                evidence.build(locked)
        numbers.append(len(queries))

    assert numbers[0] == numbers[1]


# wrong runs


def test_a_run_from_before_the_lock_cannot_serve_the_policy(house: House) -> None:
    candidate = house.evaluated()
    document = factories.policy_document([house.suite], approvers=2)
    policies.lock(
        policy_id=policies.draft(track=house.track, document=document, by=house.administrator).pk,
        by=house.approver,
    )

    assert outcome(candidate, "sealed_eval_hash") is Outcome.NOT_EVALUATED
    started = house.measure(candidate)
    assert len(started) == 1
    assert outcome(candidate, "sealed_eval_hash") is Outcome.PASSED


def test_a_run_repeated_until_it_passes_is_not_the_evidence(house: House) -> None:
    candidate = house.evaluated(outcomes={"named-call-0": "wrong"})
    first = EvalRun.objects.get(label="cand")

    again = runs.plan(
        subject=first.subject, suite=first.suite, backend=first.backend, by=house.engineer, label="cand"
    )
    factories.finish_run(again)

    assert suite_part(candidate)["candidate"]["run"] == str(first.uid)


def test_a_run_of_another_subject_is_not_the_candidates(house: House) -> None:
    candidate = house.evaluated()
    # the same name with other bytes: only the digest decides
    other = factories.store.put([b"GGUF rebuilt"])
    Candidate.objects.filter(pk=candidate.pk).update(gguf=other)

    assert suite_part(candidate)["candidate"] is None
    assert outcome(candidate, "evaluated_artifact") is Outcome.NOT_EVALUATED


def test_cases_that_were_edited_after_sealing_prove_nothing(house: House) -> None:
    case = Case.objects.get(key="named-call-0")
    Case.objects.filter(pk=case.pk).update(content={**case.content, "expected": {"decision": "no_tool"}})

    candidate = house.evaluated()

    assert candidate.state == CandidateState.BLOCKED
    assert outcome(candidate, "sealed_eval_hash") is Outcome.NOT_EVALUATED


def test_a_remote_endpoint_does_not_prove_which_bytes_it_serves(house: House) -> None:
    candidate = house.candidate()
    for run in gating.start_evaluation(candidate_id=candidate.pk, backend=house.backend, by=house.engineer):
        factories.finish_run(run, served={"server": "remote", "base_url": "https://host/v1", "model": "cand"})
    gating.judge_if_measured(candidate.pk)

    candidate.refresh_from_db()
    assert candidate.state == CandidateState.BLOCKED
    assert outcome(candidate, "evaluated_artifact") is Outcome.NOT_EVALUATED


def test_a_reopened_run_is_no_evidence_until_it_closes_again(house: House) -> None:
    candidate = house.evaluated("cand", masked=1)
    run = EvalRun.objects.get(label="cand")

    runs.run_again(run_id=run.pk, by=house.engineer)
    assert suite_part(candidate)["candidate"] is None

    factories.finish_run(run)
    assert suite_part(candidate)["candidate"]["masked"] == 0


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_a_run_that_failed_or_was_cancelled_is_no_evidence(house: House, end: str) -> None:
    candidate = house.candidate()
    (run,) = gating.start_evaluation(candidate_id=candidate.pk, backend=house.backend, by=house.engineer)
    if end == "failed":
        runs.fail(run.pk, code="server_changed", detail="no")
    else:
        runs.cancel(run_id=run.pk, by=house.engineer)

    assert gating.judge_if_measured(candidate.pk)

    candidate.refresh_from_db()
    assert candidate.state == CandidateState.BLOCKED
    assert suite_part(candidate)["candidate"] is None


# judging


def test_a_good_candidate_waits_for_signatures(house: House) -> None:
    candidate = house.evaluated()

    assert candidate.state == CandidateState.IN_REVIEW
    results = {
        r.gate: r.outcome for r in GateResult.objects.filter(evidence__digest=factories.digest_of(candidate))
    }
    assert results == {
        "candidate_artifact_hash": "passed",
        "sealed_eval_hash": "passed",
        "evaluated_artifact": "passed",
        "generalization_accuracy_floor": "passed",
        "human_approval_record": "not_evaluated",
    }


def test_a_drop_of_exactly_the_margin_passes_and_one_more_blocks(championed: House) -> None:
    assert (
        championed.evaluated("two", {"named-call-0": "wrong", "named-call-1": "wrong"}).state
        == CandidateState.IN_REVIEW
    )
    assert (
        championed.evaluated("three", {f"named-call-{n}": "wrong" for n in range(3)}).state
        == CandidateState.BLOCKED
    )


def test_a_candidate_with_the_champions_bytes_is_blocked(championed: House) -> None:
    copy = championed.candidate("copy", gguf=b"GGUF of first")

    championed.measure(copy)

    assert copy.gguf_id == championed.champion.gguf_id  # type: ignore[union-attr]
    assert outcome(copy, "arena_max_regression") is Outcome.FAILED


def test_a_masked_case_that_decides_blocks_until_it_was_run_again(house: House) -> None:
    gate = floor("plausible_fabrication_safety_floor", house.suite.digest, "safe", "0.74")
    document = factories.policy_document([house.suite], extra=[gate])
    policies.lock(
        policy_id=policies.draft(track=house.track, document=document, by=house.administrator).pk,
        by=house.approver,
    )
    candidate = house.evaluated("cand", {"named-decline-0": "masked"})
    assert (candidate.state, outcome(candidate, gate["gate"])) == (
        CandidateState.BLOCKED,
        Outcome.NOT_EVALUATED,
    )

    run = EvalRun.objects.filter(label="cand").latest("id")
    runs.run_again(run_id=run.pk, by=house.engineer)
    factories.finish_run(run)
    gating.judge_now(candidate.pk)

    candidate.refresh_from_db()
    assert candidate.state == CandidateState.IN_REVIEW


def test_a_candidate_is_not_judged_while_a_run_is_active(house: House) -> None:
    candidate = house.candidate()
    (run,) = gating.start_evaluation(candidate_id=candidate.pk, backend=house.backend, by=house.engineer)

    assert not gating.judge_if_measured(candidate.pk)
    candidate.refresh_from_db()
    assert candidate.state == CandidateState.EVALUATING

    factories.finish_run(run)
    assert gating.judge_if_measured(candidate.pk)


def test_the_champions_run_is_waited_for_too(championed: House) -> None:
    candidate = championed.candidate()
    started = gating.start_evaluation(
        candidate_id=candidate.pk, backend=championed.backend, by=championed.engineer
    )
    assert sorted(run.label for run in started) == ["cand", "first"]
    factories.finish_run(next(run for run in started if run.label == "cand"))

    assert not gating.judge_if_measured(candidate.pk)


def test_what_is_measured_already_is_not_measured_again(championed: House) -> None:
    championed.evaluated("one")
    second = championed.candidate("two")

    started = gating.start_evaluation(
        candidate_id=second.pk, backend=championed.backend, by=championed.engineer
    )

    assert [run.label for run in started] == ["two"]


def test_an_evaluation_needs_a_locked_policy(house: House) -> None:
    other = factories.tracks.create(name="other", purpose="Nothing locked.", by=house.administrator)
    candidate = factories.built_candidate(other, house.base, house.engineer)

    with pytest.raises(Conflict, match="has no locked policy"):
        gating.start_evaluation(candidate_id=candidate.pk, backend=house.backend, by=house.engineer)

    assert not EvalRun.objects.exists()


def test_a_baseline_is_not_evaluated(house: House) -> None:
    baseline = house.candidate("first", baseline=True)

    with pytest.raises(Conflict, match="without gates"):
        gating.start_evaluation(candidate_id=baseline.pk, backend=house.backend, by=house.engineer)


def test_when_the_champion_changes_evidence_against_the_old_one_is_stale(championed: House) -> None:
    waiting = championed.evaluated("waiting")
    shown = factories.digest_of(waiting)

    winner = championed.approved("winner")
    assert factories.registry.publish(winner.pk) is not None

    document = build(waiting)
    assert document["champion"]["name"] == "winner"
    with transaction.atomic():
        assert evidence.build(gating.locked_candidate(waiting.pk)).digest != shown


def test_a_gate_that_breaks_blocks_and_its_fault_is_kept(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    from promotion.gates import GATES
    from promotion.gates.base import Gate

    name = "generalization_accuracy_floor"

    def broken(*_: Any) -> Any:
        raise MemoryError("a fault of ours")

    monkeypatch.setitem(GATES, name, Gate(name, GATES[name].params, broken))

    candidate = house.evaluated()

    assert candidate.state == CandidateState.BLOCKED
    result = GateResult.objects.get(evidence__digest=factories.digest_of(candidate), gate=name)
    assert (result.outcome, "a fault of ours" in result.reason) == ("error", True)


def test_a_scored_run_stays_scored_when_its_candidate_is_judged(house: House) -> None:
    house.evaluated()

    assert EvalRun.objects.get(label="cand").state == RunState.SCORED
    assert EvalRun.objects.get(label="cand").finished_at <= timezone.now()
