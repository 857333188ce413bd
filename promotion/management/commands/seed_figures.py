"""Judges the seed's third round, entered as counts, by all sixteen gates under its own thresholds."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from promotion import seed_figures
from promotion.gates import Outcome
from promotion.management.tables import markdown_table


class Command(BaseCommand):
    help = __doc__
    requires_system_checks = []  # it needs no database

    def handle(self, **_: Any) -> None:
        figures = list(seed_figures.figures())
        rows = [
            [str(number), figure.gate, "passed", str(figure.outcome), figure.reason, figure.note]
            for number, figure in enumerate(figures, 1)
        ]
        head = ["", "gate", "the seed", "Assay", "Assay's reason", "what the seed's check was"]
        passed = sum(figure.outcome is Outcome.PASSED for figure in figures)
        self.stdout.write(
            f"{markdown_table(head, rows)}\n\n{passed} of {len(figures)} pass; the seed passed all.\n\n"
        )
        self.stdout.write("This policy can be evaluated, not locked:\n")
        for reason in seed_figures.unlockable():
            self.stdout.write(f"- {reason}")
