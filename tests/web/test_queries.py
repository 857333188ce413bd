"""Every list and detail page asks the same number of questions for 10 rows as for 1,000."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from promotion import evidence as evidence_module
from promotion.models import (
    AliasMove,
    Approval,
    Candidate,
    Comment,
    Dispute,
    Evidence,
    Export,
    Policy,
    RegistryEntry,
    ReviewVisit,
    Thread,
    Track,
)
from promotion.services import tracks
from rollouts.hashing import canonical_bytes, sha256_bytes
from rollouts.models import AuditEvent, Backend, BaseModel, Case, EvalRun, Rollout, Subject, Suite
from tests import factories
from tests.web.conftest import signed_in

pytestmark = pytest.mark.django_db
FEW, MANY = 10, 1_000
Grow = Callable[[factories.House, range], None]


def hexes(n: int, kind: str) -> str:
    return f"{n:08x}{kind.encode().hex():0<56}"[:64]


def run_values(house: factories.House, n: int) -> dict[str, Any]:
    now = timezone.now()
    subject, _ = Subject.objects.get_or_create(
        digest=hexes(n % 7, "subject"), defaults={"base": house.base, "sampling": {}, "created_at": now}
    )
    return {
        "uid": uuid.UUID(int=n + 1),
        "subject": subject,
        "suite": house.suite,
        "backend": house.backend,
        "label": f"grown {n}",
        "state": "scored",
        "plan_digest": "0" * 64,
        "suite_digest": house.suite.digest,
        "planned": 4,
        "scored": 4,
        "masked": 0,
        "unscored": 0,
        "cancelled": 0,
        "created_by": house.engineer,
        "created_at": now,
        "finished_at": now,
    }


def grow_runs(house: factories.House, numbers: range) -> None:
    EvalRun.objects.bulk_create(EvalRun(**run_values(house, n)) for n in numbers)


def candidates(house: factories.House, numbers: range, state: str = "in_review") -> list[Candidate]:
    first = Candidate.objects.get(name="first")
    return Candidate.objects.bulk_create(
        Candidate(
            track=house.track,
            name=f"grown-{n}",
            base=house.base,
            adapter_config=first.adapter_config,
            adapter_weights=first.adapter_weights,
            adapter_source_sha256=hexes(n, "source"),
            state=state,
            gguf=first.gguf,
            verification=factories.VERIFIED,
            submitted_by=house.engineer,
            created_at=timezone.now(),
        )
        for n in numbers
    )


def grow_candidates(house: factories.House, numbers: range) -> None:
    candidates(house, numbers, "blocked")


def grow_reviews(house: factories.House, numbers: range) -> None:
    """Candidates in review, each with evidence: what the home page weighs for every approver."""
    model = Evidence.objects.get(candidate__name="measured")
    rows = []
    for candidate in candidates(house, numbers):
        document = evidence_module.document_of(model)
        document["candidate"]["name"] = candidate.name
        data = canonical_bytes(document)
        rows.append(
            Evidence(
                candidate=candidate,
                policy=model.policy,
                digest=sha256_bytes(data),
                document=data,
                created_at=timezone.now(),
            )
        )
    Evidence.objects.bulk_create(rows)


def grow_visits(house: factories.House, numbers: range) -> None:
    """Candidates in review that everybody looked at before their evidence changed."""
    grow_reviews(house, numbers)
    before = Evidence.objects.get(candidate__name="measured")
    ReviewVisit.objects.bulk_create(
        ReviewVisit(candidate=candidate, person=person, evidence=before, seen_at=timezone.now())
        for candidate in Candidate.objects.filter(name__in=[f"grown-{n}" for n in numbers])
        for person in (house.approver, house.engineer)
    )


def grow_threads(house: factories.House, numbers: range) -> None:
    candidate, now = Candidate.objects.get(name="measured"), timezone.now()
    threads = Thread.objects.bulk_create(
        Thread(
            candidate=candidate,
            anchor="page",
            anchor_label=f"row {n}",
            anchor_digest="0" * 64,
            evidence_digest="0" * 64,
            started_by=house.approver,
            started_at=now,
        )
        for n in numbers
    )
    Comment.objects.bulk_create(
        Comment(thread=thread, text="Why?", written_by=person, written_at=now)
        for thread in threads
        for person in (house.approver, house.approver_2)
    )


def grow_disputes(house: factories.House, numbers: range) -> None:
    grow_cases(house, numbers)
    candidate, free = Candidate.objects.get(name="measured"), Case.objects.order_by("-id")[: len(numbers)]
    Dispute.objects.bulk_create(
        Dispute(
            candidate=candidate,
            case=case,
            evidence_digest="0" * 64,
            expected_before={},
            expected_after={},
            reason="It was renamed.",
            raised_by=house.approver_2,
            raised_at=timezone.now(),
        )
        for case in free
    )


def grow_entries(house: factories.House, numbers: range) -> None:
    now, first = timezone.now(), RegistryEntry.objects.get(number=1)
    entries = RegistryEntry.objects.bulk_create(
        RegistryEntry(
            track=house.track,
            number=n + 2,
            candidate=candidate,
            gguf=first.gguf,
            evidence=first.evidence,
            record=first.record,
            created_at=now,
        )
        for n, candidate in zip(numbers, candidates(house, numbers, "promoted"), strict=True)
    )
    Export.objects.bulk_create(
        Export(entry=entry, name=f"{entry.pk}.gguf", artifact=first.gguf, manifest={}, published_at=now)
        for entry in entries
    )
    AliasMove.objects.bulk_create(
        AliasMove(track=house.track, name="champion", old=first, new=entry, reason="r", moved_at=now)
        for entry in entries
    )


def grow_tracks(house: factories.House, numbers: range) -> None:
    Track.objects.bulk_create(
        Track(name=f"track-{n}", purpose="p", created_at=timezone.now()) for n in numbers
    )


def grow_policies(house: factories.House, numbers: range) -> None:
    now = timezone.now()
    Policy.objects.bulk_create(
        Policy(
            track=house.track,
            version=n + 2,
            document=house.policy.document,
            digest=hexes(n, "policy"),
            created_at=now,
            created_by=house.administrator,
            locked_at=now,
            locked_by=house.administrator,
        )
        for n in numbers
    )


def grow_suites(house: factories.House, numbers: range) -> None:
    Suite.objects.bulk_create(
        Suite(
            name=f"suite-{n}",
            version=1,
            digest=hexes(n, "suite"),
            scorer="decision",
            case_count=1,
            sealed_at=timezone.now(),
            sealed_by=house.engineer,
        )
        for n in numbers
    )


def grow_cases(house: factories.House, numbers: range) -> None:
    content = Case.objects.filter(suite=house.suite).first().content  # type: ignore[union-attr]
    Case.objects.bulk_create(
        Case(
            suite=house.suite,
            position=n + 1000,
            key=f"grown-{n}",
            family=f"family-{n % 9}",
            content=content,
            expects_call=True,
            digest=hexes(n, "case"),
        )
        for n in numbers
    )


def grow_backends(house: factories.House, numbers: range) -> None:
    rows = []
    for n in numbers:
        values = {"kind": "llama_cpp", "config": {}, "concurrency": 1, "timeout_s": 1, "max_attempts": 1}
        values |= {"digest": hexes(n, "backend"), "created_at": timezone.now(), "created_by": house.engineer}
        rows += [
            Backend(name="local", revision=n + 2, **values),
            Backend(name=f"backend-{n}", revision=1, **values),
        ]
    Backend.objects.bulk_create(rows)


def grow_bases(house: factories.House, numbers: range) -> None:
    from rollouts.models import Artifact

    now = timezone.now()
    files = Artifact.objects.bulk_create(
        Artifact(sha256=hexes(n, "base"), size_bytes=1, created_at=now) for n in numbers
    )
    BaseModel.objects.bulk_create(
        BaseModel(
            name=f"base-{n}",
            artifact=file,
            architecture="llama",
            header={},
            chat_template_sha256="0" * 64,
            created_at=now,
            created_by=house.engineer,
        )
        for n, file in zip(numbers, files, strict=True)
    )


def grow_events(house: factories.House, numbers: range) -> None:
    subject = Candidate.objects.get(name="measured")
    AuditEvent.objects.bulk_create(
        AuditEvent(
            sequence=n + 10_000,
            at_us=1,
            actor="user:x",
            action="candidate.judged",
            data=b"{}",
            subject_type="promotion.Candidate",
            subject_id=str(subject.pk),
            subject_label="x",
            previous_hash=hexes(n, "previous"),
            hash=hexes(n, "hash"),
        )
        for n in numbers
    )


def grow_rollouts(house: factories.House, numbers: range) -> None:
    """More samples of the measured run's cases: some wrong, some masked, all of them in the evidence."""
    run = EvalRun.objects.get(label="measured")
    cases = list(house.suite.cases.all())
    rows = []
    for n in numbers:
        case, wrong = cases[n % len(cases)], n % 3 == 0
        values: dict[str, Any] = {
            "state": "scored",
            "answer": "{}",
            "json_valid": True,
            "decision": not wrong,
        }
        values |= {
            "exact": not wrong,
            "latency_ms": float(n),
            "tool" if case.expects_call else "safe": not wrong,
        }
        if n % 5 == 0:
            values = {"state": "masked", "failure_kind": ("server", "timeout")[n % 2]}
        rows.append(Rollout(run=run, case=case, sample_index=n // len(cases) + 1, **values))
    Rollout.objects.bulk_create(rows)


def grow_calls(house: factories.House, numbers: range) -> None:
    from rollouts.models import Claim, Invocation, ModelCall
    from tests.web.world import payload

    now, rollout = timezone.now(), Rollout.objects.filter(run__label="measured").order_by("id")[0]
    claims = Claim.objects.bulk_create(
        Claim(run=rollout.run, worker="w", created_at=now, lease_expires_at=now, ended_at=now)
        for _ in numbers
    )
    invocations = Invocation.objects.bulk_create(
        Invocation(rollout=rollout, claim=claim, state="finished", started_at=now) for claim in claims
    )
    body = payload(b"{}")
    ModelCall.objects.bulk_create(
        ModelCall(
            invocation=invocation,
            dialect="d",
            state="answered",
            status=200,
            request=body,
            response=body,
            created_at=now,
        )
        for invocation in invocations
    )


def grow_approvals(house: factories.House, numbers: range) -> None:
    evidence = Evidence.objects.exclude(policy=None).get()
    Approval.objects.bulk_create(
        Approval(
            candidate=evidence.candidate,
            evidence=evidence,
            evidence_digest=hexes(n, "old"),
            comment="c",
            approver=house.approver_2,
            printed_name="A",
            role="approver",
            decision="request_changes",
            method="password",
            authenticated_at=timezone.now(),
            signed_at=timezone.now(),
        )
        for n in numbers
    )


def review(house: factories.House) -> str:
    return reverse("promotion:candidate", args=[Candidate.objects.get(name="measured").pk])


def run_page(name: str) -> Callable[[factories.House], str]:
    return lambda house: reverse(f"rollouts:{name}", args=[EvalRun.objects.get(label="measured").pk])


def named(name: str, *arguments: Any) -> Callable[[factories.House], str]:
    return lambda house: reverse(name, args=arguments)


PAGES: list[tuple[str, Grow, Callable[[factories.House], str]]] = [
    ("home, candidates in review", grow_reviews, named("promotion:home")),
    ("home, reviews seen before", grow_visits, named("promotion:home")),
    ("home, threads", grow_threads, named("promotion:home")),
    ("home, disputes", grow_disputes, named("promotion:home")),
    ("home, own candidates", grow_candidates, named("promotion:home")),
    ("home, runs", grow_runs, named("promotion:home")),
    ("home, tracks", grow_tracks, named("promotion:home")),
    ("home, events", grow_events, named("promotion:home")),
    ("tracks", grow_tracks, named("promotion:tracks")),
    ("track, candidates", grow_candidates, named("promotion:track", "toolcaller")),
    ("track, policies", grow_policies, named("promotion:track", "toolcaller")),
    ("track, champions", grow_entries, named("promotion:track", "toolcaller")),
    ("candidates", grow_candidates, named("promotion:candidates")),
    ("candidates, judged", grow_reviews, named("promotion:candidates")),
    ("policies", grow_policies, named("promotion:policies")),
    ("policy", grow_suites, named("promotion:policy", "toolcaller", 1)),
    ("review, rollouts", grow_rollouts, review),
    ("review, events", grow_events, review),
    ("review, signatures", grow_approvals, review),
    ("review, cases of the suite", grow_cases, review),
    ("registry", grow_entries, named("promotion:registry")),
    ("entry", grow_entries, named("promotion:entry", "toolcaller", 1)),
    ("audit", grow_events, named("promotion:audit")),
    ("runs", grow_runs, named("rollouts:runs")),
    ("run", grow_rollouts, run_page("run")),
    ("rollouts", grow_rollouts, run_page("rollouts")),
    (
        "rollout",
        grow_calls,
        lambda house: reverse(
            "rollouts:rollout", args=[Rollout.objects.filter(run__label="measured").order_by("id")[0].pk]
        ),
    ),
    ("suites", grow_suites, named("rollouts:suites")),
    ("suite", grow_cases, named("rollouts:suite", "named", 1)),
    ("backends", grow_backends, named("rollouts:backends")),
    ("backend", grow_backends, named("rollouts:backend", "local")),
    ("base models", grow_bases, named("rollouts:bases")),
]


HIDING = ("home, events", "tracks", "candidates, judged", "policies", "registry", "audit", "runs")


def queries(client: Client, address: str) -> int:
    client.get(address)
    with CaptureQueriesContext(connection) as captured:
        response = client.get(address)
    assert response.status_code == 200
    return len(captured)


CASES = [
    pytest.param(*page, person, id=f"{page[0]}, {person}")
    for page in PAGES
    for person in ("approver", "engineer")
    # other pages look the same to everyone
    if person == "approver" or page[0].startswith(("home", "review"))
]
# what a person may not see is left out of the question, for those who do not see everything
CASES += [
    pytest.param(*page, "stranger", id=f"{page[0]}, with a hidden track")
    for page in PAGES
    if page[0] in HIDING
]


def _person(house: factories.House, name: str) -> User:
    if name != "stranger":
        return getattr(house, name)
    hidden = tracks.create(name="hidden", purpose="p", by=house.administrator, readers=["auditor"])
    assert hidden.readers.exists()
    return house.engineer


@pytest.mark.parametrize(("page", "grow", "address", "person"), CASES)
def test_the_number_of_queries_does_not_grow(
    house: factories.House, page: str, grow: Grow, address: Callable[[factories.House], str], person: str
) -> None:
    house.evaluated("measured", wrong=2, masked=1)
    client, where = signed_in(_person(house, person)), address(house)
    grow(house, range(FEW))
    few = queries(client, where)
    grow(house, range(FEW, MANY))
    many = queries(client, where)
    assert many == few, f"{page}: {few} queries for {FEW} rows, {many} for {MANY}"
    assert few <= 50
