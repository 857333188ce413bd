"""Every attempt is a durable row before it is sent, and what came back is kept byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from django.db import IntegrityError, transaction

from rollouts.hashing import sha256_bytes
from rollouts.models import (
    CallState,
    EvalRun,
    Invocation,
    InvocationState,
    ModelCall,
    Payload,
    Rollout,
    RolloutState,
)
from rollouts.services import runs
from tests.engine.conftest import body_of, calls_of, rollout_of
from tests.engine.scripted import Provider, Reply, Seen, completion, right

pytestmark = pytest.mark.django_db(transaction=True)
Plan = Callable[..., EvalRun]


def test_a_request_is_a_committed_row_before_the_provider_sees_it(plan: Plan, provider: Provider) -> None:
    found: list[tuple[int, str]] = []

    def look(seen: Seen) -> Reply:
        rows = ModelCall.objects.filter(request_id=sha256_bytes(seen.body), attempt=seen.nth)
        found.append((rows.count(), rows.get().state))
        return right(seen) if seen.nth == 2 else Reply(b"busy", status=503)

    provider.answer = look
    run = plan(calls=3)

    runs.work_shard(run.pk)

    assert found == [(1, CallState.OPEN)] * 6  # first attempts and retries alike


def test_each_attempt_is_a_row_of_the_same_invocation(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: right(seen) if seen.nth == 3 else Reply(b"down", status=500)
    run = plan(calls=1)

    runs.work_shard(run.pk)

    calls = calls_of(Rollout.objects.get(run=run))
    assert [(call.attempt, call.state, call.status, call.error_kind) for call in calls] == [
        (1, "failed", 500, "server"),
        (2, "failed", 500, "server"),
        (3, "answered", 200, ""),
    ]
    assert len({call.invocation_id for call in calls}) == 1
    assert Invocation.objects.get().state == InvocationState.FINISHED


def test_what_the_provider_saw_and_sent_is_kept_byte_for_byte(plan: Plan, provider: Provider) -> None:
    run = plan(calls=1)

    runs.work_shard(run.pk)

    call = ModelCall.objects.get()
    assert body_of(call.request_id) == provider.seen[0].body
    assert body_of(call.response_id) == right(provider.seen[0]).body
    assert (call.provider_response_id, call.dialect) == ("resp-1", "openai.chat")
    assert call.response_headers is not None and call.response_headers["Content-Length"]
    assert call.latency_ms is not None and call.first_byte_ms is not None
    assert 0 < call.first_byte_ms <= call.latency_ms
    assert call.finished_at is not None and call.finished_at >= call.created_at


def test_an_http_error_keeps_its_status_and_body_and_is_no_step(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(b'{"error": "model overloaded"}', status=400)
    run = plan(calls=1)

    runs.work_shard(run.pk)

    call = ModelCall.objects.get()
    assert (call.state, call.status) == (CallState.FAILED, 400)
    assert body_of(call.response_id) == b'{"error": "model overloaded"}'


def test_equal_bytes_are_stored_once(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(b"same page", status=404)
    run = plan(calls=3)

    runs.work_shard(run.pk)

    assert ModelCall.objects.filter(response__isnull=False).count() == 3
    assert Payload.objects.count() == 4  # three prompts, one answer


def test_samples_of_one_case_are_asked_one_by_one(plan: Plan, provider: Provider) -> None:
    run = plan(calls=2, samples=3)

    runs.work_shard(run.pk)

    assert len(provider.seen) == 6
    assert Rollout.objects.filter(run=run, state=RolloutState.SCORED).count() == 6
    assert Invocation.objects.count() == ModelCall.objects.count() == 6


def test_the_request_holds_prompt_model_and_sampling_and_not_the_reference_answer(
    plan: Plan, provider: Provider
) -> None:
    run = plan(calls=1)

    runs.work_shard(run.pk)

    sent = json.loads(provider.seen[0].body)
    assert sent["model"] == "scripted-model"
    assert (sent["temperature"], sent["max_tokens"]) == (0, 64)
    assert [message["role"] for message in sent["messages"]] == ["system", "user"]
    assert "Authorization" not in provider.seen[0].headers


def test_the_key_is_read_from_its_variable_and_never_stored(
    plan: Plan, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_KEY_SCRIPTED", "sk-very-secret")
    run = plan(calls=1, key_env="ASSAY_KEY_SCRIPTED")

    runs.work_shard(run.pk)

    assert provider.seen[0].headers["Authorization"] == "Bearer sk-very-secret"
    call = ModelCall.objects.get()
    kept = [body_of(call.request_id), body_of(call.response_id), json.dumps(call.response_headers).encode()]
    assert not any(b"sk-very-secret" in part for part in kept)


def test_unknown_usage_is_null_and_so_is_its_cost(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(completion(seen.right_answer, usage=None))
    run = plan(calls=1, prompt_price=1_000_000, completion_price=2_000_000)

    runs.work_shard(run.pk)

    call, rollout = ModelCall.objects.get(), Rollout.objects.get(run=run)
    assert (call.prompt_tokens, call.completion_tokens, call.cost_microusd) == (None, None, None)
    assert (rollout.prompt_tokens, rollout.completion_tokens) == (None, None)
    assert rollout.state == RolloutState.SCORED


@pytest.mark.parametrize(
    "usage",
    [{"prompt_tokens": -1}, {"prompt_tokens": "7"}, {"prompt_tokens": True}, [7], {"prompt_tokens": 2**31}],
)
def test_usage_that_is_no_count_is_null(plan: Plan, provider: Provider, usage: object) -> None:
    provider.answer = lambda seen: Reply(completion(seen.right_answer, usage=usage))
    run = plan(calls=1)

    runs.work_shard(run.pk)

    assert ModelCall.objects.get().prompt_tokens is None
    assert Rollout.objects.get(run=run).state == RolloutState.SCORED


def test_known_usage_has_a_cost_rounded_up_and_without_a_price_none(plan: Plan, provider: Provider) -> None:
    priced = plan(calls=1, prompt_price=100_000, completion_price=300_001)

    runs.work_shard(priced.pk)

    # 11 * 0.1 + 5 * 0.300001 micro-dollars = 2.600005
    assert ModelCall.objects.get().cost_microusd == 3


def test_an_unpriced_backend_has_no_cost(plan: Plan) -> None:
    run = plan(calls=1, prompt_price=100_000)

    runs.work_shard(run.pk)

    call = ModelCall.objects.get()
    assert (call.prompt_tokens, call.cost_microusd) == (11, None)


def test_nul_and_half_surrogates_are_shown_as_stand_ins_and_kept_as_bytes(
    plan: Plan, provider: Provider
) -> None:
    nasty = "a\x00b\ud800c"
    body = completion(nasty, finish_reason="st\x00p\udfff")
    provider.answer = lambda seen: Reply(body, headers={"X-Odd": "caf\udce9"})
    run = plan(calls=1)

    runs.work_shard(run.pk)

    rollout = Rollout.objects.get(run=run)
    assert (rollout.state, rollout.answer) == (RolloutState.SCORED, "a\u2400b?c")
    assert rollout.finish_reason == "st\u2400p?"
    assert rollout.answer_class == "not_json"
    assert body_of(ModelCall.objects.get().response_id) == body


def test_nul_in_an_error_body_does_not_stop_the_run(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(b"bad \x00 \xff request", status=400)
    run = plan(calls=2)

    runs.work_shard(run.pk)

    run.refresh_from_db()
    assert (run.state, run.masked) == ("scored", 2)
    assert "\u2400" in ModelCall.objects.first().error_text


def test_headers_without_end_are_cut(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(
        completion(seen.right_answer), headers={f"X-{n}": "v" * 4000 for n in range(5)}
    )
    run = plan(calls=1, max_attempts=1)

    runs.work_shard(run.pk)

    call = ModelCall.objects.get()
    assert call.state == CallState.ANSWERED
    assert sum(map(len, call.response_headers)) + sum(map(len, call.response_headers.values())) <= 8000


def test_an_answer_beyond_the_limit_is_refused_and_not_read_to_its_end(
    plan: Plan, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollouts.engine import runner

    monkeypatch.setattr(runner, "MAX_RESPONSE_BYTES", 1 << 20)
    provider.answer = lambda seen: Reply(completion("x" * (3 << 20)))
    run = plan(calls=1)

    runs.work_shard(run.pk)

    call = ModelCall.objects.get()
    assert (call.state, call.error_kind) == (CallState.FAILED, "protocol")
    assert len(body_of(call.response_id)) == runner.KEPT_OF_TOO_LARGE_BYTES


@pytest.mark.parametrize(
    ("state", "values"),
    [
        ("answered", {"status": 200, "response": None}),
        ("answered", {"status": None}),
        ("answered", {"status": 200, "error_kind": "server"}),
        ("failed", {"error_kind": ""}),
        ("thought", {}),
    ],
)
def test_the_database_refuses_a_call_that_contradicts_itself(
    plan: Plan, state: str, values: dict[str, object]
) -> None:
    run = plan(calls=1)
    runs.work_shard(run.pk)

    with pytest.raises(IntegrityError), transaction.atomic():
        ModelCall.objects.update(state=state, **values)


def test_two_attempts_cannot_share_a_number(plan: Plan) -> None:
    run = plan(calls=1)
    runs.work_shard(run.pk)
    call = ModelCall.objects.get()

    with pytest.raises(IntegrityError), transaction.atomic():
        ModelCall.objects.create(
            invocation=call.invocation,
            attempt=1,
            dialect="openai.chat",
            request=call.request,
            created_at=call.created_at,
        )


def test_the_answer_of_a_rollout_is_what_its_call_brought(
    plan: Plan, provider: Provider, tmp_path: Path
) -> None:
    run = plan(calls=2, declines=1)

    runs.work_shard(run.pk)

    for seen in provider.seen:
        rollout = rollout_of(run, seen.case)
        assert rollout.answer == seen.right_answer
        assert (rollout.decision, rollout.exact, rollout.json_valid) == (True, True, True)
        assert (rollout.tool, rollout.safe) == ((True, None) if rollout.case.expects_call else (None, True))
