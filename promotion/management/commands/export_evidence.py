"""Writes a candidate's evidence, the gates' outcomes and the signatures as one file for `manage.py regate`."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from promotion.bundle import bundle_of
from promotion.models import Candidate, Evidence
from rollouts.errors import AssayError


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("candidate", help="TRACK/NAME, or a candidate's number")
        parser.add_argument(
            "--digest", default="", help="of an older evidence, or its beginning; default: the newest"
        )

    def handle(self, *, candidate: str, digest: str, **_: Any) -> None:
        rows = Evidence.objects.filter(candidate=_candidate(candidate), digest__startswith=digest)
        newest = rows.select_related("candidate").order_by("-id").first()
        if newest is None:
            of = f"evidence {digest}" if digest else "evidence yet: it is frozen when the candidate is judged"
            raise CommandError(f"{candidate} has no {of}.")
        try:
            self.stdout.write(json.dumps(bundle_of(newest), indent=1, sort_keys=True, ensure_ascii=False))
        except AssayError as error:
            raise CommandError(error.message) from error


def _candidate(name: str) -> Candidate:
    track, _, own = name.rpartition("/")
    wanted = {"pk": own} if not track and own.isdecimal() else {"track__name": track, "name": own}
    found = Candidate.objects.filter(**wanted).first()
    if found is None:
        raise CommandError(f"There is no candidate {name}. Name it TRACK/NAME, or by its number.")
    return found
