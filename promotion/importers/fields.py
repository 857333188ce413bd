"""Values of foreign JSON, taken one by one; what is wrong becomes a finding with its file and its field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

DIGEST = re.compile(r"[0-9a-f]{64}")
MAX_TEXT = 20_000
_MISSING = object()


class Finding(NamedTuple):
    """Why something cannot be read. `field` is the dotted path in the file, "" for the file as a whole."""

    file: str
    field: str
    says: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.field, self.says) if part)


class Fields:
    """An object of a file. Each getter gives the value, or None and a finding where it is of another kind.

    A key that is not there, or is null, gives None; with `needed` that is a finding too.
    """

    def __init__(self, value: Any, file: str, findings: list[Finding], path: str = "") -> None:
        self.file, self.findings, self.path = file, findings, path
        if not isinstance(value, dict):
            self.wrong("", "is no JSON object.")
            value = {}
        self.value: dict[str, Any] = value

    def wrong(self, key: str, says: str) -> None:
        self.findings.append(Finding(self.file, ".".join(part for part in (self.path, key) if part), says))

    def _at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def _given(self, key: str, needed: bool) -> Any:
        value = self.value.get(key)
        if value is not None:
            return value
        if needed:
            self.wrong(key, "is null; it must be given." if key in self.value else "is missing.")
        return _MISSING

    def text(self, key: str, *, needed: bool = False) -> str | None:
        value = self._given(key, needed)
        if value is _MISSING:
            return None
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            self.wrong(key, f"must be text of at most {MAX_TEXT} characters, not {_shown(value)}.")
            return None
        return value

    def digest(self, key: str, *, needed: bool = False) -> str | None:
        value = self._given(key, needed)
        if value is _MISSING:
            return None
        if not isinstance(value, str) or not DIGEST.fullmatch(value):
            self.wrong(key, f"must be a SHA-256 of 64 small hex digits, not {_shown(value)}.")
            return None
        return value

    def rate(self, key: str, *, needed: bool = False) -> str | None:
        """A number of the 0-1 scale as a decimal string, with the digits that the file gives."""
        value = self._given(key, needed)
        if value is _MISSING:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            self.wrong(key, f"must be a number from 0 to 1, not {_shown(value)}.")
            return None
        return decimal_text(value)

    def whole(self, key: str, *, needed: bool = False) -> int | None:
        value = self._given(key, needed)
        if value is _MISSING:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self.wrong(key, f"must be a whole number of 0 or more, not {_shown(value)}.")
            return None
        return value

    def flag(self, key: str, *, needed: bool = False) -> bool | None:
        value = self._given(key, needed)
        if value is _MISSING:
            return None
        if not isinstance(value, bool):
            self.wrong(key, f"must be true or false, not {_shown(value)}.")
            return None
        return value

    def moment(self, key: str, *, needed: bool = False) -> str | None:
        """A UTC time "2026-08-04T19:52:18Z", as it stands."""
        value = self.text(key, needed=needed)
        if value is None:
            return None
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            moment = None
        if moment is None or moment.utcoffset() is None:
            self.wrong(key, f"must be a time with its zone, as 2026-08-04T19:52:18Z, not {value[:40]!r}.")
            return None
        return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def object(self, key: str, *, needed: bool = False) -> Fields | None:
        value = self._given(key, needed)
        return None if value is _MISSING else Fields(value, self.file, self.findings, self._at(key))

    def rows(self, key: str) -> list[Fields]:
        """The objects of a list; none where it is not there."""
        value = self._given(key, needed=False)
        if value is _MISSING:
            return []
        if not isinstance(value, list):
            self.wrong(key, f"must be a list, not {_shown(value)}.")
            return []
        found = enumerate(value)
        return [Fields(row, self.file, self.findings, f"{self._at(key)}.{index}") for index, row in found]

    def texts(self, key: str) -> list[str] | None:
        """A list of texts, or None where it is not there."""
        value = self._given(key, needed=False)
        if value is _MISSING:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.wrong(key, "must be a list of texts.")
            return None
        return value

    def rates(self, key: str) -> dict[str, str]:
        """An object of name -> rate, sorted by name."""
        found = self.object(key)
        if found is None:
            return {}
        taken = {name: found.rate(name, needed=True) for name in sorted(found.value)}
        return {name: rate for name, rate in taken.items() if rate is not None}

    def items(self) -> Iterator[tuple[str, Any]]:
        """Keys and values without comments, whose keys begin with an underscore."""
        return ((key, value) for key, value in self.value.items() if not key.startswith("_"))


def decimal_text(value: int | float) -> str:
    """0.9 -> "0.9"; never an exponent."""
    return format(Decimal(repr(value)), "f")


def _shown(value: Any) -> str:
    return (
        "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)[:60]
    )
