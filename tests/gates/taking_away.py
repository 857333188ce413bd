"""Places of a document, and copies without one of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document, outermost first."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from paths(item, (*path, key))


def without(doc: Any, path: tuple[Any, ...], *, null: bool) -> Any:
    """A copy in which the place is gone, or null. Only what lies on the path is copied."""
    copied = copy.copy(doc)
    if len(path) == 1:
        if null:
            copied[path[0]] = None
        else:
            del copied[path[0]]
    else:
        copied[path[0]] = without(doc[path[0]], path[1:], null=null)
    return copied
