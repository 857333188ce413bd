"""What chaos tests do under the workers' settings: python -m tests.chaos.plan_and_report VERB ..."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from typing import Any

import django


def plan(url: str, calls: str, concurrency: str) -> dict[str, Any]:
    """A run of the scripted model, sent to the real broker."""
    from rollouts.services import runs

    engineer, subject, suite, backend = _scene(url, int(calls), int(concurrency))
    run = runs.plan(subject=subject, suite=suite, backend=backend, by=engineer)
    return {"run": run.pk}


def prepare(url: str, calls: str, concurrency: str) -> dict[str, Any]:
    """What somebody needs who plans the run over the API."""
    from knox.models import AuthToken

    engineer, _, suite, backend = _scene(url, int(calls), int(concurrency))
    return {"token": AuthToken.objects.create(engineer)[1], "suite": suite.digest, "backend": backend.name}


def _scene(url: str, calls: int, concurrency: int) -> tuple[Any, ...]:
    from tests import factories

    engineer = factories.person("engineer", "engineer")
    return (
        engineer,
        factories.remote_subject(),
        factories.suite(engineer, calls=calls),
        # nothing may time out: a provider that keeps a request waits for a kill
        factories.remote_backend(engineer, url, concurrency=concurrency, timeout_s=120),
    )


def run_again() -> dict[str, Any]:
    """Queue again what the one run has no score for."""
    from django.contrib.auth.models import User

    from rollouts.models import EvalRun
    from rollouts.services import runs

    run = runs.run_again(run_id=EvalRun.objects.get().pk, by=User.objects.get(username="engineer"))
    return {"run": run.pk}


def report() -> dict[str, Any]:
    """What the database says of the one run and of every call."""
    from promotion.audit.verify import verify_chain
    from promotion.management.commands.verify_audit import stored_events
    from rollouts.models import AuditEvent, Claim, EvalRun, Invocation, ModelCall, Rollout

    run = EvalRun.objects.get()
    finished = Invocation.objects.filter(state="finished").values_list("rollout_id", flat=True)
    calls = ModelCall.objects.values_list("request_id", flat=True)
    return {
        "state": run.state,
        "counts": [run.planned, run.scored, run.masked, run.unscored, run.cancelled],
        "rollouts": Counter(Rollout.objects.values_list("state", flat=True)),
        "right": Rollout.objects.filter(exact=True).count(),
        "unscored": list(
            Rollout.objects.filter(state="unscored")
            .order_by("id")
            .values_list("case__key", "failure_kind", "lost_workers")
        ),
        "lost_workers": sorted(Rollout.objects.values_list("lost_workers", flat=True)),
        "finished": Counter(Counter(finished).values()),
        "invocations": Counter(Invocation.objects.values_list("state", flat=True)),
        "lost_claims": Claim.objects.filter(lost=True).count(),
        "calls": Counter(calls),
        "answered": Counter(calls.filter(state="answered")),
        "call_states": Counter(ModelCall.objects.values_list("state", flat=True)),
        "open": {
            "claims": Claim.objects.filter(ended_at__isnull=True).count(),
            "invocations": Invocation.objects.filter(state="running").count(),
            "calls": ModelCall.objects.filter(state="open").count(),
        },
        "closed": AuditEvent.objects.filter(action="run.scored").count(),
        "reopened": AuditEvent.objects.filter(action="run.reopened").count(),
        "bad_event": verify_chain(stored_events()).bad_sequence,
    }


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "promotion.settings")
    django.setup()
    verbs = {"plan": plan, "prepare": prepare, "run_again": run_again, "report": report}
    sys.stdout.write(json.dumps(verbs[sys.argv[1]](*sys.argv[2:])) + "\n")
