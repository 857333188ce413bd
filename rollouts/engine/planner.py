"""Plans an eval run: every rollout row, in bulk, and the plan's digest, before the first call."""

from __future__ import annotations

from django.db import connection

from rollouts.hashing import sha256_json
from rollouts.models import Backend, Case, EvalRun, Rollout, Subject, Suite
from rollouts.suite_format import digest_of_cases

BATCH = 2000


def digest_of_stored_cases(suite: Suite) -> str:
    """The suite's digest, computed again from the stored cases that the run will send."""
    cases = Case.objects.filter(suite=suite).order_by("position").values_list("content", flat=True)
    return digest_of_cases(cases.iterator(chunk_size=BATCH))


def plan_digest(*, subject: Subject, suite: Suite, backend: Backend, samples: int) -> str:
    """What was promised to be measured: subject, suite, backend revision and samples a case."""
    return sha256_json(
        {"subject": subject.digest, "suite": suite.digest, "backend": backend.digest, "samples": samples}
    )


def write_rollouts(run: EvalRun) -> int:
    """Writes suite.case_count x samples rows and returns their number. Memory stays flat for large suites."""
    assert connection.in_atomic_block
    written = 0
    batch: list[Rollout] = []
    cases = Case.objects.filter(suite_id=run.suite_id).order_by("position").values_list("id", flat=True)
    for sample_index in range(run.samples):
        for case_id in cases.iterator(chunk_size=BATCH):
            batch.append(Rollout(run=run, case_id=case_id, sample_index=sample_index))
            if len(batch) == BATCH:
                written += len(Rollout.objects.bulk_create(batch))
                batch = []
    return written + len(Rollout.objects.bulk_create(batch))
