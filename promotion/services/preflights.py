"""Preflight over files or registered datasets, with a draft policy: reads what the checks need and writes nothing."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User

from promotion import permissions
from promotion.evidence import champion_of
from promotion.models import Track
from promotion.preflight import Finding, Inputs, SuiteCases, findings, parsed
from promotion.services import policy_rules
from rollouts.errors import AssayError, InvalidInput
from rollouts.models import Dataset, Suite
from rollouts.services.datasets import HEX_DIGEST, cases_of, data_of

# what a request has time for; the command takes whatever a dataset may have
MAX_REQUEST_BYTES = 64 << 20
MAX_SUITES = 100  # as many as a policy may have
# of a dataset: a registered one, or the bytes of a file
Data = Dataset | bytes | None


def run(
    *,
    by: User,
    train: Data,
    evaluation: Data,
    sidecar: Any = None,
    policy: Any = None,
    config: Any = None,
    tool_schema: Any = None,
    track: Track | None = None,
    most_bytes: int | None = None,
) -> list[Finding]:
    """The findings, in the order of the checks. Documents are JSON values or the bytes of a file.

    `sidecar` is of both files; a registered dataset brings its own where none is given. `most_bytes` is the most that a
    file may have. Raises only where the person may not read, or a stored file is gone or damaged.
    """
    permissions.require_can_read(by)
    for field, data in (("train", train), ("eval", evaluation)):
        size = data.artifact.size_bytes if isinstance(data, Dataset) else len(data or b"")
        if most_bytes is not None and size > most_bytes:
            raise InvalidInput(
                field, f"is {size} bytes; at most {most_bytes} are checked here. Use manage.py preflight."
            )
    return findings(
        Inputs(
            train=_bytes(train),
            evaluation=_bytes(evaluation),
            sidecar=_sidecar(train) if sidecar is None else sidecar,
            evaluation_sidecar=_sidecar(evaluation) if sidecar is None else None,
            policy=policy,
            policy_problems=_policy_problems(policy),
            config=config,
            tool_schema=tool_schema,
            suites=_suites(policy),
            has_champion=None if track is None else champion_of(track.pk) is not None,
        )
    )


def _bytes(data: Data) -> bytes | None:
    return data_of(data) if isinstance(data, Dataset) else data


def _sidecar(data: Data) -> Any:
    return data.sidecar if isinstance(data, Dataset) else None


def _policy_problems(policy: Any) -> list[tuple[str, str]]:
    """What the rules of policies refuse of a document that can be read."""
    try:
        document = parsed("policy", policy)
    except InvalidInput:
        return []  # a finding of the first check
    if document is None:
        return []
    try:
        problems = policy_rules.problems(document)
    except AssayError as error:
        return [("document", error.message)]
    return [(problem.field, problem.message.removeprefix(f"{problem.field}: ")) for problem in problems]


def _suites(policy: Any) -> list[SuiteCases]:
    """The policy's suites that are sealed here, in its order."""
    try:
        document = parsed("policy", policy)
    except InvalidInput:
        return []
    listed = document.get("suites") if isinstance(document, dict) else None
    digests = (
        [part.get("digest") for part in listed if isinstance(part, dict)] if isinstance(listed, list) else []
    )
    named = (digest for digest in digests if isinstance(digest, str) and HEX_DIGEST.fullmatch(digest))
    wanted = list(dict.fromkeys(named))[:MAX_SUITES]
    found = {suite.digest: suite for suite in Suite.objects.filter(digest__in=wanted)}
    return [
        SuiteCases(str(found[digest]), found[digest].schema_sha256, cases_of(found[digest]))
        for digest in wanted
        if digest in found
    ]
