"""Who may see eval runs besides auditors and administrators."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import QuerySet

from rollouts.models import EvalRun


def set_readers(runs: QuerySet[EvalRun], *, groups: Iterable[int]) -> None:
    """Let these groups (by id) see the runs, their rollouts and calls; none: everybody with a role.

    What decides who reads them is the caller's, which records it in the audit chain in the same transaction.
    """
    through = EvalRun.readers.through
    ids = list(runs.values_list("pk", flat=True))
    through.objects.filter(evalrun__in=ids).delete()
    wanted = sorted(set(groups))
    through.objects.bulk_create(
        (through(evalrun_id=run, group_id=group) for run in ids for group in wanted), batch_size=1000
    )
