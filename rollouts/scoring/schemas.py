"""Whether arguments satisfy a JSON schema, in a time that grows with their length and no faster."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend
from referencing import Registry

# A schema that refers to itself in two alternatives takes time exponential in the depth of what it checks.
MAX_REFERENCES = 20_000

_references_left: ContextVar[list[int]] = ContextVar("references_left")


class _TooManyReferences(Exception):
    """The check followed `MAX_REFERENCES` references and was given up."""


def schema_accepts(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """Whether the arguments satisfy a JSON schema (2020-12), which must be valid. Never fetches a reference.

    Arguments that validation runs out of stack on, or out of `MAX_REFERENCES`, do not satisfy it.
    """
    token = _references_left.set([MAX_REFERENCES])
    try:
        # An explicit registry: the default one would load unknown references over the network.
        return bool(_Validator(schema, registry=Registry()).is_valid(arguments))
    except (RecursionError, _TooManyReferences):
        return False
    finally:
        _references_left.reset(token)


def _counted(keyword: str) -> Callable[..., Iterator[ValidationError]]:
    follow = Draft202012Validator.VALIDATORS[keyword]

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        left = _references_left.get()
        left[0] -= 1
        if left[0] < 0:
            raise _TooManyReferences
        yield from follow(validator, value, instance, schema) or ()

    return check


def _unique(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """The library compares each item with each where items have several types."""
    if wanted and isinstance(instance, list) and len({_frozen(item) for item in instance}) < len(instance):
        yield ValidationError("items are not unique")


def _frozen(value: Any) -> Hashable:
    """A hashable stand-in, equal for equal JSON values: 1 is 1.0 and not true."""
    if isinstance(value, bool):
        return "bool", value
    if isinstance(value, list):
        return "list", tuple(map(_frozen, value))
    if isinstance(value, dict):
        return "dict", frozenset((key, _frozen(item)) for key, item in value.items())
    return value  # type: ignore[no-any-return]


_Validator = extend(
    Draft202012Validator,
    {"$ref": _counted("$ref"), "$dynamicRef": _counted("$dynamicRef"), "uniqueItems": _unique},
)
