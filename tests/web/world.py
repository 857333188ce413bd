"""A realistic world without running a model: the demo data's measured answers, loaded as closed runs."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.utils import timezone

from promotion import demo
from promotion.models import Candidate, Track
from promotion.services import gating, policies, registry, tracks
from rollouts.hashing import sha256_bytes
from rollouts.models import (
    Backend,
    BaseModel,
    CallState,
    Claim,
    EvalRun,
    Invocation,
    InvocationState,
    ModelCall,
    Payload,
    Rollout,
    RolloutState,
    Suite,
)
from rollouts.scoring.decision import score
from rollouts.services import runs, suites
from tests import factories

SAMPLED = ("named_tools", "fabrication")
# what a model may write to fool a reviewer: markup, a banner, an override, an escape, a zero-width space
HOSTILE = (
    '<script>alert("signed")</script><img src=x onerror=alert(1)> APPROVED by all '
    "\u202egnitirw desrever\u202c "
    "\x1b[31mred\x1b[0m zero\u200bwidth \x07 {% csrf_token %} {{ request }} &amp;"
)


@cache
def results_of(round_name: str) -> dict[str, dict[str, Any]]:
    """Case key -> the recorded answer of a round of the demo data, over all suites."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted((demo.DATA / "results").glob(f"{round_name}.*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found[row["example_id"]] = row
    return found


def close_with_results(run: EvalRun, round_name: str, *, masked: Iterable[str] = ()) -> EvalRun:
    """Give each rollout the round's recorded answer, scored afresh, and close the run as the engine does."""
    recorded, hidden, now = results_of(round_name), set(masked), timezone.now()
    rollouts = list(run.rollouts.select_related("case").order_by("id"))
    for rollout in rollouts:
        rollout.finished_at = now
        if rollout.case.key in hidden:
            rollout.state, rollout.failure_kind = RolloutState.MASKED, "timeout"
            rollout.failure_reason = "No complete answer within 120 s."
            continue
        score_with(rollout, recorded[rollout.case.key])
    factories.write(rollouts)
    EvalRun.objects.filter(pk=run.pk).update(
        server_facts=factories.served_by_llama(run.subject), started_at=now
    )
    assert runs.close_if_done(run.pk)
    run.refresh_from_db()
    return run


def score_with(rollout: Rollout, row: dict[str, Any]) -> None:
    content = rollout.case.content
    found = score(
        expected=content["expected"],
        tools=content["tools"],
        answer=row["raw_output"],
        finish_reason=row["finish_reason"],
    )
    rollout.state, rollout.answer = RolloutState.SCORED, row["raw_output"]
    rollout.answer_class, rollout.finish_reason = str(found.answer_class), row["finish_reason"]
    rollout.latency_ms = row["latency_ms"]
    rollout.prompt_tokens, rollout.completion_tokens = row["tokens"]["prompt"], row["tokens"]["completion"]
    for metric in ("json_valid", "decision", "tool", "exact", "safe"):
        setattr(rollout, metric, getattr(found, metric))


def add_call(
    rollout: Rollout, *, request: bytes, response: bytes, headers: dict[str, str] | None = None
) -> ModelCall:
    """A failed attempt and its answered retry, as the recorder leaves them."""
    now = timezone.now()
    claim = Claim.objects.create(
        run=rollout.run, worker="worker-1:4711", created_at=now, lease_expires_at=now, ended_at=now
    )
    invocation = Invocation.objects.create(
        rollout=rollout, claim=claim, state=InvocationState.FINISHED, started_at=now, finished_at=now
    )
    values = {
        "invocation": invocation,
        "dialect": "openai.chat",
        "request": payload(request),
        "created_at": now,
    }
    ModelCall.objects.create(
        attempt=1,
        state=CallState.FAILED,
        status=503,
        error_kind="server",
        error_text="The provider failed (503).",
        response=payload(b"upstream is down"),
        latency_ms=31.0,
        finished_at=now,
        **values,
    )
    return ModelCall.objects.create(
        attempt=2,
        state=CallState.ANSWERED,
        status=200,
        response=payload(response),
        response_headers=headers or {},
        provider_response_id="resp-1",
        prompt_tokens=141,
        completion_tokens=17,
        latency_ms=565.9,
        finished_at=now,
        **values,
    )


def payload(body: bytes) -> Payload:
    made, _ = Payload.objects.get_or_create(
        sha256=sha256_bytes(body), defaults={"size_bytes": len(body), "data": zlib.compress(body)}
    )
    return made


@dataclass(slots=True)
class World:
    """People for every role (see `factories.House`), two tracks, a champion, r2 blocked and r3 in review."""

    house: factories.House
    track: Track
    champion: Candidate
    r2: Candidate
    r3: Candidate
    full_r3: Candidate | None
    active_run: EvalRun
    hostile_rollout: Rollout


def build(*, full: bool = True) -> World:
    """`full` adds a track over all six suites, whose r3 is blocked: many families and gates, masked cases."""
    house = factories.house()
    sealed = {
        name: suites.seal(name=name, data=data, by=house.engineer, source=source)
        for name, data, source in demo._suite_files(True)
    }
    track = _track(house, "toolcaller-demo", {name: sealed[name] for name in SAMPLED})
    champion = _baseline(house, track)
    r2, r3 = (_measured(house, track, name) for name in ("r2", "r3"))
    full_r3 = None
    if full:
        wide = _track(house, "toolcaller-full", sealed)
        _baseline(house, wide)
        full_r3 = _measured(house, wide, "r3", masked=("gauntlet_0003", "gauntlet_0004", "fabrication_0005"))
    rollout = _hostile(house)
    return World(house, track, champion, r2, r3, full_r3, _active(house, sealed["smoke"]), rollout)


def _track(house: factories.House, name: str, sealed: dict[str, Suite]) -> Track:
    track = tracks.create(
        name=name,
        purpose="Decides which tool a request calls, if any, on SmolLM2-135M.",
        by=house.administrator,
    )
    document = demo.policy_document(sealed) | {"sampling": {"temperature": 0, "max_tokens": 80 + len(sealed)}}
    draft = policies.draft(track=track, document=document, by=house.administrator)
    policies.lock(policy_id=draft.pk, by=house.administrator)
    return track


def _baseline(house: factories.House, track: Track) -> Candidate:
    base: BaseModel = house.base
    candidate = factories.built_candidate(track, base, house.engineer, name="r1", baseline=True)
    assert gating.judge_if_measured(candidate.pk)
    for approver in (house.approver, house.approver_2):
        factories.sign(candidate, approver, comment="The first champion of this track.")
    assert registry.publish(candidate.pk) is not None
    candidate.refresh_from_db()
    return candidate


def _measured(house: factories.House, track: Track, name: str, masked: Iterable[str] = ()) -> Candidate:
    candidate = factories.built_candidate(track, house.base, house.engineer, name=name)
    backend: Backend = house.backend
    for run in gating.start_evaluation(candidate_id=candidate.pk, backend=backend, by=house.engineer):
        close_with_results(run, run.label, masked=masked if run.label == name else ())
    candidate.refresh_from_db()
    if candidate.state == "evaluating":
        assert gating.judge_if_measured(candidate.pk)
        candidate.refresh_from_db()
    return candidate


def _active(house: factories.House, suite: Suite) -> EvalRun:
    """A run in the middle: some rollouts ended, one masked, the rest queued."""
    subject = factories.subjects.local_subject(
        base=house.base, adapter=None, adapter_source_sha256="", sampling={"temperature": 0, "max_tokens": 40}
    )
    run = runs.plan(
        subject=subject, suite=suite, backend=house.backend, by=house.engineer, label="base alone"
    )
    EvalRun.objects.filter(pk=run.pk).update(state="running", started_at=timezone.now())
    rollouts = list(run.rollouts.select_related("case").order_by("id"))[:10]
    for rollout in rollouts[1:]:
        score_with(rollout, results_of("r1")[rollout.case.key])
    rollouts[0].state, rollouts[0].failure_kind = RolloutState.MASKED, "rate_limit"
    factories.write(rollouts)
    run.refresh_from_db()
    return run


def _hostile(house: factories.House) -> Rollout:
    """A rollout whose every foreign text is hostile."""
    row = factories.decline_case("hostile-1", family="injection \u202e")
    row["messages"][-1]["content"] = HOSTILE
    suite = suites.seal(
        name="hostile", data=factories.jsonl([row]), by=house.engineer, source="<b>hostile</b>"
    )
    subject = factories.subjects.local_subject(
        base=house.base, adapter=None, adapter_source_sha256="", sampling={"temperature": 0, "max_tokens": 41}
    )
    run = runs.plan(
        subject=subject, suite=suite, backend=house.backend, by=house.engineer, label=f"evil {HOSTILE}"[:200]
    )
    factories.finish_run(run, wrong=1)
    Rollout.objects.filter(run=run).update(answer=HOSTILE + "x" * 1_000_000)
    rollout = Rollout.objects.select_related("run").get(run=run)
    add_call(
        rollout,
        request=json.dumps({"messages": HOSTILE}, ensure_ascii=False).encode(),
        response=HOSTILE.encode() + b"\xff\xfe" + b"y" * 1_000_000,
        headers={"x-<b>evil</b>": HOSTILE, "content-type": "text/html"},
    )
    return rollout
