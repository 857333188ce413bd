from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from promotion.audit.verify import verify_chain
from rollouts.audit import Fields
from rollouts.models import AuditEvent


class Command(BaseCommand):
    help = "Verify the audit chain and name the first row that does not hold."

    def handle(self, **_: Any) -> None:
        report = verify_chain(stored_events())
        if report.bad_sequence is not None:
            raise CommandError(f"The audit chain breaks at event {report.bad_sequence}: {report.reason}.")
        self.stdout.write(f"{report.events} events hold; head {report.head}")


def stored_events() -> Iterator[tuple[Fields, str]]:
    """Every event in order, read in batches."""
    rows = AuditEvent.objects.order_by("sequence").values_list(*Fields._fields, "hash")
    for *values, stored in rows.iterator(chunk_size=2000):
        fields = Fields(*values)
        yield fields._replace(data=bytes(fields.data)), stored
