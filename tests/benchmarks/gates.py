"""Time and memory of a gate run: building evidence from the rows, and judging every gate of the default policy on it.

    python -m tests.benchmarks.gates --rollouts 100000

Half of the rollouts are the candidate's, half its champion's, over the four suites of the default policy. Then the same
with twice as many, for the slope. SQLite, and PostgreSQL too where DATABASE_URL names one. Filling, building and judging
each have a process of their own, so that none hides another's memory; times are the best of several.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks.house import ROOT, machine, mebibytes, place, postgres_url, table

MASKED_EVERY, WRONG_EVERY = 997, 101  # one in so many cases
LEAK = {
    "format": 1,
    "label": "expects_call",
    "feature": "none",
    "features_tried": 1,
    "majority": "0.700000",
    "accuracy": "0.700000",
}
VERIFIED = {
    "status": "verified",
    "reason": "",
    "comparisons": [{"part": "whole", "effect": "0.500000", "effect_error": "0.010000", "limit": "0.050000"}],
}
NOTHING_SHARED = {
    "format": 1,
    "threshold": "0.8",
    "examples": [],
    **dict.fromkeys(("ids", "groups", "texts", "near"), 0),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rollouts", type=int, default=100_000, help="from 8000: fewer cannot meet the policy"
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--inside", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        verb, *arguments = options.inside
        print(json.dumps(INSIDE[verb](*arguments)))
        return
    print(machine(), end="\n\n")
    rows = []
    for postgres in dict.fromkeys(["", postgres_url()]):
        small, large = (
            _measure(postgres, size, options.repetitions) for size in (options.rollouts, 2 * options.rollouts)
        )
        rows += [_row(small), _row(large)]
        built, judged = (_slope(small[part], large[part]) for part in ("build", "judge"))
        rows.append(["", "twice the rows", *built, "", "", judged[0], "", ""])
    head = [
        "database",
        "rollouts",
        "evidence built",
        "its CPU here",
        "memory",
        "document",
        "gates judged",
        "memory",
    ]
    print(table([*head, "gates that open"], rows))


def _slope(small: Mapping[str, Any], large: Mapping[str, Any]) -> list[str]:
    return [f"x {large[key] / small[key]:.2f}" for key in ("seconds", "cpu_seconds")]


def _measure(postgres: str, rollouts: int, repetitions: int) -> dict[str, Any]:
    with place(postgres=postgres) as environment:
        file = Path(environment["ASSAY_VAR"]) / "evidence.json"

        def ask(verb: str, *arguments: object) -> Any:
            command = [sys.executable, "-m", "tests.benchmarks.gates", "--inside", verb, *map(str, arguments)]
            done = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            return json.loads(done.stdout.splitlines()[-1])

        filled = ask("fill", rollouts)
        return {
            "rollouts": rollouts,
            "database": filled["database"],
            "build": ask("build", filled["candidate"], file, repetitions),
            "judge": ask("judge", file, 20 * repetitions),
        }


def _row(measured: Mapping[str, Any]) -> list[str]:
    build, judge = measured["build"], measured["judge"]
    return [
        measured["database"],
        str(measured["rollouts"]),
        f"{build['seconds']:.2f} s",
        f"{build['cpu_seconds']:.2f} s",
        mebibytes(build["memory_bytes"]),
        f"{build['bytes'] / 1024:.0f} KiB",
        f"{judge['seconds'] * 1000:.1f} ms",
        mebibytes(judge["memory_bytes"]),
        f"{judge['open']} of {judge['gates']}",
    ]


# in processes of their own


def fill(rollouts: str) -> dict[str, Any]:
    """A track with a champion, a candidate and everything that its evidence needs."""
    from tests.benchmarks.inside import migrate

    _start()
    database = migrate()["database"]
    return {"database": database, "candidate": _candidate(int(rollouts))}


def build(candidate: str, file: str, repetitions: str) -> dict[str, Any]:
    """The evidence as the service freezes it; its bytes are written to `file`."""
    _start()
    from django.db import transaction

    from promotion import evidence
    from promotion.services.gating import locked_candidate

    def once() -> bytes:
        with transaction.atomic():
            return evidence.build(locked_candidate(int(candidate))).data

    before = _peak_bytes()
    data = once()
    memory = _peak_bytes() - before
    Path(file).write_bytes(data)
    return {**_best(once, int(repetitions)), "memory_bytes": memory, "bytes": len(data)}


def judge(file: str, repetitions: str) -> dict[str, Any]:
    """All gates on the document, from the time it is read: parsing its bytes is in the time."""
    _start()
    from promotion.gates import OPENS
    from promotion.services.gating import outcomes_of
    from promotion.simulation import AT

    data = Path(file).read_bytes()

    def once() -> list[Any]:
        return outcomes_of(json.loads(data), AT)

    before = _peak_bytes()
    outcomes = once()
    memory = _peak_bytes() - before
    return {
        **_best(once, int(repetitions)),
        "memory_bytes": memory,
        "gates": len(outcomes),
        "open": sum(outcome.outcome in OPENS for _, outcome in outcomes),
    }


INSIDE: dict[str, Callable[..., Any]] = {"fill": fill, "build": build, "judge": judge}


def _start() -> None:
    import logging

    import django

    django.setup()
    logging.getLogger("kombu.connection").setLevel(logging.ERROR)


def _peak_bytes() -> int:
    from tests.benchmarks.inside import _peak_bytes as peak_bytes

    return peak_bytes()


def _best(once: Callable[[], Any], repetitions: int) -> dict[str, float]:
    """The shortest of several, by the clock and by this process's CPU: what else the machine does only makes it longer."""
    taken = []
    for _ in range(repetitions):
        start, cpu = time.perf_counter(), time.process_time()
        once()
        taken.append((time.perf_counter() - start, time.process_time() - cpu))
    clock, busy = zip(*taken, strict=True)
    return {"seconds": min(clock), "cpu_seconds": min(busy)}


# rows


def _candidate(rollouts: int) -> int:
    from promotion.services import policies
    from promotion.simulation import SIZES, default_policy
    from rollouts.services.subjects import local_subject
    from tests import factories

    house = factories.house(calls=3, champion=True, gates=[])
    cases, total = rollouts // 2, sum(SIZES.values())
    suites = {name: _suite(name, cases * size // total, house.engineer) for name, size in SIZES.items()}
    document = default_policy({name: suite.digest for name, suite in suites.items()})
    draft = policies.draft(track=house.track, document=document, by=house.administrator)
    policy = policies.lock(policy_id=draft.pk, by=factories.person("second", "administrator"))
    candidate = house.candidate("cand")
    for model in (house.champion.candidate, candidate):
        subject = local_subject(
            base=model.base,
            adapter=model.gguf,
            adapter_source_sha256=model.adapter_source_sha256,
            sampling=policy.document["sampling"],
        )
        for suite in suites.values():
            _run(subject, suite, house.backend, house.engineer, look=2 if model == candidate else 1)
    _datasets(candidate, list(suites.values()), house.engineer)
    return int(candidate.pk)


def _suite(name: str, size: int, by: Any) -> Any:
    from django.utils import timezone

    from promotion.simulation import FAMILIES, GENERALIZATION, HOLDOUT
    from rollouts import bulk
    from rollouts.hashing import sha256_json
    from rollouts.models import Case, Suite

    families = list(FAMILIES) if name == HOLDOUT else [name]
    suite = Suite.objects.create(
        name=name,
        version=1,
        digest=sha256_json([name, size]),
        scorer="decision",
        case_count=size,
        schema_sha256=sha256_json("schema"),
        leak=LEAK | {"n": size},
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
            *(suite.pk, at, f"{name}-{at}", families[at % len(families)], "", {}, name == GENERALIZATION),
            *(sha256_json([name, at]), sha256_json([name, "prompt", at])),
        )
        for at in range(size)
    )
    for part in _parts(rows):
        bulk.insert_many(Case, fields, part)
    return suite


def _run(subject: Any, suite: Any, backend: Any, by: Any, look: int) -> None:
    """A closed run: of many cases one is wrong, of more one has no score (where no gate needs every latency)."""
    import uuid

    from django.utils import timezone

    from promotion.simulation import REGRESSION
    from rollouts import bulk
    from rollouts.models import Case, EvalRun, Look, Rollout
    from tests.factories import served_by_llama

    now, size = timezone.now(), suite.case_count
    without_score = range(0) if suite.name == REGRESSION else range(1, size, MASKED_EVERY)
    masked = len(without_score)
    run = EvalRun.objects.create(
        uid=uuid.uuid4(),
        subject=subject,
        suite=suite,
        backend=backend,
        state="scored",
        plan_digest=suite.digest,
        suite_digest=suite.digest,
        planned=size,
        scored=size - masked,
        masked=masked,
        unscored=0,
        cancelled=0,
        server_facts=served_by_llama(subject),
        created_by=by,
        created_at=now,
        started_at=now,
        finished_at=now,
    )
    Look.objects.create(suite=suite, subject=subject, number=look, created_at=now)
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

    def row(at: int, case: int, expects_call: bool) -> tuple[Any, ...]:
        head = (run.pk, case, 0)
        if at in without_score:
            return (
                *head,
                "masked",
                0,
                "",
                "server",
                "",
                "",
                "",
                "",
                None,
                None,
                None,
                None,
                None,
                None,
                None,
            )
        right = at % WRONG_EVERY != 0
        tool, safe = (right, None) if expects_call else (None, right)
        answer = f"an answer of ordinary length, number {at}"
        said = ("decided", "stop", "", answer, True, right, tool, right, safe, 100.0 + at / 1000)
        return (*head, "scored", 0, "", "", "", *said)

    cases = Case.objects.filter(suite=suite).order_by("position").values_list("pk", "expects_call")
    rows = (row(at, case, expects_call) for at, (case, expects_call) in enumerate(cases.iterator()))
    for part in _parts(rows):
        bulk.insert_many(Rollout, fields, part)


def _datasets(candidate: Any, suites: list[Any], by: Any) -> None:
    """What it was trained on and watched with, compared with every suite and with each other."""
    from django.utils import timezone

    from promotion.models import Candidate, CandidateDataset
    from rollouts import store
    from rollouts.hashing import sha256_json
    from rollouts.models import Dataset, Overlap

    now, made = timezone.now(), []
    for role, rows in (("train", 2000), ("eval", 400)):
        artifact = store.put([role.encode()])
        dataset = Dataset.objects.create(
            name=role,
            version=1,
            artifact=artifact,
            digest=sha256_json(role),
            sidecar={f"{role}_sha256": artifact.sha256},
            row_count=rows,
            text_count=rows,
            schema_sha256=sha256_json("schema"),
            registered_at=now,
            registered_by=by,
        )
        CandidateDataset.objects.create(candidate=candidate, dataset=dataset, role=role)
        for suite in suites:
            report = NOTHING_SHARED | {"rows": rows, "others": suite.case_count}
            Overlap.objects.create(dataset=dataset, suite=suite, report=report, created_at=now)
        made.append(dataset)
    for mine, other in (made, made[::-1]):
        report = NOTHING_SHARED | {"rows": mine.row_count, "others": other.row_count}
        Overlap.objects.create(dataset=mine, other=other, report=report, created_at=now)
    Candidate.objects.filter(pk=candidate.pk).update(
        tool_schema_sha256=sha256_json("schema"), verification=VERIFIED
    )


def _parts(rows: Iterator[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    while part := list(itertools.islice(rows, 10_000)):
        yield part


if __name__ == "__main__":
    main()
