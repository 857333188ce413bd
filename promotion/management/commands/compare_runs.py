"""Write down what review pages show of two runs, for evidence that an earlier release judged."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from promotion import comparing
from promotion import evidence as evidence_module
from promotion.models import Evidence
from rollouts.services import comparisons


class Command(BaseCommand):
    help = (
        "Write the comparisons of evidence that was judged before they were kept, so that the review pages of ended "
        "candidates show their cases again. Runs whose scores changed since are left out. Safe to run again."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        written = 0
        for evidence in Evidence.objects.filter(basis_digest=None).iterator(chunk_size=20):
            pairs = comparing.missing_pairs(evidence_module.document_of(evidence))
            comparisons.write(pairs)
            written += len(pairs)
        self.stdout.write(f"{written} comparisons written.")
