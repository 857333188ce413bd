"""Simulates candidates that must not be promoted, under the default policy and under the seed's rules, on the same draws.

Prints a Markdown table of the shares that were promoted, each with its exact two-sided 95 % limits. Fails where the exact
one-sided 95 % lower limit of a share under the default policy is above alpha.
"""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from promotion import simulation
from promotion.management.tables import markdown_table
from promotion.simulation import Share, Simulated


class Command(BaseCommand):
    help = __doc__
    requires_system_checks = []  # it needs no database

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--draws", type=_draws, default=20_000, help="series of looks for each row; at least 100"
        )
        parser.add_argument("--seed", type=int, default=1)

    def handle(self, *, draws: int, seed: int, **_: Any) -> None:
        try:
            results = list(simulation.simulate(draws, seed))
        except simulation.Disagreement as found:
            raise CommandError(f"The gates decide otherwise than the simulation: {found}") from found
        self.stdout.write(
            f"{draws} draws a row, seed {seed}. {sum(result.judged for result in results)} of the candidates were judged "
            "by the gates themselves too, on evidence of format 2: all alike.\n\n"
        )
        head = [
            "candidate",
            "promoted by the default policy",
            f"at most {simulation.ALPHA}",
            "promoted by the seed's rules",
        ]
        for group in dict.fromkeys(result.scenario.group for result in results):
            rows = [_row(result) for result in results if result.scenario.group == group]
            self.stdout.write(f"{markdown_table([group, *head[1:]], rows)}\n\n")
        broken = [result.scenario.what for result in results if not result.holds]
        if broken:
            raise CommandError(f"More than {simulation.ALPHA} were promoted: {'; '.join(broken)}.")


def _row(result: Simulated) -> list[str]:
    holds = ("yes" if result.holds else "NO") if result.scenario.wrong else ""
    return [result.scenario.what, _shown(result.ours), holds, _shown(result.seed)]


def _shown(share: Share) -> str:
    low, high = share.limits
    return f"{share.rate:.4f} ({low:.4f} to {high:.4f})"


def _draws(text: str) -> int:
    if not text.isdecimal() or int(text) < 100:
        raise argparse.ArgumentTypeError("must be a whole number of at least 100")
    return int(text)
