"""What test_worker_killed does under the worker's settings: python -m tests.chaos.plan_and_report VERB ..."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from typing import Any

import django


def plan(url: str, calls: str) -> dict[str, Any]:
    """A run of the scripted model, sent to the real broker."""
    from rollouts.services import runs
    from tests import factories

    engineer = factories.person("engineer", "engineer")
    run = runs.plan(
        subject=factories.remote_subject(),
        suite=factories.suite(engineer, calls=int(calls)),
        backend=factories.remote_backend(engineer, url, concurrency=4),
        by=engineer,
    )
    return {"run": run.pk}


def report() -> dict[str, Any]:
    """What the database says of the one run and of every call."""
    from promotion.audit.verify import verify_chain
    from promotion.management.commands.verify_audit import stored_events
    from rollouts.models import EvalRun, Invocation, ModelCall, Rollout

    run = EvalRun.objects.get()
    finished = Invocation.objects.filter(state="finished").values_list("rollout_id", flat=True)
    return {
        "counts": [run.planned, run.scored, run.masked, run.unscored, run.cancelled],
        "rollouts": Counter(Rollout.objects.values_list("state", flat=True)),
        "lost_workers": sorted(Rollout.objects.values_list("lost_workers", flat=True)),
        "finished": Counter(Counter(finished).values()),
        "calls": Counter(ModelCall.objects.values_list("request_id", flat=True)),
        "call_states": Counter(ModelCall.objects.values_list("state", flat=True)),
        "bad_event": verify_chain(stored_events()).bad_sequence,
    }


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "promotion.settings")
    django.setup()
    verb = {"plan": plan, "report": report}[sys.argv[1]]
    sys.stdout.write(json.dumps(verb(*sys.argv[2:])) + "\n")
