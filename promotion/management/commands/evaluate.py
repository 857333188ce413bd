from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandError, CommandParser

from promotion.management.people import PersonCommand, track_named
from promotion.services import gating
from rollouts.models import Backend


class Command(PersonCommand):
    help = "Plan the eval runs that a candidate needs. Workers carry them out and the gates judge when all are closed."

    def arguments(self, parser: CommandParser) -> None:
        parser.add_argument("track")
        parser.add_argument("name")
        parser.add_argument("--backend", required=True)

    def run(self, by: User, *, track: str, name: str, backend: str, **_: Any) -> str:
        candidate = track_named(track).candidates.filter(name=name).first()
        if candidate is None:
            raise CommandError(f"{track} has no candidate {name}.")
        newest = Backend.objects.filter(name=backend).order_by("-revision").first()
        if newest is None:
            raise CommandError(f"--backend: there is no backend {backend}.")
        started = gating.start_evaluation(candidate_id=candidate.pk, backend=newest, by=by)
        return f"{len(started)} runs planned: {', '.join(str(run.pk) for run in started) or 'all were there already'}."
