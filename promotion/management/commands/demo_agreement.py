"""Compares the demo's rollouts, case by case, with the results recorded beside the demo data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from promotion.demo import DATA
from rollouts.models import EvalRun, Rollout, RolloutState, RunState
from rollouts.scoring.decision import score

# suites made from another file's rows
RECORDED_AS = {"named_tools": "generalization"}
SHOWN = 10


class Command(BaseCommand):
    help = __doc__

    def handle(self, **_: Any) -> None:
        runs = EvalRun.objects.filter(state=RunState.SCORED, label__in=["r1", "r2", "r3"]).select_related(
            "suite"
        )
        if not runs:
            raise CommandError("No closed demo runs. Run first: python manage.py demo")
        for run in runs.order_by("label", "suite__name", "id"):
            self._compare(run)

    def _compare(self, run: EvalRun) -> None:
        name = RECORDED_AS.get(run.suite.name, run.suite.name)
        path = DATA / "results" / f"{run.label}.{name}.jsonl"
        recorded = {row["example_id"]: row for row in map(json.loads, path.read_text().splitlines())}
        same_text = same_decision = total = 0
        lines: list[str] = []
        for rollout in _scored(run):
            row = recorded[rollout.case.key]
            total += 1
            same_text += rollout.answer == row["raw_output"]
            ours, theirs = _decided(rollout, rollout.answer or ""), _decided(rollout, row["raw_output"])
            same_decision += ours == theirs
            if ours != theirs:
                lines.append(
                    f"    {rollout.case.key}: {rollout.answer!r} here, {row['raw_output']!r} recorded"
                )
        self.stdout.write(
            f"{run.label} on {run.suite.name}: decision and tool agree on {same_decision} of {total} cases, "
            f"the whole text on {same_text}"
        )
        self.stdout.write("\n".join(lines[:SHOWN]), ending="\n" if lines else "")


def _scored(run: EvalRun) -> Iterator[Rollout]:
    rollouts = Rollout.objects.filter(run=run, state=RolloutState.SCORED, sample_index=0)
    return rollouts.select_related("case").order_by("case__position").iterator()


def _decided(rollout: Rollout, answer: str) -> tuple[Any, Any]:
    content = rollout.case.content
    found = score(expected=content["expected"], tools=content["tools"], answer=answer, finish_reason="stop")
    return (
        (found.proposal.decision, found.proposal.tool) if found.proposal else (str(found.answer_class), None)
    )
