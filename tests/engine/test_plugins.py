"""Plug-ins and dual backends in whole runs: who receives the sample index, and what is said of those who do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User

from rollouts.models import CallPurpose, EvalRun, ModelCall, RolloutState, RunState
from rollouts.services import backends, runs, suites
from tests import factories
from tests.backends.conftest import Install, install  # noqa: F401  (a fixture)
from tests.engine.conftest import calls_of
from tests.engine.scripted import Provider, Reply, completion, tool_calls

pytestmark = pytest.mark.django_db(transaction=True)

PLUGIN = """
CALLS = []

class Named:
    def attempt(self, messages, sampling, sample_index=0):
        CALLS.append(("named", sample_index))
        return "TOOL_CALL: search" if sample_index % 2 == 0 else "no"

class KeywordOnly:
    async def attempt(self, messages, sampling, *, sample_index=0):
        CALLS.append(("keyword", sample_index))
        return {"text": "TOOL_CALL: search", "prompt_tokens": 3, "completion_tokens": 4}

class AnyKeyword:
    def attempt(self, messages, sampling, **more):
        CALLS.append(("any", dict(more)))
        return "TOOL_CALL: search"

class Legacy:
    def attempt(self, messages, sampling):
        CALLS.append(("legacy", len(messages)))
        return "TOOL_CALL: search"

class Tooled:
    def attempt(self, messages, sampling, sample_index=0):
        CALLS.append(("text", sample_index))
        return "hello"

    def attempt_with_tools(self, messages, tools, sampling, sample_index=0):
        CALLS.append(("tools", sample_index))
        if messages[-1]["role"] == "tool":
            return "done"
        return {"text": None, "tool_calls": [{"name": "search", "arguments": {"query": "x"}}]}

class Broken:
    def attempt(self, messages, sampling):
        raise ValueError("the plug-in's own fault")

class Odd:
    def attempt(self, messages, sampling):
        return 7
"""
MARKED = {
    "example_id": "one",
    "family": "tools",
    "messages": [{"role": "user", "content": "one|find it"}],
    "checks": [{"op": "tool_called", "arg": "search"}],
}
Plan = Callable[..., EvalRun]


@pytest.fixture
def calls(install: Install) -> list[tuple[str, Any]]:  # noqa: F811
    """What the plug-ins were called with, in order."""
    names = ("Named", "KeywordOnly", "AnyKeyword", "Legacy", "Tooled", "Broken", "Odd")
    install(PLUGIN, **{name.lower(): name for name in names})
    import helpers_code

    found: list[tuple[str, Any]] = helpers_code.CALLS
    found.clear()
    return found


@pytest.fixture
def plan_plugin(engineer: User, calls: list[Any]) -> Plan:
    def make(name: str, *, samples: int = 1, **values: Any) -> EvalRun:
        return runs.plan(
            subject=factories.remote_subject(),
            suite=suites.seal(name="marked", data=factories.jsonl([MARKED]), by=engineer, scorer="rules"),
            backend=backends.save(
                name=name, kind=f"plugin:{name}", config={}, by=engineer, concurrency=1, max_attempts=3
            ),
            by=engineer,
            samples=samples,
            **values,
        )

    return make


def worked(run: EvalRun) -> EvalRun:
    runs.work_shard(run.pk)
    run.refresh_from_db()
    return run


@pytest.mark.parametrize(
    ("name", "received"),
    [
        ("named", [("named", 0), ("named", 1), ("named", 2)]),
        ("keywordonly", [("keyword", 0), ("keyword", 1), ("keyword", 2)]),
        # sample 0 is the plain call: no keyword at all
        ("anykeyword", [("any", {}), ("any", {"sample_index": 1}), ("any", {"sample_index": 2})]),
    ],
)
def test_a_plug_in_that_takes_the_sample_index_receives_it(
    plan_plugin: Plan, calls: list[Any], name: str, received: list[Any]
) -> None:
    run = worked(plan_plugin(name, samples=3))

    assert sorted(calls, key=str) == sorted(received, key=str)
    assert run.independence == "independent"
    assert run.scored == 3


def test_a_plug_in_without_a_sample_index_is_called_once_a_sample_and_its_independence_is_unknown(
    plan_plugin: Plan, calls: list[Any]
) -> None:
    run = worked(plan_plugin("legacy", samples=4))

    assert [name for name, _ in calls] == ["legacy"] * 4
    assert run.independence == "unknown"
    assert run.scored == 4


def test_samples_of_a_plug_in_alternate_as_its_answers_do(plan_plugin: Plan) -> None:
    run = worked(plan_plugin("named", samples=4))

    assert list(run.rollouts.order_by("sample_index").values_list("exact", flat=True)) == [True, False] * 2


def test_samples_zero_one_two_zero_one_are_three_calls_of_a_plug_in(
    plan_plugin: Plan, calls: list[Any]
) -> None:
    worked(plan_plugin("named", samples=3, reuse=True))
    worked(plan_plugin("named", samples=2, reuse=True))

    assert len(calls) == 3


def test_a_plug_ins_call_is_captured_without_a_status(plan_plugin: Plan) -> None:
    run = worked(plan_plugin("keywordonly"))

    call = ModelCall.objects.get()
    assert (call.dialect, call.state, call.status) == ("plugin", "answered", None)
    assert call.response_id is not None
    rollout = run.rollouts.get()
    assert (rollout.prompt_tokens, rollout.completion_tokens, rollout.tool_evidence) == (3, 4, "claimed")


def test_unknown_usage_of_a_plug_in_stays_unknown(plan_plugin: Plan) -> None:
    rollout = worked(plan_plugin("legacy")).rollouts.get()

    assert (rollout.prompt_tokens, rollout.completion_tokens, rollout.cost_microusd) == (None, None, None)


def test_a_plug_in_with_a_tool_loop_is_asked_on_the_native_route(plan_plugin: Plan, calls: list[Any]) -> None:
    run = worked(plan_plugin("tooled", samples=2))

    assert sorted(calls) == [("tools", 0), ("tools", 0), ("tools", 1), ("tools", 1)]
    assert set(run.rollouts.values_list("exact", "tool_evidence")) == {(True, "executed")}


@pytest.mark.parametrize(("name", "kind"), [("broken", "harness"), ("odd", "protocol")])
def test_a_plug_ins_own_fault_masks_the_rollout(plan_plugin: Plan, name: str, kind: str) -> None:
    run = worked(plan_plugin(name))

    rollout = run.rollouts.get()
    assert (rollout.state, rollout.failure_kind) == (RolloutState.MASKED, kind)
    assert ModelCall.objects.get().state == "failed"


def test_a_run_whose_plug_in_is_gone_fails_and_says_so(
    plan_plugin: Plan, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollouts.backends import plugins

    run = plan_plugin("named")
    monkeypatch.setattr(plugins, "installed", lambda: plugins.Installed({}, {}))

    worked(run)

    assert (run.state, run.error_code) == (RunState.FAILED, "backend_unusable")
    assert "plugin:named" in run.error_detail


def dual(engineer: User, target: Provider, generator: Provider) -> Any:
    def part(url: str, model: str = "") -> dict[str, Any]:
        return {"kind": "openai_compatible", "config": {"base_url": url}, "model": model}

    config = {"target": part(target.url), "generator": part(generator.url, "the-generator")}
    return backends.save(name="both", kind="dual", config=config, by=engineer, concurrency=2, timeout_s=5)


def test_a_dual_backends_samples_reach_its_target(engineer: User, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(completion("TOOL_CALL: search"))
    with Provider(lambda seen: Reply(completion("never asked"))).running() as generator:
        run = worked(
            runs.plan(
                subject=factories.remote_subject(temperature=0.7),
                suite=suites.seal(name="marked", data=factories.jsonl([MARKED]), by=engineer, scorer="rules"),
                backend=dual(engineer, provider, generator),
                by=engineer,
                samples=3,
            )
        )

        assert generator.seen == []  # rules are checked here, by nobody else
    assert run.scored == 3
    assert sorted(json.loads(seen.body)["seed"] for seen in provider.seen) == [0, 1, 2]


def test_a_dual_backends_tool_calls_are_its_targets(engineer: User, provider: Provider) -> None:
    provider.answer = lambda seen: Reply(
        completion("done") if seen.number == 2 else tool_calls(("search", {"query": "x"}))
    )
    with Provider(lambda seen: Reply(completion("never asked"))).running() as generator:
        run = worked(
            runs.plan(
                subject=factories.remote_subject(),
                suite=suites.seal(name="marked", data=factories.jsonl([MARKED]), by=engineer, scorer="rules"),
                backend=dual(engineer, provider, generator),
                by=engineer,
            )
        )

    assert run.rollouts.get().tool_evidence == "executed"


def test_the_generator_of_a_dual_backend_judges_what_its_target_answers(
    engineer: User, provider: Provider
) -> None:
    provider.answer = lambda seen: Reply(completion("Hello!"))
    row = {**MARKED, "rubric": "It greets."}
    del row["checks"]
    judgement = Reply(completion('{"score": 1, "reason": "It does."}'))
    with Provider(lambda seen: judgement).running() as generator:
        run = worked(
            runs.plan(
                subject=factories.remote_subject(),
                suite=suites.seal(name="judged", data=factories.jsonl([row]), by=engineer, scorer="judge"),
                backend=dual(engineer, provider, generator),
                by=engineer,
            )
        )

        assert json.loads(generator.seen[0].body)["model"] == "the-generator"
    rollout = run.rollouts.get()
    assert (rollout.score, run.judge_model) == (1.0, "the-generator")
    assert [call.purpose for call in calls_of(rollout)] == [CallPurpose.POLICY, CallPurpose.JUDGE]
