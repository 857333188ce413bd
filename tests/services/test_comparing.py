"""Comparisons are written down when evidence is frozen, once for each state of two runs; pages only read them."""

from __future__ import annotations

from collections import Counter

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from promotion import comparing, evidence
from promotion.models import Candidate, CandidateState, Evidence
from promotion.services import gating, policies, sweeping
from promotion.web import review_now
from rollouts import append_only
from rollouts.models import ComparedCase, Comparison, EvalRun
from rollouts.services import comparisons, runs
from tests import factories
from tests.factories import House

pytestmark = pytest.mark.django_db

OURS = {
    "named-call-0": "wrong",  # lost
    "named-call-1": "wrong",  # wrong on both sides
    "named-call-3": "masked",  # without a score
}
COUNTS = "CASE WHEN r.state"  # what reads every rollout of a run
THEIRS = {"named-call-1": "wrong", "named-call-2": "wrong"}  # call-2 is won


@pytest.fixture
def house() -> House:
    gate = {"gate": "arena_max_regression", "metric": "tool", "max_drop": "0.50"}
    return factories.house(calls=20, declines=10, gates=[gate], champion=True)


def judged(house: House) -> Candidate:
    candidate = house.candidate()
    for run in gating.start_evaluation(candidate_id=candidate.pk, backend=house.backend, by=house.engineer):
        factories.finish_run(run, OURS if run.label == candidate.name else THEIRS)
    gating.judge_if_measured(candidate.pk)
    candidate.refresh_from_db()
    return candidate


def newest(candidate: Candidate) -> Evidence:
    return Evidence.objects.filter(candidate=candidate)[0]


def document(candidate: Candidate) -> dict[str, object]:
    return evidence.document_of(newest(candidate))


def comparison(candidate: Candidate) -> Comparison:
    found = comparing.comparisons_of(document(candidate))
    assert found is not None
    (one,) = found.values()
    return one


def test_each_case_that_a_side_did_not_get_right_is_lost_wrong_missing_or_won(house: House) -> None:
    cases = {found.case.key: found.turn for found in comparison(judged(house)).cases.select_related("case")}

    assert cases == {
        "named-call-0": "lost",
        "named-call-1": "wrong",
        "named-call-2": "won",
        "named-call-3": "missing",
    }


def test_the_summary_counts_turns_as_cases_and_pairs_as_prompts(house: House) -> None:
    summary = comparison(judged(house)).summary

    assert summary["turns"] == {"lost": 1, "wrong": 1, "won": 1, "missing": 1}
    assert summary["paired"] == {"both": 16, "lost": 1, "won": 1, "neither": 1, "missing": 1}
    assert summary["family_pairs"]["calls"] == summary["paired"]


def test_the_paired_counts_are_those_of_the_evidence(house: House) -> None:
    candidate = judged(house)

    (part,) = document(candidate)["suites"]  # type: ignore[misc]

    assert comparison(candidate).summary["paired"] == part["paired"]["tool"]  # type: ignore[index]


def test_two_judgings_of_the_same_runs_share_one_comparison(house: House) -> None:
    candidate = judged(house)
    before = comparison(candidate).pk

    gating.judge_again(candidate_id=candidate.pk, by=house.engineer)

    assert comparison(candidate).pk == before
    assert Comparison.objects.count() == 1


def test_a_run_that_closes_again_is_compared_anew_and_the_old_comparison_stays(house: House) -> None:
    candidate = judged(house)
    old, shown = document(candidate), comparison(candidate)
    run = EvalRun.objects.get(label=candidate.name)
    runs.run_again(run_id=run.pk, by=house.engineer)
    factories.finish_run(run)
    gating.judge_now(candidate.pk)

    assert comparison(candidate).pk != shown.pk
    kept = comparing.comparisons_of(old)
    assert kept is not None and [found.pk for found in kept.values()] == [shown.pk]


def test_writing_the_same_twice_writes_nothing(house: House) -> None:
    doc = document(judged(house))
    rows = Counter(ComparedCase.objects.values_list("case", flat=True))

    comparisons.write(comparing.pairs_of(doc, comparing.runs_of(doc)))

    assert Counter(ComparedCase.objects.values_list("case", flat=True)) == rows


def test_without_a_champion_what_is_not_right_is_wrong_or_missing() -> None:
    house = factories.house(calls=20)
    candidate = house.evaluated("cand", {"named-call-0": "wrong", "named-call-1": "masked"})

    found = comparison(candidate)

    assert found.summary["turns"] == {"wrong": 1, "missing": 1}
    assert found.summary["paired"] is None


def test_comparisons_are_read_in_two_queries(house: House) -> None:
    doc = document(judged(house))

    with CaptureQueriesContext(connection) as queries:
        comparing.comparisons_of(doc)

    assert len(queries) == 2


# whether evidence is current is asked without counting


def test_evidence_of_an_unchanged_state_is_current_without_reading_a_rollout(house: House) -> None:
    candidate = judged(house)

    with CaptureQueriesContext(connection) as queries:
        assert gating.is_current(candidate)

    assert not [query for query in queries if COUNTS in query["sql"]]


def test_the_frame_of_a_document_is_the_same_however_often_it_is_built(house: House) -> None:
    candidate = judged(house)

    assert evidence.basis(candidate) == evidence.basis(candidate) == newest(candidate).basis_digest


@pytest.mark.parametrize("change", ["revision", "reopened", "rescored", "champion", "policy", "statement"])
def test_whatever_changes_the_document_changes_its_frame(house: House, change: str) -> None:
    candidate = judged(house)
    before, built = evidence.basis(candidate), evidence.build(candidate).digest
    run = EvalRun.objects.get(label=candidate.name)
    if change == "revision":
        Candidate.objects.filter(pk=candidate.pk).update(revision=candidate.revision + 1)
    elif change == "reopened":
        runs.run_again(run_id=run.pk, by=house.engineer)
        factories.finish_run(run)
    elif change == "rescored":
        EvalRun.objects.filter(pk=run.pk).update(revision=run.revision + 1)
    elif change == "champion":
        house.champion.aliases.all().delete()  # type: ignore[union-attr]
    elif change == "policy":
        text = {**house.policy.document, "note": "Another."}
        draft = policies.draft(track=house.track, document=text, by=house.administrator)
        policies.lock(policy_id=draft.pk, by=house.approver)
    else:
        candidate.risk_summaries.create(
            text="It may call a tool too often.", written_by=house.engineer, written_at=candidate.created_at
        )
    candidate = Candidate.objects.select_related("track", "base__artifact", "gguf", "submitted_by").get(
        pk=candidate.pk
    )

    assert evidence.basis(candidate) != before
    assert evidence.build(candidate).digest != built


def test_the_page_builds_the_document_only_where_its_frame_changed(house: House) -> None:
    candidate = judged(house)
    current = newest(candidate)
    doc = evidence.document_of(current)

    with CaptureQueriesContext(connection) as queries:
        said = review_now.since(candidate, current, doc, [])

    assert not said.stale
    assert not [query for query in queries if COUNTS in query["sql"]]


def test_what_was_judged_before_the_frame_was_kept_is_judged_again_by_the_sweep(house: House) -> None:
    candidate = judged(house)
    old = newest(candidate)
    with append_only.lifted(connection):
        Evidence.objects.filter(pk=old.pk).update(basis_digest=None)
    Candidate.objects.filter(pk=candidate.pk).update(revision=candidate.revision + 1)

    sweeping.sweep()

    candidate.refresh_from_db()
    assert candidate.state in (CandidateState.BLOCKED, CandidateState.IN_REVIEW)
    assert newest(candidate).pk != old.pk and newest(candidate).basis_digest is not None


def test_the_cases_of_evidence_from_before_are_written_by_a_command_and_the_page_says_so_until_then(
    house: House,
) -> None:
    candidate = judged(house)
    with append_only.lifted(connection):
        Evidence.objects.filter(candidate=candidate).update(basis_digest=None)
    Comparison.objects.all().delete()
    Candidate.objects.filter(pk=candidate.pk).update(state=CandidateState.REJECTED)
    page, client = reverse("promotion:candidate", args=[candidate.pk]), Client()
    client.force_login(house.auditor, backend="django.contrib.auth.backends.ModelBackend")
    assert "was not written down when this evidence was judged" in client.get(page).content.decode()

    call_command("compare_runs")

    assert comparison(candidate).summary["turns"] == {"lost": 1, "wrong": 1, "won": 1, "missing": 1}
    assert "Right to wrong" in client.get(page).content.decode()


def test_a_run_whose_scores_changed_since_is_not_compared_as_what_was_judged(house: House) -> None:
    candidate = judged(house)
    old = document(candidate)
    Comparison.objects.all().delete()
    EvalRun.objects.filter(label=candidate.name).update(revision=9)

    assert comparing.missing_pairs(old) == []
