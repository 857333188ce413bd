"""kill -9 of the embedded installation's worker in the middle of a run, three times, with the next one finishing it."""

from __future__ import annotations

import time

import pytest

from tests.chaos.conftest import Installation, assert_nothing_lost_or_doubled, patient_provider
from tests.engine.scripted import Reply, Seen, right

pytestmark = pytest.mark.chaos
CASES = 200


def slow(seen: Seen) -> Reply:
    time.sleep(0.1)
    return right(seen)


def test_a_run_whose_worker_is_killed_three_times_is_finished_by_the_next(embedded: Installation) -> None:
    with patient_provider(slow).running() as provider:
        embedded.plan(provider, CASES)
        for enough in (15, 75, 135):
            with embedded.worker(processes=2) as worker:
                provider.wait_for(enough, timeout_s=90)
                worker.kill()
        with embedded.worker(processes=2):
            embedded.wait_until_scored()
        found = embedded.script("report")

    assert_nothing_lost_or_doubled(found, provider, planned=CASES)
    assert set(found["call_states"]) == {"answered", "lost"}
    assert found["lost_claims"] >= 3
    assert 1 <= max(found["lost_workers"]) <= 2
