"""Amends what a sealed case expects, for every run of its suite. There is no way to set the score of one rollout.

What the model is shown stays as it was sealed: an amendment that would change it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from rollouts import audit
from rollouts.amendments import content_now, expected_now
from rollouts.engine.dialogue import prompt_of
from rollouts.errors import Conflict, InvalidInput
from rollouts.hashing import sha256_json
from rollouts.models import Amendment, Case, EvalRun, RolloutState, RunState, Suite
from rollouts.scoring.decision import json_equal
from rollouts.services import rescoring, runs
from rollouts.services.rescoring import Rescored
from rollouts.suite_format import EXPECTED_KEYS, Expectation, read_expectation


def read_amended(case: Case, expected: Any) -> Expectation:
    """Another expectation of the case, as it would be kept. Its suite is selected along with it.

    Raises `Conflict` where a judge scores the suite, `InvalidInput` where the case cannot expect this, expects it
    already, or would have to show the model something else.
    """
    scorer = case.suite.scorer
    if scorer not in EXPECTED_KEYS:
        raise Conflict(
            f"{case.suite} is scored by a judge, which is told what to look for; its cases expect nothing that could "
            "be amended. Seal another version of the suite."
        )
    key = EXPECTED_KEYS[scorer]
    try:
        read = read_expectation(scorer, case.content, expected)
    except InvalidInput as error:
        # by the name that it has for who proposes it, whichever scorer reads it
        message = error.message.removeprefix(f"{error.field}: ")
        raise InvalidInput(f"expected{error.field.removeprefix(key)}", message) from error
    if prompt_of(content_now(case.content, read.value)) != prompt_of(case.content):
        raise InvalidInput(
            "expected",
            "asks for other tools than the sealed checks, which the model is shown; keep the same tool_called checks.",
        )
    if json_equal(read.value, expected_now(case)):
        raise InvalidInput("expected", "must differ from what the case expects now.")
    return read


def would_score(case: Case, case_runs: Iterable[EvalRun], read: Expectation) -> dict[int, list[Rescored]]:
    """By id of each run, what its answers to the case would score. Writes nothing.

    A run comes with its subject, its suite and its backend. Raises `Conflict` where an answer cannot be read again.
    """
    return {run.pk: _score(run, case, read) for run in case_runs}


def amend(*, case_id: int, expected: Any, reason: str, proposed_by: User, accepted_by: User) -> Amendment:
    """Let a case expect something else, and score every answer to it in every closed run of its suite by that.

    A run that is open scores it so when it closes. Belongs into the transaction of whoever decides; raises `Conflict`
    where an answer cannot be scored again, and then nothing must be kept.
    """
    assert connection.in_atomic_block
    suite_id = Case.objects.values_list("suite_id", flat=True).get(pk=case_id)
    # under the suite's lock no run of it is closed; one that is planned meanwhile is scored as the case stands then
    Suite.objects.select_for_update(no_key=True).get(pk=suite_id)
    locked = EvalRun.objects.select_for_update(no_key=True, of=("self",)).filter(
        suite=suite_id, state=RunState.SCORED
    )
    closed = list(locked.select_related("backend", "subject", "suite").defer("overview").order_by("pk"))
    case = Case.objects.select_related("suite").get(pk=case_id)
    read = read_amended(case, expected)
    amendment = Amendment.objects.create(
        case=case,
        expected_before=expected_now(case),
        expected_after=read.value,
        reason=reason,
        proposed_by=proposed_by,
        accepted_by=accepted_by,
        created_at=timezone.now(),
    )
    case.amended_expected, case.expects_call = read
    case.save(update_fields=["amended_expected", "expects_call"])
    changed = {run: _write(run, case, read, amendment) for run in closed}
    _record(case, amendment, changed)
    return amendment


def _write(run: EvalRun, case: Case, read: Expectation, amendment: Amendment) -> int:
    changed = rescoring.write(_score(run, case, read), {case.pk: amendment.pk})
    # whatever became of the answers, another metric may apply to the case now
    runs.count_again(run)
    return changed


def _score(run: EvalRun, case: Case, read: Expectation) -> list[Rescored]:
    lost = run.rollouts.filter(case=case, state=RolloutState.SCORED, answered_by__isnull=True)
    if lost.exists():
        raise Conflict(f"Run {run.pk} has no captured answer to {case.key}: it cannot be scored again.")
    try:
        asker = runs.asker_of(run)
    except InvalidInput as error:
        raise Conflict(f"The answers of run {run.pk} cannot be read again: {error.message}") from error
    answered = runs.amended_answers(run, [case.pk])
    rows = rescoring.score_again(asker, answered, expecting={case.pk: read.value}) if answered else []
    for row in rows:
        if row.problem:
            raise Conflict(row.problem)
    return rows


def _record(case: Case, amendment: Amendment, changed: dict[EvalRun, int]) -> None:
    """Last, because it takes the chain's lock: one event for the case, one for each run that was scored again."""
    by = amendment.accepted_by
    for run, n in changed.items():
        audit.record("run.amended", subject=run, actor=by, amendment=amendment.pk, case=case.key, changed=n)
    audit.record(
        "case.amended",
        subject=case,
        actor=by,
        amendment=amendment.pk,
        suite=case.suite.digest,
        before=sha256_json(amendment.expected_before),
        after=sha256_json(amendment.expected_after),
        reason=amendment.reason,
        proposed_by=amendment.proposed_by.get_username(),
        runs=len(changed),
    )
