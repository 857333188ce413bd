"""A tool call is asked for natively, over several turns, or read from a marker: K samples are K calls on each route."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User

from rollouts.errors import InvalidInput
from rollouts.models import EvalRun, Invocation, ModelCall, Rollout, RolloutState
from rollouts.services import backends, runs, suites
from tests import factories
from tests.engine.conftest import calls_of
from tests.engine.scripted import Provider, Reply, Seen, completion, tool_calls

pytestmark = pytest.mark.django_db(transaction=True)
SEARCH = {
    "name": "search",
    "description": "Searches the documents.",
    "parameters": {
        "type": "object",
        "properties": {"query": {"type": "string"}},
        "required": ["query"],
    },
}
Plan = Callable[..., EvalRun]


def row(key: str = "one", **more: Any) -> dict[str, Any]:
    return {
        "example_id": key,
        "family": "tools",
        "messages": [{"role": "user", "content": f"{key}|find the invoice"}],
        **more,
    }


def wants_search(**more: Any) -> dict[str, Any]:
    return row(checks=[{"op": "tool_called", "arg": "search"}], tools=[SEARCH], **more)


@pytest.fixture
def plan_rows(engineer: User, provider: Provider) -> Iterator[Plan]:
    def make(*rows: dict[str, Any], scorer: str = "rules", native: bool = True, **values: Any) -> EvalRun:
        backend = backends.save(
            name="scripted",
            kind="openai_compatible",
            config={"base_url": provider.url, "tool_calling": "native" if native else "none"},
            by=engineer,
            concurrency=values.pop("concurrency", 4),
            timeout_s=5,
        )
        return runs.plan(
            subject=factories.remote_subject(),
            suite=suites.seal(name="tooled", data=factories.jsonl(rows), by=engineer, scorer=scorer),
            backend=backend,
            by=engineer,
            **values,
        )

    yield make


def worked(run: EvalRun) -> Rollout:
    runs.work_shard(run.pk)
    return run.rollouts.order_by("sample_index").first()  # type: ignore[return-value]


def turns(seen: Seen) -> list[dict[str, Any]]:
    return list(json.loads(seen.body)["messages"])


def search_then_answer(seen: Seen) -> Reply:
    if turns(seen)[-1]["role"] == "tool":
        return Reply(completion("The invoice is number 7."))
    return Reply(tool_calls(("search", {"query": "invoice"})))


def test_samples_of_a_tool_case_reach_the_provider_as_often_as_those_of_a_text_case(
    plan_rows: Plan, provider: Provider
) -> None:
    """Four samples, the tool named in every other answer: 1, 0, 1, 0 on the marker route as with a text check."""
    provider.answer = lambda seen: Reply(
        completion("TOOL_CALL: search" if seen.number % 2 else "I will not.")
    )
    for checks in ([{"op": "tool_called", "arg": "search"}], [{"op": "contains", "arg": "tool_call"}]):
        provider.seen.clear()
        run = plan_rows(row(checks=checks), native=False, samples=4, concurrency=1)
        runs.work_shard(run.pk)

        assert len(provider.seen) == 4
        assert (
            list(run.rollouts.order_by("sample_index").values_list("exact", flat=True)) == [True, False] * 2
        )


def test_samples_of_a_native_tool_case_are_calls_of_their_own(plan_rows: Plan, provider: Provider) -> None:
    provider.answer = search_then_answer
    run = plan_rows(wants_search(), samples=3, concurrency=1)
    runs.work_shard(run.pk)

    assert len(provider.seen) == 6
    assert ModelCall.objects.values("invocation").distinct().count() == 3


def test_a_native_call_is_carried_out_and_its_result_is_sent_back(
    plan_rows: Plan, provider: Provider
) -> None:
    provider.answer = search_then_answer
    script = {"search": [{"when": {"query": "invoice"}, "result": {"found": ["invoice 7"]}}]}
    rollout = worked(plan_rows(wants_search(tool_results=script)))

    first, second = provider.seen
    assert [tool["function"]["name"] for tool in json.loads(first.body)["tools"]] == ["search"]
    assert [message["role"] for message in turns(second)] == ["user", "assistant", "tool"]
    assert turns(second)[1]["tool_calls"][0]["id"] == turns(second)[2]["tool_call_id"]
    assert json.loads(turns(second)[2]["content"]) == {"found": ["invoice 7"]}
    assert (rollout.exact, rollout.tool, rollout.tool_evidence) == (True, True, "executed")
    assert rollout.answer == "The invoice is number 7."
    assert [(call.turn, call.attempt, call.state) for call in calls_of(rollout)] == [
        (0, 1, "answered"),
        (1, 1, "answered"),
    ]


def test_tokens_and_latency_of_a_rollout_are_those_of_all_its_turns(
    plan_rows: Plan, provider: Provider
) -> None:
    provider.answer = search_then_answer
    rollout = worked(plan_rows(wants_search()))

    assert (rollout.prompt_tokens, rollout.completion_tokens) == (22, 10)
    latencies = [call.latency_ms for call in calls_of(rollout)]
    assert rollout.latency_ms == pytest.approx(sum(latencies))


def test_a_turn_with_unknown_usage_leaves_the_rollouts_tokens_unknown(
    plan_rows: Plan, provider: Provider
) -> None:
    def answer(seen: Seen) -> Reply:
        if seen.number == 1:
            return Reply(tool_calls(("search", {"query": "x"}), usage=None))
        return Reply(completion("done"))

    provider.answer = answer
    rollout = worked(plan_rows(wants_search()))

    assert (rollout.prompt_tokens, rollout.completion_tokens) == (None, None)


def test_where_a_real_loop_exists_a_marker_in_the_text_never_counts(
    plan_rows: Plan, provider: Provider
) -> None:
    provider.answer = lambda seen: Reply(completion("TOOL_CALL: search"))
    rollout = worked(plan_rows(wants_search()))

    assert (rollout.state, rollout.exact, rollout.tool_evidence) == (RolloutState.SCORED, False, "none")


def test_a_marker_is_a_claim_and_is_marked_as_one(plan_rows: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(completion("TOOL_CALL: search"))
    rollout = worked(plan_rows(wants_search(), native=False))

    assert (rollout.exact, rollout.tool_evidence) == (True, "claimed")
    assert "TOOL_CALL" in json.loads(provider.seen[0].body)["messages"][0]["content"]
    assert "tools" not in json.loads(provider.seen[0].body)


@pytest.mark.parametrize(
    ("name", "arguments"), [("search", "{not json"), ("search", "[1]"), ("delete", {"query": "x"})]
)
def test_a_call_that_cannot_be_carried_out_is_answered_with_an_error_and_is_no_evidence(
    plan_rows: Plan, provider: Provider, name: str, arguments: Any
) -> None:
    def answer(seen: Seen) -> Reply:
        if seen.number == 1:
            return Reply(tool_calls((name, arguments)))
        return Reply(completion("It failed."))

    provider.answer = answer
    rollout = worked(plan_rows(wants_search()))

    assert turns(provider.seen[1])[-1]["role"] == "tool"
    assert "error" in turns(provider.seen[1])[-1]["content"]
    assert (rollout.state, rollout.exact, rollout.tool_evidence) == (RolloutState.SCORED, False, "claimed")


def test_a_failed_tool_leaves_the_rollout_unmasked(plan_rows: Plan, provider: Provider) -> None:
    provider.answer = search_then_answer
    rollout = worked(plan_rows(wants_search(tool_results={"search": [{"error": "exit code 7"}]})))

    assert "exit code 7" in turns(provider.seen[1])[-1]["content"]
    assert (rollout.state, rollout.exact) == (RolloutState.SCORED, True)


def test_turns_end_and_the_case_counts_as_wrong(plan_rows: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(tool_calls(("search", {"query": f"{seen.number}"})))
    rollout = worked(plan_rows(wants_search(max_turns=3)))

    assert len(provider.seen) == 3
    assert (rollout.state, rollout.answer_class) == (RolloutState.SCORED, "turns_exhausted")


def test_a_later_turn_that_fails_masks_the_rollout_even_if_its_tool_was_called(
    plan_rows: Plan, provider: Provider
) -> None:
    def answer(seen: Seen) -> Reply:
        return search_then_answer(seen) if seen.number == 1 else Reply(b"oops", status=400)

    provider.answer = answer
    rollout = worked(plan_rows(wants_search()))

    assert (rollout.state, rollout.failure_kind, rollout.exact) == (RolloutState.MASKED, "bad_request", None)
    assert [call.state for call in calls_of(rollout)] == ["answered", "failed"]


def test_retries_of_a_turn_are_attempts_of_the_same_invocation(plan_rows: Plan, provider: Provider) -> None:
    def answer(seen: Seen) -> Reply:
        return Reply(b"busy", status=503) if seen.number == 2 else search_then_answer(seen)

    provider.answer = answer
    rollout = worked(plan_rows(wants_search()))

    assert [(call.turn, call.attempt, call.state) for call in calls_of(rollout)] == [
        (0, 1, "answered"),
        (1, 1, "failed"),
        (1, 2, "answered"),
    ]
    assert calls_of(rollout)[1].request_id == calls_of(rollout)[2].request_id
    assert Invocation.objects.count() == 1


def test_parallel_calls_are_each_answered(plan_rows: Plan, provider: Provider) -> None:
    def answer(seen: Seen) -> Reply:
        if seen.number == 1:
            return Reply(tool_calls(("search", {"query": "a"}), ("search", {"query": "b"})))
        return Reply(completion("done"))

    provider.answer = answer
    worked(plan_rows(wants_search()))

    assert [message.get("tool_call_id") for message in turns(provider.seen[1])[2:]] == ["call-0", "call-1"]


def test_function_calls_are_asked_for_once_and_matched(plan_rows: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(tool_calls(("search", {"query": "invoice"})))
    expected = [{"name": "search", "arguments": {"query": ["invoice", "the invoice"]}}]
    rollout = worked(plan_rows(row(tools=[SEARCH], expected_calls=expected), scorer="function_call"))

    assert len(provider.seen) == 1
    assert (rollout.exact, rollout.decision, rollout.tool, rollout.safe) == (True, True, True, None)
    assert (rollout.tool_evidence, rollout.json_valid, rollout.arguments_valid) == ("claimed", True, True)


def test_a_call_where_none_is_right_is_unsafe(plan_rows: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(tool_calls(("search", {"query": "invoice"})))
    rollout = worked(plan_rows(row(tools=[SEARCH], expected_calls=[]), scorer="function_call"))

    assert (rollout.exact, rollout.safe, rollout.tool) == (False, False, None)


def test_function_calls_of_a_backend_that_has_none_are_refused_before_anything_is_spent(
    plan_rows: Plan, provider: Provider
) -> None:
    with pytest.raises(InvalidInput) as refused:
        plan_rows(row(tools=[SEARCH], expected_calls=[]), scorer="function_call", native=False)

    assert refused.value.field == "backend"
    assert "native tool calling" in refused.value.message
    assert not EvalRun.objects.exists() and provider.seen == []


def test_a_reused_dialogue_gives_the_same_outcome_without_a_call(plan_rows: Plan, provider: Provider) -> None:
    provider.answer = search_then_answer
    first = worked(plan_rows(wants_search()))
    again = worked(plan_rows(wants_search(), reuse=True))

    assert len(provider.seen) == 2
    for name in ("answer", "exact", "tool", "tool_evidence", "details", "answered_by_id"):
        assert getattr(again, name) == getattr(first, name), name


def test_the_route_is_part_of_the_attempt_key(plan_rows: Plan, engineer: User) -> None:
    keys = set()
    for native in (True, False):
        run = plan_rows(wants_search(), native=native)
        keys.add(run.rollouts.get().attempt_key)
        runs.cancel(run_id=run.pk, by=engineer)

    assert len(keys) == 2


def test_what_only_shapes_the_score_is_not_part_of_the_attempt_key(
    plan_rows: Plan, provider: Provider
) -> None:
    provider.answer = lambda seen: Reply(completion("hello"))
    worked(plan_rows(row(checks=[{"op": "contains", "arg": "hello"}])))
    changed = worked(plan_rows(row(checks=[{"op": "contains", "arg": "goodbye"}]), reuse=True))

    assert len(provider.seen) == 1
    assert changed.exact is False


def test_reasoning_without_an_answer_is_an_outcome_of_its_own(plan_rows: Plan, provider: Provider) -> None:
    body = json.loads(completion(None))
    body["choices"][0]["message"]["reasoning_content"] = "I should say hello."
    provider.answer = lambda seen: Reply(json.dumps(body).encode())
    rollout = worked(plan_rows(row(checks=[{"op": "not_contains", "arg": "goodbye"}])))

    assert (rollout.state, rollout.answer_class, rollout.exact) == (
        RolloutState.SCORED,
        "reasoning_only",
        False,
    )


def test_a_truncated_answer_is_wrong_whatever_it_holds(plan_rows: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(completion("hello", finish_reason="length"))
    rollout = worked(plan_rows(row(checks=[{"op": "contains", "arg": "hello"}])))

    assert (rollout.state, rollout.answer_class, rollout.exact) == (RolloutState.SCORED, "truncated", False)
