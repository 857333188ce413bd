"""An eval run of many rollouts, made in seconds, and how long its page takes.

    python -m tests.benchmarks.big_run --rollouts 100000

The page of a closed run and of one at work, as an engineer opens it: server time and queries. SQLite, and PostgreSQL too
where DATABASE_URL names one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.benchmarks.house import ROOT, machine, place, postgres_url, table

MASKED_EVERY, MISSED_EVERY = 997, 7  # one in so many rollouts
TOOLS = ("set_volume", "remove_item", "list_events", "search_mail")
SAMPLED = {"temperature": 0, "max_tokens": 80}
ROLLOUTS_A_CLAIM = 500


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(measure(options.rollouts)))
        return
    print(machine(), end="\n\n")
    rows = []
    for postgres in dict.fromkeys(["", postgres_url()]):
        with place(postgres=postgres) as environment:
            command = [sys.executable, "-m", "tests.benchmarks.big_run", "--inside"]
            done = subprocess.run(
                [*command, "--rollouts", str(options.rollouts)],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        rows += [list(map(str, row)) for row in json.loads(done.stdout.splitlines()[-1])]
    print(table(["database", "what", "time", "queries"], rows))


def measure(rollouts: int) -> list[tuple[str, str, str, int]]:
    """Rows of (database, what, time, queries), on the database that the settings name."""
    import django

    django.setup()
    from django.conf import settings
    from django.test import Client

    from rollouts.models import EvalRun
    from rollouts.services import overviews
    from tests import factories
    from tests.benchmarks.inside import migrate

    settings.ALLOWED_HOSTS = ["testserver"]
    database = migrate()["database"]
    closed, working = make_run(rollouts), make_run(rollouts, at_work=True)
    client = Client()
    client.force_login(
        factories.person("reader", "engineer"), backend="django.contrib.auth.backends.ModelBackend"
    )

    def page(path: str) -> Callable[[], Any]:
        return lambda: client.get(path, headers={"HX-Request": "true"} if path.endswith("d/") else {})

    found = [
        ("closed run, not counted yet", page(f"/runs/{closed.pk}/")),
        (
            "counting it, once",
            lambda: overviews.write(EvalRun.objects.select_related("suite").get(pk=closed.pk)),
        ),
        ("closed run", page(f"/runs/{closed.pk}/")),
        ("run at work", page(f"/runs/{working.pk}/")),
        ("its scores so far, on demand", page(f"/runs/{working.pk}/measured/")),
    ]
    return [(database, what, *_timed(once, 1 if "once" in what else 5)) for what, once in found]


def _timed(once: Callable[[], Any], repetitions: int) -> tuple[str, int]:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    taken = []
    for _ in range(repetitions):
        start = time.perf_counter()
        answer = once()
        taken.append(time.perf_counter() - start)
        assert answer is None or answer.status_code == 200, answer
    with CaptureQueriesContext(connection) as queries:
        once()
    return f"{min(taken) * 1000:.0f} ms", len(queries)


# rows


def make_run(n: int, *, at_work: bool = False) -> Any:
    """An eval run of `n` rollouts of `n` cases with answers, scores, failures and claims; closed but not counted, or in its middle.

    It is written straight into the tables of the database that the settings name: 100,000 rollouts take seconds.
    """
    import uuid

    from django.utils import timezone

    from rollouts.models import EvalRun
    from tests import factories

    name = f"big-{uuid.uuid4().hex[:8]}"
    engineer = factories.person(name, "engineer")
    backend = factories.remote_backend(engineer, "http://127.0.0.1:9/v1", name=name)
    subject = factories.remote_subject(name)
    suite = make_suite(name, n, engineer)
    now, masked = timezone.now(), len(range(1, n, MASKED_EVERY))
    counts = {} if at_work else {"scored": n - masked, "masked": masked, "unscored": 0, "cancelled": 0}
    run = EvalRun.objects.create(
        uid=uuid.uuid4(),
        subject=subject,
        suite=suite,
        backend=backend,
        label="a long run",
        state="running" if at_work else "scored",
        plan_digest=suite.digest,
        suite_digest=suite.digest,
        planned=n,
        created_by=engineer,
        created_at=now,
        started_at=now,
        finished_at=None if at_work else now,
        **counts,
    )
    _claims(run, n)
    _rollouts(run, n // 2 if at_work else n, n)
    return run


def make_suite(name: str, size: int, by: Any) -> Any:
    """A suite of `size` decision cases in five families, half of them calls."""
    from django.utils import timezone

    from rollouts import bulk
    from rollouts.hashing import sha256_json
    from rollouts.models import Case, Suite

    suite = Suite.objects.create(
        name=name,
        version=1,
        digest=sha256_json([name, size]),
        scorer="decision",
        case_count=size,
        sealed_at=timezone.now(),
        sealed_by=by,
    )
    fields = (
        "suite",
        "position",
        "key",
        "family",
        "group",
        "content",
        "expects_call",
        "digest",
        "prompt_sha256",
    )
    rows = (
        (
            *(suite.pk, at, f"case-{at}", f"family {at % 5}", "", _content(at), at % 2 == 0),
            *(sha256_json([name, at]), sha256_json([name, "prompt", at])),
        )
        for at in range(size)
    )
    for part in _parts(rows):
        bulk.insert_many(Case, fields, part)
    return suite


def _expected(at: int) -> dict[str, Any]:
    if at % 2:
        return {"decision": "unsupported", "reason_code": "no_matching_tool"}
    return {"decision": "call", "tool": TOOLS[at // 2 % 4], "arguments": {"value": f"number {at}"}}


def _content(at: int) -> dict[str, Any]:
    system = "You decide how to handle a request. Reply with one JSON object. " * 6
    return {
        "key": f"case-{at}",
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": f"Please do the thing number {at}."},
        ],
        "tools": list(TOOLS),
        "expected": _expected(at),
    }


def _claims(run: Any, n: int) -> None:
    from django.utils import timezone

    from rollouts.models import Claim

    now = timezone.now()
    Claim.objects.bulk_create(
        Claim(
            run=run,
            worker="worker-1:4711",
            created_at=now,
            lease_expires_at=now,
            ended_at=None if run.finished_at is None and at == 0 else now,
            done=ROLLOUTS_A_CLAIM,
            cost_microusd=1000,
        )
        for at in range(max(1, n // ROLLOUTS_A_CLAIM))
    )


def _rollouts(run: Any, ended: int, n: int) -> None:
    from rollouts import bulk
    from rollouts.models import Case, Rollout

    fields = (
        *(
            "run",
            "case",
            "sample_index",
            "state",
            "lost_workers",
            "attempt_key",
            "failure_kind",
            "failure_reason",
        ),
        *(
            "answer_class",
            "finish_reason",
            "tool_evidence",
            "answer",
            "json_valid",
            "decision",
            "tool",
            "exact",
        ),
        *("safe", "latency_ms"),
    )
    cases = Case.objects.filter(suite=run.suite).order_by("position").values_list("pk", flat=True)
    rows = ((run.pk, case, 0, *_outcome(at, ended)) for at, case in enumerate(cases.iterator()))
    for part in _parts(rows):
        bulk.insert_many(Rollout, fields, part)
    assert run.rollouts.count() == n


def _outcome(at: int, ended: int) -> tuple[Any, ...]:
    if at >= ended:
        return ("queued", 0, "", "", "", "", "", "", *(None,) * 7)
    if at % MASKED_EVERY == 1:
        return ("masked", 0, "", "server", "The provider failed (503).", "", "", "", *(None,) * 7)
    expected = _expected(at)
    right, calls = at % MISSED_EVERY != 0, expected["decision"] == "call"
    wrong = _expected(at + 1) if at % 3 else {**expected, "reason_code": "other"}
    answer = json.dumps(expected if right else wrong)
    tool, safe = (right, None) if calls else (None, right or at % 3 == 0)
    return (
        "scored",
        0,
        "",
        "",
        "",
        "ok",
        "stop",
        "",
        answer,
        True,
        right,
        tool,
        right,
        safe,
        100.0 + at % 900,
    )


def _parts(rows: Iterator[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    while part := list(itertools.islice(rows, 10_000)):
        yield part


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "promotion.settings")
    main()
