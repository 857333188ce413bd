"""Server time and queries of the pages that a decision is made on, as rollouts grow.

    python -m tests.benchmarks.pages --rollouts 100 10000 100000

Half of the rollouts are the candidate's, half its champion's, over four suites. Each page is asked through the whole Django
stack (middleware, session, templates) without a socket, by an approver who is signed in; times are the median and the
slowest of several and the median of this process's CPU, after one that is not counted. SQLite, and PostgreSQL too where DATABASE_URL names one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from tests.benchmarks.house import ROOT, machine, place, postgres_url, table

TARGET_MS = 150


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, nargs="+", default=[100, 10_000, 100_000])
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--inside", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(inside(*options.inside)))
        return
    print(machine(), end="\n\n")
    missed = False
    for postgres in dict.fromkeys(["", postgres_url()]):
        measured = [_measure(postgres, size, options.repetitions) for size in options.rollouts]
        rows, over = _rows(options.rollouts, measured)
        missed = missed or over
        head = [f"{size:,} rollouts" for size in options.rollouts]
        print(table([measured[0]["database"], *head, "queries"], rows), end="\n\n")
    if missed:
        sys.exit(f"A page took longer than {TARGET_MS} ms, or its queries grew with the rollouts.")


def _measure(postgres: str, rollouts: int, repetitions: int) -> dict[str, Any]:
    with place(postgres=postgres) as environment:
        command = [
            sys.executable,
            "-m",
            "tests.benchmarks.pages",
            "--inside",
            str(rollouts),
            str(repetitions),
        ]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def _rows(sizes: list[int], measured: list[Mapping[str, Any]]) -> tuple[list[list[str]], bool]:
    rows, missed = [], False
    for page in measured[0]["pages"]:
        found = [one["pages"][page] for one in measured]
        queries = [one["queries"] for one in found]
        grew = len(set(queries)) > 1
        missed = missed or grew or max(one["median_ms"] for one in found) > TARGET_MS
        times = [
            f"{one['median_ms']:.0f} ms (slowest {one['slowest_ms']:.0f}, CPU {one['cpu_ms']:.0f})"
            for one in found
        ]
        rows.append([page, *times, ", ".join(map(str, queries)) if grew else str(queries[0])])
    return rows, missed


# in a process of its own


def inside(rollouts: int, repetitions: int) -> dict[str, Any]:
    import logging

    import django

    django.setup()
    logging.getLogger("kombu.connection").setLevel(logging.ERROR)
    from tests.benchmarks.inside import migrate

    database = migrate()["database"]
    candidate, approver = _candidate(rollouts)
    return {
        "database": database,
        "pages": {
            name: _timed(path, approver, repetitions) for name, path in _pages(candidate, approver).items()
        },
    }


def _candidate(rollouts: int) -> tuple[Any, Any]:
    """A judged candidate with everything that its page shows."""
    from django.contrib.auth.models import User

    from promotion.models import Candidate
    from promotion.services import gating, policies
    from promotion.simulation import SIZES
    from rollouts import overview
    from rollouts.models import EvalRun
    from rollouts.services.subjects import local_subject
    from tests import factories
    from tests.benchmarks.gates import _datasets, _run, _suite

    house = factories.house(calls=3, champion=True, gates=[])
    cases, total = rollouts // 2, sum(SIZES.values())
    suites = [_suite(name, max(8, cases * size // total), house.engineer) for name, size in SIZES.items()]
    draft = policies.draft(track=house.track, document=_policy(suites), by=house.administrator)
    policy = policies.lock(policy_id=draft.pk, by=factories.person("second", "administrator"))
    candidate = house.candidate("cand")
    for model in (house.champion.candidate, candidate):
        subject = local_subject(
            base=model.base,
            adapter=model.gguf,
            adapter_source_sha256=model.adapter_source_sha256,
            sampling=policy.document["sampling"],
        )
        for suite in suites:
            _run(subject, suite, house.backend, house.engineer, look=2 if model == candidate else 1)
    for run in EvalRun.objects.filter(overview=None):
        overview.write(run)
    _datasets(candidate, suites, house.engineer)
    Candidate.objects.filter(pk=candidate.pk).update(state="evaluating")
    assert gating.judge_if_measured(candidate.pk)
    return Candidate.objects.get(pk=candidate.pk), User.objects.get(pk=house.approver.pk)


def _policy(suites: list[Any]) -> dict[str, Any]:
    """Low floors: the fewest rollouts that are asked for must be able to meet them."""
    gates: list[dict[str, Any]] = [{"gate": "candidate_artifact_hash"}]
    for suite in suites:
        metric = "tool" if suite.cases.filter(expects_call=True).exists() else "safe"
        gates += [
            {"gate": "sealed_eval_hash", "suite": suite.digest},
            {"gate": "deployed_artifact_gauntlet", "suite": suite.digest},
            {"gate": "arena_max_regression", "suite": suite.digest, "metric": metric, "max_drop": "0.20"},
        ]
    return {
        "format": 1,
        "suites": [{"digest": suite.digest} for suite in suites],
        "samples": 1,
        "sampling": {"temperature": 0, "max_tokens": 80},
        "spend_alpha": False,
        "gates": [*gates, {"gate": "human_approval_record"}],
        "approval": {
            "approvers": [{"group": "approver", "count": 1}],
            "separation_of_duties": True,
            "expires_after_days": 30,
        },
    }


def _pages(candidate: Any, person: Any) -> dict[str, str]:
    from django.urls import reverse

    from rollouts.models import ComparedCase, EvalRun

    run = EvalRun.objects.filter(subject__adapter=candidate.gguf_id).order_by("-planned").first()
    assert run is not None
    rollout = run.rollouts.order_by("id")[0]
    review = reverse("promotion:candidate", args=[candidate.pk])
    pages = {
        "review page": review,
        "review page, cases without a score": f"{review}?cases=missing",
        "run page": reverse("rollouts:run", args=[run.pk]),
        "rollouts of a run": reverse("rollouts:rollouts", args=[run.pk]),
        "rollouts that are masked": reverse("rollouts:rollouts", args=[run.pk]) + "?state=masked",
        "rollout": reverse("rollouts:rollout", args=[rollout.pk]),
        "home": reverse("promotion:home"),
        "candidates": reverse("promotion:candidates"),
        "runs": reverse("rollouts:runs"),
    }
    compared = ComparedCase.objects.filter(comparison__run=run).first()
    if compared is not None:
        pages["case, side by side"] = reverse("promotion:case", args=[candidate.pk, compared.case_id])
    return pages


def _timed(path: str, person: Any, repetitions: int) -> dict[str, Any]:
    from django.db import connection
    from django.test import Client

    client = Client(SERVER_NAME="localhost")
    client.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    queries: list[str] = []

    def count(execute: Any, sql: str, *rest: Any) -> Any:
        queries.append(sql)
        return execute(sql, *rest)

    # Django empties its own list of queries when a request begins
    with connection.execute_wrapper(count):
        answer = client.get(path)
    assert answer.status_code == 200, (path, answer.status_code, answer.content[:500])
    taken, busy = [], []
    for _ in range(repetitions):
        start, cpu = time.perf_counter(), time.process_time()
        client.get(path)
        taken.append((time.perf_counter() - start) * 1000)
        busy.append((time.process_time() - cpu) * 1000)
    return {
        "queries": len(queries),
        "median_ms": statistics.median(taken),
        "slowest_ms": max(taken),
        "cpu_ms": statistics.median(busy),
    }


if __name__ == "__main__":
    main()
