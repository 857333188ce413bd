"""Text that a model, a provider or a stranger wrote, made safe to look at.

Nothing is removed: characters that a reader cannot see, or that change how their neighbours are read (control
and escape characters, zero-width and bidirectional ones, tags), are shown as ⟦U+202E⟧. One pass, no
backtracking.
"""

from __future__ import annotations

import codecs
import re
import zlib
from typing import NamedTuple

SHOWN_CHARS = 4_000
_NAMES = {0x00: "NUL", 0x07: "BEL", 0x08: "BS", 0x0D: "CR", 0x1B: "ESC", 0x7F: "DEL"}
# Tab and line feed are layout and stay; CR is marked unless a line feed follows it.
_UNSEEN = re.compile(
    "\r(?!\n)|["
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # C0 and C1: ANSI escapes begin here
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb"
    "\ud800-\udfff\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "]"
)


class Shown(NamedTuple):
    """The part of a text that a page shows, and how much there is."""

    text: str
    total: int
    unit: str = "characters"

    @property
    def cut(self) -> bool:
        return len(self.text) < self.total


def mark(character: str) -> str:
    """`\\u202e` becomes ⟦U+202E⟧."""
    code = ord(character)
    return f"⟦{_NAMES.get(code) or f'U+{code:04X}'}⟧"


def split_unseen(text: str) -> list[tuple[str, bool]]:
    """The text in pieces: (piece, whether it is a mark for an unseen character)."""
    pieces: list[tuple[str, bool]] = []
    at = 0
    for found in _UNSEEN.finditer(text):
        if found.start() > at:
            pieces.append((text[at : found.start()], False))
        pieces.append((mark(found.group()), True))
        at = found.end()
    if at < len(text):
        pieces.append((text[at:], False))
    return pieces


def plain(text: str) -> str:
    """The same in one string, for where no page can set the marks apart."""
    return "".join(piece for piece, _ in split_unseen(text))


def clip(text: str, limit: int = SHOWN_CHARS) -> Shown:
    return Shown(text[:limit], len(text))


def unpacked(data: bytes, size_bytes: int, limit: int | None = None) -> bytes:
    """A stored payload's bytes, at most `limit` of them: the rest is never decompressed."""
    return zlib.decompressobj().decompress(data, limit if limit is not None else max(1, size_bytes))


def body_shown(data: bytes, size_bytes: int, limit: int = SHOWN_CHARS) -> Shown:
    """The first `limit` bytes of a stored payload as text; bytes that are not UTF-8 become U+FFFD.

    Of the data its beginning is enough, as long as it holds `limit` bytes.
    """
    start = unpacked(data, size_bytes, limit)
    whole = size_bytes <= limit
    # a character that the limit cut in two is left out
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(start, final=whole)
    return Shown(text, len(text) if whole else size_bytes, "bytes")
