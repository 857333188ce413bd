"""Names that stand in addresses and file names."""

from __future__ import annotations

import re

from rollouts.errors import InvalidInput

SLUG = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,58}[a-z0-9])?")


def require_slug(field: str, value: str) -> str:
    """Lower-case letters, digits, `-` and `_`, 1 to 60 characters. Raises `InvalidInput`."""
    if not isinstance(value, str) or not SLUG.fullmatch(value):
        raise InvalidInput(
            field,
            f"{value!r:.80} is not a name. Use 1 to 60 of a-z, 0-9, - and _, starting with a letter or digit.",
        )
    return value
