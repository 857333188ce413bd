"""Plans an eval run: every rollout row, in bulk, and the plan's digest, before the first call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import connection

from rollouts.bulk import insert_many
from rollouts.engine.dialogue import TEMPLATE_VERSION, Asker, prompt_of
from rollouts.errors import InvalidInput
from rollouts.hashing import sha256_bytes, sha256_json
from rollouts.models import Backend, Case, EvalRun, Rollout, RolloutState, Subject, Suite
from rollouts.suite_format import digest_of_cases

BATCH = 2000
NEW_ROLLOUT_TEXTS = ("failure_kind", "failure_reason", "answer_class", "finish_reason", "tool_evidence")
NEW_ROLLOUT_FIELDS = (
    "run",
    "case",
    "sample_index",
    "state",
    "attempt_key",
    *NEW_ROLLOUT_TEXTS,
    "lost_workers",
)


def digest_of_stored_cases(suite: Suite) -> str:
    """The suite's digest, computed again from the stored cases that the run will send."""
    cases = Case.objects.filter(suite=suite).order_by("position").values_list("content", flat=True)
    return digest_of_cases(cases.iterator(chunk_size=BATCH), scorer=suite.scorer)


def plan_digest(
    *,
    subject: Subject,
    suite: Suite,
    backend: Backend,
    samples: int,
    judge: Mapping[str, Any] | None = None,
) -> str:
    """What was promised to be measured: subject, suite, backend revision, samples a case, and the judge if there is one."""
    plan = {"subject": subject.digest, "suite": suite.digest, "backend": backend.digest, "samples": samples}
    return sha256_json({**plan, "judge": judge} if judge else plan)


def write_rollouts(run: EvalRun, asker: Asker) -> int:
    """Writes suite.case_count x samples rows and returns their number. Memory stays flat for large suites.

    Raises `InvalidInput` where the backend cannot be asked a case: before anything is spent.
    """
    assert connection.in_atomic_block
    shared = sha256_json(
        {"subject": run.subject.digest, "backend": run.backend.digest, "template": TEMPLATE_VERSION}
    )
    cases = Case.objects.filter(suite_id=run.suite_id).order_by("position").values_list("id", "content")
    written = 0
    keys: list[tuple[int, str]] = []
    for case_id, content in cases.iterator(chunk_size=BATCH):
        try:
            route = asker.route(content)
        except ValueError as error:
            raise InvalidInput("backend", f"cannot be asked case {content['key']!r}: it {error}.") from error
        keys.append((case_id, sha256_bytes(f"{shared} {route} ".encode() + prompt_of(content))))
        if len(keys) == BATCH:
            written += _write(run, keys)
            keys = []
    return written + _write(run, keys)


def _write(run: EvalRun, keys: list[tuple[int, str]]) -> int:
    """The rows of some cases: every case's first sample, then every case's second."""
    queued, blank = str(RolloutState.QUEUED), ("",) * len(NEW_ROLLOUT_TEXTS)
    rows = [
        (run.pk, case_id, sample_index, queued, attempt_key(key, sample_index), *blank, 0)
        for sample_index in range(run.samples)
        for case_id, key in keys
    ]
    for start in range(0, len(rows), BATCH):
        insert_many(Rollout, NEW_ROLLOUT_FIELDS, rows[start : start + BATCH])
    return len(rows)


def attempt_key(case_key: str, sample_index: int) -> str:
    """Sample 0 has the key of plain re-scoring; every further sample has one of its own."""
    return case_key if sample_index == 0 else sha256_bytes(f"{case_key} sample {sample_index}".encode())
