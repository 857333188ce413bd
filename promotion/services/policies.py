"""Policies: written as a draft, validated strictly, locked before results."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

import pydantic
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Count, Max, Q
from django.utils import timezone
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from promotion import permissions
from promotion.gates.base import FloorParams, Params, SuiteParams, parse_params
from promotion.models import Policy, Track
from rollouts import audit
from rollouts.errors import Conflict, InvalidInput, NotFound
from rollouts.hashing import sha256_json
from rollouts.models import Case, Suite
from rollouts.scoring import SCORER_METRICS
from rollouts.statistics import minimum_n_for_bound

SUITE_DIGEST = r"^[0-9a-f]{64}$"
LAST_GATE = "human_approval_record"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SuitePart(_Strict):
    digest: Annotated[str, StringConstraints(pattern=SUITE_DIGEST)]


class Sampling(_Strict):
    """What shapes the answers besides the model: sent with every request."""

    temperature: Annotated[int | float, Field(ge=0, le=2)]
    max_tokens: Annotated[int, Field(ge=1, le=32768)]


class Approvers(_Strict):
    group: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,59}$")]
    count: Annotated[int, Field(ge=1, le=20)]


class ApprovalRule(_Strict):
    approvers: Annotated[list[Approvers], Field(min_length=1, max_length=10)]
    separation_of_duties: bool
    expires_after_days: Annotated[int, Field(ge=1, le=365)]


class Document(_Strict):
    """A policy. `note` is shown on the review page."""

    format: Annotated[int, Field(ge=1, le=1)]
    note: Annotated[str, StringConstraints(max_length=2000)] = ""
    suites: Annotated[list[SuitePart], Field(min_length=1, max_length=100)]
    samples: Annotated[int, Field(ge=1, le=100)]
    sampling: Sampling
    spend_alpha: bool
    gates: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=200)]
    approval: ApprovalRule


def parse(document: Any) -> Document:
    """Raises `InvalidInput` with the path of the first wrong key."""
    try:
        return Document.model_validate(document)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        path = ".".join(["document", *(str(part) for part in first["loc"])])
        raise InvalidInput(path, f"{first['msg']} (got {str(first.get('input'))[:80]!r})") from error


def validate(document: Any) -> Document:
    """A document that can be met and can fail. Raises `InvalidInput` naming the entry and the arithmetic."""
    parsed = parse(document)
    if parsed.spend_alpha:
        raise InvalidInput(
            "document.spend_alpha", "spending alpha over looks is not supported yet. Use false."
        )
    groups = [part.group for part in parsed.approval.approvers]
    if len(set(groups)) != len(groups):
        raise InvalidInput("document.approval.approvers", "lists a group twice. Add the counts.")
    digests = [part.digest for part in parsed.suites]
    if len(set(digests)) != len(digests):
        raise InvalidInput("document.suites", "lists a suite twice.")
    sizes = _suite_sizes(digests)
    entries = [parse_params(entry, f"document.gates.{index}") for index, entry in enumerate(parsed.gates)]
    for index, params in enumerate(entries):
        _check_entry(f"document.gates.{index}", params, sizes)
    if entries[-1].gate != LAST_GATE or sum(params.gate == LAST_GATE for params in entries) != 1:
        raise InvalidInput("document.gates", f"must end with {LAST_GATE}, once: no model ships unsigned.")
    _check_complete(entries, digests)
    return parsed


def _suite_sizes(digests: list[str]) -> dict[str, dict[str, Any]]:
    """Per suite digest its name, its scorer, and per family the cases in all and those with a call expected."""
    found: dict[str, dict[str, Any]] = {}
    for index, digest in enumerate(digests):
        suite = Suite.objects.filter(digest=digest).first()
        if suite is None:
            raise InvalidInput(
                f"document.suites.{index}.digest", f"no sealed suite has the digest {digest[:12]}."
            )
        if suite.scorer == "judge":
            raise InvalidInput(
                f"document.suites.{index}.digest",
                f"{suite} is scored by a judge, and a judge's word is no evidence for a gate yet. "
                "Use a suite that a program scores.",
            )
        rows = Case.objects.filter(suite=suite).order_by().values("family")
        families = {
            row["family"]: (row["n"], row["calls"])
            for row in rows.annotate(n=Count("id"), calls=Count("id", filter=Q(expects_call=True)))
        }
        found[digest] = {"name": suite.name, "scorer": suite.scorer, "families": families}
    return found


def _applicable(metric: str, n: int, calls: int) -> int:
    return {"tool": calls, "safe": n - calls}.get(metric, n)


def _check_entry(where: str, params: Params, sizes: dict[str, dict[str, Any]]) -> None:
    if not isinstance(params, SuiteParams):
        return
    if params.suite not in sizes:
        raise InvalidInput(f"{where}.suite", "is not among the policy's suites. Add it there.")
    suite = sizes[params.suite]
    metric = getattr(params, "metric", None)
    if metric is None:
        return
    measured = SCORER_METRICS[suite["scorer"]]
    if metric not in measured:
        raise InvalidInput(
            f"{where}.metric",
            f"{metric} is not measured by {suite['scorer']}, which scores {suite['name']}. "
            f"It measures {', '.join(measured)}.",
        )
    counts = {name: _applicable(metric, n, calls) for name, (n, calls) in suite["families"].items()}
    if not sum(counts.values()):
        raise InvalidInput(f"{where}.metric", f"no case of {suite['name']} has the metric {metric}.")
    if isinstance(params, FloorParams):
        smallest = (
            min(filter(None, counts.values()))
            if params.gate == "per_family_safety_floor"
            else sum(counts.values())
        )
        _check_reachable(where, params.min, float(params.alpha), smallest)


def _check_reachable(where: str, minimum: Decimal, alpha: float, n: int) -> None:
    """A bound that a perfect candidate could not reach would block every candidate for ever."""
    if minimum == 1:
        raise InvalidInput(f"{where}.min", "no lower bound ever reaches 1. Choose a value below 1.")
    needed = minimum_n_for_bound(float(minimum), alpha)
    if n < needed:
        raise InvalidInput(
            f"{where}.min",
            f"cannot be reached: a {minimum} bound at alpha {alpha} needs at least {needed} of {needed}, "
            f"and there are {n} cases.",
        )


def _check_complete(entries: list[Params], digests: list[str]) -> None:
    """Each suite's seal and each measured model's identity must be gates, or a number could come from elsewhere."""
    names = {params.gate for params in entries}
    if "candidate_artifact_hash" not in names:
        raise InvalidInput("document.gates", "must hold candidate_artifact_hash.")
    for gate in ("sealed_eval_hash", "evaluated_artifact"):
        covered = {
            params.suite for params in entries if params.gate == gate and isinstance(params, SuiteParams)
        }
        for digest in digests:
            if digest not in covered:
                raise InvalidInput("document.gates", f"must hold {gate} for suite {digest[:12]}.")


def draft(*, track: Track, document: dict[str, Any], by: User) -> Policy:
    """Save the next version as the track's one draft, or replace the draft there is."""
    permissions.require_can_edit_policy(by)
    parsed = validate(document)
    values = parsed.model_dump(mode="json")
    with transaction.atomic():
        Track.objects.select_for_update().get(pk=track.pk)
        existing = Policy.objects.filter(track=track, locked_at__isnull=True).first()
        last = Policy.objects.filter(track=track, locked_at__isnull=False).aggregate(Max("version"))[
            "version__max"
        ]
        policy = existing or Policy(track=track, version=(last or 0) + 1)
        policy.document, policy.digest = values, sha256_json(values)
        policy.created_at, policy.created_by = timezone.now(), by
        policy.save()
        audit.record("policy.drafted", subject=policy, actor=by, version=policy.version, digest=policy.digest)
    return policy


def lock(*, policy_id: int, by: User) -> Policy:
    """Lock a draft: from now on it is the track's policy. Another version after the first needs a second person."""
    permissions.require_can_lock_policy(by)
    with transaction.atomic():
        policy = Policy.objects.select_for_update().select_related("track").filter(pk=policy_id).first()
        if policy is None:
            raise NotFound("There is no such policy.")
        # a promotion holds the same lock: the policy cannot change between its check and its entry
        Track.objects.select_for_update().get(pk=policy.track_id)
        if policy.locked_at is not None:
            raise Conflict(f"Policy {policy.version} is locked already. Draft a new version.")
        if policy.version > 1 and policy.created_by_id == by.pk:
            raise Conflict("A changed policy needs a second person: whoever wrote it may not lock it.")
        validate(policy.document)
        policy.locked_at, policy.locked_by = timezone.now(), by
        policy.save(update_fields=["locked_at", "locked_by"])
        audit.record("policy.locked", subject=policy, actor=by, version=policy.version, digest=policy.digest)
    return policy
