#!/usr/bin/env python
"""Django's command line for Assay."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "promotion.settings")
    try:
        from django.core.management import execute_from_command_line
    except ImportError as error:
        raise SystemExit("Django is not installed here. Run: pip install '.[local]'") from error
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
