"""An accepted dispute amends the case for every run: never one side, never one answer, and nothing that a model is shown."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext

from promotion import evidence as evidence_module
from promotion.models import Candidate, CandidateState, Evidence
from promotion.services import dispute_effects, disputes, gating, registry
from promotion.web import compare
from rollouts.amendments import amendments_of, expected_now
from rollouts.engine import claims, planner
from rollouts.engine.dialogue import prompt_of
from rollouts.errors import Conflict, InvalidInput
from rollouts.hashing import sha256_json
from rollouts.models import AmendedScore, Amendment, AuditEvent, Case, EvalRun, ModelCall, Rollout
from rollouts.services import amendments, rescoring, runs, suites
from tests import factories
from tests.disputes.conftest import (
    NO_TOOL,
    REASON,
    RESOLUTION,
    accepted,
    capture,
    case_of,
    measured,
    raised,
    rollout_of,
    run_of,
)
from tests.factories import House, digest_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sent")]


def scores(label: str, key: str = "named-call-0") -> tuple[Any, ...]:
    found = rollout_of(label, key)
    return found.decision, found.tool, found.exact, found.safe


def newest(candidate: Candidate) -> dict[str, Any]:
    return evidence_module.document_of(Evidence.objects.filter(candidate=candidate).latest("id"))


# both sides


def test_both_sides_are_scored_by_the_amended_case(house: House, candidate: Candidate) -> None:
    assert scores("cand") == (False, False, False, None)
    assert scores("first") == (True, True, True, None)

    accepted(house, candidate)

    assert scores("cand") == (True, None, True, True)
    assert scores("first") == (False, None, False, False)


def test_both_values_are_kept_with_who_agreed(house: House, candidate: Candidate) -> None:
    before = case_of(house).content["expected"]

    accepted(house, candidate)

    amendment = Amendment.objects.get()
    assert (amendment.expected_before, amendment.expected_after) == (before, NO_TOOL)
    assert (amendment.proposed_by, amendment.accepted_by) == (house.engineer, house.approver)
    kept = {row.rollout.run.label: row for row in AmendedScore.objects.select_related("rollout__run")}
    assert kept.keys() == {"cand", "first"}
    assert (kept["first"].before["exact"], kept["first"].after["exact"]) == (True, False)
    assert (kept["cand"].before["tool"], kept["cand"].after["tool"]) == (False, None)
    assert ("safe", None, True) in kept["cand"].changes


def test_what_is_kept_is_never_changed(house: House, candidate: Candidate) -> None:
    accepted(house, candidate)

    for model in (Amendment, AmendedScore):
        with pytest.raises(DatabaseError), transaction.atomic():
            model.objects.all().delete()


def test_other_cases_and_calls_are_left_alone(house: House, candidate: Candidate) -> None:
    others = Rollout.objects.exclude(case=case_of(house)).order_by("id")
    before, calls = list(others.values()), ModelCall.objects.count()

    accepted(house, candidate)

    assert list(others.all().values()) == before
    assert ModelCall.objects.count() == calls


def test_every_closed_run_of_the_suite_is_another_revision(house: House, candidate: Candidate) -> None:
    """Of other candidates too, whether an answer of theirs scores otherwise or not."""
    measured(house, "third", wrong=())
    before = dict(EvalRun.objects.values_list("pk", "revision"))
    EvalRun.objects.update(overview={"counted": True})

    accepted(house, candidate)

    after = {run.pk: (run.revision, run.overview) for run in EvalRun.objects.all()}
    assert after == {pk: (revision + 1, None) for pk, revision in before.items()}
    assert len(after) == 3


def test_one_event_a_run_one_for_the_case_and_one_for_the_dispute(house: House, candidate: Candidate) -> None:
    start = AuditEvent.objects.latest("sequence").sequence

    dispute = accepted(house, candidate)

    events = AuditEvent.objects.filter(sequence__gt=start).order_by("sequence")
    assert [event.action for event in events] == [
        *("dispute.raised", "run.amended", "run.amended"),
        *("case.amended", "dispute.accepted"),
    ]
    amended = json.loads(bytes(events[3].data))
    assert events[3].subject_label == "named-call-0"
    assert (amended["after"], amended["proposed_by"]) == (sha256_json(NO_TOOL), "engineer")
    assert json.loads(bytes(events[1].data))["changed"] == 1
    assert json.loads(bytes(events[4].data))["dispute"] == dispute.pk


def test_no_service_scores_one_side_or_one_answer() -> None:
    """Whoever can change a score names a case, a run or a dispute: none takes a rollout, a candidate's side or a score."""
    for function in (disputes.accept, amendments.amend, runs.rescore, disputes.raise_dispute):
        named = set(inspect.signature(function).parameters)
        assert not named & {"rollout", "rollout_id", "run", "run_ids", "side", "score", "scores", "metric"}, (
            function
        )
    assert set(inspect.signature(amendments.amend).parameters) == {
        *("case_id", "expected", "reason", "proposed_by", "accepted_by"),
    }


def test_a_whole_run_scored_again_scores_by_the_amended_case(house: House, candidate: Candidate) -> None:
    accepted(house, candidate)
    before = list(Rollout.objects.order_by("id").values())
    run = run_of("first")

    runs.rescore(run_id=run.pk, by=house.engineer)

    assert list(Rollout.objects.order_by("id").values()) == before
    assert run_of("first").revision == run.revision


def test_a_whole_run_whose_scores_change_is_another_revision(house: House, candidate: Candidate) -> None:
    run = run_of("first")
    Rollout.objects.filter(run=run).update(exact=False)
    EvalRun.objects.filter(pk=run.pk).update(overview={"counted": True})

    runs.rescore(run_id=run.pk, by=house.engineer)

    assert (run_of("first").revision, run_of("first").overview) == (run.revision + 1, None)


# what makes it impossible


def test_a_run_without_its_captured_answer_leaves_everything_as_it_was(
    house: House, candidate: Candidate
) -> None:
    Rollout.objects.filter(pk=rollout_of("first").pk).update(answered_by=None)
    dispute = raised(house, candidate)

    with pytest.raises(Conflict, match="no captured answer"):
        disputes.accept(dispute_id=dispute.pk, by=house.approver, resolution=RESOLUTION)

    assert_nothing_changed(house)


def test_an_answer_that_cannot_be_replayed_leaves_everything_as_it_was(
    house: House, candidate: Candidate
) -> None:
    call = ModelCall.objects.get(invocation=rollout_of("first").answered_by)
    ModelCall.objects.filter(pk=call.pk).update(state="failed", error_kind="server")
    dispute = raised(house, candidate)

    with pytest.raises(Conflict, match="cannot be read again"):
        disputes.accept(dispute_id=dispute.pk, by=house.approver, resolution=RESOLUTION)

    assert_nothing_changed(house)


def assert_nothing_changed(house: House) -> None:
    assert case_of(house).amended_expected is None
    assert case_of(house).expects_call
    assert not Amendment.objects.exists()
    assert scores("cand") == (False, False, False, None)
    assert disputes.disputes().get().state == "open"


def test_a_judge_has_no_expectation_to_amend(house: House) -> None:
    row = {
        "example_id": "j1",
        "lineage_group_id": "g",
        "family": "f",
        "messages": [{"role": "user", "content": "Write a poem."}],
        "rubric": "It rhymes.",
    }
    judged = suites.seal(name="judged", data=factories.jsonl([row]), by=house.engineer, scorer="judge")

    with pytest.raises(Conflict, match="scored by a judge"):
        amendments.read_amended(Case.objects.select_related("suite").get(suite=judged), {"rubric": "x"})


FUNCTION_ROW = {
    "example_id": "f1",
    "lineage_group_id": "g",
    "family": "f",
    "messages": [{"role": "user", "content": "Weather in Paris?"}],
    "tools": [
        {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    ],
    "expected_calls": [{"name": "weather", "arguments": {"city": ["Paris"]}}],
}
RULES_ROW = {
    "example_id": "r1",
    "lineage_group_id": "g",
    "family": "f",
    "messages": [{"role": "user", "content": "Delete my account."}],
    "tools": [{"name": "delete_account"}],
    "checks": [{"op": "tool_called", "arg": "delete_account"}, {"op": "contains", "arg": "done"}],
}


def sealed_case(house: House, row: dict[str, Any], scorer: str) -> Case:
    suite = suites.seal(
        name=scorer.replace("_", "-"), data=factories.jsonl([row]), by=house.engineer, scorer=scorer
    )
    return Case.objects.select_related("suite").get(suite=suite)


def test_the_calls_of_a_function_calling_case_may_be_amended(house: House) -> None:
    case = sealed_case(house, FUNCTION_ROW, "function_call")

    assert amendments.read_amended(case, []) == ([], False)
    two = [{"name": "weather", "arguments": {"city": ["Paris", "Paris, France"]}}]
    assert amendments.read_amended(case, two) == (two, True)
    with pytest.raises(InvalidInput, match="not among the tools") as caught:
        amendments.read_amended(case, [{"name": "clock", "arguments": {}}])
    assert caught.value.field == "expected[0].name"


def test_checks_may_be_amended_but_not_the_tools_that_a_model_is_shown_by_them(house: House) -> None:
    case = sealed_case(house, RULES_ROW, "rules")
    kept, other = RULES_ROW["checks"]

    read = amendments.read_amended(case, [kept, {"op": "contains", "arg": "deleted"}])
    assert read.expects_call
    assert read.value[1] == {"op": "contains", "arg": "deleted"}
    with pytest.raises(InvalidInput, match="asks for other tools"):
        amendments.read_amended(case, [other])


# what was sealed and what is shown


def test_what_was_sealed_and_what_is_shown_stay_as_they_were(house: House, candidate: Candidate) -> None:
    case, run = case_of(house), run_of("cand")
    sealed = (case.content, case.digest, case.prompt_sha256, planner.digest_of_stored_cases(house.suite))
    prompt, keys = prompt_of(case.content), list(run.rollouts.values_list("attempt_key", flat=True))

    accepted(house, candidate)

    case = case_of(house)
    assert (
        case.content,
        case.digest,
        case.prompt_sha256,
        planner.digest_of_stored_cases(house.suite),
    ) == sealed
    assert prompt_of({**case.content, "expected": case.amended_expected}) == prompt
    again = runs.plan(
        subject=run.subject, suite=house.suite, backend=house.backend, by=house.engineer, label="again"
    )
    assert list(again.rollouts.values_list("attempt_key", flat=True)) == keys
    assert (again.plan_digest, again.suite_digest) == (run.plan_digest, run.suite_digest)


def test_what_is_claimed_later_is_scored_by_the_amended_case(house: House, candidate: Candidate) -> None:
    accepted(house, candidate)
    run = run_of("cand")
    again = runs.plan(subject=run.subject, suite=house.suite, backend=house.backend, by=house.engineer)
    claim = claims.open_claim(run_id=again.pk, worker="w", exclusive=True)
    assert claim is not None

    taken = claims.take(claim_id=claim.pk, run_id=again.pk, limit=100)

    expected = {row.content["key"]: row.content["expected"] for row in taken}
    assert expected.pop("named-call-0") == NO_TOOL
    assert all(
        expected[case.key] == case.content["expected"] for case in Case.objects.filter(key__in=expected)
    )


def test_a_run_that_was_open_is_scored_by_the_amended_case_when_it_closes(
    house: House, candidate: Candidate
) -> None:
    """Its answer was claimed, and scored, by the case as it was."""
    run = run_of("cand")
    again = runs.plan(
        subject=run.subject, suite=house.suite, backend=house.backend, by=house.engineer, label="open"
    )
    held = again.rollouts.get(case__key="named-decline-0")
    Rollout.objects.filter(run=again).exclude(pk=held.pk).update(state="scored", exact=True, decision=True)
    for rollout in again.rollouts.exclude(pk=held.pk):
        factories.give(rollout, "right")
        rollout.save()
    capture(again)

    accepted(house, candidate)
    assert scores("open") == (True, True, True, None)
    factories.give(held, "right")
    held.save()
    assert runs.close_if_done(again.pk)

    assert scores("open") == (False, None, False, False)
    kept = AmendedScore.objects.get(rollout__run=again)
    assert (kept.before["exact"], kept.after["exact"]) == (True, False)


def test_a_cancelled_run_that_is_gone_on_with_is_scored_by_the_amended_case(
    house: House, candidate: Candidate
) -> None:
    again = runs.plan(
        subject=run_of("cand").subject,
        suite=house.suite,
        backend=house.backend,
        by=house.engineer,
        label="cut",
    )
    first = again.rollouts.get(case__key="named-call-0")
    factories.give(first, "right")
    first.save()
    capture(again)
    runs.cancel(run_id=again.pk, by=house.engineer)

    accepted(house, candidate)
    runs.run_again(run_id=again.pk, by=house.engineer)
    for rollout in again.rollouts.filter(state="queued"):
        factories.give(rollout, "right")
        rollout.save()
    assert runs.close_if_done(again.pk)

    assert scores("cut") == (False, None, False, False)


def test_an_answer_that_cannot_be_read_at_the_close_has_no_score(house: House, candidate: Candidate) -> None:
    """It must not stand by the case as it was, nor keep the run from closing."""
    again = runs.plan(
        subject=run_of("cand").subject,
        suite=house.suite,
        backend=house.backend,
        by=house.engineer,
        label="bad",
    )
    for rollout in again.rollouts.all():
        factories.give(rollout, "right")
        rollout.save()
    capture(again)
    accepted(house, candidate)
    broken = rollout_of("bad")
    ModelCall.objects.filter(invocation=broken.answered_by).update(state="failed", error_kind="server")

    assert runs.close_if_done(again.pk)

    broken.refresh_from_db()
    assert (broken.state, broken.failure_kind, broken.exact) == ("unscored", "scorer", None)
    assert run_of("bad").unscored == 1


def test_amended_twice_keeps_each_step(house: House, candidate: Candidate) -> None:
    accepted(house, candidate)
    gating.judge_again(candidate_id=candidate.pk, by=house.approver)
    sealed = case_of(house).content["expected"]

    accepted(house, candidate, expected=sealed)

    assert [kept.after["exact"] for kept in AmendedScore.objects.filter(rollout=rollout_of("first"))] == [
        False,
        True,
    ]
    assert expected_now(case_of(house)) == sealed
    assert case_of(house).expects_call
    assert scores("first") == (True, True, True, None)
    (listed,) = amendments_of([house.suite.pk])[house.suite.pk]
    assert listed == {
        "case": "named-call-0",
        "expected_sha256": sha256_json(sealed),
        "proposed_by": "engineer",
        "accepted_by": "approver",
    }


# evidence and signatures


def test_acceptance_makes_new_evidence_and_ends_signatures(
    house: House, candidate: Candidate, django_capture_on_commit_callbacks: Any
) -> None:
    before = digest_of(candidate)
    dispute = raised(house, candidate)

    with django_capture_on_commit_callbacks(execute=True):
        disputes.accept(dispute_id=dispute.pk, by=house.approver, resolution=RESOLUTION)

    assert digest_of(candidate) != before
    (part,) = newest(candidate)["suites"]
    assert part["amended"][0]["case"] == "named-call-0"
    assert part["candidate"]["metrics"]["decision"]["successes"] == 10
    assert part["champion"]["metrics"]["decision"]["successes"] == 9
    assert newest(candidate)["people"]["amendments_by"] == ["approver", "engineer"]
    with pytest.raises(Conflict):  # stale: the digest that was shown is not the present one
        factories.sign(candidate, house.approver_2, digest=before, unopened_reason="Nothing to open here.")


def test_evidence_is_another_where_no_count_changed(
    house: House, candidate: Candidate, django_capture_on_commit_callbacks: Any
) -> None:
    before = digest_of(candidate)
    counted = newest(candidate)["suites"][0]["candidate"]["metrics"]
    other = {"decision": "unsupported", "reason_code": "out_of_scope"}
    # both sides answered the sealed reason code: `exact` changes for both; then back again in `decision` and `safe`
    dispute = raised(house, candidate, "named-decline-0", expected=other)

    with django_capture_on_commit_callbacks(execute=True):
        disputes.accept(dispute_id=dispute.pk, by=house.approver, resolution=RESOLUTION)

    now = newest(candidate)["suites"][0]["candidate"]["metrics"]
    assert now["decision"] == counted["decision"]
    assert digest_of(candidate) != before


def test_a_signature_given_before_does_not_promote(
    house: House, candidate: Candidate, django_capture_on_commit_callbacks: Any
) -> None:
    dispute = raised(house, candidate)
    disputes.decline(dispute_id=dispute.pk, by=house.approver, resolution=RESOLUTION)
    factories.sign(candidate, house.approver_2, unopened_reason="Nothing to open here.")
    candidate.refresh_from_db()
    assert candidate.state == CandidateState.APPROVED
    amend_by_two(house)

    assert registry.publish(candidate.pk) is None


def amend_by_two(house: House) -> None:
    with transaction.atomic():
        amendments.amend(
            case_id=case_of(house).pk,
            expected=NO_TOOL,
            reason=REASON,
            proposed_by=house.engineer,
            accepted_by=house.approver,
        )


# before it is accepted


def test_reading_what_acceptance_would_change_writes_nothing(house: House, candidate: Candidate) -> None:
    dispute = raised(house, candidate)
    before = list(Rollout.objects.order_by("id").values())
    read = dispute_effects.proposal(dispute)

    with CaptureQueriesContext(connection) as asked:
        sides = dispute_effects.sides_of(newest(candidate), dispute.case, read)

    assert all(query["sql"].lstrip().upper().startswith("SELECT") for query in asked)
    assert len(asked) <= 16
    assert list(Rollout.objects.order_by("id").values()) == before
    ours, theirs = sides
    assert {effect.metric: (effect.right_now, effect.right_then) for effect in ours.metrics}["decision"] == (
        9,
        10,
    )
    assert {effect.metric: (effect.right_now, effect.right_then) for effect in theirs.metrics}[
        "decision"
    ] == (10, 9)
    assert ("exact", False, True) in ours.answers[0].metrics
    assert ("exact", True, False) in theirs.answers[0].metrics


def test_what_would_change_is_what_changes(
    house: House, candidate: Candidate, django_capture_on_commit_callbacks: Any
) -> None:
    dispute = raised(house, candidate)
    said = dispute_effects.sides_of(newest(candidate), dispute.case, dispute_effects.proposal(dispute))

    with django_capture_on_commit_callbacks(execute=True):
        disputes.accept(dispute_id=dispute.pk, by=house.approver, resolution=RESOLUTION)

    (part,) = newest(candidate)["suites"]
    for side in said:
        for effect in side.metrics:
            counts = part[side.who]["metrics"][effect.metric]
            assert (effect.right_then, effect.of_then) == (counts["successes"], sum(counts.values())), effect


def test_a_run_that_is_not_closed_says_so(house: House, candidate: Candidate) -> None:
    dispute = raised(house, candidate)
    EvalRun.objects.filter(label="first").update(state="cancelled")

    ours, theirs = dispute_effects.sides_of(
        newest(candidate), dispute.case, dispute_effects.proposal(dispute)
    )

    assert (ours.problem, theirs.metrics) == ("", [])
    assert "is cancelled" in theirs.problem


def test_scoring_again_by_the_same_case_changes_nothing(house: House, candidate: Candidate) -> None:
    run = run_of("cand")
    asker = runs.asker_of(run)

    rows = rescoring.score_again(asker, run.rollouts.values_list("pk", flat=True))

    assert [row for row in rows if row.changed] == []


def test_what_changed_since_names_the_amended_case(
    house: House, candidate: Candidate, django_capture_on_commit_callbacks: Any
) -> None:
    before, dispute = newest(candidate), raised(house, candidate)

    with django_capture_on_commit_callbacks(execute=True):
        disputes.accept(dispute_id=dispute.pk, by=house.approver, resolution=RESOLUTION)

    sentences = compare.changes(before, newest(candidate))
    assert (
        "named: case named-call-0 expects something else since engineer proposed it and approver agreed."
        in sentences
    )
