"""Freezes what gates may know of a candidate into one canonical document, and its digest.

The document holds no row id, no time of building, no approval and no comment: nothing that changes by being looked
at. Two builds of the same state give the same bytes on every database. The number of queries is constant.

The frame is the document without what is counted from rollouts: cheap, and another whenever the document is another.
Pages ask it whether evidence is current; who decides builds the document.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from promotion.gates import measurement_digest
from promotion.models import Alias, Candidate, Evidence, Policy, Waiver
from promotion.selectors import datasets_part, who_wrote
from rollouts import store
from rollouts.amendments import amendments_of
from rollouts.errors import Conflict
from rollouts.hashing import canonical_bytes, sha256_bytes, sha256_json
from rollouts.measurements import Measured, counts, measured, paired
from rollouts.models import Case, EvalRun, Look, Rollout, RolloutState, RunState, Suite
from rollouts.selectors import local_subject_digest
from rollouts.statistics import percentile_ms

FORMAT = 2


@dataclass(frozen=True, slots=True)
class Built:
    """The canonical bytes of an evidence document, their digest, the document itself, and the digest of its frame."""

    document: dict[str, Any]
    data: bytes
    digest: str
    basis: str


@dataclass(frozen=True, slots=True)
class _Frame:
    """`pairs` holds the runs of each part of `document["suites"]`, `looks` their numbers."""

    document: dict[str, Any]
    suites: list[Suite]
    pairs: list[dict[str, EvalRun | None]]


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


def basis(candidate: Candidate) -> str:
    """The digest of the frame as things stand now; evidence whose `basis_digest` it is, is current."""
    return sha256_json(_frame(candidate).document)


def build(candidate: Candidate) -> Built:
    """The evidence of the candidate as things stand now."""
    frame = _frame(candidate)
    of_frame = sha256_json(frame.document)
    document = {**frame.document, "suites": _counted(frame)}
    # a waiver is of what was measured: of anything else it waives nothing, and does not stand in the document
    measured_as = measurement_digest(document)
    document["waivers"] = [
        waiver for waiver in document["waivers"] if waiver["measurement_digest"] == measured_as
    ]
    data = canonical_bytes(document)
    return Built(document, data, sha256_bytes(data), of_frame)


def _frame(candidate: Candidate) -> _Frame:
    policy = None if candidate.baseline else current_policy(candidate.track_id)
    champion = None if candidate.baseline else champion_of(candidate.track_id)
    subject = subject_digest(candidate, policy) if policy else None
    champion_subject = subject_digest(champion, policy) if champion and policy else None
    suites, pairs, parts = _suites(policy, subject, champion_subject) if policy else ([], [], [])
    datasets = datasets_part(candidate.pk, [suite.digest for suite in suites])
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
        "suites": parts,
        "statement": _statement(candidate),
        "people": _people(candidate, policy, pairs, parts, datasets, waivers),
        "waivers": waivers,
    }
    return _Frame(document, suites, pairs)


def _statement(candidate: Candidate) -> dict[str, str] | None:
    """What the submitter says of the remaining risk, where they changed what is made from the data."""
    newest = candidate.risk_summaries.select_related("written_by").order_by("-id").first()
    return newest and {"text": newest.text, "written_by": newest.written_by.get_username()}


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
    pairs: list[dict[str, EvalRun | None]],
    suites: list[dict[str, Any]],
    datasets: list[dict[str, Any]],
    waivers: list[dict[str, Any]],
) -> dict[str, Any]:
    ran = [run for pair in pairs for run in pair.values() if run]
    starters = {_name(run.created_by) for run in ran} | {name for run in ran for name in run.reopened_by}
    amended = [amendment for suite in suites for amendment in suite["amended"]]
    return {
        "submitted_by": candidate.submitted_by.get_username(),
        "base_registered_by": _name(candidate.base.created_by),
        "runs_started_by": sorted(name for name in starters if name),
        "backends_saved_by": sorted({name for run in ran if (name := _name(run.backend.created_by))}),
        "policy_created_by": _name(policy.created_by) if policy else None,
        "policy_written_by": sorted(who_wrote(policy)) if policy else [],
        "policy_locked_by": _name(policy.locked_by) if policy else None,
        "suites_sealed_by": sorted({suite["sealed_by"] for suite in suites if suite["sealed_by"]}),
        "amendments_by": sorted({part[who] for part in amended for who in ("proposed_by", "accepted_by")}),
        "datasets_registered_by": sorted(
            {part["registered_by"] for part in datasets if part["registered_by"]}
        ),
        "waivers_by": sorted(
            {waiver[who] for waiver in waivers for who in ("requested_by", "granted_by") if waiver[who]}
        ),
    }


def _name(person: User | None) -> str | None:
    return person.get_username() if person else None


def _suites(
    policy: Policy, subject: str | None, champion: str | None
) -> tuple[list[Suite], list[dict[str, EvalRun | None]], list[dict[str, Any]]]:
    """The policy's suites in its order, the runs on each, and the part of each without what is counted."""
    wanted = [part["digest"] for part in policy.document["suites"]]
    sealed = {s.digest: s for s in Suite.objects.filter(digest__in=wanted).select_related("sealed_by")}
    suites = [sealed[digest] for digest in wanted if digest in sealed]
    subjects = [found for found in (subject, champion) if found]
    runs = _runs_that_count(suites, subjects, policy)
    amended = amendments_of([suite.pk for suite in suites])
    looks = {
        (look.suite_id, look.subject.digest): look.number
        for look in Look.objects.filter(suite__in=suites, subject__digest__in=subjects).select_related(
            "subject"
        )
    }
    pairs = [
        {
            who: runs.get((suite.pk, found)) if found else None
            for who, found in (("candidate", subject), ("champion", champion))
        }
        for suite in suites
    ]
    parts = [
        _suite_part(suite, pair, looks, amended.get(suite.pk, []))
        for suite, pair in zip(suites, pairs, strict=True)
    ]
    return suites, pairs, parts


def _counted(frame: _Frame) -> list[dict[str, Any]]:
    """The suites of the frame, with what is counted from cases and rollouts."""
    found = measured(run for pair in frame.pairs for run in pair.values() if run)
    sizes = _sizes(frame.suites)
    counted = []
    for suite, pair, part in zip(frame.suites, frame.pairs, frame.document["suites"], strict=True):
        size = sizes[suite.pk]
        sides = {who: run and {**part[who], **_counts(found[run.pk])} for who, run in pair.items()}
        counted.append(
            {
                **part,
                **sides,
                "prompt_count": len(size.prompts),
                "families": dict(size.families),
                "family_prompts": {family: len(prompts) for family, prompts in size.family_prompts.items()},
                "paired": _paired(pair, found),
            }
        )
    return counted


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
    ).select_related("subject", "backend__created_by", "created_by")
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
    pair: dict[str, EvalRun | None],
    looks: dict[tuple[int, str], int],
    amended: list[dict[str, Any]],
) -> dict[str, Any]:
    return {
        "digest": suite.digest,
        "name": suite.name,
        "version": suite.version,
        "case_count": suite.case_count,
        "scorer": suite.scorer,
        "schema_sha256": suite.schema_sha256 or None,
        "leak": suite.leak,
        "sealed_at": _time(suite.sealed_at),
        "sealed_by": _name(suite.sealed_by),
        "amended": amended,
        **{
            who: _run_part(run, suite, looks.get((run.suite_id, run.subject.digest))) if run else None
            for who, run in pair.items()
        },
    }


def _paired(pair: dict[str, EvalRun | None], found: dict[int, Measured]) -> dict[str, dict[str, int]] | None:
    candidate, champion = pair["candidate"], pair["champion"]
    if candidate is None or champion is None:
        return None
    return paired(found[candidate.pk].prompts, found[champion.pk].prompts)


def _run_part(run: EvalRun, suite: Suite, look: int | None) -> dict[str, Any]:
    return {
        "run": str(run.uid),
        "revision": run.revision,
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
        "started_by": _name(run.created_by),
        "reopened_by": sorted(set(run.reopened_by)),
        "look": look,
        "planned": run.planned,
        "scored": run.scored,
        "masked": run.masked,
        "unscored": run.unscored,
        "cancelled": run.cancelled,
        "peak_memory_bytes": run.peak_memory_bytes,
    }


def _counts(found: Measured) -> dict[str, Any]:
    latencies = found.latencies
    return {
        "truncated": found.classes["truncated"],
        "reasoning_only": found.classes["reasoning_only"],
        "turns_exhausted": found.classes["turns_exhausted"],
        "latency_ms": {
            "p50": round(percentile_ms(latencies, 50)) if latencies else None,
            "p95": round(percentile_ms(latencies, 95)) if latencies else None,
            "n": len(latencies),
        },
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
