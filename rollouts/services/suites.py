"""Suites: sealed once, by digest."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db.models import Max
from django.utils import timezone

from rollouts import audit, permissions
from rollouts.errors import Conflict
from rollouts.models import Case, Suite
from rollouts.races import settled
from rollouts.services.names import require_slug
from rollouts.suite_format import ParsedSuite, parse_suite


def seal(*, name: str, data: bytes, by: User, source: str = "", scorer: str = "decision") -> Suite:
    """Seal the cases of a JSONL file as the next version of a suite; the same content again gives the suite there is.

    `scorer` is one of `suite_format.SCORERS`. Raises `InvalidInput` with line and field; then nothing is written.
    """
    permissions.require_can_register(by)
    require_slug("name", name)
    parsed = parse_suite(data, source=source or name, scorer=scorer)
    return settled(lambda: _keep(name, parsed, by, source))


def _keep(name: str, parsed: ParsedSuite, by: User, source: str) -> Suite:
    same = Suite.objects.filter(digest=parsed.digest).first()
    if same is not None:
        if same.name != name:
            raise Conflict(f"These cases are sealed already as {same}. Use that suite.", suite=str(same))
        return same
    last = Suite.objects.filter(name=name).aggregate(Max("version"))["version__max"]
    suite = Suite.objects.create(
        name=name,
        version=(last or 0) + 1,
        digest=parsed.digest,
        scorer=parsed.scorer,
        case_count=len(parsed.cases),
        source=source[:200],
        sealed_at=timezone.now(),
        sealed_by=by,
    )
    Case.objects.bulk_create(
        (
            Case(
                suite=suite,
                position=position,
                key=case.key,
                family=case.family,
                group=case.group,
                content=case.content,
                expects_call=case.expects_call,
                digest=case.digest,
            )
            for position, case in enumerate(parsed.cases)
        ),
        batch_size=500,
    )
    audit.record("suite.sealed", subject=suite, actor=by, digest=suite.digest, cases=suite.case_count)
    return suite
