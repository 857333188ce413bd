from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from rollouts.errors import AssayError
from rollouts.models import CallPurpose, EvalRun
from rollouts.services import transcripts


class Command(BaseCommand):
    help = "Write the captured model calls of a run as a transcript that a scripted backend can replay."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("run_id", type=int)
        parser.add_argument(
            "--purpose",
            choices=CallPurpose.values,
            default=str(CallPurpose.POLICY),
            help="whose calls: of the model under test (policy), or of the judge",
        )

    def handle(self, *, run_id: int, purpose: str, **_: Any) -> None:
        run = EvalRun.objects.filter(pk=run_id).first()
        if run is None:
            raise CommandError(f"There is no eval run {run_id}.")
        try:
            for row in transcripts.export(run, purpose=purpose):
                self.stdout.write(row)
        except AssayError as error:
            raise CommandError(error.message) from error
