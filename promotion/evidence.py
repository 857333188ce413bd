"""Freezes what gates may know of a candidate into one canonical document, and its digest.

The document holds no row id, no time of building, no approval and no comment: nothing that changes by being looked
at. Two builds of the same state give the same bytes on every database. The number of queries is constant.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from promotion.gates import measurement_digest
from promotion.models import Alias, Candidate, Evidence, Policy, Waiver
from promotion.selectors import datasets_part, who_wrote
from rollouts import store
from rollouts.errors import Conflict
from rollouts.hashing import canonical_bytes, sha256_bytes
from rollouts.measurements import Measured, counts, measured, paired
from rollouts.models import Case, EvalRun, Look, Rollout, RolloutState, RunState, Suite
from rollouts.selectors import local_subject_digest
from rollouts.statistics import percentile_ms

FORMAT = 2


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
    datasets = datasets_part(candidate.pk, [suite["digest"] for suite in suites])
    waivers = _waivers(candidate)
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
        "datasets": datasets,
        "suites": suites,
        "people": _people(candidate, policy, suites, datasets, waivers),
    }
    # a waiver is of what was measured: of anything else it waives nothing, and does not stand in the document
    measured_as = measurement_digest(document)
    document["waivers"] = [waiver for waiver in waivers if waiver["measurement_digest"] == measured_as]
    data = canonical_bytes(document)
    return Built(document, data, sha256_bytes(data))


def _waivers(candidate: Candidate) -> list[dict[str, Any]]:
    granted = Waiver.objects.filter(candidate=candidate, granted_at__isnull=False, ended_at__isnull=True)
    return [
        {
            "gate": waiver.gate,
            "suite": waiver.suite_digest or None,
            "measurement_digest": waiver.measurement_digest,
            "reason": waiver.reason,
            "requested_by": waiver.requested_by.get_username(),
            "granted_by": waiver.granted_by.get_username() if waiver.granted_by else None,
            "granted_at": _time(waiver.granted_at),
            "expires_at": _time(waiver.expires_at),
        }
        for waiver in granted.select_related("requested_by", "granted_by").order_by("id")
    ]


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
        "tool_schema_sha256": candidate.tool_schema_sha256 or None,
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
    exported = champion.entry.exports.order_by("id").first()
    return {
        "entry": champion.entry.number,
        "name": champion.name,
        "baseline": champion.baseline,
        "gguf_sha256": champion.gguf_id,
        "subject_digest": subject,
        # whether there is something to roll back to
        "stored": champion.gguf_id is not None and store.holds(champion.gguf_id),
        "exported_as": exported.name if exported else None,
    }


def _people(
    candidate: Candidate,
    policy: Policy | None,
    suites: list[dict[str, Any]],
    datasets: list[dict[str, Any]],
    waivers: list[dict[str, Any]],
) -> dict[str, Any]:
    ran = [suite[who] for suite in suites for who in ("candidate", "champion") if suite[who]]
    starters = {name for run in ran for name in (run["started_by"], *run["reopened_by"])}
    return {
        "submitted_by": candidate.submitted_by.get_username(),
        "runs_started_by": sorted(name for name in starters if name),
        "policy_created_by": policy.created_by.get_username() if policy and policy.created_by else None,
        "policy_written_by": sorted(who_wrote(policy)) if policy else [],
        "policy_locked_by": policy.locked_by.get_username() if policy and policy.locked_by else None,
        "suites_sealed_by": sorted({suite["sealed_by"] for suite in suites if suite["sealed_by"]}),
        "datasets_registered_by": sorted(
            {part["registered_by"] for part in datasets if part["registered_by"]}
        ),
        "waivers_by": sorted(
            {waiver[who] for waiver in waivers for who in ("requested_by", "granted_by") if waiver[who]}
        ),
    }


def _suites(policy: Policy, subject: str | None, champion: str | None) -> list[dict[str, Any]]:
    """One part per suite of the policy, in the policy's order."""
    wanted = [part["digest"] for part in policy.document["suites"]]
    suites = {s.digest: s for s in Suite.objects.filter(digest__in=wanted).select_related("sealed_by")}
    subjects = [found for found in (subject, champion) if found]
    runs = _runs_that_count(list(suites.values()), subjects, policy)
    found = measured(runs.values())
    sizes = _sizes(list(suites.values()))
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
        parts.append(_suite_part(suite, sizes[suite.pk], pair, found, looks))
    return parts


@dataclass(slots=True)
class _Sizes:
    """Of a suite: cases and distinct prompts, in all and of each family."""

    prompts: set[str] = field(default_factory=set)
    families: Counter[str] = field(default_factory=Counter)
    family_prompts: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


def _sizes(suites: list[Suite]) -> dict[int, _Sizes]:
    sizes: dict[int, _Sizes] = defaultdict(_Sizes)
    rows = (
        Case.objects.filter(suite__in=suites)
        .order_by()
        .values_list("suite_id", "id", "family", "prompt_sha256")
    )
    for suite_id, case_id, family, prompt in rows.iterator(5000):
        suite = sizes[suite_id]
        prompt = prompt or f"case {case_id}"
        suite.prompts.add(prompt)
        suite.families[family] += 1
        suite.family_prompts[family].add(prompt)
    return sizes


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
    for run in keeping_their_place(planned).order_by("id"):
        known = runs.get((run.suite_id, run.subject.digest))
        if known is None or known.created_at < policy.locked_at:
            runs[(run.suite_id, run.subject.digest)] = run
    return {key: run for key, run in runs.items() if run.state == RunState.SCORED}


def keeping_their_place(runs: QuerySet[EvalRun]) -> QuerySet[EvalRun]:
    """Those after which a later run of the same would be a second try. A cancelled one counts once anything was scored."""
    scored = Rollout.objects.filter(run=OuterRef("pk"), state=RolloutState.SCORED)
    return runs.exclude(state=RunState.FAILED).filter(~Q(state=RunState.CANCELLED) | Exists(scored))


def _suite_part(
    suite: Suite,
    sizes: _Sizes,
    pair: dict[str, EvalRun | None],
    found: dict[int, Measured],
    looks: dict[tuple[int, str], int],
) -> dict[str, Any]:
    return {
        "digest": suite.digest,
        "name": suite.name,
        "version": suite.version,
        "case_count": suite.case_count,
        "prompt_count": len(sizes.prompts),
        "scorer": suite.scorer,
        "schema_sha256": suite.schema_sha256 or None,
        "leak": suite.leak,
        "sealed_at": _time(suite.sealed_at),
        "sealed_by": suite.sealed_by.get_username() if suite.sealed_by else None,
        "families": dict(sizes.families),
        "family_prompts": {family: len(prompts) for family, prompts in sizes.family_prompts.items()},
        **{
            who: _run_part(run, suite, found[run.pk], looks.get((run.suite_id, run.subject.digest)))
            if run
            else None
            for who, run in pair.items()
        },
        "paired": _paired(pair, found),
    }


def _paired(pair: dict[str, EvalRun | None], found: dict[int, Measured]) -> dict[str, dict[str, int]] | None:
    candidate, champion = pair["candidate"], pair["champion"]
    if candidate is None or champion is None:
        return None
    return paired(found[candidate.pk].prompts, found[champion.pk].prompts)


def _run_part(run: EvalRun, suite: Suite, found: Measured, look: int | None) -> dict[str, Any]:
    latencies = found.latencies
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
        "independence": run.independence,
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
        "truncated": found.classes["truncated"],
        "reasoning_only": found.classes["reasoning_only"],
        "turns_exhausted": found.classes["turns_exhausted"],
        "latency_ms": {
            "p50": round(percentile_ms(latencies, 50)) if latencies else None,
            "p95": round(percentile_ms(latencies, 95)) if latencies else None,
            "n": len(latencies),
        },
        "peak_memory_bytes": run.peak_memory_bytes,
        "metrics": counts(found.prompts),
        "families": {family: counts(prompts) for family, prompts in found.families.items()},
    }


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
