"""Freezes what gates may know of a candidate into one canonical document, and its digest.

The document holds no row id, no time of building, no approval and no comment: nothing that changes by being looked
at. Two builds of the same state give the same bytes on every database. The number of queries is constant.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Count
from django.utils import timezone

from promotion.gates.base import METRICS
from promotion.models import Alias, Candidate, Evidence, Policy
from rollouts.errors import Conflict
from rollouts.hashing import canonical_bytes, sha256_bytes
from rollouts.models import Case, EvalRun, Look, Rollout, RolloutState, RunState, Suite
from rollouts.selectors import local_subject_digest
from rollouts.statistics import percentile_ms

FORMAT = 1
# metrics that apply only where a call is right, or only where it is wrong; the others apply to every case
APPLIES = {"tool": True, "safe": False}


@dataclass(frozen=True, slots=True)
class Built:
    """The canonical bytes of an evidence document, their digest, and the document itself."""

    document: dict[str, Any]
    data: bytes
    digest: str


def current_policy(track_id: int) -> Policy | None:
    """The track's newest locked policy."""
    return Policy.objects.filter(track_id=track_id, locked_at__isnull=False).order_by("-version").first()


def champion_of(track_id: int) -> Candidate | None:
    alias = (
        Alias.objects.filter(track_id=track_id, name="champion")
        .select_related("entry__candidate__base", "entry__candidate__gguf")
        .first()
    )
    return alias.entry.candidate if alias else None


def subject_digest(candidate: Candidate, policy: Policy) -> str | None:
    """The subject's digest under the policy's sampling, or None while the GGUF is not built."""
    if candidate.gguf_id is None:
        return None
    return local_subject_digest(
        base=candidate.base,
        adapter_sha256=candidate.gguf_id,
        adapter_source_sha256=candidate.adapter_source_sha256,
        sampling=policy.document["sampling"],
    )


def build(candidate: Candidate) -> Built:
    """The evidence of the candidate as things stand now."""
    policy = None if candidate.baseline else current_policy(candidate.track_id)
    champion = None if candidate.baseline else champion_of(candidate.track_id)
    subject = subject_digest(candidate, policy) if policy else None
    champion_subject = subject_digest(champion, policy) if champion and policy else None
    suites = _suites(policy, subject, champion_subject) if policy else []
    document = {
        "format": FORMAT,
        "candidate": {
            "track": candidate.track.name,
            "name": candidate.name,
            "baseline": candidate.baseline,
            "revision": candidate.revision,
        },
        "artifact": _artifact(candidate, subject),
        "policy": _policy(policy),
        "champion": _champion(champion, champion_subject),
        "suites": suites,
        "people": _people(candidate, policy, suites),
    }
    data = canonical_bytes(document)
    return Built(document, data, sha256_bytes(data))


def _artifact(candidate: Candidate, subject: str | None) -> dict[str, Any]:
    return {
        "gguf_sha256": candidate.gguf_id,
        "gguf_size_bytes": candidate.gguf.size_bytes if candidate.gguf else None,
        "subject_digest": subject,
        "adapter_config_sha256": candidate.adapter_config_id,
        "adapter_weights_sha256": candidate.adapter_weights_id,
        "adapter_source_sha256": candidate.adapter_source_sha256,
        "base": candidate.base.name,
        "base_sha256": candidate.base.artifact_id,
        "chat_template_sha256": candidate.base.chat_template_sha256,
        "outtype": candidate.outtype,
        "verification": candidate.verification,
    }


def _policy(policy: Policy | None) -> dict[str, Any] | None:
    if policy is None:
        return None
    return {
        "version": policy.version,
        "digest": policy.digest,
        "locked_at": _time(policy.locked_at),
        "document": policy.document,
    }


def _champion(champion: Candidate | None, subject: str | None) -> dict[str, Any] | None:
    if champion is None:
        return None
    return {
        "entry": champion.entry.number,
        "name": champion.name,
        "gguf_sha256": champion.gguf_id,
        "subject_digest": subject,
    }


def _people(candidate: Candidate, policy: Policy | None, suites: list[dict[str, Any]]) -> dict[str, Any]:
    ran = [suite[who] for suite in suites for who in ("candidate", "champion") if suite[who]]
    starters = {name for run in ran for name in (run["started_by"], *run["reopened_by"])}
    return {
        "submitted_by": candidate.submitted_by.get_username(),
        "runs_started_by": sorted(name for name in starters if name),
        "policy_created_by": policy.created_by.get_username() if policy and policy.created_by else None,
        "policy_locked_by": policy.locked_by.get_username() if policy and policy.locked_by else None,
        "suites_sealed_by": sorted({suite["sealed_by"] for suite in suites if suite["sealed_by"]}),
    }


def _suites(policy: Policy, subject: str | None, champion: str | None) -> list[dict[str, Any]]:
    """One part per suite of the policy, in the policy's order."""
    wanted = [part["digest"] for part in policy.document["suites"]]
    suites = {s.digest: s for s in Suite.objects.filter(digest__in=wanted).select_related("sealed_by")}
    subjects = [found for found in (subject, champion) if found]
    runs = _runs_that_count(list(suites.values()), subjects, policy)
    cases = _case_outcomes({run.pk: run.samples for run in runs.values()})
    families: dict[int, dict[str, int]] = defaultdict(dict)
    sizes = Case.objects.filter(suite__in=suites.values()).order_by().values_list("suite_id", "family")
    for suite_id, family, size in sizes.annotate(Count("id")):
        families[suite_id][family] = size
    looks = {
        (look.suite_id, look.subject.digest): look.number
        for look in Look.objects.filter(
            suite__in=suites.values(), subject__digest__in=subjects
        ).select_related("subject")
    }
    parts = []
    for digest in wanted:
        suite = suites.get(digest)
        if suite is None:
            continue
        pair = {
            who: runs.get((suite.pk, found)) if found else None
            for who, found in (("candidate", subject), ("champion", champion))
        }
        parts.append(_suite_part(suite, families[suite.pk], pair, cases, looks))
    return parts


def _runs_that_count(
    suites: list[Suite], subjects: list[str], policy: Policy
) -> dict[tuple[int, str], EvalRun]:
    """Of each (suite, subject digest) the first run planned after the policy's lock, else the newest before; closed.

    The first, not the newest: whoever may plan runs could otherwise repeat them until one passes. While it is open
    nothing else takes its place, nor after it was cancelled: it is gone on with. Failed runs measured nothing.
    """
    planned = EvalRun.objects.filter(
        # an answer that was taken from before may be older than the policy's lock
        suite__in=suites,
        subject__digest__in=subjects,
        samples=policy.document["samples"],
        reuse=False,
    ).select_related("subject", "backend", "created_by")
    runs: dict[tuple[int, str], EvalRun] = {}
    for run in planned.order_by("id"):
        known = runs.get((run.suite_id, run.subject.digest))
        if (known is None or known.created_at < policy.locked_at) and keeps_its_place(run):
            runs[(run.suite_id, run.subject.digest)] = run
    return {key: run for key, run in runs.items() if run.state == RunState.SCORED}


def keeps_its_place(run: EvalRun) -> bool:
    """Whether a later run of the same would be a second try. A cancelled one counts once anything was scored."""
    if run.state == RunState.CANCELLED:
        return run.rollouts.filter(state=RolloutState.SCORED).exists()
    return run.state != RunState.FAILED


@dataclass(slots=True)
class _Case:
    """A case's samples reduced to one value a metric: right if all are right, wrong if any is wrong, else missing.

    A sample without row, without score or without this metric is not right: what is gone cannot help.
    """

    family: str
    expects_call: bool
    samples: int
    right: Counter[str] = field(default_factory=Counter)
    wrong: set[str] = field(default_factory=set)

    def value(self, metric: str) -> str | None:
        if metric in APPLIES and APPLIES[metric] is not self.expects_call:
            return None
        if metric in self.wrong:
            return "failures"
        return "successes" if self.right[metric] == self.samples else "missing"


class _RunCases:
    def __init__(self) -> None:
        self.cases: dict[int, _Case] = {}
        self.latencies: list[float] = []
        self.truncated = 0


def _case_outcomes(samples: Mapping[int, int]) -> dict[int, _RunCases]:
    """Per run id; `samples` gives each run's samples a case."""
    runs: dict[int, _RunCases] = defaultdict(_RunCases)
    rows = (
        Rollout.objects.filter(run_id__in=list(samples))
        .order_by("id")
        .values_list(
            "run_id",
            "case_id",
            "case__family",
            "case__expects_call",
            "state",
            "latency_ms",
            "answer_class",
            *METRICS,
        )
    )
    for run_id, case_id, family, expects_call, state, latency_ms, answer_class, *values in rows.iterator(
        2000
    ):
        run = runs[run_id]
        case = run.cases.get(case_id)
        if case is None:
            case = run.cases[case_id] = _Case(family, expects_call, samples[run_id])
        if state != RolloutState.SCORED:
            continue
        for metric, value in zip(METRICS, values, strict=True):
            if value is True:
                case.right[metric] += 1
            elif value is False:
                case.wrong.add(metric)
        run.truncated += answer_class == "truncated"
        if latency_ms is not None:
            run.latencies.append(latency_ms)
    return runs


def _suite_part(
    suite: Suite,
    families: dict[str, int],
    pair: dict[str, EvalRun | None],
    cases: dict[int, _RunCases],
    looks: dict[tuple[int, str], int],
) -> dict[str, Any]:
    return {
        "digest": suite.digest,
        "name": suite.name,
        "version": suite.version,
        "case_count": suite.case_count,
        "sealed_at": _time(suite.sealed_at),
        "sealed_by": suite.sealed_by.get_username() if suite.sealed_by else None,
        "families": families,
        **{
            who: _run_part(run, suite, cases[run.pk], looks.get((run.suite_id, run.subject.digest)))
            if run
            else None
            for who, run in pair.items()
        },
        "paired": _paired(pair, cases),
    }


def _run_part(run: EvalRun, suite: Suite, cases: _RunCases, look: int | None) -> dict[str, Any]:
    by_family: dict[str, list[_Case]] = defaultdict(list)
    for case in cases.cases.values():
        by_family[case.family].append(case)
    latencies = cases.latencies
    return {
        "run": str(run.uid),
        "subject_digest": run.subject.digest,
        "suite_digest": run.suite_digest,
        "plan_digest": run.plan_digest,
        "scorer": suite.scorer,
        "sampling": run.subject.sampling,
        "samples": run.samples,
        "backend": f"{run.backend.name} revision {run.backend.revision}",
        "served": run.server_facts,
        "planned_at": _time(run.created_at),
        "finished_at": _time(run.finished_at),
        "started_by": run.created_by.get_username() if run.created_by else None,
        "reopened_by": sorted(set(run.reopened_by)),
        "look": look,
        "planned": run.planned,
        "scored": run.scored,
        "masked": run.masked,
        "unscored": run.unscored,
        "cancelled": run.cancelled,
        "truncated": cases.truncated,
        "latency_ms": {
            "p50": round(percentile_ms(latencies, 50)) if latencies else None,
            "p95": round(percentile_ms(latencies, 95)) if latencies else None,
        },
        "metrics": _metrics(cases.cases.values()),
        "families": {family: _metrics(found) for family, found in by_family.items()},
    }


def _metrics(cases: Iterable[_Case]) -> dict[str, dict[str, int]]:
    counts = {metric: {"successes": 0, "failures": 0, "missing": 0} for metric in METRICS}
    for case in cases:
        for metric in METRICS:
            value = case.value(metric)
            if value is not None:
                counts[metric][value] += 1
    return counts


def _paired(pair: dict[str, EvalRun | None], cases: dict[int, _RunCases]) -> dict[str, dict[str, int]] | None:
    """Per metric over the same cases: both right, lost (right to wrong), won, neither; a missing side is `missing`."""
    candidate, champion = pair["candidate"], pair["champion"]
    if candidate is None or champion is None:
        return None
    names = {
        ("successes", "successes"): "both",
        ("successes", "failures"): "lost",
        ("failures", "successes"): "won",
        ("failures", "failures"): "neither",
    }
    tables = {metric: dict.fromkeys([*names.values(), "missing"], 0) for metric in METRICS}
    ours, theirs = cases[candidate.pk].cases, cases[champion.pk].cases
    for case_id in ours.keys() | theirs.keys():
        known = ours.get(case_id) or theirs[case_id]
        for metric in METRICS:
            if known.value(metric) is None:
                continue
            sides = tuple(side[case_id].value(metric) if case_id in side else None for side in (theirs, ours))
            tables[metric][names.get(sides, "missing")] += 1  # type: ignore[call-overload]
    return tables


def _time(value: datetime | None) -> str | None:
    return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if value else None


def now() -> datetime:
    """The time against which expiry is computed."""
    return timezone.now()


def document_of(evidence: Evidence) -> dict[str, Any]:
    """The stored document. Raises where the stored bytes are not those of the digest."""
    data = bytes(evidence.document)
    if sha256_bytes(data) != evidence.digest:
        raise Conflict(f"The stored evidence {evidence.digest[:8]} holds other bytes than its digest says.")
    document: dict[str, Any] = json.loads(data)
    return document
