"""What a candidate was made from: its datasets and tool schema, and what they share with what judges it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from promotion import permissions
from promotion.evidence import current_policy
from promotion.models import Candidate, CandidateDataset, CandidateState, DatasetRole, Evidence
from rollouts import audit
from rollouts.dataset_format import tools_of
from rollouts.errors import Conflict, InvalidInput, NotAllowed, NotFound
from rollouts.leakage import schema_sha256
from rollouts.messages import send_after_commit
from rollouts.models import Dataset, Overlap, Suite
from rollouts.scoring.decision import NotStrictJson, parse_strict_json
from rollouts.services import datasets as dataset_services

MAX_DATASETS = 100
MAX_SCHEMA_BYTES = 4 << 20
HEX_DIGEST = re.compile(r"[0-9a-f]{64}")
# a comparison of large sets takes a minute or two; it is sent again only where its message must be lost
COMPARING_TAKES = timedelta(minutes=15)
# until a candidate is judged for the first time
TAKES_DATASETS = (
    CandidateState.SUBMITTED,
    CandidateState.BUILD_FAILED,
    CandidateState.BUILT,
    CandidateState.EVALUATING,
)

Use = tuple[Dataset, DatasetRole]


def attach_datasets(
    *,
    candidate_id: int,
    by: User,
    datasets: Sequence[Mapping[str, str]] = (),
    tool_schema_sha256: str = "",
) -> Candidate:
    """Add {digest, role} of datasets, or the tool schema, to a candidate that was never judged. Nothing is taken away.

    Only whoever submitted the candidate may: who says what it was made from is involved in it, and may not sign.
    """
    permissions.require_can_submit(by)
    uses = named_uses(datasets)
    require_digest(tool_schema_sha256)
    with transaction.atomic():
        candidate = (
            Candidate.objects.select_for_update(no_key=True, of=("self",))
            .select_related("track")
            .filter(pk=candidate_id)
            .first()
        )
        if candidate is None:
            raise NotFound("There is no such candidate.")
        if candidate.submitted_by_id != by.pk:
            raise NotAllowed(
                f"{by.get_username()} may not say what {candidate} was made from: whoever submitted it must."
            )
        if candidate.state not in TAKES_DATASETS or Evidence.objects.filter(candidate=candidate).exists():
            raise Conflict(
                f"{candidate} is judged or closed, so what it was made from cannot change. Submit a new candidate."
            )
        uses = _new_uses(candidate, uses)
        schema = tool_schema_sha256 if tool_schema_sha256 != candidate.tool_schema_sha256 else ""
        if schema and candidate.tool_schema_sha256:
            raise Conflict(
                f"{candidate} was made for tool schema {candidate.tool_schema_sha256[:12]} already."
            )
        if not uses and not schema:
            return candidate
        write(candidate, uses)
        candidate.tool_schema_sha256 = schema or candidate.tool_schema_sha256
        candidate.revision += 1
        candidate.save(update_fields=["tool_schema_sha256", "revision"])
        if candidate.state == CandidateState.EVALUATING:
            send_comparison(candidate)
        audit.record(
            "candidate.datasets_attached",
            subject=candidate,
            actor=by,
            datasets=audited(uses),
            tool_schema=schema or None,
        )
    return candidate


def tool_schema_digest(data: bytes) -> str:
    """The digest of a file of tool schemas, as suites and datasets have it. Raises `InvalidInput`."""
    if len(data) > MAX_SCHEMA_BYTES:
        raise InvalidInput("tool_schema", f"is {len(data)} bytes; at most {MAX_SCHEMA_BYTES} are taken.")
    try:
        document = parse_strict_json(data.decode())
    except UnicodeDecodeError as error:
        raise InvalidInput("tool_schema", f"is not UTF-8 (byte {error.start}).") from error
    except NotStrictJson as error:
        raise InvalidInput("tool_schema", f"is not strict JSON ({error}).") from error
    return schema_sha256(tools_of(document))


def one_schema_digest(*, data: bytes | None = None, document: Any = None, sha256: str = "") -> str:
    """The tool schema's digest, given in one way at most: a file's bytes, its JSON, or the digest; "" for none."""
    if sum(part is not None for part in (data, document)) + bool(sha256) > 1:
        raise InvalidInput("tool_schema", "is given twice. Give the schemas or their digest.")
    if data is not None:
        return tool_schema_digest(data)
    return schema_sha256(tools_of(document)) if document is not None else sha256


def require_digest(tool_schema_sha256: str) -> None:
    if tool_schema_sha256 and not HEX_DIGEST.fullmatch(tool_schema_sha256):
        raise InvalidInput(
            "tool_schema_sha256", "must be a SHA-256: 64 hexadecimal digits in lower case, or left out."
        )


def named_uses(given: Sequence[Mapping[str, str]]) -> list[Use]:
    """The datasets that are named, each once. Raises `InvalidInput` with the entry."""
    if len(given) > MAX_DATASETS:
        raise InvalidInput("datasets", f"are {len(given)}; at most {MAX_DATASETS} are taken.")
    known = {row.digest: row for row in Dataset.objects.filter(digest__in=[use["digest"] for use in given])}
    found: dict[str, Use] = {}
    for index, use in enumerate(given):
        digest, role = use["digest"], use["role"]
        if role not in DatasetRole.values:
            raise InvalidInput(f"datasets.{index}.role", f"must be {' or '.join(DatasetRole.values)}.")
        if digest not in known:
            raise InvalidInput(
                f"datasets.{index}.digest", f"no dataset has the digest {digest[:12]}. Register it first."
            )
        if digest in found:
            raise InvalidInput(f"datasets.{index}.digest", "is listed twice. Name each dataset once.")
        found[digest] = (known[digest], DatasetRole(role))
    return list(found.values())


def _new_uses(candidate: Candidate, uses: list[Use]) -> list[Use]:
    """Those that the candidate has not yet. Raises `Conflict` for one that it has in the other role."""
    present = {use.dataset_id: use.role for use in candidate.dataset_uses.all()}
    for dataset, role in uses:
        if present.get(dataset.pk, role) != role:
            raise Conflict(
                f"{dataset} is {candidate}'s {present[dataset.pk]} data already; it cannot be both."
            )
    return [(dataset, role) for dataset, role in uses if dataset.pk not in present]


def write(candidate: Candidate, uses: Iterable[Use]) -> None:
    CandidateDataset.objects.bulk_create(
        CandidateDataset(candidate=candidate, dataset=dataset, role=role) for dataset, role in uses
    )


def audited(uses: Iterable[Use]) -> list[dict[str, str]]:
    return [{"name": str(dataset), "digest": dataset.digest, "role": str(role)} for dataset, role in uses]


# comparing what it was made from with what judges it


def send_comparison(candidate: Candidate) -> None:
    """Have a worker compare the candidate's datasets, on commit, and judge it again with what comes out.

    Nothing is sent for a candidate that names none.
    """
    from promotion import tasks

    if not candidate.dataset_uses.exists():
        return
    Candidate.objects.filter(pk=candidate.pk).update(last_sent_at=timezone.now())
    send_after_commit(tasks.compare_datasets, candidate.pk)


def send_lost_comparisons() -> None:
    """For the sweep: send again what an evaluating candidate still lacks and nobody can be at work on."""
    before = timezone.now() - COMPARING_TAKES
    waiting = Candidate.objects.filter(state=CandidateState.EVALUATING, dataset_uses__isnull=False)
    for candidate in waiting.filter(Q(last_sent_at__isnull=True) | Q(last_sent_at__lt=before)).distinct():
        if any(suites or others for _, suites, others in _pairs(candidate)):
            with transaction.atomic():
                send_comparison(candidate)


def compare_and_judge(candidate_id: int) -> None:
    """Compare what is not compared yet, then judge the candidate where its evidence changed by it."""
    from promotion.services import gating  # which has comparisons sent

    compare_all(candidate_id)
    if gating.judge_if_measured(candidate_id):
        return
    judged = Candidate.objects.select_related("track", "base", "gguf", "submitted_by")
    candidate = judged.filter(
        pk=candidate_id, state__in=(CandidateState.BLOCKED, CandidateState.IN_REVIEW)
    ).first()
    if candidate is not None and not gating.is_current(candidate):
        with suppress(Conflict):  # somebody moved the candidate in between
            gating.judge_now(candidate_id)


def compare_all(candidate_id: int) -> int:
    """Compare each dataset of a candidate with each suite of its policy, and training with evaluation data both ways.

    What was compared before is not compared again, so it may run twice. Gives the number of new comparisons.
    """
    candidate = Candidate.objects.filter(pk=candidate_id).first()
    if candidate is None:
        return 0
    compared = 0
    for dataset, suites, others in _pairs(candidate):
        compared += len(dataset_services.compare_with(dataset, suites=suites, others=others))
    return compared


def _pairs(candidate: Candidate) -> list[tuple[Dataset, list[Suite], list[Dataset]]]:
    """Each dataset with what it was not compared with yet. Four queries."""
    policy = None if candidate.baseline else current_policy(candidate.track_id)
    digests = [part["digest"] for part in policy.document["suites"]] if policy else []
    suites = list(Suite.objects.filter(digest__in=digests))
    uses = list(candidate.dataset_uses.select_related("dataset"))
    rows = Overlap.objects.filter(dataset__in=[use.dataset_id for use in uses])
    done = set(rows.values_list("dataset_id", "suite_id", "other_id"))
    return [
        (
            use.dataset,
            [suite for suite in suites if (use.dataset_id, suite.pk, None) not in done],
            [
                other.dataset
                for other in uses
                if other.role != use.role and (use.dataset_id, None, other.dataset_id) not in done
            ],
        )
        for use in uses
    ]
