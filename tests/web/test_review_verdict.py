"""The review's verdict: what blocks and what would meet it, waivers and their end, errors, a new champion, the data."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.db import transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from promotion import evidence as evidence_module
from promotion.models import Candidate, CandidateState, Evidence, Policy, RegistryEntry
from promotion.services import gating, policies, registry, waivers
from promotion.web.review_measured import data_lines, suite_lines
from rollouts.hashing import canonical_bytes, sha256_bytes
from rollouts.models import EvalRun
from tests import factories
from tests.api.conftest import Api, token_of
from tests.gates import documents
from tests.web.conftest import html, signed_in

pytestmark = pytest.mark.django_db
FLOOR = "generalization_accuracy_floor"


def page_of(candidate: Candidate, client: Client) -> str:
    response = client.get(reverse("promotion:candidate", args=[candidate.pk]))
    assert response.status_code == 200
    return html(response)


def between(page: str, start: str, end: str) -> str:
    return page[page.index(start) : page.index(end, page.index(start))]


def gate_policy(house: factories.House, *gates: dict[str, Any], **changes: Any) -> Policy:
    """A new version in force: the old one's gates and these before the signature."""
    document = copy.deepcopy(house.policy.document) | changes
    document["gates"][-1:-1] = [{"suite": house.suite.digest, **gate} for gate in gates]
    draft = policies.draft(track=house.track, document=document, by=house.administrator)
    return policies.lock(policy_id=draft.pk, by=house.approver_2)


# what blocks, and what would meet it


def test_each_unmet_gate_says_what_would_meet_it(house: factories.House) -> None:
    page = page_of(house.evaluated(wrong=20), signed_in(house.approver))
    blocked = between(page, 'aria-label="Blocked by"', "</ul>")
    assert blocked.count("<li>") == 1
    assert FLOOR in blocked
    assert "it would pass with 30 of 40" in blocked
    assert "10 prompts turned right would pass it." in blocked


def test_a_passing_gate_says_how_many_answers_it_hangs_on(house: factories.House) -> None:
    page = page_of(house.evaluated(wrong=2), signed_in(house.approver))
    assert "9 prompts turned wrong would end it." in page
    assert "Closest: <strong>generalization_accuracy_floor</strong> on <bdi>named</bdi>." in page
    table = between(page, 'id="fragility"', "</table>")
    assert "right to wrong" in table
    assert "no family changes it" in table


def test_the_family_that_decides_stands_out(house: factories.House) -> None:
    wrong = {f"named-decline-{index}": "wrong" for index in range(18)}
    page = page_of(house.evaluated(outcomes=wrong), signed_in(house.approver))
    assert "Without declines it would pass." in page
    assert "without <bdi>declines</bdi> (20) <strong>passed</strong>" in between(
        page, 'id="fragility"', "</table>"
    )


def test_both_ends_of_the_bracket_are_shown_where_rows_have_no_score(house: factories.House) -> None:
    candidate = house.evaluated(wrong=9, masked=4)
    page = page_of(candidate, signed_in(house.approver))
    (result,) = [row for row in gating.results_of(candidate, _evidence(candidate)) if row.gate == FLOOR]
    bound, best = result.numbers["bound"][:6], result.numbers["best_bound"][:6]
    assert result.outcome == "not_evaluated"
    assert bound != best
    gates = between(page, 'aria-label="Table of gates"', "</table>")
    assert f"{bound}<small>to {best}</small>" in gates
    assert "It passes if 3 of the 4 without a score prove right." in page


def test_without_masked_rows_there_is_one_bound(house: factories.House) -> None:
    page = page_of(house.evaluated(wrong=2), signed_in(house.approver))
    assert "<small>to " not in between(page, 'aria-label="Table of gates"', "</table>")


def _evidence(candidate: Candidate) -> Evidence:
    return Evidence.objects.filter(candidate=candidate).latest("id")


def test_a_gate_that_failed_itself_is_an_error_that_cannot_be_waived(house: factories.House) -> None:
    candidate = house.evaluated()
    Policy.objects.filter(pk=house.policy.pk).update(
        document={
            **house.policy.document,
            "gates": [{"gate": FLOOR, "suite": house.suite.digest, "min": "2"}],
        }
    )
    gating.judge_now(candidate.pk)
    candidate.refresh_from_db()
    page = page_of(candidate, signed_in(house.approver))
    assert candidate.state == CandidateState.BLOCKED
    assert "gate error" in page
    blocked = between(page, 'aria-label="Blocked by"', "</ul>")
    assert "The gate itself failed: InvalidInput" in blocked
    assert "An error cannot be waived." in blocked


def test_a_blocked_baseline_says_why(house: factories.House) -> None:
    second = house.candidate("second", baseline=True)
    gating.judge_if_measured(second.pk)
    second.refresh_from_db()
    page = page_of(second, signed_in(house.approver))
    assert second.state == CandidateState.BLOCKED
    assert "has a champion already; submit it as a challenger" in between(
        page, 'aria-label="Blocked by"', "</ul>"
    )


# waivers


def waived(house: factories.House, days: int = 3) -> Candidate:
    candidate = house.evaluated(wrong=20)
    asked = waivers.request(
        candidate_id=candidate.pk,
        gate=FLOOR,
        suite_digest=house.suite.digest,
        reason="The <b>suite</b> is replaced on Monday.",
        days=days,
        by=house.engineer,
    )
    waivers.grant(waiver_id=asked.pk, by=house.approver_2)
    candidate.refresh_from_db()
    return candidate


def test_a_waived_gate_names_both_persons_and_the_end_and_does_not_count_as_passed(
    house: factories.House,
) -> None:
    candidate = waived(house)
    page = page_of(candidate, signed_in(house.approver))
    assert candidate.state == CandidateState.IN_REVIEW
    assert "3 of 4 measured gates pass, 1 waived" in page
    shown = between(page, 'aria-label="Waived"', "</ul>")
    assert "asked for by engineer and granted by approver-2" in shown
    assert "Waived until 20" in shown
    assert "The gate itself, failed:" in shown
    assert "<b>suite</b>" not in page


def test_a_waiver_that_ran_out_blocks_on_page_and_api_alike(house: factories.House) -> None:
    candidate = waived(house, days=2)
    api = Api(token_of(house.auditor))
    assert api.get(f"candidates/{candidate.pk}")["blocked_by"] == []
    assert FLOOR in {
        row["gate"]
        for row in api.get(f"candidates/{candidate.pk}/gates")["results"]
        if row["outcome"] == "waived"
    }
    with time_machine.travel(timezone.now() + timedelta(days=3), tick=False):
        page = page_of(candidate, signed_in(house.approver))
        assert "A waiver ran out since" in page
        assert FLOOR in between(page, 'aria-label="Blocked by"', "</ul>")
        assert 'name="decision"' not in page
        assert "Judge again" in page
        (reason,) = api.get(f"candidates/{candidate.pk}")["blocked_by"]
        assert reason.startswith(FLOOR)
        assert api.get(f"candidates/{candidate.pk}/gates")["results"][3]["outcome"] == "failed"
        with transaction.atomic():
            assert any(
                text.startswith(FLOOR) for text in gating.unmet(gating.locked_candidate(candidate.pk))[1]
            )
        response = signed_in(house.approver).post(reverse("promotion:judge", args=[candidate.pk]))
        assert response.status_code == 302
        candidate.refresh_from_db()
        assert candidate.state == CandidateState.BLOCKED


def test_what_was_promoted_under_a_waiver_stays_as_it_was(house: factories.House) -> None:
    candidate = waived(house, days=2)
    factories.sign(candidate, house.approver)
    assert registry.publish(candidate.pk) is not None
    candidate.refresh_from_db()
    with time_machine.travel(timezone.now() + timedelta(days=30), tick=False):
        page = page_of(candidate, signed_in(house.auditor))
        assert "Promoted" in page
        assert "granted by approver-2" in between(page, 'aria-label="Waived"', "</ul>")
        assert 'aria-label="Blocked by"' not in page


# looks and alpha


def test_looks_and_the_alpha_that_is_left_are_shown_per_suite(house: factories.House) -> None:
    gate_policy(house, {"gate": "look_budget", "max_looks": 4}, spend_alpha=True)
    house.evaluated("one")
    page = page_of(house.evaluated("two"), signed_in(house.auditor))
    suites = between(page, 'aria-label="Table of suites"', "</table>")
    document = evidence_module.document_of(_evidence(Candidate.objects.get(name="two")))
    number = document["suites"][0]["candidate"]["look"]
    assert f'<td class="n num">{number}</td>' in suites
    assert (
        f"{0.05 / (number * (number + 1)):.3g} of 0.05 at this look, {0.05 / (number + 1):.3g} left" in suites
    )


def test_alpha_that_is_not_spent_is_said_so(house: factories.House) -> None:
    page = page_of(house.evaluated(), signed_in(house.auditor))
    assert "not spent over looks" in between(page, 'aria-label="Table of suites"', "</table>")


def test_the_family_table_judges_at_the_alpha_of_the_gate(house: factories.House) -> None:
    gate_policy(house, {"gate": "look_budget", "max_looks": 9}, spend_alpha=True)
    house.evaluated("one")
    # 30 of 40 right reach 0.60 at alpha 0.05, and not at the share of a later look
    candidate = house.evaluated("two", wrong=10)
    outcome = next(
        row.outcome for row in gating.results_of(candidate, _evidence(candidate)) if row.gate == FLOOR
    )
    page = page_of(candidate, signed_in(house.auditor))
    families = between(page, 'aria-label="Table of families"', "</table>")
    total = between(families, '<tr class="group"', "</tr>")
    assert outcome == "failed"
    assert "failed" in total


# a new champion


def test_a_new_champion_is_announced_with_what_no_longer_compares(house: factories.House) -> None:
    gate_policy(house, {"gate": "arena_max_regression", "metric": "decision", "max_drop": "0.20"})
    waiting = house.evaluated("waiting", wrong=2)
    assert "The champion changed" not in page_of(waiting, signed_in(house.engineer))
    entry = registry.publish(house.approved("better").pk)
    assert entry is not None
    page = page_of(waiting, signed_in(house.engineer))
    assert (
        f"The champion changed: it is now v{entry.number} (<bdi>better</bdi>), it was <bdi>v1 (first)</bdi>"
        in page
    )
    assert "arena_<wbr>max_<wbr>regression" in between(page, 'id="champion-h"', "</section>")
    # the new champion was measured on the suite as a candidate: nothing has to be run
    assert "Judge against the new champion" in page
    assert "Measure against the new champion" not in page
    response = signed_in(house.engineer).post(reverse("promotion:judge", args=[waiting.pk]), follow=True)
    assert "The champion was v1 (first) and is v2 (better)." in html(response)
    assert "The champion changed" not in page_of(waiting, signed_in(house.engineer))


def test_one_action_measures_against_a_champion_that_has_no_run(house: factories.House) -> None:
    assert registry.publish(house.approved("second").pk) is not None
    gate_policy(house, {"gate": "arena_max_regression", "metric": "decision", "max_drop": "0.20"})
    waiting = house.evaluated("waiting", wrong=2)
    with transaction.atomic():
        registry._move_alias(RegistryEntry.objects.get(number=1), "champion", "Rolled back.")
    engineer = signed_in(house.engineer)
    page = page_of(waiting, engineer)
    notice = between(page, 'id="champion-h"', "</section>")
    assert "The new champion has no run since the policy was locked on <bdi>named</bdi>." in notice
    assert "Measure against the new champion" in notice
    assert "An engineer can have it measured" in page_of(waiting, signed_in(house.approver))
    backend = between(notice, 'name="backend" value="', '">').removeprefix('name="backend" value="')
    before = EvalRun.objects.count()
    response = engineer.post(reverse("promotion:evaluate", args=[waiting.pk]), {"backend": backend})
    assert response.status_code == 302
    waiting.refresh_from_db()
    assert waiting.state == CandidateState.EVALUATING
    (run,) = EvalRun.objects.order_by("-pk")[: EvalRun.objects.count() - before]
    assert run.label == "first"
    factories.finish_run(run)
    gating.judge_if_measured(waiting.pk)
    waiting.refresh_from_db()
    assert waiting.state == CandidateState.IN_REVIEW
    assert "The champion changed" not in page_of(waiting, engineer)


def test_a_policy_that_loosened_is_said_at_the_top(house: factories.House) -> None:
    document = copy.deepcopy(house.policy.document)
    for entry in document["gates"]:
        if entry["gate"] == FLOOR:
            entry["min"] = "0.50"
    draft = policies.draft(track=house.track, document=document, by=house.administrator)
    assert "loosened in" not in page_of(house.evaluated("before"), signed_in(house.approver))
    policies.lock(policy_id=draft.pk, by=house.approver_2)
    page = page_of(house.evaluated("after"), signed_in(house.approver))
    assert '<a href="#exceptions">loosened in 1 place</a>' in page


def test_what_changed_is_listed_on_a_stale_page(house: factories.House) -> None:
    candidate = house.evaluated()
    Candidate.objects.filter(pk=candidate.pk).update(revision=9)
    candidate.refresh_from_db()
    page = page_of(candidate, signed_in(house.approver))
    assert "This is not the present evidence" in page
    assert "revision went from" in between(page, "What changed", "</details>")


# suites and data


def with_data(candidate: Candidate, datasets: list[dict[str, Any]]) -> None:
    """Evidence as it stands, with datasets that were declared."""
    built = evidence_module.build(candidate)
    data = canonical_bytes({**built.document, "datasets": datasets})
    newest = _evidence(candidate)
    Evidence.objects.create(
        candidate=candidate,
        policy=newest.policy,
        digest=sha256_bytes(data),
        document=data,
        created_at=timezone.now(),
    )


def sets(house: factories.House, shared: dict[str, int] | None = None) -> list[dict[str, Any]]:
    part = {"digest": house.suite.digest, "name": "named", "version": 1, "case_count": 40}
    found = documents.compared([documents.dataset("train"), documents.dataset("eval")], [part])
    for overlap in found[0]["overlaps"]:
        if overlap["with"] == "suite":
            overlap["report"] |= shared or {}
    return found


def data_card(candidate: Candidate, house: factories.House) -> str:
    page = page_of(candidate, signed_in(house.approver))
    return between(page, 'id="data"', "</section>")


def test_declared_data_and_what_it_shares_are_shown(house: factories.House) -> None:
    candidate = house.evaluated()
    with_data(candidate, sets(house))
    card = data_card(candidate, house)
    assert card.count("as its sidecar says") == 2
    assert "nothing of 300 rows" in card
    assert "open" not in card.replace("opener", "")
    with_data(candidate, sets(house, {"texts": 7, "near": 2}))
    card = data_card(candidate, house)
    assert "7 equal texts, 2 near, 0 ids, 0 groups" in card
    assert 'class="open fail"' in card


def test_bytes_that_no_sidecar_declares_and_missing_comparisons_are_said(house: factories.House) -> None:
    candidate = house.evaluated()
    train, watched = sets(house)
    train |= {"declared_sha256": None, "overlaps": []}
    watched |= {"declared_sha256": "0" * 64, "overlaps": []}
    with_data(candidate, [train, watched])
    card = data_card(candidate, house)
    assert "no sidecar says" in card
    assert "not its sidecar's" in card.replace("&#x27;", "'")
    assert "<bdi>named v1</bdi>: not compared" in card
    assert "<bdi>eval v1</bdi>: not compared" in card


def test_no_declared_data_is_said(house: factories.House) -> None:
    assert "declares no dataset" in data_card(house.evaluated(), house)


def test_a_comparison_counts_under_either_of_the_two() -> None:
    doc = documents.document()
    train, watched = documents.compared(
        [documents.dataset("train"), documents.dataset("eval")], doc["suites"]
    )
    watched["overlaps"] = [overlap for overlap in watched["overlaps"] if overlap["with"] == "suite"]
    lines = data_lines({**doc, "datasets": [train, watched]})
    assert [line.not_compared for line in lines] == [[], []]
    train["overlaps"] = [overlap for overlap in train["overlaps"] if overlap["with"] == "suite"]
    lines = data_lines({**doc, "datasets": [train, watched]})
    assert [line.not_compared for line in lines] == [["eval v1"], ["train v1"]]


def test_leaks_independence_and_how_answers_ended_are_shown(house: factories.House) -> None:
    candidate = house.evaluated()
    house.suite.__class__.objects.filter(pk=house.suite.pk).update(leak=documents.leak(n=40))
    EvalRun.objects.filter(label="cand").update(independence="ignored", peak_memory_bytes=300 * (1 << 20) + 1)
    gating.judge_now(candidate.pk)
    candidate.refresh_from_db()
    suites = between(page_of(candidate, signed_in(house.auditor)), 'aria-label="Table of suites"', "</table>")
    assert "28 of 40 labels" in suites
    assert "the word &quot;please&quot;: a call" in suites
    assert "ignored" in suites
    assert "301 MiB" in suites


def test_evidence_of_the_first_format_is_still_shown() -> None:
    doc = documents.document()
    old = {key: value for key, value in doc.items() if key not in ("datasets", "waivers")} | {"format": 1}
    for part in old["suites"]:
        for key in ("prompt_count", "family_prompts", "scorer", "schema_sha256", "leak"):
            part.pop(key)
        for who in ("candidate", "champion"):
            for key in ("independence", "peak_memory_bytes", "reasoning_only", "turns_exhausted"):
                part[who].pop(key)
    (line,) = suite_lines(old)
    assert (line.prompts, line.leak, line.memory_mib, line.ends) == (100, None, None, "")
    assert data_lines(old) == []
