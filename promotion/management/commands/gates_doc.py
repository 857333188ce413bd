"""Writes docs/gates.md from the gates' own docstrings and parameters; `--check` fails where it is out of date."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from promotion.gates import GATES

HEAD = """# Gates

Written by `manage.py gates_doc` from the gates themselves. A policy lists gates in order, each with its parameters. A gate
sees only the evidence document and its parameters. Outcomes: `passed`, `failed`, `not_evaluated` (something was not
measured, or cases without a score decide it), `waived`, `error` (the gate itself failed). Only `passed` and `waived`
open the door. Counts are of distinct prompts. Bounds are one-sided: exact Clopper-Pearson limits, and for paired differences
Tango's score limits with an exact guard where nothing was won. Where a policy spends alpha, the k-th look at a suite is
judged at alpha / (k (k + 1)). Masked and unscored prompts are counted against the candidate before a gate passes, and for
it before a gate fails.
"""


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--check", action="store_true")

    def handle(self, *, check: bool, **_: Any) -> None:
        path = Path(settings.BASE_DIR) / "docs" / "gates.md"
        if not check:
            path.write_text(gates_markdown())
        elif not path.is_file() or path.read_text() != gates_markdown():
            raise CommandError("docs/gates.md is out of date. Run: python manage.py gates_doc")


def gates_markdown() -> str:
    parts = [HEAD]
    for name, gate in GATES.items():
        fields = [field for field in gate.params.model_fields if field != "gate"]
        parameters = ", ".join(f"`{field}`" for field in fields) or "none"
        about = inspect.cleandoc(gate.check.__doc__ or "")
        waivable = "" if gate.waivable else " It cannot be waived."
        parts.append(f"## {name}\n\n{about}\n\nParameters: {parameters}.{waivable}\n")
    return "\n".join(parts)
