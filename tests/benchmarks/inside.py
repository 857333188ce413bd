"""Assay in a process of its own, which reads `[verb, arguments]` a line and answers each with a line of JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import django

from tests.benchmarks.house import SAMPLING, messages

_loop = ""  # of the last shard


def migrate() -> dict[str, Any]:
    """The database's tables and roles; says which database it is."""
    from django.core.management import call_command
    from django.db import connection

    from promotion.services import people

    call_command("migrate", verbosity=0)
    people.ensure_roles()
    if connection.vendor == "sqlite":
        return {"database": f"SQLite {sqlite3.sqlite_version}"}
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        return {"database": f"PostgreSQL {cursor.fetchone()[0].split()[0]}"}


def seal(url: str, cases: int, concurrency: int) -> dict[str, Any]:
    """A new suite, backend and subject."""
    from django.contrib.auth.models import Group, User

    from rollouts.services import backends, subjects, suites

    name = f"bench-{time.time_ns()}"
    user = User.objects.create(username=name)
    user.groups.add(Group.objects.get(name="engineer"))
    rows = (
        {
            "example_id": f"{name}-{number}",
            "family": "bench",
            "messages": messages(number),
            "tools": ["play_song"],
            "expected": {"decision": "no_tool"},
        }
        for number in range(cases)
    )
    suite = suites.seal(name=name, data="\n".join(map(json.dumps, rows)).encode(), by=user)
    backend = backends.save(
        name=name, kind="openai_compatible", config={"base_url": url}, by=user, concurrency=concurrency
    )
    subject = subjects.remote_subject(model="scripted", backend_name=backend.name, sampling=SAMPLING)
    return {"subject": subject.pk, "suite": suite.pk, "backend": backend.pk, "by": user.pk}


def plan(subject: int, suite: int, backend: int, by: int) -> dict[str, Any]:
    """Plans the run; memory is the process's, before and at its highest so far."""
    from django.contrib.auth.models import User

    from rollouts.models import Backend, Subject, Suite
    from rollouts.services import runs

    before = _resident_bytes()
    start = time.perf_counter()
    run = runs.plan(
        subject=Subject.objects.get(pk=subject),
        suite=Suite.objects.get(pk=suite),
        backend=Backend.objects.get(pk=backend),
        by=User.objects.get(pk=by),
    )
    return {
        "run": run.pk,
        "seconds": time.perf_counter() - start,
        "resident_before_bytes": before,
        "peak_bytes": _peak_bytes(),
    }


def shard(run: int) -> dict[str, Any]:
    """One shard of the run, as a worker's task works on it."""
    from rollouts.services import runs

    start = time.perf_counter()
    done = runs.work_shard(run)
    seconds = time.perf_counter() - start
    return {
        "done": done,
        "seconds": seconds,
        "loop": _loop,
        "resident_bytes": _resident_bytes(),
        "peak_bytes": _peak_bytes(),
    }


def state(run: int) -> str:
    from rollouts.models import EvalRun

    return str(EvalRun.objects.values_list("state", flat=True).get(pk=run))


def facts(run: int) -> dict[str, Any]:
    """What the database says of a run, counted from the rows."""
    from django.db.models import Count, Max, Min

    from rollouts.models import Claim, EvalRun, Invocation, ModelCall, Rollout

    row = EvalRun.objects.get(pk=run)
    rollouts = Rollout.objects.filter(run=run)
    invocations = Invocation.objects.filter(rollout__run=run)
    calls = ModelCall.objects.filter(invocation__rollout__run=run)
    answered = calls.filter(state="answered")
    finished = invocations.filter(state="finished")
    twice = finished.values("rollout").annotate(times=Count("id")).filter(times__gt=1)
    begun = invocations.aggregate(Min("started_at"))["started_at__min"]
    ended = rollouts.aggregate(Max("finished_at"))["finished_at__max"]
    by_worker: Counter[str] = Counter()
    for worker, number in finished.values_list("claim__worker").annotate(Count("id")):
        by_worker[worker] += number
    return {
        "state": row.state,
        "planned": row.planned,
        "scored": rollouts.filter(state="scored").count(),
        "answered": answered.count(),
        "responses": answered.values("response").distinct().count(),
        "calls": calls.count(),
        "lost_calls": calls.filter(state="lost").count(),
        "finished_twice": twice.count(),
        "claims": Claim.objects.filter(run=run).count(),
        "lost_claims": Claim.objects.filter(run=run, lost=True).count(),
        "by_worker": sorted(by_worker.values(), reverse=True),
        # from the first claim, and from the plan, to the last result
        "working_s": (ended - begun).total_seconds() if begun and ended else None,
        "planned_to_last_s": (ended - row.created_at).total_seconds() if ended else None,
    }


def size_bytes() -> int:
    """Of the whole database, its log written back."""
    from django.conf import settings
    from django.db import connection

    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_database_size(current_database())")
            return int(cursor.fetchone()[0])
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return os.path.getsize(settings.DATABASES["default"]["NAME"])


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _note_the_loop() -> None:
    """Once a shard, when its backend opens: the bare loop must run on the same kind of event loop."""
    from rollouts.backends.openai_compatible import OpenAICompatible

    really_open = OpenAICompatible.open

    @asynccontextmanager
    async def open_and_note(self: OpenAICompatible, files: Any) -> AsyncIterator[Any]:
        global _loop
        kind = type(asyncio.get_running_loop())
        _loop = f"{kind.__module__}.{kind.__qualname__}"
        async with really_open(self, files) as opened:
            yield opened

    OpenAICompatible.open = open_and_note  # type: ignore[method-assign]


@contextmanager
def _answers_only() -> Iterator[Any]:
    """Standard output carries answers; whatever else is printed goes to standard error."""
    answers, sys.stdout = sys.stdout, sys.stderr
    try:
        yield answers
    finally:
        sys.stdout = answers


def main() -> None:
    django.setup()
    # it says once a process that the embedded broker has no host name
    logging.getLogger("kombu.connection").setLevel(logging.ERROR)
    _note_the_loop()
    verbs = {verb.__name__: verb for verb in (migrate, seal, plan, shard, state, facts, size_bytes)}
    with _answers_only() as answers:
        for line in sys.stdin:
            verb, arguments = json.loads(line)
            answers.write(json.dumps(verbs[verb](**arguments)) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
