"""Web and worker in one foreground command, for daily use on one machine."""

from __future__ import annotations

import signal
import sys
import time
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser

from promotion.services import people
from promotion.supervisor import WORKER, Child


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--bind", default="127.0.0.1:8000", help="address and port of the web server")

    def handle(self, *, bind: str, **_: Any) -> None:
        call_command("migrate", verbosity=0)
        people.ensure_roles()
        web = [
            *(sys.executable, "-m", "gunicorn", "promotion.wsgi:application", "--bind", bind),
            *("--workers", "1", "--threads", "8", "--access-logfile", "-"),
        ]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        children = [Child("web server", web), Child("worker", WORKER)]
        self.stdout.write(f"Assay is at http://{bind}/ (Ctrl-C ends it)")
        try:
            while True:
                for child in children:
                    if child.keep_alive():
                        self.stderr.write(f"The {child.name} had ended and was started again.")
                time.sleep(1)
        except KeyboardInterrupt:
            self.stdout.write("Stopping.")
        except RuntimeError as error:
            raise CommandError(str(error)) from error
        finally:
            for child in children:
                child.stop()
