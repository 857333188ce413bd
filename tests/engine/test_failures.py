"""What a provider does wrong is kept, named and masked: never a step, never a zero."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from rollouts.engine import runner
from rollouts.failures import FAILURE_KINDS, MASKING_KINDS, CallFailed
from rollouts.models import CallState, EvalRun, ModelCall, Rollout, RolloutState, RunState
from rollouts.services import runs
from tests.engine.conftest import calls_of
from tests.engine.scripted import Provider, Reply, completion, refusing_url, right

pytestmark = pytest.mark.django_db(transaction=True)
Plan = Callable[..., EvalRun]


def worked(run: EvalRun) -> EvalRun:
    runs.work_shard(run.pk)
    run.refresh_from_db()
    return run


def outcome(run: EvalRun) -> tuple[str, str]:
    rollout = Rollout.objects.get(run=run)
    return rollout.state, rollout.failure_kind


LOGIN_PAGE = b"<!doctype html><html><body>Please log in</body></html>"


@pytest.mark.parametrize(
    ("reply", "kind", "attempts"),
    [
        pytest.param(Reply(b"no", status=401), "auth", 1, id="401 is not tried again"),
        pytest.param(Reply(b"no", status=403), "auth", 1, id="403 is not tried again"),
        pytest.param(Reply(b"no such model", status=404), "bad_request", 1, id="404 is not tried again"),
        pytest.param(Reply(b"too long", status=422), "bad_request", 1, id="422 is not tried again"),
        pytest.param(Reply(b"slow down", status=429), "rate_limit", 3, id="429 until the attempts ran out"),
        pytest.param(Reply(b"late", status=408), "timeout", 3, id="408 until the attempts ran out"),
        pytest.param(Reply(b"oops", status=500), "server", 3, id="500 until the attempts ran out"),
        pytest.param(Reply(b"oops", status=503), "server", 3, id="503 until the attempts ran out"),
        pytest.param(
            Reply(b"", status=302, headers={"Location": "/login"}),
            "protocol",
            1,
            id="a redirect is not followed",
        ),
        pytest.param(Reply(b"", status=204), "protocol", 1, id="204"),
        pytest.param(Reply(LOGIN_PAGE), "protocol", 3, id="HTML in a 200"),
        pytest.param(Reply(b""), "protocol", 3, id="an empty body"),
        pytest.param(Reply(b'{"choices": [{"mess'), "protocol", 3, id="half a JSON text in a whole body"),
        pytest.param(Reply(b"\xff\xfe\x00"), "protocol", 3, id="bytes that are no text"),
        pytest.param(Reply(b"[1, 2]"), "protocol", 1, id="a list instead of an object"),
        pytest.param(Reply(b'"hello"'), "protocol", 1, id="a text instead of an object"),
        pytest.param(Reply(b"null"), "protocol", 1, id="null"),
        pytest.param(
            Reply(b'{"error": {"message": "overloaded"}}'), "protocol", 3, id="an error object in a 200"
        ),
        pytest.param(Reply(b'{"choices": []}'), "protocol", 3, id="no choices"),
        pytest.param(Reply(b'{"choices": ["yes"]}'), "protocol", 3, id="a choice that is no object"),
        pytest.param(Reply(b'{"choices": [{"text": "old"}]}'), "protocol", 1, id="no message"),
        pytest.param(
            Reply(b'{"choices": [{"message": {"content": 7}}]}'), "protocol", 1, id="content that is no text"
        ),
        pytest.param(Reply(b"[" * 100_000), "protocol", 3, id="nesting without end"),
        pytest.param(Reply(b"1" * 10_000), "protocol", 3, id="a number without end"),
        pytest.param(
            Reply(b"junk", headers={"Content-Encoding": "gzip"}),
            "truncated_stream",
            3,
            id="a body that is not the gzip it says",
        ),
        pytest.param(
            Reply(completion("a long answer"), cut_after=20), "truncated_stream", 3, id="a body that is cut"
        ),
        pytest.param(
            Reply(completion("an answer"), cut_after=0), "truncated_stream", 3, id="cut before the first byte"
        ),
    ],
)
def test_what_a_provider_does_wrong_is_named_and_masked(
    plan: Plan, provider: Provider, reply: Reply, kind: str, attempts: int
) -> None:
    provider.answer = lambda seen: reply
    run = worked(plan(calls=1))

    assert outcome(run) == (RolloutState.MASKED, kind)
    assert (run.state, run.scored, run.masked) == (RunState.SCORED, 0, 1)
    calls = ModelCall.objects.order_by("attempt")
    assert [(call.state, call.error_kind) for call in calls] == [(CallState.FAILED, kind)] * attempts
    assert len(provider.seen) == attempts
    assert all(call.prompt_tokens is None and call.cost_microusd is None for call in calls)
    assert all(call.error_text for call in calls)


def test_a_masked_rollout_has_no_scores_and_no_answer(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(b"no", status=401)
    run = worked(plan(calls=1))

    rollout = Rollout.objects.get(run=run)
    scores = [rollout.decision, rollout.tool, rollout.exact, rollout.safe, rollout.json_valid]
    assert scores == [None] * 5
    assert (rollout.answer, rollout.latency_ms, rollout.prompt_tokens) == (None, None, None)
    assert rollout.failure_reason.startswith("HTTP 401")


@pytest.mark.parametrize(
    "first", [Reply(b"oops", status=500), Reply(LOGIN_PAGE), Reply(completion("x"), cut_after=5)]
)
def test_what_heals_on_the_second_try_is_scored_and_its_failure_kept(
    plan: Plan, provider: Provider, first: Reply
) -> None:
    provider.answer = lambda seen: first if seen.nth == 1 else right(seen)
    run = worked(plan(calls=1))

    assert outcome(run) == (RolloutState.SCORED, "")
    assert [call.state for call in calls_of(Rollout.objects.get(run=run))] == ["failed", "answered"]


def test_retry_after_is_honoured(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: (
        Reply(b"wait", status=429, headers={"Retry-After": "1"}) if seen.nth == 1 else right(seen)
    )
    run = worked(plan(calls=1))

    first, second = provider.seen
    assert outcome(run) == (RolloutState.SCORED, "")
    assert second.at - first.at >= 1.0


@pytest.mark.parametrize("asked", ["86400", "9" * 400, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_retry_after_is_clamped(
    plan: Plan, provider: Provider, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setattr(runner, "RETRY_AFTER_CLAMP_S", 0.1)
    provider.answer = lambda seen: (
        Reply(b"wait", status=429, headers={"Retry-After": asked}) if seen.nth == 1 else right(seen)
    )
    run = worked(plan(calls=1, timeout_s=5))

    first, second = provider.seen
    assert outcome(run) == (RolloutState.SCORED, "")
    assert second.at - first.at < 3


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("7", 7.0),
        ("-3", 0.0),
        ("-" + "9" * 400, 0.0),
        ("9" * 5000, None),
        ("soon", None),
        ("1.5", None),
        ("", None),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        (None, None),
    ],
)
def test_retry_after_reads_a_number_or_a_date(value: str | None, seconds: float | None) -> None:
    headers = {} if value is None else {"Retry-After": value}

    assert runner.retry_after_s(headers) == seconds


@pytest.mark.parametrize(
    ("asked", "pause"), [(0.0, 0.0), (7.0, 7.0), (-3.0, 0.0), (3600.0, 30.0), (float("inf"), 30.0)]
)
def test_the_pause_is_what_the_provider_asks_for_between_0_and_30_s(asked: float, pause: float) -> None:
    assert runner.pause_s(1, asked) == pause


def test_the_pause_doubles_with_jitter_where_the_provider_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "BACKOFF_S", 0.5)

    for number, middle in ((1, 0.5), (2, 1.0), (3, 2.0)):
        pauses = {runner.pause_s(number, None) for _ in range(50)}
        assert middle / 2 <= min(pauses) < max(pauses) <= middle * 1.5


def test_a_provider_that_hangs_is_a_timeout(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(b"", hang=True)
    run = worked(plan(calls=1, timeout_s=1, max_attempts=2))

    assert outcome(run) == (RolloutState.MASKED, "timeout")
    calls = calls_of(Rollout.objects.get(run=run))
    assert [call.error_kind for call in calls] == ["timeout"] * 2
    assert all(call.status is None and call.response_id is None and call.latency_ms >= 1000 for call in calls)


def test_nobody_at_the_address_is_a_connection_failure(plan: Plan) -> None:
    run = worked(plan(calls=2, url=refusing_url(), max_attempts=2))

    assert (run.state, run.masked) == (RunState.SCORED, 2)
    assert set(ModelCall.objects.values_list("error_kind", flat=True)) == {"connection"}
    assert ModelCall.objects.count() == 4


def test_a_name_that_does_not_resolve_is_a_connection_failure(plan: Plan) -> None:
    run = worked(plan(calls=1, url="http://no-such-host.invalid/v1", max_attempts=1))

    assert outcome(run) == (RolloutState.MASKED, "connection")


def test_an_answer_cut_at_the_token_limit_is_scored_as_wrong(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(completion(seen.right_answer, finish_reason="length"))
    run = worked(plan(calls=1, declines=1))

    assert (run.scored, run.masked) == (2, 0)
    for rollout in Rollout.objects.filter(run=run):
        metrics = [rollout.decision, rollout.exact, rollout.json_valid, rollout.tool, rollout.safe]
        assert [value for value in metrics if value is not None] == [False] * 4
        assert rollout.answer_class == "truncated"


@pytest.mark.parametrize(
    ("text", "stored", "found"),
    [("", "", "empty"), (None, None, "empty"), ("sure!", "sure!", "not_json"), ("[]", "[]", "not_object")],
)
def test_a_poor_answer_is_the_models_and_scored_as_wrong(
    plan: Plan, provider: Provider, text: str | None, stored: str | None, found: str
) -> None:
    provider.answer = lambda seen: Reply(completion(text))
    run = worked(plan(calls=1))

    rollout = Rollout.objects.get(run=run)
    assert outcome(run) == (RolloutState.SCORED, "")
    assert (rollout.answer, rollout.answer_class, rollout.json_valid, rollout.decision) == (
        stored,
        found,
        False,
        False,
    )


def test_an_answer_that_nests_without_end_is_scored_as_wrong(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(completion('{"decision":' * 50_000))
    run = worked(plan(calls=1))

    assert outcome(run) == (RolloutState.SCORED, "")


def test_one_failing_case_does_not_touch_the_others(plan: Plan, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(b"no", status=400) if seen.case == "named-call-1" else right(seen)
    run = worked(plan(calls=4))

    assert (run.scored, run.masked) == (3, 1)
    assert Rollout.objects.get(run=run, state="masked").case.key == "named-call-1"


def test_a_fault_of_our_scorer_leaves_the_answer_and_no_zero(
    plan: Plan, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollouts.engine import runner

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a scorer's fault")

    monkeypatch.setattr(runner, "score", broken)
    run = worked(plan(calls=1))

    rollout = Rollout.objects.get(run=run)
    assert outcome(run) == (RolloutState.UNSCORED, "scorer")
    assert json.loads(rollout.answer or "")["decision"] == "call"
    assert (rollout.decision, rollout.json_valid) == (None, None)
    assert "ZeroDivisionError" in rollout.failure_reason
    assert (run.scored, run.masked, run.unscored) == (0, 0, 1)
    assert ModelCall.objects.get().state == CallState.ANSWERED


def test_the_failure_kinds_are_a_closed_list() -> None:
    with pytest.raises(AssertionError):
        CallFailed("bad luck", "no such kind")

    assert FAILURE_KINDS.keys() > MASKING_KINDS
    assert not MASKING_KINDS & {"scorer", "budget", "cancelled", "worker_lost"}


def test_a_rollout_that_outlasts_its_shard_is_masked_and_can_be_run_again(
    plan: Plan, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider that stays away for ever must not hold a worker beyond its task's time limit."""
    from rollouts.engine import runner

    monkeypatch.setattr(runner, "OVERTIME_S", -1000.0)
    provider.answer = lambda seen: Reply(b"busy", status=503)

    run = worked(plan(calls=1, max_attempts=5))

    assert len(provider.seen) == 1
    assert outcome(run) == (RolloutState.MASKED, "server")
