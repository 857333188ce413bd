"""A run of a real engine, recorded and replayed: the same answers come by the same way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User

from rollouts.models import Backend, EvalRun, ModelCall, Rollout, RunState
from rollouts.services import backends, runs, transcripts
from tests import factories
from tests.backends.conftest import Install
from tests.engine.scripted import Provider, Reply, completion, right

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def engineer(sent: Any) -> User:
    return factories.person("engineer", "engineer")


def measured(backend: Backend, by: User, *, samples: int = 2, model: str = "scripted-model") -> EvalRun:
    """A run of three cases, worked on to its end."""
    run = runs.plan(
        subject=factories.remote_subject(model, temperature=1),
        suite=factories.suite(by, calls=3),
        backend=backend,
        by=by,
        samples=samples,
    )
    runs.work_shard(run.pk)
    run.refresh_from_db()
    return run


def outcomes(run: EvalRun) -> list[Any]:
    columns = ("case__key", "sample_index", "state", "failure_kind", "answer", "prompt_tokens", "exact")
    return list(Rollout.objects.filter(run=run).order_by("case", "sample_index").values_list(*columns))


def replay(run: EvalRun, by: User, **config: Any) -> EvalRun:
    data = "\n".join(transcripts.export(run)).encode()
    digest = transcripts.save(data=data, by=by).digest
    backend = backends.save(
        name="replay", kind="scripted", config={"transcript_sha256": digest, **config}, by=by, max_attempts=3
    )
    return measured(backend, by)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_replayed_run_comes_to_what_the_recorded_one_came_to(engineer: User, stream: bool) -> None:
    def answer(seen: Any) -> Reply:
        if seen.case.endswith("0") and seen.nth == 1:
            return Reply(b"slow down", status=429, headers={"Retry-After": "0"})
        if seen.case.endswith("1"):
            return Reply(b"no", status=401)
        if not stream:
            return right(seen)
        chunk = {"choices": [{"delta": {"content": seen.right_answer}, "finish_reason": "stop"}]}
        usage = {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 5}}
        return Reply(f"data: {json.dumps(chunk)}\n\ndata: {json.dumps(usage)}\n\ndata: [DONE]\n\n".encode())

    with Provider(answer).running() as provider:
        config = {"base_url": provider.url, "stream": stream}
        recorded = measured(
            backends.save(name="scripted", kind="openai_compatible", config=config, by=engineer), engineer
        )
    again = replay(recorded, engineer, stream=stream)

    assert (recorded.state, again.state) == (RunState.SCORED, RunState.SCORED)
    assert outcomes(again) == outcomes(recorded)
    assert {row[3] for row in outcomes(again)} == {"", "auth"} and {row[5] for row in outcomes(again)} == {
        11,
        None,
    }
    statuses = [
        list(
            ModelCall.objects.filter(invocation__rollout__run=run)
            .order_by("request_id", "id")
            .values_list("request_id", "status")
        )
        for run in (recorded, again)
    ]
    assert statuses[0] == statuses[1]


def test_a_replay_that_is_asked_something_else_is_masked_and_says_why(engineer: User) -> None:
    with Provider(lambda seen: Reply(completion("x"))).running() as provider:
        recorded = measured(factories.remote_backend(engineer, provider.url), engineer)
    again = replay(recorded, engineer, extra_body={"top_p": 0.5})

    assert (again.masked, again.scored) == (6, 0)
    assert all(
        "No row of the transcript" in reason
        for reason in again.rollouts.values_list("failure_reason", flat=True)
    )


def test_a_plug_in_measures_a_whole_run_and_is_asked_once_a_sample(engineer: User, install: Install) -> None:
    install(
        "class P:\n"
        "    def attempt(self, messages, sampling):\n"
        "        return messages[-1]['content'].split('|', 1)[1]\n",
        p="P",
    )
    run = measured(backends.save(name="scripted", kind="plugin:p", config={}, by=engineer), engineer)

    assert (run.state, run.scored) == (RunState.SCORED, 6)
    assert all(row[-1] for row in outcomes(run))
    calls = ModelCall.objects.filter(invocation__rollout__run=run)
    assert calls.count() == 6 == calls.values("request").distinct().count()
    assert set(calls.values_list("dialect", "status")) == {("plugin", None)}
