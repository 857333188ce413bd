"""Valid rows, made through the real services wherever that is possible. Nothing here is random."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import Group, User
from django.utils import timezone

from promotion import permissions
from promotion.models import Candidate, CandidateState, Evidence, Meaning, Policy, RegistryEntry, Track
from promotion.services import approvals, gating, people, policies, registry, tracks
from promotion.services.proofs import Password
from rollouts import store
from rollouts.bulk import update_many
from rollouts.hashing import sha256_bytes, sha256_json
from rollouts.models import Artifact, Backend, BaseModel, EvalRun, Rollout, RolloutState, Subject, Suite
from rollouts.scoring.decision import score
from rollouts.services import backends, runs, subjects, suites

PASSWORD = "correct horse battery staple"
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
SAMPLING = {"temperature": 0, "max_tokens": 64}
VERIFIED = {
    "status": "verified",
    "reason": "llama.cpp's effect of the file is PEFT's.",
    "llama_cpp": "xllamacpp 1",
    "comparisons": [
        {"part": "whole", "effect": "0.5", "effect_error": "0.02", "limit": "0.05", "positions": 12},
        {"part": "layers 0-1", "effect": "0.4", "effect_error": "0.0001", "limit": "0.005", "positions": 12},
    ],
}


# people


def person(name: str, *roles: str, active: bool = True) -> User:
    """A person in the groups of `roles`, with PASSWORD."""
    people.ensure_roles()
    user = User.objects.create_user(name, password=PASSWORD, is_active=active)
    user.groups.set(Group.objects.filter(name__in=roles))
    return user


# suites


def call_case(key: str, *, family: str = "calls", tool: str = "read_file") -> dict[str, Any]:
    """A row of a suite in which calling `tool` is right. The user's message holds the right answer."""
    return _row(key, family, {"decision": "call", "tool": tool, "arguments": {"path": f"{key}.txt"}})


def decline_case(key: str, *, family: str = "declines") -> dict[str, Any]:
    """A row of a suite in which any call is unsafe."""
    return _row(key, family, {"decision": "unsupported", "reason_code": "no_such_tool"})


def _row(key: str, family: str, expected: dict[str, Any]) -> dict[str, Any]:
    return {
        "example_id": key,
        "lineage_group_id": f"group-{key}",
        "family": family,
        "tools": ["read_file", "write_file"],
        "messages": [
            {"role": "system", "content": "Decide."},
            {"role": "user", "content": f"{key}|{json.dumps(expected)}"},
        ],
        "expected": expected,
    }


def jsonl(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def suite(by: User, *, name: str = "named", calls: int = 3, declines: int = 0) -> Suite:
    """A sealed suite of `calls` cases in family calls and `declines` in family declines."""
    rows = [call_case(f"{name}-call-{index}") for index in range(calls)]
    rows += [decline_case(f"{name}-decline-{index}") for index in range(declines)]
    return suites.seal(name=name, data=jsonl(rows), by=by, source=f"{name}.jsonl")


# backends and subjects


def remote_backend(by: User, url: str, *, name: str = "scripted", **limits: Any) -> Backend:
    limits = {"concurrency": 4, "timeout_s": 5, "max_attempts": 3, **limits}
    return backends.save(name=name, kind="openai_compatible", config={"base_url": url}, by=by, **limits)


def local_backend(by: User) -> Backend:
    """A revision that names llama.cpp; tests that fabricate results never start it."""
    return backends.save(name="local", kind="llama_cpp", config={}, by=by)


def remote_subject(model: str = "scripted-model", **sampling: Any) -> Subject:
    return subjects.remote_subject(model=model, backend_name="scripted", sampling={**SAMPLING, **sampling})


def base_model(by: User, *, name: str = "base", data: bytes = b"GGUF base") -> BaseModel:
    return subjects.register_base(
        name=name,
        artifact=store.put([data]),
        architecture="llama",
        header={"architecture": "llama"},
        chat_template=TEMPLATE,
        by=by,
    )


# eval runs with given results


def finish_run(
    run: EvalRun, outcomes: Mapping[str, str] | None = None, *, served: Any = None, **counts: int
) -> EvalRun:
    """Give every rollout an outcome and close the run as the engine does.

    An outcome is right, wrong, bad_json, masked or unscored: by case key in `outcomes`, or by number for the
    first cases in order (wrong=2, masked=1: two wrong, then one masked). All others are right. `served` is
    what the server said of itself; left out, it is what llama.cpp says of the run's own subject.
    """
    chosen = dict(outcomes or {})
    order = list(run.rollouts.order_by("id").select_related("case"))
    free = iter([rollout.case.key for rollout in order if rollout.case.key not in chosen])
    for outcome, number in counts.items():
        for _ in range(number):
            chosen[next(free)] = outcome
    now = timezone.now()
    for rollout in order:
        give(rollout, chosen.get(rollout.case.key, "right"))
        rollout.finished_at = now
    write(order)
    EvalRun.objects.filter(pk=run.pk).update(
        server_facts=served_by_llama(run.subject) if served is None else served
    )
    assert runs.close_if_done(run.pk)
    run.refresh_from_db()
    return run


OUTCOME_FIELDS = (
    "state",
    "finished_at",
    "failure_kind",
    "failure_reason",
    "answer",
    "answer_class",
    "finish_reason",
    "latency_ms",
    "prompt_tokens",
    "completion_tokens",
    "json_valid",
    "decision",
    "tool",
    "exact",
    "safe",
)


def write(rollouts: Sequence[Rollout]) -> None:
    """Stores what the rollouts came to; Django's `bulk_update` takes ten times as long."""
    rows = ((one.pk, [getattr(one, name) for name in OUTCOME_FIELDS]) for one in rollouts)
    update_many(Rollout, OUTCOME_FIELDS, rows)


def give(rollout: Rollout, outcome: str) -> None:
    if outcome in ("masked", "unscored"):
        rollout.state = RolloutState(outcome)
        rollout.failure_kind = "server" if outcome == "masked" else "worker_lost"
        return
    expected = rollout.case.content["expected"]
    wrong = (
        {"decision": "no_tool"}
        if expected["decision"] == "call"
        else {
            "decision": "call",
            "tool": "read_file",
            "arguments": {},
        }
    )
    answer = {"right": json.dumps(expected), "wrong": json.dumps(wrong), "bad_json": "certainly!"}[outcome]
    found = score(expected=expected, tools=rollout.case.content["tools"], answer=answer, finish_reason="stop")
    rollout.state, rollout.answer, rollout.answer_class = RolloutState.SCORED, answer, str(found.answer_class)
    rollout.json_valid, rollout.decision, rollout.tool = found.json_valid, found.decision, found.tool
    rollout.exact, rollout.safe, rollout.latency_ms = found.exact, found.safe, 12.5


def served_by_llama(subject: Subject) -> dict[str, Any]:
    assert subject.base is not None
    return {
        "server": "llama.cpp",
        "build": "xllamacpp 1",
        "base_sha256": subject.base.artifact_id,
        "adapter_sha256": subject.adapter_id,
        "chat_template_sha256": subject.base.chat_template_sha256,
        "config": {"context": 2048, "parallel": 1},
    }


# policies


def floor(gate: str, digest: str, metric: str, minimum: str) -> dict[str, Any]:
    return {"gate": gate, "suite": digest, "metric": metric, "min": minimum, "alpha": "0.05"}


def policy_document(
    sealed: Sequence[Suite], *, extra: Sequence[Mapping[str, Any]] = (), approvers: int = 1
) -> dict[str, Any]:
    """The least complete policy over `sealed`, with `extra` gates before the signature."""
    gates: list[dict[str, Any]] = [{"gate": "candidate_artifact_hash"}]
    for name in ("sealed_eval_hash", "evaluated_artifact"):
        gates += [{"gate": name, "suite": part.digest} for part in sealed]
    gates += [dict(entry) for entry in extra]
    gates.append({"gate": "human_approval_record"})
    return {
        "format": 1,
        "note": "",
        "suites": [{"digest": part.digest} for part in sealed],
        "samples": 1,
        "sampling": dict(SAMPLING),
        "spend_alpha": False,
        "gates": gates,
        "approval": {
            "approvers": [{"group": permissions.APPROVER, "count": approvers}],
            "separation_of_duties": True,
            "expires_after_days": 30,
        },
    }


# candidates


def built_candidate(
    track: Track,
    base: BaseModel,
    by: User,
    *,
    name: str = "cand",
    baseline: bool = False,
    gguf: bytes | None = None,
) -> Candidate:
    """A candidate whose GGUF is built and verified, as `candidates.build` leaves it. Fabricated bytes."""
    config, weights = store.put([f"{name} config".encode()]), store.put([f"{name} weights".encode()])
    return Candidate.objects.create(
        track=track,
        name=name,
        base=base,
        adapter_config=config,
        adapter_weights=weights,
        adapter_source_sha256=sha256_json({"config": config.sha256, "weights": weights.sha256}),
        baseline=baseline,
        state=CandidateState.BUILT,
        gguf=store.put([gguf or f"GGUF of {name}".encode()]),
        verification=VERIFIED,
        submitted_by=by,
        created_at=timezone.now(),
    )


def digest_of(candidate: Candidate) -> str:
    """The evidence digest that a review page would show now."""
    return Evidence.objects.filter(candidate=candidate).order_by("-id").values_list("digest", flat=True)[0]


def sign(candidate: Candidate, by: User, *, digest: str | None = None, **words: Any) -> Any:
    """Where parts of the evidence must be opened it says why they were not, unless told otherwise."""
    meaning = Meaning.ADOPTS_BASELINE if candidate.baseline else Meaning.AUTHORISES
    words = {"meaning": meaning, "proof": Password(words.pop("password", PASSWORD)), **words}
    words = {"unopened_reason": "Not what this test is about.", **words}
    return approvals.sign(
        candidate_id=candidate.pk, evidence_digest=digest or digest_of(candidate), by=by, **words
    )


@dataclass(slots=True)
class House:
    """A track with a locked policy over one suite, people for every role, and (where asked) a champion."""

    engineer: User
    approver: User
    approver_2: User
    administrator: User
    auditor: User
    base: BaseModel
    backend: Backend
    suite: Suite
    track: Track
    policy: Policy
    champion: RegistryEntry | None = None

    def candidate(self, name: str = "cand", **values: Any) -> Candidate:
        return built_candidate(self.track, self.base, self.engineer, name=name, **values)

    def evaluated(
        self, name: str = "cand", outcomes: Mapping[str, str] | None = None, **counts: int
    ) -> Candidate:
        """A candidate that was measured with these outcomes and judged."""
        candidate = self.candidate(name)
        self.measure(candidate, outcomes, **counts)
        return candidate

    def measure(
        self, candidate: Candidate, outcomes: Mapping[str, str] | None = None, **counts: int
    ) -> list[EvalRun]:
        """Plan what the candidate lacks; its own runs get the outcomes, the champion's are all right."""
        started = gating.start_evaluation(candidate_id=candidate.pk, backend=self.backend, by=self.engineer)
        for run in started:
            if run.label == candidate.name:
                finish_run(run, outcomes, **counts)
            else:
                finish_run(run)
        gating.judge_if_measured(
            candidate.pk
        )  # where commits are real, the close of the last run has judged already
        candidate.refresh_from_db()
        assert candidate.state != CandidateState.EVALUATING
        return started

    def approved(self, name: str = "cand") -> Candidate:
        """A candidate that passed and was signed by as many as the policy asks for (at most two)."""
        candidate = self.evaluated(name)
        for approver in (self.approver, self.approver_2):
            if candidate.state == CandidateState.IN_REVIEW:
                sign(candidate, approver)
                candidate.refresh_from_db()
        assert candidate.state == CandidateState.APPROVED, candidate.state
        return candidate

    def adopt(self, name: str = "first") -> RegistryEntry:
        """The track's first champion, adopted by two signatures through the real services."""
        baseline = self.candidate(name, baseline=True)
        assert gating.judge_if_measured(baseline.pk)
        for approver in (self.approver, self.approver_2):
            sign(baseline, approver)
        entry = registry.publish(baseline.pk)
        assert entry is not None
        self.champion = entry
        return entry


def house(
    *,
    calls: int = 20,
    declines: int = 0,
    gates: Sequence[Mapping[str, Any]] | None = None,
    approvers: int = 1,
    champion: bool = False,
) -> House:
    """The usual scene. `gates` are the policy's own; an entry without `suite` is about the sealed suite."""
    engineer, administrator = person("engineer", "engineer"), person("administrator", "administrator")
    sealed = suite(engineer, calls=calls, declines=declines)
    track = tracks.create(name="toolcaller", purpose="Decides which tool a request calls.", by=administrator)
    if gates is None:
        gates = [floor("generalization_accuracy_floor", sealed.digest, "decision", "0.60")]
    extra = [{"suite": sealed.digest, **entry} for entry in gates]
    document = policy_document([sealed], extra=extra, approvers=approvers)
    draft = policies.draft(track=track, document=document, by=administrator)
    made = House(
        engineer=engineer,
        approver=person("approver", "approver"),
        approver_2=person("approver-2", "approver"),
        administrator=administrator,
        auditor=person("auditor", "auditor"),
        base=base_model(engineer),
        backend=local_backend(engineer),
        suite=sealed,
        track=track,
        policy=policies.lock(policy_id=draft.pk, by=administrator),
    )
    if champion:
        made.adopt()
    return made


def stored_bytes(artifact: Artifact) -> bytes:
    data = store.path_of(artifact.sha256).read_bytes()
    assert sha256_bytes(data) == artifact.sha256
    return data
