"""Which page a signature was given on: a digest of everything that lays the review page out."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from django.conf import settings

from rollouts.hashing import sha256_file, sha256_json

ROOT = "promotion/review*.html"
STYLE = Path(__file__).resolve().parents[1] / "static" / "promotion" / "review.css"
USES = re.compile(r"""\{%\s*(?:include|extends)\s+["']([^"']+)["']""")


@cache
def template_version() -> str:
    """SHA-256 of the names and bytes of the review's templates, what they include or extend, and their style."""
    folder = Path(settings.BASE_DIR) / "templates"
    waiting = sorted(path.relative_to(folder).as_posix() for path in folder.glob(ROOT))
    found: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = sha256_file(folder / name)
            waiting += USES.findall((folder / name).read_text(encoding="utf-8"))
    return sha256_json({**found, STYLE.name: sha256_file(STYLE)})
