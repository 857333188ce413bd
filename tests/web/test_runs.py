"""The pages of runs and rollouts: live progress, flags, repeats, what is counted apart, scoring again, a new run."""

from __future__ import annotations

import html as markup
import json
import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from rollouts import overview, selectors
from rollouts.errors import NotFound
from rollouts.models import CallPurpose, Claim, EvalRun, ModelCall, Rollout
from rollouts.services import backends, suites
from rollouts.services import runs as run_services
from rollouts.web import run_page
from tests import factories
from tests.web import measured, world
from tests.web.conftest import html, signed_in
from tests.web.measured import (
    CUT,
    MASKED,
    OPEN,
    POISONED,
    RIGHT,
    SKIPPED,
    WRONG,
    answered_by,
    claim,
    give,
    planned,
)

pytestmark = pytest.mark.django_db
HTMX = {"HX-Request": "true"}


@pytest.fixture
def engineer(house: factories.House) -> Client:
    return signed_in(house.engineer)


def page_of(client: Client, run: EvalRun, name: str = "run") -> str:
    response = client.get(reverse(f"rollouts:{name}", args=[run.pk]), headers=HTMX if name != "run" else {})
    assert response.status_code == 200
    return html(response)


def half_done(house: factories.House, **values: Any) -> EvalRun:
    """40 rollouts: 10 right, 4 wrong, 2 cut off, 3 masked, 1 poisoned, 20 queued."""
    outcomes = [*[RIGHT] * 10, *[WRONG] * 4, *[CUT] * 2, *[MASKED] * 3, POISONED, *[OPEN] * 20]
    return give(planned(house, **values), lambda case, _: outcomes[case])


def small_suite(house: factories.House, cases: int) -> Any:
    return factories.suite(house.engineer, name=f"small-{cases}", calls=cases)


# progress


def test_progress_is_one_statement_whatever_the_number_of_rollouts_and_claims(house: factories.House) -> None:
    run = half_done(house)
    with CaptureQueriesContext(connection) as few:
        selectors.progress(run.pk)
    cases = list(run.suite.cases.all())
    Rollout.objects.bulk_create(
        Rollout(run=run, case=cases[n % 40], sample_index=1 + n // 40) for n in range(1000)
    )
    for _ in range(50):
        claim(run, ended=True, done=1)
    claim(run), claim(run)
    with CaptureQueriesContext(connection) as many:
        selectors.progress(run.pk)
    assert len(few) == len(many) == 1


def test_progress_counts_states_and_adds_up_claims(house: factories.House) -> None:
    run = half_done(house)
    claim(run, age_s=100, done=50, masked=3, cost_microusd=700)
    claim(run, age_s=10, done=20, cost_microusd=40)
    claim(run, age_s=1000, ended=True, done=9000, cost_microusd=1_000_000)
    found = selectors.progress(run.pk)
    assert found.states == {
        "queued": 20,
        "running": 0,
        "scored": 16,
        "masked": 3,
        "unscored": 1,
        "cancelled": 0,
    }
    assert (found.planned, found.done, found.masked, found.state) == (40, 20, 3, "running")
    assert found.rate_per_s == pytest.approx(0.5 + 2, rel=0.05)
    assert found.eta_s == pytest.approx(20 / 2.5, rel=0.05)
    assert found.cost_microusd == 1_000_740
    assert found.started_at is not None


def test_without_an_open_claim_there_is_no_rate_and_without_a_rate_no_time_left(
    house: factories.House,
) -> None:
    run = half_done(house)
    claim(run, ended=True, done=5)
    found = selectors.progress(run.pk)
    assert (found.rate_per_s, found.eta_s) == (None, None)
    claim(run, done=0)
    found = selectors.progress(run.pk)
    assert (found.rate_per_s, found.eta_s) == (0, None)


def test_a_claim_that_was_just_opened_does_not_promise_wonders(house: factories.House) -> None:
    run = half_done(house)
    claim(run, age_s=0.001, done=4)
    assert selectors.progress(run.pk).rate_per_s == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize("missing", ["prompt_price", "completion_price"])
def test_the_cost_is_unknown_where_the_backend_has_no_prices(house: factories.House, missing: str) -> None:
    run = half_done(house, backend=measured.priced_backend(house, **{missing: None}))
    claim(run, cost_microusd=5)
    assert selectors.progress(run.pk).cost_microusd is None
    assert "Its cost is not known" in page_of(signed_in(house.auditor), run)


def test_the_cost_is_unknown_where_the_judge_has_no_prices(house: factories.House) -> None:
    run = half_done(house)
    claim(run, cost_microusd=5)
    EvalRun.objects.filter(pk=run.pk).update(judge_backend=house.backend, judge_model="judge")
    assert selectors.progress(run.pk).cost_microusd is None


def test_a_run_that_is_not_there_has_no_progress(house: factories.House) -> None:
    with pytest.raises(NotFound):
        selectors.progress(999)
    client = signed_in(house.auditor)
    for name in ("progress", "measured"):
        assert client.get(reverse(f"rollouts:{name}", args=[999]), headers=HTMX).status_code == 404


def test_the_page_asks_for_progress_often_and_for_scores_only_on_demand_while_the_run_is_at_work(
    engineer: Client, house: factories.House
) -> None:
    run = half_done(house)
    page = page_of(engineer, run)
    assert f'hx-get="/runs/{run.pk}/progress/" hx-trigger="every 2s"' in page
    assert f'<form method="get" action="/runs/{run.pk}/measured/"' in page
    assert '<th scope="row">exact</th>' not in page
    assert page.count("hx-trigger") == 1
    assert "htmx-4.min.js" in page
    assert page_of(engineer, run, "progress").lstrip().startswith('<section class="card" id="progress"')
    assert page_of(engineer, run, "measured").lstrip().startswith('<div class="flow" id="measured"')


def test_the_fragment_that_is_asked_for_often_costs_one_statement_about_the_run(
    engineer: Client, house: factories.House
) -> None:
    run = half_done(house)
    page_of(engineer, run, "progress")
    with CaptureQueriesContext(connection) as captured:
        page_of(engineer, run, "progress")
    about_runs = [query["sql"] for query in captured if "rollouts_" in query["sql"]]
    assert len(about_runs) == 1


def test_when_the_run_ends_the_whole_page_is_loaded_anew(engineer: Client, house: factories.House) -> None:
    run = half_done(house)
    address = reverse("rollouts:progress", args=[run.pk])
    assert "HX-Refresh" not in engineer.get(address, headers=HTMX)
    engineer.post(reverse("rollouts:cancel", args=[run.pk]))
    last = engineer.get(address, headers=HTMX)
    assert last["HX-Refresh"] == "true"
    assert "hx-get" not in html(last)
    run_services.sweep()
    page = page_of(engineer, run)
    assert "hx-get" not in page
    assert "htmx" not in page


def test_an_ended_run_that_is_not_counted_yet_says_so_and_asks_until_it_is(
    engineer: Client, house: factories.House
) -> None:
    run = give(planned(house, suite=small_suite(house, 4)), lambda *_: WRONG, close=True)
    EvalRun.objects.filter(pk=run.pk).update(overview=None)
    page = page_of(engineer, run)
    assert "The scores are being counted" in page
    assert f'hx-get="/runs/{run.pk}/measured/" hx-trigger="every 3s"' in page
    assert "4 of 4</span> rollouts" in page or "4</span> rollouts have ended" in page
    assert 'hx-trigger="every 3s"' in page_of(engineer, run, "measured")
    run_services.sweep()
    fragment = page_of(engineer, run, "measured")
    assert "hx-trigger" not in fragment
    assert '<th scope="row">exact</th>' in fragment
    assert "4 of 4 misses" in page_of(engineer, run)


def test_while_an_answer_may_still_come_in_an_ended_run_is_not_counted(house: factories.House) -> None:
    run = half_done(house)
    held = claim(run, done=0)
    EvalRun.objects.filter(pk=run.pk).update(state="failed", error_code="x", finished_at=timezone.now())
    run_services.sweep()
    assert EvalRun.objects.get(pk=run.pk).overview is None
    Claim.objects.filter(pk=held.pk).update(ended_at=timezone.now())
    run_services.sweep()
    assert EvalRun.objects.get(pk=run.pk).overview is not None


def test_running_again_and_scoring_again_take_away_what_was_counted(house: factories.House) -> None:
    run = give(planned(house, suite=small_suite(house, 2)), lambda case, _: (RIGHT, MASKED)[case], close=True)
    assert run.overview["states"]["masked"] == 1
    run_services.run_again(run_id=run.pk, by=house.engineer)
    assert EvalRun.objects.get(pk=run.pk).overview is None
    again = captured(house)
    assert again.overview is not None
    run_services.rescore(run_id=again.pk, by=house.engineer)
    again.refresh_from_db()
    assert again.overview is None
    run_services.sweep()
    again.refresh_from_db()
    assert overview.stored(again).metrics[2].right == 1


def test_what_is_stored_is_what_was_counted(house: factories.House) -> None:
    outcomes = [RIGHT, WRONG, CUT, MASKED]
    run = give(
        planned(house, suite=small_suite(house, 4), samples=2), lambda case, _: outcomes[case], close=True
    )
    counted = overview.run_summary(run)
    stored = overview.stored(EvalRun.objects.get(pk=run.pk))
    for name in (
        *overview._AS_IT_IS,
        "states",
        "failures",
        "metrics",
        "apart",
        "repeats",
        "flags",
        "clusters",
    ):
        assert getattr(stored, name) == getattr(counted, name), name


def test_of_a_long_run_at_work_only_its_first_rollouts_are_counted_and_that_is_said(
    engineer: Client, house: factories.House, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = half_done(house)
    monkeypatch.setattr(run_page, "COUNTED_AT_ONCE", 3)
    page = re.sub(r"<[^>]+>", "", page_of(engineer, run, "measured"))
    assert "Counted over the first 3 of 40 planned rollouts." in page
    summary = overview.run_summary(run, at_most=3)
    assert summary.counted == 3
    assert sum(summary.answer_classes.values()) + sum(failure.n for failure in summary.failures) == 3


def test_the_progress_fragment_is_no_page_of_its_own_and_scores_so_far_are(
    engineer: Client, house: factories.House
) -> None:
    run = half_done(house)
    response = engineer.get(reverse("rollouts:progress", args=[run.pk]))
    assert (response.status_code, response["Location"]) == (302, f"/runs/{run.pk}/")
    page = html(engineer.get(reverse("rollouts:measured", args=[run.pk])))
    assert "<!doctype html>" in page
    assert '<th scope="row">exact</th>' in page


def test_the_page_says_how_far_how_fast_how_long_and_how_much(
    engineer: Client, house: factories.House
) -> None:
    run = half_done(house)
    claim(run, age_s=400, done=40, cost_microusd=13_420)
    page = re.sub(r"<[^>]+>", "", page_of(engineer, run, "progress"))
    assert "20 of 40 rollouts have ended. Masked: 3. About 3 minutes left, at 6.0 a minute." in page
    assert "Cost so far: 0.01342 USD." in page


def test_what_is_read_aloud_stays_the_same_until_the_next_tenth(
    engineer: Client, house: factories.House
) -> None:
    run = half_done(house)

    def aloud() -> str:
        [said] = re.findall(r'<p class="hidden" role="status">(.*?)</p>', page_of(engineer, run, "progress"))
        return str(said)

    before = aloud()
    assert before == "50 percent of 40 rollouts have ended."
    queued = list(run.rollouts.filter(state="queued").order_by("id").values_list("pk", flat=True))
    Rollout.objects.filter(pk__in=queued[:3]).update(**RIGHT)
    claim(run, done=3)
    assert aloud() == before
    Rollout.objects.filter(pk=queued[3]).update(**RIGHT)
    assert aloud() != before


# flags, repeats, counted apart


def test_flags_stand_before_the_scores(engineer: Client, house: factories.House) -> None:
    suite = small_suite(house, 10)
    run = planned(house, suite=suite, samples=2)
    outcomes = [MASKED, POISONED, SKIPPED]
    give(run, lambda case, sample: outcomes[case] if case < 3 and sample == 0 else RIGHT, close=True)
    EvalRun.objects.filter(pk=run.pk).update(independence="unknown", overview=None)
    run_services.sweep()
    page = page_of(engineer, run)
    for text in (
        "3 of 20 rollouts have no score (15.0 %).",
        "1 rollout was given up",
        "1 rollout was skipped",
        "Repeats are not proven to be draws of their own",
    ):
        assert text in page
        assert page.index(text) < page.index('id="met-h"')


def test_a_run_without_trouble_shows_no_flag(engineer: Client, house: factories.House) -> None:
    run = give(planned(house, suite=small_suite(house, 4)), lambda *_: RIGHT, close=True)
    assert 'class="notices"' not in page_of(engineer, run)


def test_reused_answers_are_flagged_with_what_they_avoided(house: factories.House) -> None:
    suite = small_suite(house, 4)
    first = give(planned(house, suite=suite), lambda *_: RIGHT, close=True)
    run = give(planned(house, suite=suite, reuse=True), lambda *_: RIGHT, close=True)
    own, *others = run.rollouts.order_by("id")
    answered_by(own, own)
    for rollout in others:
        answered_by(rollout, first.rollouts.all()[0])
    run.rollouts.exclude(pk=own.pk).update(avoided_microusd=100)
    flags = {flag.code: flag for flag in overview.run_summary(run).flags}
    assert flags.keys() == {"reused"}
    assert flags["reused"].n == 3
    assert "That avoided 0.0003 USD." in flags["reused"].text


def test_repeats_are_shown_by_case(engineer: Client, house: factories.House) -> None:
    """Two samples of four cases: both right, both wrong, one of each, one masked."""
    right = {**RIGHT, "answer": "a"}
    table = [(right, right), (WRONG, WRONG), (right, WRONG), (right, MASKED)]
    run = give(
        planned(house, suite=small_suite(house, 4), samples=2),
        lambda case, sample: table[case][sample],
        close=True,
    )
    found = overview.run_summary(run).repeats
    assert found is not None
    assert (found.agree, found.disagree, found.undecided) == (2, 1, 1)
    assert found.mean_rate == pytest.approx((1 + 0 + 0.5 + 1) / 4)
    assert (found.distinct_answers, found.answers) == (5, 7)
    assert [(row.k, row.n, row.skipped) for row in found.pass_at] == [(1, 4, 0), (2, 3, 1)]
    page = page_of(engineer, run)
    assert 'id="rep-h"' in page
    assert "<dt>samples agree</dt><dd>2</dd>" in page


@pytest.mark.parametrize("independence", ["unknown", "ignored"])
def test_no_spread_is_shown_of_repeats_that_are_not_independent(
    engineer: Client, house: factories.House, independence: str
) -> None:
    run = give(planned(house, suite=small_suite(house, 2), samples=2), lambda *_: RIGHT, close=True)
    EvalRun.objects.filter(pk=run.pk).update(independence=independence, overview=None)
    run_services.sweep()
    page = page_of(engineer, run)
    assert 'id="rep-h"' not in page
    assert "pass@k" not in page


def test_one_sample_a_case_has_no_repeats(house: factories.House) -> None:
    run = give(planned(house, suite=small_suite(house, 2)), lambda *_: RIGHT, close=True)
    assert overview.run_summary(run).repeats is None


def test_classes_reasons_arguments_and_tools_are_counted_apart(
    engineer: Client, house: factories.House
) -> None:
    run = half_done(house)
    rows = list(run.rollouts.filter(state="scored").order_by("id"))
    Rollout.objects.filter(pk__in=[row.pk for row in rows[:6]]).update(
        reason_code=True, arguments_valid=False, tool_evidence="executed", score=0.5
    )
    Rollout.objects.filter(pk=rows[6].pk).update(reason_code=False, tool_evidence="claimed", score=1.0)
    found = overview.run_summary(EvalRun.objects.get(pk=run.pk))
    assert found.answer_classes == {"ok": 14, "truncated": 2}
    assert [(metric.name, metric.right, metric.wrong) for metric in found.apart] == [
        ("reason_code", 6, 1),
        ("arguments_valid", 0, 6),
    ]
    assert found.tool_evidence == {"executed": 6, "claimed": 1}
    assert (found.mean_share, found.shares) == (pytest.approx(4 / 7), 7)
    page = page_of(engineer, run, "measured")
    for link, n in (("read_as=truncated", 2), ("wrong=reason_code", 1), ("wrong=arguments_valid", 6)):
        listed = html(engineer.get(reverse("rollouts:rollouts", args=[run.pk]) + f"?{link}"))
        assert f"?{link}" in page
        assert listed.count('<th scope="row">') == n


# what went wrong, and the rollouts in which it did


SAID = {
    0: {"decision": "clarify", "reason_code": "x"},
    1: {"decision": "unsupported", "reason_code": "no_matching_tool"},
    2: {"decision": "call", "tool": "no_such_tool", "arguments": {}},
}


def wrong_in_ways(house: factories.House, *, samples: int = 8, close: bool = True) -> EvalRun:
    """Ten cases in which a call is right, missed in three ways that the metrics cannot tell apart, some right."""

    def outcome(case: int, sample: int) -> dict[str, Any]:
        at = case * samples + sample
        if at % 4 == 3:
            return RIGHT
        return {**WRONG, "answer": json.dumps(SAID[at % 3]), "tool": False, "latency_ms": float(at % 7)}

    suite = small_suite(house, 10)
    run = give(planned(house, suite=suite, samples=samples), outcome, close=close)
    run.refresh_from_db()
    return run


def groups_on(page: str) -> list[tuple[int, str]]:
    """The count in each group's sentence, and where its link leads."""
    table = page[page.index('id="clusters"') :]
    table = table[: table.index("</table>")]
    rows = re.findall(r"<tr>(<th scope=\"row\".*?)</tr>", table, re.DOTALL)
    return [
        (
            int(re.search(r">([\d,]+) of [\d,]+ miss", row)[1].replace(",", "")),  # type: ignore[index]
            markup.unescape(re.search(r'<a href="([^"]*)"', row)[1]),  # type: ignore[index]
        )
        for row in rows
    ]


def listed(client: Client, address: str) -> list[int]:
    """The rollouts of a list, over all its pages."""
    found: list[int] = []
    while address:
        page = html(client.get(address))
        found += [int(pk) for pk in re.findall(r'<th scope="row"><a href="/rollouts/(\d+)/"', page)]
        following = re.search(r'href="(\?[^"]*)">Next page', page)
        address = address.split("?")[0] + markup.unescape(following[1]) if following else ""
    return found


def kinds(run: EvalRun, pks: list[int]) -> set[str]:
    return {
        json.loads(answer)["decision"]
        for answer in run.rollouts.filter(pk__in=pks).values_list("answer", flat=True)
    }


@pytest.mark.parametrize("sort", ["", "&sort=-latency", "&sort=-plan", "&sort=state"])
def test_a_group_s_link_lists_exactly_the_rollouts_that_its_sentence_counts(
    engineer: Client, house: factories.House, sort: str
) -> None:
    run = wrong_in_ways(house, samples=24)
    groups = groups_on(page_of(engineer, run))
    assert len(groups) == 3
    seen: list[int] = []
    for n, link in groups:
        found = listed(engineer, link + sort)
        assert len(found) == len(set(found)) == n
        assert len(kinds(run, found)) == 1
        seen += found
    assert max(n for n, _ in groups) > 50, "more than a page, or paging is not tested"
    assert sorted(seen) == list(run.rollouts.filter(exact=False).order_by("id").values_list("pk", flat=True))


def test_the_list_says_which_group_it_shows_and_other_filters_narrow_it(
    engineer: Client, house: factories.House
) -> None:
    run = wrong_in_ways(house)
    n, link = groups_on(page_of(engineer, run))[0]
    page = html(engineer.get(link))
    assert f"{n} of {run.rollouts.filter(exact=False).count()} misses" in page
    assert "They are listed here, and no others." in page
    assert f'href="/runs/{run.pk}/#clusters"' in page
    case = run.rollouts.get(pk=listed(engineer, link)[0]).case
    narrowed = f"{link}&key={case.key}"
    assert "Of them, only those that the other filters leave are listed." in html(engineer.get(narrowed))
    found = listed(engineer, narrowed)
    assert 0 < len(found) < n
    assert set(run.rollouts.filter(pk__in=found).values_list("case__key", flat=True)) == {case.key}


def test_the_number_of_queries_does_not_grow_with_the_members_of_a_group(
    engineer: Client, house: factories.House
) -> None:
    few = wrong_in_ways(house, samples=2)

    def queries(run: EvalRun) -> int:
        _, link = groups_on(page_of(engineer, run))[0]
        engineer.get(link)
        with CaptureQueriesContext(connection) as captured:
            engineer.get(link)
        return len(captured)

    first = queries(few)
    many = wrong_in_ways(house, samples=40)
    assert queries(many) == first


def test_an_overview_from_before_members_were_kept_leads_to_the_wider_list_and_says_so(
    engineer: Client, house: factories.House
) -> None:
    run = wrong_in_ways(house)
    old = run.overview
    for cluster in old["clusters"]:
        del cluster["members"]
    EvalRun.objects.filter(pk=run.pk).update(overview=old)
    page = page_of(engineer, run)
    assert "it may list others too" in page
    for n, link in groups_on(page):
        assert "cluster=" not in link
        assert len(listed(engineer, link)) >= n


def test_of_a_run_at_work_the_groups_lead_to_the_wider_list(engineer: Client, house: factories.House) -> None:
    run = half_done(house)
    page = page_of(engineer, run, "measured")
    assert 'id="clusters"' in page
    assert "?cluster=" not in page
    assert "it may list others too" in page


def test_a_group_that_the_run_does_not_have_is_refused_at_the_field_and_lists_nothing(
    engineer: Client, house: factories.House
) -> None:
    run = wrong_in_ways(house)
    _, link = groups_on(page_of(engineer, run))[0]
    for address in (f"/runs/{run.pk}/rollouts/?cluster=flew+away", link):
        if address == link:  # while the run is counted anew, nobody knows who is in it
            EvalRun.objects.filter(pk=run.pk).update(overview=None)
        response = engineer.get(address)
        assert response.status_code == 400
        assert errors_of(response) == {
            "cluster": "This run has no such group of misses now. Its page shows those it has. "
        }
        assert "/rollouts/" not in re.sub(r"/runs/\d+/rollouts/", "", html(response))


def test_what_no_scorer_gave_is_not_counted_as_nothing(engineer: Client, house: factories.House) -> None:
    page = page_of(engineer, half_done(house), "measured")
    for absent in ("Reason code", "Arguments valid", ">Tools<", "mean share"):
        assert absent not in page


def test_metrics_that_a_suite_s_scorer_does_not_measure_are_left_out(
    engineer: Client, house: factories.House
) -> None:
    run = planned(house, suite=judged_suite(house), backend=dual(house))
    page = page_of(engineer, run, "measured")
    assert '<th scope="row">exact</th>' in page
    assert '<th scope="row">safe</th>' not in page


def judged_suite(house: factories.House) -> Any:
    row = {
        "example_id": "poem",
        "family": "poems",
        "messages": [{"role": "user", "content": "Write a line about rain."}],
        "rubric": "One line, about rain. <b>",
        "reference": "It rains.",
    }
    return suites.seal(name="poems", data=factories.jsonl([row]), by=house.engineer, scorer="judge")


def dual(house: factories.House) -> Any:
    side = {"kind": "openai_compatible", "config": {"base_url": "http://127.0.0.1:9/v1"}}
    config = {"target": side, "generator": {**side, "model": "a-judge"}}
    return backends.save(name="both", kind="dual", config=config, by=house.engineer)


def test_the_budget_shows_what_is_used_of_it(engineer: Client, house: factories.House) -> None:
    run = half_done(house, budget={"calls": 100, "microusd": 2_500_000, "wall_s": None})
    EvalRun.objects.filter(pk=run.pk).update(spent_calls=61, spent_microusd=13_420, spent_tokens=7)
    page = re.sub(r"<[^>]+>", " ", page_of(engineer, run))
    budget = " ".join(page[page.index("since the run was last started") :].split())
    assert "calls 61 100 cost 0.01342 USD 2.50 USD" in budget
    assert "tokens" not in budget.split("What you can do")[0]


def test_the_number_of_queries_does_not_grow_with_repeats_and_reused_answers(
    engineer: Client, house: factories.House
) -> None:
    suite = small_suite(house, 10)
    run = give(planned(house, suite=suite, samples=2, reuse=True), lambda *_: OPEN)
    cases = list(suite.cases.all())
    source = answered_by(run.rollouts.all()[0], run.rollouts.all()[1])

    def grow(samples: range) -> None:
        Rollout.objects.bulk_create(
            Rollout(run=run, case=case, sample_index=sample, answered_by=source, **RIGHT)
            for case in cases
            for sample in samples
        )

    def queries(name: str) -> int:
        page_of(engineer, run, name)
        with CaptureQueriesContext(connection) as captured:
            page_of(engineer, run, name)
        return len(captured)

    grow(range(2, 3))
    few = {name: queries(name) for name in ("run", "measured", "progress")}
    grow(range(3, 103))
    assert {name: queries(name) for name in few} == few
    assert few["progress"] < few["run"] < few["measured"] <= 18


# scoring again


def captured(house: factories.House) -> EvalRun:
    """A closed run of one right answer whose score is wrong, with the calls that it came from."""
    run = give(planned(house, suite=small_suite(house, 1)), lambda *_: WRONG, close=True)
    [rollout] = run.rollouts.select_related("case")
    said = json.dumps(rollout.case.content["expected"])
    answer = {"choices": [{"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}]}
    call = world.add_call(rollout, request=b"{}", response=json.dumps(answer).encode())
    Rollout.objects.filter(pk=rollout.pk).update(answered_by=call.invocation)
    return run


def test_a_closed_run_is_scored_again_from_its_page(engineer: Client, house: factories.House) -> None:
    run = captured(house)
    assert ">Score again</button>" in page_of(engineer, run)
    response = engineer.post(reverse("rollouts:rescore", args=[run.pk]), follow=True)
    assert "scored again, without a call" in html(response)
    assert run.rollouts.get().exact is True
    assert ModelCall.objects.count() == 2


def test_scoring_again_is_offered_where_it_can_be_done(house: factories.House) -> None:
    run, client = captured(house), signed_in(house.engineer)
    assert "Score again" not in page_of(signed_in(house.auditor), run)
    EvalRun.objects.filter(pk=run.pk).update(judge_backend=house.backend, judge_model="judge")
    assert "Score again" not in page_of(client, run)
    assert client.post(reverse("rollouts:rescore", args=[run.pk])).status_code == 409
    assert "Score again" not in page_of(client, half_done(house))


# rollouts


@pytest.fixture
def rollout(house: factories.House) -> Rollout:
    run = give(planned(house, suite=small_suite(house, 2)), lambda *_: RIGHT, close=True)
    return run.rollouts.order_by("id")[0]


def rollout_page(client: Client, rollout: Rollout) -> str:
    return html(client.get(reverse("rollouts:rollout", args=[rollout.pk])))


def test_hostile_details_are_text(engineer: Client, rollout: Rollout) -> None:
    evil = world.HOSTILE
    details = {
        "reason": evil,
        "checks": [{"op": "contains", "arg": evil, "passed": False, evil: {evil: [evil]}}],
        "mismatches": [evil],
        evil: {"deep": evil},
    }
    Rollout.objects.filter(pk=rollout.pk).update(details=details)
    page = rollout_page(engineer, rollout)
    assert "What the scorer said" in page
    for raw in ("<script>alert", "<img src=x", "\u202e", "\x1b", "\u200b", "\x07"):
        assert raw not in page, raw
    assert page.count("&lt;script&gt;alert") >= 7


def test_checks_are_a_table_and_the_rest_is_shown_too(engineer: Client, rollout: Rollout) -> None:
    details = {
        "reason": "cut off",
        "checks": [
            {"op": "contains", "arg": "rain", "passed": True},
            {"op": "tool_called", "arg": "umbrella", "passed": False, "problem": "never called"},
            {"op": "max_words", "arg": {"n": 5}, "passed": False},
        ],
        "mismatches": ["first thing", "second thing"],
    }
    Rollout.objects.filter(pk=rollout.pk).update(details=details)
    page = rollout_page(engineer, rollout)
    table = page[page.index("Table of checks") : page.index("</table>", page.index("Table of checks"))]
    assert re.findall(r'<th scope="col"><bdi>(\w+)</bdi>', table) == ["op", "arg", "passed", "problem"]
    assert table.count("<tr>") == 4
    assert "never called" in table
    assert "{&quot;n&quot;: 5}" in table
    assert "first thing\nsecond thing" in page
    assert "cut off" in page


@pytest.mark.parametrize(
    "details", [{"checks": "none"}, {"checks": [1, 2]}, {"checks": []}, {"reason": 7}, {}]
)
def test_details_of_another_form_are_shown_as_they_are(
    engineer: Client, rollout: Rollout, details: dict[str, Any]
) -> None:
    Rollout.objects.filter(pk=rollout.pk).update(details=details)
    page = rollout_page(engineer, rollout)
    assert "Table of checks" not in page
    for key in details:
        assert details[key] == [] or key in page


def test_many_checks_are_cut_with_their_number(engineer: Client, rollout: Rollout) -> None:
    Rollout.objects.filter(pk=rollout.pk).update(details={"checks": [{"op": "x", "passed": True}] * 250})
    assert "50 more checks are not shown." in rollout_page(engineer, rollout)


def test_a_long_value_is_cut_with_its_length(engineer: Client, rollout: Rollout) -> None:
    Rollout.objects.filter(pk=rollout.pk).update(
        details={"checks": [{"arg": "x" * 1_000_000}], "reason": "y" * 1_000_000}
    )
    page = rollout_page(engineer, rollout)
    assert "(999,500 characters more)" in page
    assert len(page) < 40_000


def test_a_reused_answer_leads_to_the_rollout_it_came_from(engineer: Client, rollout: Rollout) -> None:
    other = rollout.run.rollouts.order_by("id")[1]
    answered_by(rollout, rollout)
    assert "was taken from" not in rollout_page(engineer, rollout)
    answered_by(rollout, other)
    Rollout.objects.filter(pk=rollout.pk).update(avoided_microusd=340)
    page = rollout_page(engineer, rollout)
    assert f'taken from <a href="/rollouts/{other.pk}/">rollout {other.pk}</a>' in page
    assert "That avoided 0.00034 USD." in page


def test_scores_cost_and_tools_stand_beside_the_metrics(engineer: Client, rollout: Rollout) -> None:
    Rollout.objects.filter(pk=rollout.pk).update(
        score=0.5, reason_code=False, arguments_valid=True, tool_evidence="claimed", cost_microusd=1200
    )
    page = rollout_page(engineer, rollout)
    for shown in (
        "<dt>share of the task</dt><dd>0.5000</dd>",
        "<dt>tools</dt><dd>claimed</dd>",
        "<dt>cost</dt><dd>0.0012 USD</dd>",
        "<dt>reason code</dt>",
        "<dt>arguments valid</dt>",
    ):
        assert shown in page


def test_calls_of_the_judge_are_told_from_those_of_the_model(engineer: Client, rollout: Rollout) -> None:
    call = world.add_call(rollout, request=b"{}", response=b"{}")
    ModelCall.objects.create(
        invocation=call.invocation,
        turn=1,
        purpose=CallPurpose.JUDGE,
        dialect="openai.chat",
        state="answered",
        status=200,
        request=call.request,
        response=call.response,
        cost_microusd=77,
        created_at=timezone.now(),
    )
    page = rollout_page(engineer, rollout)
    assert page.count("the model under test</dd>") == 2
    assert "judge, turn 2, attempt 1" in page
    assert "<dt>Cost</dt><dd>0.000077 USD</dd>" in page


def test_what_a_judged_case_wants_is_its_rubric(engineer: Client, house: factories.House) -> None:
    run = planned(house, suite=judged_suite(house), backend=dual(house))
    page = rollout_page(engineer, run.rollouts.get())
    assert "One line, about rain. &lt;b&gt;" in page
    assert "It rains." in page
    assert ">Expected<" not in page


def test_what_a_case_of_function_calls_wants_is_its_calls(engineer: Client, rollout: Rollout) -> None:
    case = rollout.case
    content = {key: value for key, value in case.content.items() if key != "expected"}
    type(case).objects.filter(pk=case.pk).update(
        content={**content, "expected_calls": [{"name": "wanted_call", "arguments": {}}]}
    )
    page = rollout_page(engineer, rollout)
    assert "Expected calls" in page
    assert "wanted_call" in page


# a new run


@pytest.fixture
def given(house: factories.House) -> dict[str, Any]:
    """A form that starts a run."""
    backend = measured.priced_backend(house)
    return {
        "suite": house.suite.pk,
        "backend": backend.name,
        "model": "gpt-large",
        "samples": 1,
        "temperature": "0",
        "max_tokens": 256,
    }


def start(client: Client, given: dict[str, Any], **changes: Any) -> Any:
    return client.post(reverse("rollouts:start-run"), {**given, **changes})


def errors_of(response: Any) -> dict[str, str]:
    """Field -> its message on the page."""
    return dict(re.findall(r'<p class="error" id="id_(\w+)_error">(.*?)</p>', html(response)))


def test_engineers_find_the_form_from_the_list(house: factories.House) -> None:
    for role in ("engineer", "approver", "auditor", "administrator"):
        client = signed_in(getattr(house, role))
        linked = 'href="/runs/new/"' in html(client.get(reverse("rollouts:runs")))
        assert linked is (role == "engineer")
        assert client.get(reverse("rollouts:new-run")).status_code == (200 if linked else 403)


def test_the_form_starts_a_run_of_a_remote_model(
    engineer: Client, house: factories.House, given: dict[str, Any], sent: list[Any]
) -> None:
    backends.save(
        name="scripted", kind="openai_compatible", config={"base_url": "http://h/v1"}, by=house.engineer
    )
    response = start(
        engineer,
        given,
        samples=3,
        temperature="0.5",
        max_tokens=99,
        label="by hand",
        reuse="on",
        budget_calls=7,
        budget_tokens=1000,
        budget_wall_s=60,
    )
    run = EvalRun.objects.get()
    assert (response.status_code, response["Location"]) == (302, f"/runs/{run.pk}/")
    assert (run.samples, run.label, run.reuse, run.created_by) == (3, "by hand", True, house.engineer)
    assert run.budget == {"calls": 7, "tokens": 1000, "wall_s": 60}
    assert run.backend.revision == 2, "the newest revision is used"
    assert run.subject.remote_model == "gpt-large"
    assert run.subject.sampling == {"temperature": 0.5, "max_tokens": 99}


def test_the_form_starts_a_run_of_a_base_model(
    engineer: Client, house: factories.House, given: dict[str, Any]
) -> None:
    assert start(engineer, given, model="", base=house.base.name, backend="local").status_code == 302
    run = EvalRun.objects.get()
    assert (run.subject.base, run.subject.adapter) == (house.base, None)
    assert run.subject.sampling == {"temperature": 0, "max_tokens": 256}
    assert run.budget is None


def test_dollars_are_micro_dollars_exactly(engineer: Client, given: dict[str, Any]) -> None:
    assert start(engineer, given, budget_usd="1.000001").status_code == 302
    assert EvalRun.objects.get().budget == {"microusd": 1_000_001}


def test_a_judge_is_named_by_backend_and_model(
    engineer: Client, house: factories.House, given: dict[str, Any]
) -> None:
    given["suite"] = judged_suite(house).pk
    assert start(engineer, given, judge_backend="scripted", judge_model="a-judge").status_code == 302
    run = EvalRun.objects.get()
    assert run.judge_backend is not None
    assert (run.judge_backend.name, run.judge_model) == ("scripted", "a-judge")
    assert "<bdi>a-judge</bdi> at" in page_of(engineer, run)


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"suite": ""}, "suite", "required"),
        ({"suite": "999"}, "suite", "available"),
        ({"backend": "none"}, "backend", "available"),
        ({"model": ""}, "model", "exactly one"),
        ({"base": "base"}, "model", "exactly one"),
        ({"base": "none"}, "base", "available"),
        ({"samples": "101"}, "samples", "100"),
        ({"samples": "many"}, "samples", "whole number"),
        ({"temperature": "3"}, "temperature", "2"),
        ({"temperature": "nan"}, "temperature", "number"),
        ({"max_tokens": "0"}, "max_tokens", "1"),
        ({"label": "x" * 201}, "label", "200"),
        ({"label": "a\x00b"}, "label", "Null"),
        ({"budget_calls": "0"}, "budget_calls", "1"),
        ({"budget_tokens": str(2**60)}, "budget_tokens", "whole number"),
        ({"budget_usd": "0.0000001"}, "budget_usd", "decimal places"),
        ({"budget_wall_s": "1.5"}, "budget_wall_s", "whole number"),
        ({"judge_model": "m"}, "judge_backend", "Choose"),
        # what the service says
        ({"judge_backend": "scripted", "judge_model": "m"}, "judge_backend", "nothing to judge"),
        ({"backend": "local"}, "backend", "cannot serve"),
        ({"backend": "free", "budget_usd": "1"}, "budget_usd", "has no prices"),
    ],
)
def test_what_is_wrong_is_said_at_its_field_and_what_was_typed_is_kept(
    engineer: Client,
    house: factories.House,
    given: dict[str, Any],
    changes: dict[str, str],
    field: str,
    says: str,
) -> None:
    factories.remote_backend(house.engineer, "http://127.0.0.1:9/v1", name="free")
    before = EvalRun.objects.count()
    response = start(engineer, {**given, "budget_calls": "12345", "label": "<b>mine</b>"}, **changes)
    assert response.status_code == 422
    found = errors_of(response)
    assert found.keys() == {field}
    assert says in found[field]
    assert EvalRun.objects.count() == before
    page = html(response)
    assert f'aria-describedby="id_{field}' in page or "aria-invalid" in page
    if "label" not in changes:
        assert 'value="&lt;b&gt;mine&lt;/b&gt;"' in page
    if "budget_calls" not in changes:
        assert 'value="12345"' in page


def test_a_judge_that_is_missing_or_judges_itself_is_refused_at_its_field(
    engineer: Client, house: factories.House, given: dict[str, Any]
) -> None:
    given["suite"] = judged_suite(house).pk
    for changes, field in (
        ({}, "judge_backend"),
        ({"judge_backend": "local", "judge_model": "m"}, "judge_backend"),
        ({"judge_backend": "scripted"}, "judge_model"),
        ({"judge_backend": "scripted", "judge_model": "gpt-large"}, "judge_model"),
    ):
        response = start(engineer, given, **changes)
        assert response.status_code == 422
        assert errors_of(response).keys() == {field}, changes


def test_a_run_that_is_measured_already_is_refused_with_the_way_to_it(
    engineer: Client, given: dict[str, Any]
) -> None:
    start(engineer, given)
    active = EvalRun.objects.get()
    response = start(engineer, given, label="again")
    assert response.status_code == 409
    page = html(response)
    assert 'role="alert"' in page
    assert f'href="/runs/{active.pk}/"' in page
    assert 'value="again"' in page


def test_a_refused_run_leaves_no_subject_behind(engineer: Client, given: dict[str, Any]) -> None:
    from rollouts.models import Subject

    before = Subject.objects.count()
    assert start(engineer, given, judge_backend="scripted", judge_model="m").status_code == 422
    assert Subject.objects.count() == before
