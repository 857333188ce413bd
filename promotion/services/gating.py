"""Evaluate a candidate, freeze its evidence, and let the gates judge it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F

from promotion import comparing, permissions
from promotion import evidence as evidence_module
from promotion.gates import OPENS, GateOutcome, Outcome, judge
from promotion.gates import Evidence as GateEvidence
from promotion.gates.approval import approval_outcome
from promotion.models import (
    CANDIDATE_MOVES,
    OPEN_STATES,
    Candidate,
    CandidateState,
    Evidence,
    GateResult,
    Policy,
)
from promotion.selectors import glass_of, signatures_of
from promotion.services import candidate_datasets, tracks
from rollouts import audit
from rollouts.errors import Conflict, NotFound
from rollouts.models import ACTIVE_RUN_STATES, Backend, EvalRun, RunState, Suite
from rollouts.services import comparisons, runs
from rollouts.services.subjects import local_subject
from rollouts.states import require_move

APPROVAL_GATE = "human_approval_record"
ARTIFACT_GATE = "candidate_artifact_hash"
# adopting a first champion without gates takes two signatures, whatever a policy says
BASELINE_RULE = {
    "approvers": [{"group": permissions.APPROVER, "count": 2}],
    "separation_of_duties": True,
    "expires_after_days": 30,
}
JUDGED_STATES = (CandidateState.EVALUATING, CandidateState.BLOCKED, CandidateState.IN_REVIEW)


def locked_candidate(candidate_id: int) -> Candidate:
    """The candidate under its row lock, with what evidence reads. Raises `NotFound`."""
    candidate = (
        Candidate.objects.select_for_update(no_key=True, of=("self",))
        .select_related("track", "base__artifact", "gguf", "submitted_by")
        .filter(pk=candidate_id)
        .first()
    )
    if candidate is None:
        raise NotFound("There is no such candidate.")
    return candidate


def start_evaluation(*, candidate_id: int, backend: Backend, by: User) -> list[EvalRun]:
    """Plan what is missing: a run of the candidate, and of the champion, on each suite of the locked policy.

    Closed runs planned after the lock, and active runs, are not repeated. Returns the new runs; where there are none, a
    candidate in review stays there with its signatures.
    """
    permissions.require_can_evaluate(by)
    with transaction.atomic():
        candidate = locked_candidate(candidate_id)
        require_move(str(candidate), CANDIDATE_MOVES, candidate.state, CandidateState.EVALUATING)
        policy = evidence_module.current_policy(candidate.track_id)
        if policy is None:
            raise Conflict(
                f"{candidate.track} has no locked policy. Lock one first: results come after the rules."
            )
        if candidate.baseline:
            raise Conflict(
                "A baseline is adopted by two signatures, without gates. There is nothing to evaluate."
            )
        champion = evidence_module.champion_of(candidate.track_id)
        # before the audit chain's lock, as a closing run takes them: in the other order the two would deadlock
        digests = [part["digest"] for part in policy.document["suites"]]
        list(
            Suite.objects.select_for_update(no_key=True)
            .filter(digest__in=digests)
            .order_by("pk")
            .values_list("pk")
        )
        started = _plan_missing(candidate, policy, backend, by)
        if champion is not None:
            started += _plan_missing(champion, policy, backend, by)
        if not started and candidate.state == CandidateState.IN_REVIEW and is_current(candidate):
            return []  # nothing is missing, so nothing changes and signatures stand
        tracks.share_runs([candidate.gguf_id, champion.gguf_id if champion else None])
        Candidate.objects.filter(pk=candidate.pk).update(
            state=CandidateState.EVALUATING, backend=backend, revision=F("revision") + 1
        )
        candidate_datasets.send_comparison(candidate)
        audit.record(
            "candidate.evaluation_started",
            subject=candidate,
            actor=by,
            runs=[str(run.uid) for run in started],
        )
    return started


def _plan_missing(model: Candidate, policy: Policy, backend: Backend, by: User) -> list[EvalRun]:
    assert model.gguf is not None and policy.locked_at is not None
    subject = local_subject(
        base=model.base,
        adapter=model.gguf,
        adapter_source_sha256=model.adapter_source_sha256,
        sampling=policy.document["sampling"],
    )
    samples = policy.document["samples"]
    order = {part["digest"]: index for index, part in enumerate(policy.document["suites"])}
    planned = EvalRun.objects.filter(
        subject=subject,
        samples=samples,
        suite__digest__in=order,
        created_at__gte=policy.locked_at,
        reuse=False,
    )
    present = {run.suite_id: run for run in evidence_module.keeping_their_place(planned).order_by("-pk")}
    # a cancelled run that measured something is gone on with: a new one would be a second try
    resumed = [
        runs.run_again(run_id=run.pk, by=by) for run in present.values() if run.state == RunState.CANCELLED
    ]
    missing = [suite for suite in Suite.objects.filter(digest__in=order) if suite.pk not in present]
    new = [
        runs.plan(subject=subject, suite=suite, backend=backend, by=by, samples=samples, label=model.name)
        for suite in sorted(missing, key=lambda suite: order[suite.digest])
    ]
    return resumed + new


def judge_if_measured(candidate_id: int) -> bool:
    """Judge an evaluating candidate once no run of its evaluation is active. True where it was judged."""
    candidate = Candidate.objects.select_related("base", "gguf").filter(pk=candidate_id).first()
    if candidate is None:
        return False
    if candidate.baseline:
        ready = candidate.state == CandidateState.BUILT
    else:
        policy = evidence_module.current_policy(candidate.track_id)
        ready = candidate.state == CandidateState.EVALUATING and policy is not None
        ready = ready and not active_runs(candidate, policy)
    if not ready:
        return False
    try:
        judge_now(candidate_id)
    except Conflict:
        return False  # somebody moved the candidate in between
    return True


def active_runs(candidate: Candidate, policy: Policy) -> list[EvalRun]:
    """Runs that the candidate's evaluation still waits for, its champion's included."""
    models = [candidate, evidence_module.champion_of(candidate.track_id)]
    digests = [evidence_module.subject_digest(model, policy) for model in models if model is not None]
    return list(
        EvalRun.objects.filter(
            subject__digest__in=[digest for digest in digests if digest],
            suite__digest__in=[part["digest"] for part in policy.document["suites"]],
            state__in=ACTIVE_RUN_STATES,
        ).order_by("id")
    )


def judge_again(*, candidate_id: int, by: User) -> Evidence:
    """Judge afresh on request. Raises `Conflict` while runs of the evaluation are active."""
    permissions.require_can_judge(by)
    with transaction.atomic():
        candidate = locked_candidate(candidate_id)
        policy = evidence_module.current_policy(candidate.track_id)
        active = active_runs(candidate, policy) if policy and not candidate.baseline else []
        if active:
            raise Conflict(
                f"{candidate} waits for {len(active)} active runs. It is judged when they close.",
                runs=[run.pk for run in active],
            )
        return judge_now(candidate_id, by=by)


def judge_now(candidate_id: int, *, by: User | str = "system:gates") -> Evidence:
    """Freeze the evidence as it stands, judge it, and move the candidate to blocked or in review."""
    with transaction.atomic():
        candidate = locked_candidate(candidate_id)
        if candidate.state not in JUDGED_STATES and not (
            candidate.baseline and candidate.state == CandidateState.BUILT
        ):
            raise Conflict(
                f"{candidate} is {candidate.state.replace('_', ' ')}; it is not judged in that state."
            )
        evidence, outcomes = freeze(candidate)
        blocked = blocked_by(candidate, evidence, outcomes)
        to = CandidateState.BLOCKED if blocked else CandidateState.IN_REVIEW
        if candidate.state != to:
            require_move(str(candidate), CANDIDATE_MOVES, candidate.state, to)
            Candidate.objects.filter(pk=candidate.pk).update(state=to)
        verdict = "blocked" if blocked else "waits for signatures"
        audit.record(
            "candidate.judged",
            subject=candidate,
            actor=by,
            verdict=verdict,
            evidence=evidence.digest,
            blocked_by=[reason[:500] for reason in blocked],
        )
    return evidence


def judge_after_run(*, run_id: int, **_: Any) -> None:
    """A run closed: judge the candidates that waited for it, and those whose evidence it changed."""
    gguf_id = EvalRun.objects.values_list("subject__adapter_id", flat=True).get(pk=run_id)
    tracks = Candidate.objects.filter(gguf_id=gguf_id).values("track_id")
    for candidate in Candidate.objects.filter(track__in=tracks, state__in=JUDGED_STATES):
        judge_if_changed(candidate)


def judge_if_changed(candidate: Candidate) -> None:
    """Judge one that waited for its runs, or whose evidence is another now."""
    if candidate.state == CandidateState.EVALUATING:
        judge_if_measured(candidate.pk)
    elif not is_current(candidate):
        with suppress(Conflict):  # somebody moved the candidate in between
            judge_now(candidate.pk)


def is_current(candidate: Candidate) -> bool:
    """Whether the newest stored evidence is that of the present state."""
    newest = Evidence.objects.filter(candidate=candidate).first()
    return newest is not None and evidence_is_current(candidate, newest)


def evidence_is_current(candidate: Candidate, evidence: Evidence) -> bool:
    """Whether it would be the same if it were frozen now. Counts nothing where nothing that is counted changed."""
    if evidence.basis_digest == evidence_module.basis(candidate):
        return True
    return evidence.digest == evidence_module.build(candidate).digest


def blocked_by(
    candidate: Candidate, evidence: Evidence, outcomes: list[tuple[str, GateOutcome]]
) -> list[str]:
    """Each unmet condition but the signatures. A baseline has no thresholds, but must be the first and verified."""
    if candidate.baseline:
        document = GateEvidence(evidence_module.document_of(evidence))
        outcomes = [(ARTIFACT_GATE, judge(document, {"gate": ARTIFACT_GATE}))]
    blocked = [
        f"{name}: {outcome.reason}"
        for name, outcome in outcomes
        if name != APPROVAL_GATE and outcome.outcome not in OPENS
    ]
    if candidate.baseline and candidate.track.entries.exists():
        blocked.append(f"baseline: {candidate.track} has a champion already; submit it as a challenger.")
    return blocked


def _hold_runs(candidate: Candidate) -> None:
    """Locks the runs that the evidence counts, so that none is reopened or closed between its queries."""
    policy = evidence_module.current_policy(candidate.track_id)
    if candidate.baseline or policy is None:
        return
    models = [candidate, evidence_module.champion_of(candidate.track_id)]
    digests = [evidence_module.subject_digest(model, policy) for model in models if model is not None]
    held = EvalRun.objects.filter(
        subject__digest__in=[digest for digest in digests if digest],
        suite__digest__in=[part["digest"] for part in policy.document["suites"]],
    )
    list(held.select_for_update(no_key=True, of=("self",)).order_by("pk").values_list("pk"))


def outcomes_of(document: Mapping[str, Any], at: datetime) -> list[tuple[str, GateOutcome]]:
    """What each entry of the document's policy says of it, in order, with the waivers that hold at that time.

    The verdict of services, pages, API and what-if. The entry of the signatures says only that they are awaited.
    """
    policy = document["policy"]
    entries: list[dict[str, Any]] = policy["document"]["gates"] if policy else []
    evidence = GateEvidence(document)
    return [(entry["gate"], judge(evidence, entry, at=at)) for entry in entries]


def results_of(candidate: Candidate, evidence: Evidence) -> list[GateResult]:
    """What the gates say of a candidate's evidence now, one row a policy entry; rows that are not stored are unsaved.

    Once the candidate is promoted, rejected or withdrawn it is what was stored then. Before that a waiver may have run
    out since the evidence was judged.
    """
    if candidate.state not in OPEN_STATES:
        return list(evidence.gate_results.all())
    return _results(evidence, outcomes_of(evidence_module.document_of(evidence), evidence_module.now()))


def _results(evidence: Evidence, outcomes: list[tuple[str, GateOutcome]]) -> list[GateResult]:
    return [
        GateResult(
            evidence=evidence,
            position=position,
            gate=name,
            outcome=outcome.outcome,
            reason=outcome.reason,
            numbers=dict(outcome.numbers),
        )
        for position, (name, outcome) in enumerate(outcomes)
    ]


def freeze(candidate: Candidate) -> tuple[Evidence, list[tuple[str, GateOutcome]]]:
    """The stored evidence of the candidate's present state with its gate outcomes.

    A state that is still the newest shares its row. One that was left and has come back is another revision, so that
    what was signed before it was left does not count for it.
    """
    _hold_runs(candidate)
    built = evidence_module.build(candidate)
    stored = Evidence.objects.filter(digest=built.digest).first()
    if stored is not None and stored != Evidence.objects.filter(candidate=candidate).order_by("-id").first():
        candidate.revision += 1
        Candidate.objects.filter(pk=candidate.pk).update(revision=candidate.revision)
        built, stored = evidence_module.build(candidate), None
    outcomes = outcomes_of(built.document, evidence_module.now())
    if stored is not None:
        return stored, outcomes
    policy = built.document["policy"]
    stored = Evidence.objects.create(
        candidate=candidate,
        policy=Policy.objects.get(track_id=candidate.track_id, version=policy["version"]) if policy else None,
        digest=built.digest,
        document=built.data,
        basis_digest=built.basis,
        created_at=evidence_module.now(),
    )
    GateResult.objects.bulk_create(_results(stored, outcomes))
    comparisons.write(comparing.pairs_of(built.document, comparing.runs_of(built.document)))
    return stored, outcomes


def approval_rule(document: dict[str, Any]) -> dict[str, Any]:
    """The rule that an evidence document's signatures must satisfy."""
    if document["candidate"]["baseline"]:
        return BASELINE_RULE
    rule: dict[str, Any] = document["policy"]["document"]["approval"]
    return rule


# the document's `people` -> what they did; older documents lack some
PARTS = {
    "submitted_by": "submitted it",
    "base_registered_by": "registered the base model",
    "datasets_registered_by": "registered its data",
    "runs_started_by": "started its runs",
    "backends_saved_by": "saved the backend",
    "suites_sealed_by": "sealed a suite",
    "amendments_by": "amended a case",
    "policy_created_by": "drafted the policy",
    "policy_written_by": "wrote the policy",
    "policy_locked_by": "locked the policy",
    "waivers_by": "asked for or granted a waiver",
}


def parts_of(document: Mapping[str, Any]) -> dict[str, list[str]]:
    """Person -> what they did for this evidence. Where the rule separates duties none of them signs it."""
    found: dict[str, list[str]] = {}
    for key, part in PARTS.items():
        names = document["people"].get(key) or ()
        for name in [names] if isinstance(names, str) else names:
            if name and part not in found.setdefault(name, []):
                found[name].append(part)
    return dict(sorted(found.items()))


def involved_people(document: Mapping[str, Any]) -> list[str]:
    """Who may not sign this evidence where the rule separates duties."""
    return list(parts_of(document))


def unmet(candidate: Candidate) -> tuple[Evidence, list[str]]:
    """What stands between the candidate and promotion right now, computed afresh under its row lock."""
    evidence, outcomes = freeze(candidate)
    blocked = blocked_by(candidate, evidence, outcomes)
    approval = approvals_outcome(candidate, evidence)
    if approval.outcome is not Outcome.PASSED:
        blocked.append(f"{APPROVAL_GATE}: {approval.reason}")
    return evidence, blocked


def place_of(blocked: Sequence[str]) -> CandidateState:
    """Where a candidate belongs that `unmet` says this of; something."""
    only_signatures = all(reason.startswith(APPROVAL_GATE) for reason in blocked)
    return CandidateState.IN_REVIEW if only_signatures else CandidateState.BLOCKED


def approvals_outcome(candidate: Candidate, evidence: Evidence) -> GateOutcome:
    """The approval gate on the present signatures of this evidence, and on its broken glass where the rule has one."""
    document = evidence_module.document_of(evidence)
    rule = approval_rule(document)
    return approval_outcome(
        rule=rule,
        signatures=signatures_of(candidate),
        digest=evidence.digest,
        involved=involved_people(document),
        now=evidence_module.now(),
        glass=glass_of(candidate, evidence.digest) if rule.get("break_glass") else None,
    )
