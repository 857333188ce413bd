"""The text marker `TOOL_CALL: name`, by which a model without tool calling says what it would call.

It shows an intent, never a call: a sentence that denies the call, or quotes it, holds the marker too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

MARKER = re.compile(r"\btool_call\s*:\s*", re.IGNORECASE)
DENIAL = re.compile(
    r"\b(?:not|never|no|without|cannot|nor|neither|avoid|refuse|instead of|[a-z]+n['’]t)\b", re.IGNORECASE
)
SENTENCE_END = re.compile(r"[.!?](?:\s|$)|\n")
# a sentence's start is looked for no further back
SENTENCE_CHARS = 300


def called_tools(text: str, names: Iterable[str]) -> list[str]:
    """The tools that markers in the text name, in order and as often as they do, each as `names` writes it.

    The name ends at a word boundary and its case does not matter. Where two names fit one marker it is the longer:
    `TOOL_CALL: search-web` is search-web, and search only where that is no tool.
    """
    return [name for _, name in _found(text, names)]


def only_denied(text: str, name: str) -> bool:
    """Whether each marker of the tool stands in a sentence that denies the call; False where there is none."""
    places = [start for start, _ in _found(text, [name])]
    return bool(places) and all(DENIAL.search(_sentence_before(text, start)) for start in places)


def _found(text: str, names: Iterable[str]) -> Iterator[tuple[int, str]]:
    longest_first = sorted(dict.fromkeys(names), key=len, reverse=True)
    if not longest_first:
        return
    any_name = re.compile(
        rf"(?:{'|'.join(f'({re.escape(name)})' for name in longest_first)})\b", re.IGNORECASE
    )
    for marker in MARKER.finditer(text):
        if named := any_name.match(text, marker.end()):
            assert named.lastindex is not None
            yield marker.start(), longest_first[named.lastindex - 1]


def _sentence_before(text: str, end: int) -> str:
    before = text[max(0, end - SENTENCE_CHARS) : end]
    ends = [match.end() for match in SENTENCE_END.finditer(before)]
    return before[ends[-1] :] if ends else before
