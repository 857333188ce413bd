"""JSON from outside, read so strictly that no later layer meets a value it cannot store, hash or send on.

Refused, each with the path of the value: NaN and Infinity, a key that stands twice, integers beyond
2**53 - 1, numbers beyond a double, NUL characters, lone surrogates, and nesting deeper than `MAX_DEPTH`.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from rollouts.errors import InvalidInput

MAX_DEPTH = 64
MAX_SAFE_INTEGER = 2**53 - 1
MAX_INTEGER_DIGITS = 17


class _Refused(NamedTuple):
    """Stands where a literal cannot be used, until the walk knows its path."""

    why: str


class _Object(dict[str, Any]):
    doubled: str | None = None


def parse_json(data: bytes) -> Any:
    """Raises `InvalidInput` naming the field, or `body` where the text is not JSON at all."""
    try:
        value = json.loads(
            data.decode(),
            parse_constant=lambda literal: _Refused(
                f"{literal} is not a JSON number. Use null or leave it out."
            ),
            parse_int=_integer,
            parse_float=_float,
            object_pairs_hook=_object,
        )
    except UnicodeDecodeError as error:
        raise InvalidInput("body", f"is not UTF-8 (byte {error.start}).") from error
    except RecursionError as error:
        raise InvalidInput("body", f"is nested deeper than {MAX_DEPTH} levels.") from error
    except json.JSONDecodeError as error:
        raise InvalidInput(
            "body", f"is not JSON: {error.msg}, line {error.lineno} column {error.colno}."
        ) from error
    return _checked(value, "", 0)


def check_text(field: str, text: str) -> None:
    """Raises `InvalidInput` for characters that no database column takes."""
    if "\x00" in text:
        raise InvalidInput(field, "holds a NUL character.")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidInput(field, "holds a lone surrogate, which is no character.")


def _integer(literal: str) -> int | _Refused:
    if len(literal) <= MAX_INTEGER_DIGITS and abs(int(literal)) <= MAX_SAFE_INTEGER:
        return int(literal)
    return _Refused("is an integer beyond 2**53 - 1, which JSON readers do not agree on.")


def _float(literal: str) -> float | _Refused:
    number = float(literal)
    return number if math.isfinite(number) else _Refused("is beyond the largest double.")


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    found = _Object(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        found.doubled = next(key for key in keys if keys.count(key) > 1)
    return found


def _checked(value: Any, path: str, depth: int) -> Any:
    if isinstance(value, _Refused):
        raise InvalidInput(path or "body", value.why)
    if isinstance(value, str):
        check_text(path or "body", value)
    elif isinstance(value, dict | list):
        if depth == MAX_DEPTH:
            raise InvalidInput(path, f"is nested deeper than {MAX_DEPTH} levels.")
        if isinstance(value, list):
            return [_checked(item, _join(path, str(index)), depth + 1) for index, item in enumerate(value)]
        return _checked_object(value, path, depth)
    return value


def _checked_object(value: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
    doubled = value.doubled if isinstance(value, _Object) else None
    for key in value:
        check_text(_join(path, ascii(key)[1:-1][:80]), key)
    if doubled is not None:
        raise InvalidInput(_join(path, doubled[:80]), "stands twice in the same object.")
    return {key: _checked(item, _join(path, key[:80]), depth + 1) for key, item in value.items()}


def _join(path: str, part: str) -> str:
    return f"{path}.{part}" if path else part
