"""The same number of queries for 10 and for 1,000 rows, on every list and every detail."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from knox.models import AuthToken

from promotion.models import (
    Alias,
    AliasMove,
    Candidate,
    Evidence,
    Export,
    GateResult,
    Policy,
    RegistryEntry,
    Track,
)
from rollouts import audit, store
from rollouts.hashing import sha256_bytes
from rollouts.models import (
    Backend,
    BaseModel,
    Claim,
    EvalRun,
    Invocation,
    ModelCall,
    Payload,
    Rollout,
    Suite,
)
from tests import factories


def many_suites(house: Any, span: range) -> None:
    Suite.objects.bulk_create(
        Suite(
            name=f"m{k}",
            version=1,
            digest=f"{k:064x}",
            scorer="decision",
            case_count=1,
            sealed_at=timezone.now(),
            sealed_by=house.engineer,
        )
        for k in span
    )


def many_backends(house: Any, span: range) -> None:
    values = {
        name: getattr(house.backend, name)
        for name in ("kind", "config", "concurrency", "timeout_s", "max_attempts")
    }
    Backend.objects.bulk_create(
        Backend(
            name=f"b{k}",
            revision=1,
            digest=f"{k:064x}",
            created_at=timezone.now(),
            created_by=house.engineer,
            **values,
        )
        for k in span
    )


def many_bases(house: Any, span: range) -> None:
    for k in span:
        artifact = house.base.artifact.__class__.objects.create(
            sha256=f"{k:064x}", size_bytes=1, created_at=timezone.now()
        )
        BaseModel.objects.create(
            name=f"m{k}",
            artifact=artifact,
            architecture="llama",
            header={},
            created_by=house.engineer,
            chat_template_sha256="0" * 64,
            created_at=timezone.now(),
        )


def many_tracks(house: Any, span: range) -> None:
    Track.objects.bulk_create(
        Track(name=f"t{k}", purpose="p", created_at=timezone.now(), created_by=house.engineer) for k in span
    )
    entry = house.champion
    Alias.objects.bulk_create(
        Alias(track=track, name="champion", entry=entry, moved_at=timezone.now())
        for track in Track.objects.filter(name__in=[f"t{k}" for k in span])
    )
    AliasMove.objects.bulk_create(
        AliasMove(track=house.track, name="champion", new=entry, reason="r", moved_at=timezone.now())
        for _ in span
    )


def many_policies(house: Any, span: range) -> None:
    Policy.objects.bulk_create(
        Policy(
            track=house.track,
            version=k + 2,
            document={},
            digest="0" * 64,
            created_at=timezone.now(),
            created_by=house.administrator,
            locked_at=timezone.now(),
            locked_by=house.approver,
        )
        for k in span
    )


def many_candidates(house: Any, span: range) -> None:
    first = house.champion.candidate
    Candidate.objects.bulk_create(
        Candidate(
            track=house.track,
            name=f"c{k}",
            base=house.base,
            adapter_config_id=first.adapter_config_id,
            adapter_weights_id=first.adapter_weights_id,
            adapter_source_sha256=f"{k:064x}",
            state="promoted",
            gguf=first.gguf,
            submitted_by=house.engineer,
            created_at=timezone.now(),
        )
        for k in span
    )
    for k in span:
        _promoted(house, Candidate.objects.get(track=house.track, name=f"c{k}"), k)


def _promoted(house: Any, candidate: Candidate, k: int) -> None:
    evidence = house.champion.evidence
    entry = RegistryEntry.objects.create(
        track=house.track,
        number=k + 2,
        candidate=candidate,
        gguf=candidate.gguf,
        evidence=evidence,
        record={},
        created_at=timezone.now(),
    )
    Export.objects.create(
        entry=entry, name=f"{k}.gguf", artifact=candidate.gguf, manifest={}, published_at=timezone.now()
    )


def many_evidences(house: Any, span: range) -> None:
    candidate = house.champion.candidate
    Evidence.objects.bulk_create(
        Evidence(
            candidate=candidate,
            policy=house.policy,
            digest=f"{k:064x}",
            document=b"{}",
            created_at=timezone.now(),
        )
        for k in span
    )
    newest = Evidence.objects.filter(candidate=candidate).order_by("-id").first()
    GateResult.objects.bulk_create(
        GateResult(evidence=newest, position=k, gate="g", outcome="failed", reason="r", numbers={})
        for k in span
    )


def many_runs(house: Any, span: range) -> None:
    run = house.runs[0]
    values = {
        name: getattr(run, name) for name in ("subject", "suite", "backend", "plan_digest", "suite_digest")
    }
    EvalRun.objects.bulk_create(
        EvalRun(
            uid=uuid.uuid5(uuid.NAMESPACE_URL, str(k)),
            state="cancelled",
            planned=1,
            created_at=timezone.now(),
            finished_at=timezone.now(),
            created_by=house.engineer,
            **values,
        )
        for k in span
    )


def many_rollouts(house: Any, span: range) -> None:
    """More rollouts of one run, and of its first rollout more invocations and calls."""
    run = house.runs[0]
    case = run.rollouts.order_by("id")[0].case
    Rollout.objects.bulk_create(
        Rollout(run=run, case=case, sample_index=k + 1, state="masked", failure_kind="server") for k in span
    )
    rollout = run.rollouts.order_by("id").first()
    payload, _ = Payload.objects.get_or_create(
        sha256=sha256_bytes(b"{}"), defaults={"size_bytes": 2, "data": _zip(b"{}")}
    )
    for k in span:
        claim = Claim.objects.create(
            run=run,
            worker=f"w{k}",
            created_at=timezone.now(),
            lease_expires_at=timezone.now(),
            ended_at=timezone.now(),
        )
        invocation = Invocation.objects.create(
            rollout=rollout,
            claim=claim,
            state="finished",
            started_at=timezone.now(),
            finished_at=timezone.now(),
        )
        ModelCall.objects.create(
            invocation=invocation,
            dialect="openai.chat",
            state="failed",
            error_kind="server",
            request=payload,
            created_at=timezone.now(),
        )


def _zip(data: bytes) -> bytes:
    return zlib.compress(data)


def many_events(house: Any, span: range) -> None:
    with transaction.atomic():
        for _ in span:
            audit.record("track.created", subject=house.track, actor=house.administrator)


def many_tokens(house: Any, span: range) -> None:
    for _ in span:
        AuthToken.objects.create(house.auditor)


Filler = Callable[[Any, range], None]
BUDGETS: list[tuple[Filler, list[str], int]] = [
    (
        many_suites,
        ["suites?page_size=200", "suites/{suite.digest}", "suites/{suite.digest}/cases?page_size=200"],
        7,
    ),
    (many_backends, ["backends?page_size=200", "backends/{backend.name}"], 6),
    (many_bases, ["bases?page_size=200", "bases/{base.name}"], 6),
    (many_tracks, ["tracks?page_size=200", "tracks/{track.name}", "aliases", "alias_moves?page_size=200"], 7),
    (many_policies, ["policies?page_size=200", "policies/{policy.pk}"], 6),
    (
        many_candidates,
        [
            "candidates?page_size=200",
            "candidates/{champion.candidate_id}",
            "registry?page_size=200",
            "registry/{champion.pk}",
            "exports?page_size=200",
            "exports/{export.pk}",
        ],
        9,
    ),
    (
        many_evidences,
        [
            "evidence?candidate={champion.candidate_id}&page_size=200",
            "evidence/{champion.evidence.digest}",
            "candidates/{champion.candidate_id}/gates",
            "candidates/{champion.candidate_id}",
        ],
        9,
    ),
    (many_runs, ["runs?page_size=200", "runs/{runs[0].pk}"], 12),
    (
        many_rollouts,
        [
            "rollouts?run={runs[0].pk}&page_size=200",
            "rollouts/{rollout.pk}",
            "runs/{runs[0].pk}",
            "calls?run={runs[0].pk}&page_size=200",
            "calls?rollout={rollout.pk}&page_size=200",
            "calls/{call.pk}",
        ],
        12,
    ),
    (many_events, ["audit?page_size=200", "audit/1", "audit?action=track.created&page_size=200"], 5),
    (many_tokens, ["auth/tokens"], 6),
]


class Scene:
    """The house, with the runs of a candidate."""

    def __init__(self, house: factories.House) -> None:
        self.house = house
        self.runs = house.measure(house.candidate())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.house, name)

    def paths(self, templates: list[str]) -> list[str]:
        names = {
            name: getattr(self.house, name)
            for name in ("suite", "backend", "base", "track", "policy", "champion")
        }
        names |= {
            "runs": self.runs,
            "rollout": self.runs[0].rollouts.order_by("id").first(),
            "call": ModelCall.objects.first(),
            "export": Export.objects.first(),
        }
        return [template.format(**names) for template in templates]


@pytest.mark.parametrize(("fill", "templates", "most"), BUDGETS, ids=[fill.__name__ for fill, *_ in BUDGETS])
def test_the_number_of_queries_does_not_grow_with_the_rows(
    auditor: Any, house: Any, fill: Filler, templates: list[str], most: int
):
    scene = Scene(house)
    fill(scene, range(10))
    few = {path: _queries(auditor, path) for path in scene.paths(templates)}
    fill(scene, range(10, 1000))
    assert {path: _queries(auditor, path) for path in few} == few
    assert max(few.values()) <= most


def _queries(api: Any, path: str) -> int:
    with CaptureQueriesContext(connection) as captured:
        assert api.send("GET", path).status_code == 200, path
    return len(captured)


def test_the_store_is_not_asked_for_lists(auditor: Any, house: Any, monkeypatch: Any):
    def refuse(sha256: str) -> None:
        raise AssertionError("a list read a file")

    monkeypatch.setattr(store, "path_of", refuse)
    for path in ("exports", "registry", "candidates", "bases"):
        auditor.get(path)
