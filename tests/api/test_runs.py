"""What the API takes for a run, and what it says of runs, rollouts and calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from rollouts.models import AuditEvent, EvalRun, ModelCall, Rollout
from rollouts.services import suites
from tests import factories
from tests.web import measured, world
from tests.web.measured import CUT, MASKED, OPEN, POISONED, RIGHT, SKIPPED, WRONG, answered_by, claim, give


@pytest.fixture
def body(house: Any) -> dict[str, Any]:
    """A body that plans a run on a backend with prices."""
    return {"suite": house.suite.digest, "backend": measured.priced_backend(house).name, "model": "gpt"}


def judged_suite(house: Any) -> Any:
    row = {
        "example_id": "poem",
        "family": "poems",
        "messages": [{"role": "user", "content": "Write a line about rain."}],
        "rubric": "One line, about rain.",
    }
    return suites.seal(name="poems", data=factories.jsonl([row]), by=house.engineer, scorer="judge")


# planning


def test_a_plain_run_reuses_nothing_and_has_no_judge_and_no_budget(engineer: Any, body: Any):
    made = engineer.post("runs", body, status=202)
    assert (made["reuse"], made["judge"], made["budget"]) == (False, None, None)
    assert made["independence"] == "independent"
    assert made["spent"] == {"calls": 0, "tokens": 0, "microusd": 0}


def test_a_run_is_planned_with_reuse_and_a_budget(engineer: Any, body: Any):
    budget = {"calls": 10, "tokens": 2000, "microusd": 1_500_000, "wall_s": 60}
    made = engineer.post("runs", {**body, "reuse": True, "budget": budget}, status=202)
    assert (made["reuse"], made["budget"]) == (True, budget)
    assert EvalRun.objects.get(pk=made["id"]).budget == budget


def test_limits_that_are_left_out_are_null(engineer: Any, body: Any):
    made = engineer.post("runs", {**body, "budget": {"calls": 3}}, status=202)
    assert made["budget"] == {"calls": 3, "tokens": None, "microusd": None, "wall_s": None}


def test_a_judge_is_named_by_backend_and_model(engineer: Any, house: Any, body: Any):
    body |= {"suite": judged_suite(house).digest, "judge": {"backend": "scripted", "model": "a-judge"}}
    made = engineer.post("runs", body, status=202)
    assert made["judge"] == {"backend": "scripted", "revision": 1, "model": "a-judge"}
    assert engineer.get("runs")["results"][0]["judge"] == made["judge"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"reuse": 1}, "reuse"),
        ({"reuse": "true"}, "reuse"),
        ({"reuse": None}, "reuse"),
        ({"budget": []}, "budget"),
        ({"budget": {"calls": 0}}, "budget.calls"),
        ({"budget": {"tokens": 1.0}}, "budget.tokens"),
        ({"budget": {"microusd": "5"}}, "budget.microusd"),
        ({"budget": {"wall_s": True}}, "budget.wall_s"),
        ({"budget": {"calls": None}}, "budget.calls"),
        ({"budget": {"dollars": 1}}, "budget.dollars"),
        ({"judge": {"backend": "scripted"}}, "judge.model"),
        ({"judge": {"backend": "scripted", "model": ""}}, "judge.model"),
        ({"judge": {"backend": "none", "model": "m"}}, "judge.backend"),
        ({"judge": {"backend": "scripted", "model": "m", "rubric": "r"}}, "judge.rubric"),
        # what the service says
        ({"judge": {"backend": "scripted", "model": "m"}}, "judge"),
        ({"backend": "free", "budget": {"microusd": 1}}, "budget.microusd"),
    ],
)
def test_what_is_wrong_with_reuse_judge_or_budget_is_named(
    engineer: Any, house: Any, body: Any, change: dict[str, Any], field: str
):
    factories.remote_backend(house.engineer, "http://127.0.0.1:9/v1", name="free")
    found = engineer.problem(400, "POST", "runs", {**body, **change})
    assert (found["code"], found["field"]) == ("invalid_input", field)
    assert not EvalRun.objects.filter(backend__name__in=["scripted", "free"]).exists()


def test_a_judged_suite_needs_a_judge_that_is_another_model(engineer: Any, house: Any, body: Any):
    body["suite"] = judged_suite(house).digest
    assert engineer.problem(400, "POST", "runs", body)["field"] == "judge"
    for judge, field in (
        ({"backend": "scripted", "model": "gpt"}, "judge.model"),
        ({"backend": "local", "model": "m"}, "judge.backend"),
    ):
        assert engineer.problem(400, "POST", "runs", {**body, "judge": judge})["field"] == field


def test_a_candidate_may_be_run_with_reuse_beside_its_evidence(engineer: Any, house: Any):
    candidate = house.candidate()
    body = {"suite": house.suite.digest, "backend": house.backend.name, "candidate": candidate.pk}
    made = engineer.post("runs", {**body, "reuse": True, "budget": {"calls": 5}}, status=202)
    assert (made["reuse"], made["budget"]["calls"]) == (True, 5)
    assert made["subject"]["adapter"] == candidate.gguf_id


# what is said of a run


@pytest.fixture
def run(house: Any) -> EvalRun:
    """20 rollouts at work: 8 right, 3 wrong, 2 cut off, 2 masked, 1 poisoned, 1 skipped, 3 queued."""
    outcomes = [*[RIGHT] * 8, *[WRONG] * 3, *[CUT] * 2, *[MASKED] * 2, POISONED, SKIPPED, *[OPEN] * 3]
    return give(measured.planned(house), lambda case, _: outcomes[case])


def test_a_run_tells_how_far_how_fast_and_how_dear(auditor: Any, run: EvalRun):
    claim(run, age_s=100, done=50, cost_microusd=700)
    found = auditor.get(f"runs/{run.pk}")
    progress = found["progress"]
    assert (progress["done"], progress["masked"], progress["states"]["queued"]) == (17, 2, 3)
    assert progress["rate_per_s"] == pytest.approx(0.5, rel=0.05)
    assert progress["eta_s"] == pytest.approx(6, rel=0.05)
    assert found["cost_microusd"] == 700


def test_what_is_not_known_is_null(auditor: Any, house: Any, run: EvalRun):
    run = give(measured.planned(house, backend=measured.priced_backend(house, prompt_price=None), samples=2),
               lambda *_: OPEN)  # fmt: skip
    found = auditor.get(f"runs/{run.pk}")
    assert found["cost_microusd"] is None
    assert (found["progress"]["rate_per_s"], found["progress"]["eta_s"]) == (None, None)
    assert found["progress"]["mean_share"] is None
    assert found["repeats"]["mean_rate"] is None


def test_a_run_tells_its_flags(auditor: Any, run: EvalRun):
    found = auditor.get(f"runs/{run.pk}")["flags"]
    assert [(flag["code"], flag["n"]) for flag in found] == [
        ("many_masked", 4),
        ("poisoned", 1),
        ("budget", 1),
    ]
    assert found[0]["text"].startswith("4 of 20 rollouts have no score (20.0 %).")


def test_a_run_tells_what_is_counted_apart(auditor: Any, run: EvalRun):
    scored = list(run.rollouts.filter(state="scored").order_by("id").values_list("pk", flat=True))
    Rollout.objects.filter(pk__in=scored[:4]).update(reason_code=True, tool_evidence="executed", score=0.5)
    Rollout.objects.filter(pk=scored[4]).update(arguments_valid=False, tool_evidence="none", score=1)
    found = auditor.get(f"runs/{run.pk}")["progress"]
    assert found["answer_classes"] == {"ok": 11, "truncated": 2}
    assert found["apart"] == [
        {"name": "reason_code", "right": 4, "wrong": 0},
        {"name": "arguments_valid", "right": 0, "wrong": 1},
    ]
    assert found["tool_evidence"] == {"executed": 4, "none": 1}
    assert found["mean_share"] == pytest.approx(0.6)
    listed = auditor.get(f"rollouts?run={run.pk}&metric=arguments_valid&value=false")["results"]
    assert [row["id"] for row in listed] == [scored[4]]


def test_repeats_are_told_by_case_or_not_at_all(auditor: Any, house: Any):
    suite = factories.suite(house.engineer, name="two", calls=2)
    run = measured.planned(house, suite=suite, samples=2)
    give(run, lambda case, sample: WRONG if (case, sample) == (1, 1) else RIGHT, close=True)
    assert auditor.get(f"runs/{run.pk}")["repeats"] == {
        "agree": 1,
        "disagree": 1,
        "undecided": 0,
        "mean_rate": 0.75,
        "answers": 4,
        "distinct_answers": 3,
        "pass_at": [
            {"k": 1, "value": 0.75, "n": 2, "skipped": 0},
            {"k": 2, "value": 1.0, "n": 2, "skipped": 0},
        ],
    }
    EvalRun.objects.filter(pk=run.pk).update(independence="ignored", overview=None)
    found = auditor.get(f"runs/{run.pk}")
    assert found["repeats"] is None
    assert [flag["code"] for flag in found["flags"]] == ["independence_ignored"]


def test_queries_do_not_grow_with_repeats_reused_answers_and_claims(auditor: Any, house: Any):
    suite = factories.suite(house.engineer, name="ten", calls=10)
    run = give(measured.planned(house, suite=suite, samples=2, reuse=True), lambda *_: OPEN)
    source = answered_by(run.rollouts.all()[0], run.rollouts.all()[1])
    cases = list(suite.cases.all())

    def grow(samples: range) -> None:
        Rollout.objects.bulk_create(
            Rollout(run=run, case=case, sample_index=sample, answered_by=source, **RIGHT)
            for case in cases
            for sample in samples
        )
        for _ in samples:
            claim(run, done=1)

    paths = (
        f"runs/{run.pk}",
        "runs",
        f"rollouts?run={run.pk}&page_size=200",
        f"rollouts/{source.rollout_id}",
    )

    def queries() -> dict[str, int]:
        found = {}
        for path in paths:
            with CaptureQueriesContext(connection) as captured:
                auditor.get(path)
            found[path] = len(captured)
        return found

    grow(range(2, 3))
    few = queries()
    grow(range(3, 103))
    assert queries() == few
    assert max(few.values()) <= 13


# rollouts and calls


def test_a_rollout_tells_where_its_answer_came_from_and_what_it_cost(auditor: Any, run: EvalRun):
    first, second = run.rollouts.order_by("id")[:2]
    invocation = answered_by(second, first)
    values = {"cost_microusd": 0, "avoided_microusd": 340, "score": 0.5, "tool_evidence": "claimed"}
    values |= {"reason_code": False, "arguments_valid": True}
    details = {"checks": [{"op": "contains", "arg": "<b>", "passed": True}]}
    Rollout.objects.filter(pk=second.pk).update(details=details, **values)
    found = auditor.get(f"rollouts/{second.pk}")
    assert {name: found[name] for name in values} == values
    assert (found["answered_by"], found["reused_from"]) == (invocation.pk, first.pk)
    assert found["attempt_key"] == second.attempt_key != ""
    assert found["details"] == details
    listed = {row["id"]: row for row in auditor.get(f"rollouts?run={run.pk}")["results"]}
    assert listed[second.pk] == {name: found[name] for name in listed[second.pk]} | {
        "case": listed[second.pk]["case"]
    }


def test_a_rollout_that_asked_for_itself_reused_nothing(auditor: Any, run: EvalRun):
    first, second = run.rollouts.order_by("id")[:2]
    invocation = answered_by(first, first)
    found = auditor.get(f"rollouts/{first.pk}")
    assert (found["answered_by"], found["reused_from"]) == (invocation.pk, None)
    found = auditor.get(f"rollouts/{second.pk}")
    assert (found["answered_by"], found["reused_from"]) == (None, None)
    assert (found["details"], found["score"], found["cost_microusd"], found["tool_evidence"]) == (
        None,
        None,
        None,
        "",
    )


def test_hostile_details_come_through_as_escaped_text(auditor: Any, run: EvalRun):
    rollout = run.rollouts.order_by("id")[0]
    details = {world.HOSTILE: [world.HOSTILE]}
    Rollout.objects.filter(pk=rollout.pk).update(details=details)
    response = auditor.send("GET", f"rollouts/{rollout.pk}")
    assert response.json()["details"] == details
    assert response.content.isascii()
    assert b"\x1b" not in response.content


def test_a_call_tells_whom_it_asked(auditor: Any, run: EvalRun):
    call = world.add_call(run.rollouts.order_by("id")[0], request=b"{}", response=b"{}")
    judged = ModelCall.objects.create(
        invocation=call.invocation, turn=1, purpose="judge", dialect="openai.chat", state="answered", status=200,
        request=call.request, response=call.response, created_at=timezone.now(),
    )  # fmt: skip
    assert auditor.get(f"calls/{judged.pk}")["purpose"] == "judge"
    assert [row["purpose"] for row in auditor.get(f"calls?run={run.pk}")["results"]] == [
        "policy",
        "policy",
        "judge",
    ]


# scoring again


@pytest.fixture
def closed(house: Any) -> EvalRun:
    """A closed run of one right answer whose stored score is wrong."""
    suite = factories.suite(house.engineer, name="one", calls=1)
    run = give(measured.planned(house, suite=suite), lambda *_: WRONG, close=True)
    rollout = run.rollouts.select_related("case").get()
    message = {"role": "assistant", "content": json.dumps(rollout.case.content["expected"])}
    answer = {"choices": [{"message": message, "finish_reason": "stop"}]}
    call = world.add_call(rollout, request=b"{}", response=json.dumps(answer).encode())
    Rollout.objects.filter(pk=rollout.pk).update(answered_by=call.invocation)
    return run


def test_a_closed_run_is_scored_again_without_a_call(engineer: Any, closed: EvalRun):
    exact = {"name": "exact", "right": 0, "wrong": 1}
    assert exact in engineer.get(f"runs/{closed.pk}")["progress"]["metrics"]
    calls = ModelCall.objects.count()
    found = engineer.post(f"runs/{closed.pk}/rescore", status=200)
    assert {"name": "exact", "right": 1, "wrong": 0} in found["progress"]["metrics"]
    assert (found["state"], ModelCall.objects.count()) == ("scored", calls)


def test_scoring_again_honours_its_idempotency_key(engineer: Any, closed: EvalRun):
    path = f"runs/{closed.pk}/rescore"
    first = engineer.send("POST", path, Idempotency_Key="k")
    again = engineer.send("POST", path, Idempotency_Key="k")
    assert (again.status_code, again["Idempotency-Replayed"]) == (200, "true")
    assert again.json() == first.json()
    assert AuditEvent.objects.filter(action="run.rescored").count() == 1


def test_only_a_closed_run_without_a_judge_is_scored_again(
    engineer: Any, run: EvalRun, closed: EvalRun, house: Any
):
    assert engineer.problem(409, "POST", f"runs/{run.pk}/rescore")["code"] == "conflict"
    EvalRun.objects.filter(pk=closed.pk).update(judge_backend=house.backend, judge_model="j")
    assert engineer.problem(409, "POST", f"runs/{closed.pk}/rescore")["code"] == "conflict"
    engineer.problem(404, "POST", "runs/999/rescore")
    assert engineer.problem(400, "POST", f"runs/{closed.pk}/rescore", {"force": True})["field"] == "force"


def test_scoring_again_is_for_those_who_may_run(acting: Any, house: Any, closed: EvalRun):
    for person in (house.approver, house.auditor, house.administrator):
        assert acting(person).problem(403, "POST", f"runs/{closed.pk}/rescore")["code"] == "not_allowed"
    assert not AuditEvent.objects.filter(action="run.rescored").exists()
